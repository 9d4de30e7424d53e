"""The watermark index: all partitions that one broker leads in one object, so that a watcher reads 10³ and not 10⁶.

Each agent writes its own (``_watermarks/<cluster>/<broker>.json``) on change, at most every 10 s, and every 60 s
when idle. A reader merges them by :data:`RANK`: per partition the entry with the highest (restores, epoch, next
offset) counts, within the newest topic id, and of equal entries the latest.
:mod:`tidemark.formats.table.object_cache` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from typing import ClassVar, Final, NamedTuple

from pydantic import AwareDatetime, Field

from tidemark.errors import FormatError
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.manifest import LastBatch
from tidemark.store import ObjectInfo, clock


class OtherHistory(Model):
    """Another history than the stored one, which a broker's log has from the offset ``at`` on, as after a restore.

    ``stored_end`` is the end of what is stored, ``log_start`` and ``log_end`` are those of the log: if it begins at
    ``at``, the two may part below. ``stored`` and ``local`` are the first batches that differ (null: there is none).
    """

    at: int = Field(ge=0)
    stored_end: int = Field(ge=0)
    log_start: int = Field(ge=0)
    log_end: int = Field(ge=0)
    stored: LastBatch | None = None
    local: LastBatch | None = None
    found_at: AwareDatetime


class IndexEntry(Model):
    """One led partition. ``uploaded_end`` is the end of the last uploaded segment, even if it lies beyond a hole.

    ``bytes_per_offset`` is the mean size of an offset in the newest uploaded segment (null: not known), ``observed_at``
    the latest moment at which this broker is known to have led the partition with these offsets. ``active_...`` are of
    the segment that Kafka appends to, as far as the agent could read it; its timestamps are null while it has no
    record. ``tail_end`` is the end of the sealed and packed offsets (null while all packed offsets are sealed).
    ``packs_known`` is false while the agent has not read the packs of this and former leaders: then neither their end
    nor the age of the oldest unstored byte is known. ``freshness`` is the agent's setting for the topic in seconds
    (null: only quiet tails are packed), and ``oldest_unstored`` is the age in seconds of the oldest byte that was not
    in the store at ``observed_at``, by a monotonic clock (null: not known). ``retention_left`` is the share of the
    topic's retention, by time or bytes, that is left before the brokers remove what a fetching agent does not have yet
    (null: not known, without limit, or read from a disk). ``restored`` is the number of restores in ``offset.wm``, and
    ``remote_tier`` is its. ``last_batch`` is the last batch that is stored without a hole, in segments and packs (null:
    not known). ``other_history`` is given while nothing more is stored of the partition, since the log is not the
    stored one.
    """

    topic: str
    partition: int = Field(ge=0)
    topic_id: str | None
    incarnation: int = Field(ge=0)
    restored: int = Field(default=0, ge=0)
    leader_epoch: int
    next_offset: int
    uploaded_end: int
    bytes_per_offset: float | None = Field(default=None, gt=0)
    log_end_offset: int
    high_watermark: int
    active_base_offset: int | None = None
    active_first_timestamp: int | None = None
    active_max_timestamp: int | None = None
    tail_end: int | None = None
    packs_known: bool = True
    freshness: float | None = Field(default=None, gt=0)
    oldest_unstored: float | None = Field(default=None, ge=0)
    retention_left: float | None = Field(default=None, ge=0, le=1)
    observed_at: AwareDatetime
    gaps: tuple[Gap, ...] = ()
    remote_tier: tuple[tuple[int, int], ...] = ()
    last_batch: LastBatch | None = None
    other_history: OtherHistory | None = None

    @property
    def leadership(self) -> tuple[int, int]:
        """The number of restores and the leader epoch: the later pair is the later leadership."""
        return self.restored, self.leader_epoch

    @property
    def stored_end(self) -> int | None:
        """The end of the offsets stored without a hole, in segments and packs; None while it is not known."""
        return self.least_stored_end if self.packs_known else None

    @property
    def least_stored_end(self) -> int:
        """The offset below which the store has everything; it may have more in packs."""
        return max(self.next_offset, self.tail_end or 0)


class DamagedHead(Model):
    """The head ``key`` (a URL) of this broker, which another program has damaged or removed.

    ``rule`` is the broken rule. ``kept`` is the key of the copy of its bytes (null: no copy yet, or no bytes).
    ``made_at`` is the time when the agent made the head again (null: not yet).
    """

    key: str
    rule: str
    found_at: AwareDatetime
    kept: str | None = None
    made_at: AwareDatetime | None = None


class DiskFault(Model):
    """A part of the broker's disks that its agent cannot read: the log directory ``path``, or a partition's log.

    The broker leads the ``partition`` of ``topic``. ``rule`` is the reason in words.
    """

    path: str | None = None
    topic: str | None = None
    partition: int | None = Field(default=None, ge=0)
    rule: str
    found_at: AwareDatetime


class WatermarkIndex(StoredObject):
    """The state of the partitions that one broker leads, from its agent.

    ``endpoints`` is a digest of the locations of its segments, which shows the agent whether the entries are valid.
    ``clock_skew`` is the lead in seconds of the agent host's clock, which gives its times, over the store's.
    """

    most_bytes: ClassVar[int] = object_sizes.WATERMARK_INDEX

    cluster: str
    broker: int
    agent_version: str
    written_at: AwareDatetime
    clock_skew: float = 0.0
    endpoints: str | None = None
    damaged_heads: tuple[DamagedHead, ...] = ()
    disk_faults: tuple[DiskFault, ...] = ()
    entries: tuple[IndexEntry, ...] = ()


PACKS_PER_FRESHNESS: Final = 3
"""A leader packs what has waited for a third of its topic's ``freshness``."""

RANK: Final = ("incarnation", "restored", "leader_epoch", "next_offset", "observed_at")
"""Of several entries for a partition the one with the highest values of these fields counts, compared in this order."""

rank: Final[Callable[[IndexEntry], tuple[int, int, int, int, datetime]]] = attrgetter(*RANK)
"""The values by which entries for one partition are compared."""


class LeaderEntry(NamedTuple):
    """The valid entry for a partition, and its broker."""

    broker: int
    entry: IndexEntry


def as_stored(index: WatermarkIndex, modified: datetime) -> WatermarkIndex:
    """``index`` with times that are not later than ``modified``, the time at which the store got it.

    An agent that could not ask the store for the time may have a clock that is ahead. Its times then move back by that
    lead. A clock that seems to be behind is left alone: the object may be a copy, made long afterwards.
    """
    latest = modified + clock.LEAST
    ahead = max(index.written_at - modified, timedelta())
    if ahead <= clock.LEAST:
        ahead = timedelta()
    if not ahead and all(entry.observed_at <= latest for entry in index.entries):
        return index
    entries = tuple(
        entry.model_copy(update={"observed_at": min(entry.observed_at - ahead, modified)}) for entry in index.entries
    )
    skew = index.clock_skew + ahead.total_seconds()
    return index.model_copy(update={"written_at": index.written_at - ahead, "clock_skew": skew, "entries": entries})


def parse_index(body: bytes, info: ObjectInfo) -> WatermarkIndex:
    """The index that was listed as ``info``, with times from :func:`as_stored`.

    Raises:
        FormatError: it does not parse, or belongs to another broker than its key: an agent may write its own alone.
    """
    index = as_stored(WatermarkIndex.from_bytes(body, info.key), info.modified)
    if not info.key.endswith(f"/{index.broker}.json"):
        raise FormatError(info.key, f"is of broker {index.broker}, but its key names another broker")
    return index


def merge(indexes: Iterable[WatermarkIndex]) -> Mapping[TopicPartition, IndexEntry]:
    """The valid entry for each partition, by :data:`rank`."""
    return {tp: leader.entry for tp, leader in leaders(indexes).items()}


def leaders(indexes: Iterable[WatermarkIndex]) -> Mapping[TopicPartition, LeaderEntry]:
    """The valid entry for each partition, with its broker."""
    newest: dict[TopicPartition, LeaderEntry] = {}
    for index in indexes:
        for entry in index.entries:
            tp = TopicPartition(entry.topic, entry.partition)
            leader = newest.get(tp)
            if leader is None or rank(entry) > rank(leader.entry):
                newest[tp] = LeaderEntry(index.broker, entry)
    return newest
