"""The messages of a state table's two rounds, and the columns of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidemark.formats.table.state_ledger import Leaf, Truncation
from tidemark.intervals import Intervals
from tidemark.planning.common import Key
from tidemark.store import StoreOptions
from tidemark.topics import TopicSettings

LEAF_BYTES: Final = 32 << 20
"""The size of a leaf: so much is written again for one changed key, and so much is read to find one."""


class StoredFileName(NamedTuple):
    """A file of the lake: its key and size."""

    key: str
    size: int


class StoppingRecord(NamedTuple):
    """A record at which the state stops: its (incarnation, partition, offset), and what it does."""

    place: tuple[int, int, int]
    rule: str


@dataclass(frozen=True, slots=True)
class StateJob:
    """The parts of a run that all its tasks share.

    ``bounds`` are the offsets ``[from, to)`` of each partition whose rows the first round takes; other partitions have
    no new rows. Of keys with a hash in one of the buckets ``again`` it takes the rows below, too. ``runs`` are the
    first round's files, ``root`` is the state table's folder. Records of the state at ``removed`` offsets do not count.
    If ``audited``, the audit's own rule tells what rows do. Records before ``truncated`` do not count. A leaf has about
    ``leaf`` bytes.
    """

    topic: TopicSettings
    lake_store: str
    options: StoreOptions
    attempt: int
    root: str
    run_folder: str
    reserve_folder: str
    bounds: dict[Key, tuple[int, int]]
    audited: bool = False
    truncated: Truncation | None = None
    runs: tuple[StoredFileName, ...] = ()
    again: frozenset[int] = frozenset()
    removed: Mapping[Key, Intervals] = field(default_factory=dict)
    leaf: int = LEAF_BYTES


class NewestTask(NamedTuple):
    """Files of the topic's table, of which the first round makes runs, whose names begin with ``number``.

    Of ``replayed`` files all rows are taken, also those below the bounds.
    """

    number: int
    files: tuple[StoredFileName, ...]
    replayed: bool = False


SPLIT_AT: Final = 2
"""A leaf whose rows take this multiple of its size in memory becomes two."""

BUCKET_BITS: Final = 12
"""Bits of a hash that name the *bucket* of a key: by buckets, runs tell which leaves they touch."""


class SortedRuns(NamedTuple):
    """The runs that a task of the first round wrote; none if it found no row.

    ``keyless`` rows have no key; the values of those ``passed_over`` name no operation that the envelope knows.

    The runs take ``memory`` bytes when they are read; ``buckets`` are those of their keys. ``stop`` is the first record
    at which the state stops, ``missing`` the key of a file that was not there, at which the task ended. ``truncations``
    are those of the rows.
    """

    files: tuple[StoredFileName, ...]
    rows: int
    memory: int
    read: int
    keyless: int
    passed_over: int
    buckets: frozenset[int]
    stop: StoppingRecord | None = None
    missing: str | None = None
    truncations: tuple[Truncation, ...] = ()


class LeafTask(NamedTuple):
    """The leaf ``prefix`` to make of the ``old`` leaves of these keys, and of the runs: several if it is too large."""

    prefix: str
    old: tuple[Leaf, ...]


class MadeLeaves(NamedTuple):
    """The leaves that a task made; ``lost_keys`` had a removed record, and the table has no older one in its place."""

    leaves: list[Leaf]
    lost_keys: int
