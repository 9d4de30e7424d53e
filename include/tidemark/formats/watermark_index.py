"""The watermark index: all that one broker leads, at a glance, so that a watcher reads 10³ objects and not 10⁶.

Each agent writes its own (``_watermarks/<cluster>/<broker>.json``) on change, at most every 10 s, and every 60 s
when idle. A reader merges them: per partition the entry with the highest (epoch, next offset) counts, within the
newest topic id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import ClassVar, Final, NamedTuple

from pydantic import AwareDatetime, Field

from tidemark.concurrency import in_parallel
from tidemark.errors import FormatError, NotFound, StoreError, TidemarkError
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.gaps import Gap
from tidemark.formats.keys import TopicPartition
from tidemark.store import ObjectInfo, Store, clock

_READERS: Final = 16


class IndexEntry(Model):
    """One led partition. ``uploaded_end`` is the end of the last uploaded segment, be it beyond a hole.

    ``provisional`` is the base offset of the uploaded segment that may still grow, ``bytes_per_offset`` how many bytes
    an offset takes in the newest uploaded segment (null: not known), ``observed_at`` the latest moment at which this
    broker is known to have led the partition with these offsets. ``active_...`` are of the segment that
    Kafka appends to, as far as the agent could read it; its timestamps are null while it has no record.
    """

    topic: str
    partition: int = Field(ge=0)
    topic_id: str | None
    incarnation: int = Field(ge=0)
    leader_epoch: int
    next_offset: int
    uploaded_end: int
    provisional: int | None = None
    bytes_per_offset: float | None = Field(default=None, gt=0)
    log_end_offset: int
    high_watermark: int
    active_base_offset: int | None = None
    active_first_timestamp: int | None = None
    active_max_timestamp: int | None = None
    observed_at: AwareDatetime
    gaps: tuple[Gap, ...] = ()


class WatermarkIndex(StoredObject):
    """What one broker's agent knows of the partitions that it leads.

    ``endpoints`` is a digest of where its segments go, by which the agent tells whether the entries still hold.
    ``clock_skew`` is how many seconds the clock of the agent's host was ahead of the store's, by which its times are.
    """

    most_bytes: ClassVar[int] = object_sizes.WATERMARK_INDEX

    cluster: str
    broker: int
    agent_version: str
    written_at: AwareDatetime
    clock_skew: float = 0.0
    endpoints: str | None = None
    entries: tuple[IndexEntry, ...] = ()


class LeaderEntry(NamedTuple):
    """The entry that counts for a partition, and the broker that says it."""

    broker: int
    entry: IndexEntry


class Loaded(NamedTuple):
    """The indexes that could be read, and what is wrong with each of the others; both by key."""

    indexes: Mapping[str, WatermarkIndex]
    failures: Mapping[str, TidemarkError]


def listed(store: Store, folder: str) -> list[ObjectInfo]:
    """The indexes in ``folder``. Raises StoreError."""
    return [info for info in store.list(folder) if info.key.endswith(".json")]


def as_stored(index: WatermarkIndex, modified: datetime) -> WatermarkIndex:
    """``index`` with times that are not later than when the store got it, ``modified``.

    An agent that could not ask the store for the time may have a clock that is ahead. Its statements are as old as they
    were by that clock. One that seems to be behind is left alone: the object may be a copy, made long afterwards.
    """
    latest = modified + clock.LEAST
    ahead = max(index.written_at - modified, timedelta())
    if ahead <= clock.LEAST:
        ahead = timedelta()
    if not ahead and all(one.observed_at <= latest for one in index.entries):
        return index
    entries = tuple(
        one.model_copy(update={"observed_at": min(one.observed_at - ahead, modified)}) for one in index.entries
    )
    skew = index.clock_skew + ahead.total_seconds()
    return index.model_copy(update={"written_at": index.written_at - ahead, "clock_skew": skew, "entries": entries})


def load_all(store: Store, infos: Iterable[ObjectInfo], *, of: Collection[str] | None = None) -> Loaded:
    """Read these indexes, side by side. One that is gone by now is left out; one that cannot be read costs no other.

    ``of`` are the keys of all that there are, if ``infos`` are only those that have changed.

    Raises:
        StoreError: the store gave none of them.
    """
    modified = {info.key: info.modified for info in infos}
    found = dict(zip(modified, in_parallel(lambda one: _load(store, *one), [*modified.items()], _READERS), strict=True))
    indexes = {key: one for key, one in found.items() if isinstance(one, WatermarkIndex)}
    failures = {key: one for key, one in found.items() if isinstance(one, TidemarkError)}
    check_some(failures, modified if of is None else of)
    return Loaded(indexes, failures)


def check_some(failures: Mapping[str, TidemarkError], keys: Collection[str]) -> None:
    """Raise the first of ``failures`` if they are StoreErrors of all ``keys``: then it is the store that failed."""
    if failures and len(failures) == len(keys) and all(isinstance(one, StoreError) for one in failures.values()):
        raise next(iter(failures.values()))


def _load(store: Store, key: str, modified: datetime) -> WatermarkIndex | TidemarkError | None:
    try:
        index = as_stored(WatermarkIndex.load(store, key), modified)
    except NotFound:
        return None  # removed since it was listed
    except (StoreError, FormatError) as error:
        return error
    if not key.endswith(f"/{index.broker}.json"):
        # A broker's agent may write its own index alone: under another broker's name it says nothing.
        return FormatError(key, f"is of broker {index.broker}, and lies under another")
    return index


def merge(indexes: Iterable[WatermarkIndex]) -> Mapping[TopicPartition, IndexEntry]:
    """The entry that counts for each partition: newest incarnation, then highest (leader epoch, next offset)."""
    return {at: led.entry for at, led in leaders(indexes).items()}


def leaders(indexes: Iterable[WatermarkIndex]) -> Mapping[TopicPartition, LeaderEntry]:
    """As :func:`merge`, each entry with its broker."""
    newest: dict[TopicPartition, LeaderEntry] = {}
    for index in indexes:
        for entry in index.entries:
            at = TopicPartition(entry.topic, entry.partition)
            known = newest.get(at)
            if known is None or _rank(entry) > _rank(known.entry):
                newest[at] = LeaderEntry(index.broker, entry)
    return newest


def _rank(entry: IndexEntry) -> tuple[int, int, int]:
    return entry.incarnation, entry.leader_epoch, entry.next_offset
