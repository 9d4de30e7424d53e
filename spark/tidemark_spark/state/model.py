"""The messages of a state table's two rounds, and the columns of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tidemark.decode import SCHEMA
from tidemark.errors import ConfigError
from tidemark.formats.table.state_ledger import RECORD, Leaf
from tidemark.intervals import Intervals
from tidemark.planning.common import Key
from tidemark.store import StoreOptions
from tidemark.topics import TopicSettings
from tidemark_spark.convert.partition_columns import topic_parser
from tidemark_spark.state.last_records import DELETED, HASH

OP: Final = "op"
AFTER: Final = "after"
"""The columns of Debezium's envelope, as the topic's parser makes them."""


class StoredFileName(NamedTuple):
    """A file of the lake: its key and size."""

    key: str
    size: int


@dataclass(frozen=True, slots=True)
class StateJob:
    """The parts of a run that all its tasks share.

    ``bounds`` are the offsets ``[from, to)`` of each partition whose rows the first round takes; other partitions have
    no new rows. Of keys with a hash in one of the buckets ``again`` it takes the rows below, too. ``runs`` are the
    first round's files, ``root`` is the state table's folder. Records of the state at ``removed`` offsets do not count.
    """

    topic: TopicSettings
    lake_store: str
    options: StoreOptions
    attempt: int
    root: str
    run_folder: str
    reserve_folder: str
    bounds: dict[Key, tuple[int, int]]
    runs: tuple[StoredFileName, ...] = ()
    again: frozenset[int] = frozenset()
    removed: Mapping[Key, Intervals] = field(default_factory=dict)


class NewestTask(NamedTuple):
    """Files of the topic's table, of which the first round makes run ``number``.

    Of ``replayed`` files all rows are taken, also those below the bounds.
    """

    number: int
    files: tuple[StoredFileName, ...]
    replayed: bool = False


BUCKET_BITS: Final = 12
"""Bits of a hash that name the *bucket* of a key: by buckets, runs tell which leaves they touch."""


class SortedRun(NamedTuple):
    """The file that a task of the first round wrote; None if it found no row. ``keyless`` rows have no key.

    ``buckets`` are those of its keys. ``truncated`` is the (incarnation, partition, offset) of a record that truncates
    the source table, the first of them.
    """

    file: StoredFileName | None
    rows: int
    read: int
    keyless: int
    buckets: frozenset[int]
    truncated: tuple[int, int, int] | None = None


class LeafTask(NamedTuple):
    """The leaf ``prefix`` to make of the ``old`` leaves of these keys, and of the runs: several if it is too large."""

    prefix: str
    old: tuple[Leaf, ...]


class MadeLeaves(NamedTuple):
    """The leaves that a task made; ``lost_keys`` had a removed record, and the table has no older one in its place."""

    leaves: list[Leaf]
    lost_keys: int


BucketExecute = Callable[[StateJob, Sequence[Leaf]], list[frozenset[int]]]
NewestExecute = Callable[[StateJob, Sequence[NewestTask]], list[SortedRun]]
LeafExecute = Callable[[StateJob, Sequence[LeafTask]], list[MadeLeaves]]


def state_schema(topic: TopicSettings) -> pa.Schema:
    """The columns of the state table.

    They are the key, the place and the time of the newest record, and the parser's columns; without a parser the value.

    Raises:
        ConfigError: the envelope needs columns that the parser does not make.
    """
    assert topic.state is not None
    columns = topic_parser(topic).columns
    if topic.state.envelope == "debezium":
        columns = _after(topic, columns)
    elif not len(columns):
        columns = pa.schema([SCHEMA.field("kafka_value")])
    return pa.schema([*(SCHEMA.field(name) for name in RECORD), *(field.with_nullable(True) for field in columns)])


def _after(topic: TopicSettings, columns: pa.Schema) -> pa.Schema:
    """The fields of ``after`` where the parser makes a struct of it, or else its other columns, which have paths."""
    types: dict[str, pa.DataType] = {field.name: field.type for field in columns}
    if types.get(OP) != pa.string():
        rule = f"envelope debezium needs a parser with a column {OP} (string), and {AFTER} or columns of its fields"
        raise ConfigError(f"topic {topic.cluster}/{topic.topic}", [("state.envelope", rule)])
    after = types.get(AFTER)
    if not isinstance(after, pa.StructType):
        return pa.schema([field for field in columns if field.name != OP])
    fields: list[pa.Field[Any]] = list(after)
    return pa.schema(fields)


def run_schema(topic: TopicSettings) -> pa.Schema:
    """The columns of runs and of the reserve: those of the table, whether the record deletes its key, and the hash."""
    flags = [pa.field(DELETED, pa.bool_(), nullable=False), pa.field(HASH, pa.uint64(), nullable=False)]
    return pa.schema([*state_schema(topic), *flags])
