"""The health of a topic: its landed offsets, the offsets that wait and since when, and their holds. Pure.

An offset *could be landed* once the store has it without a hole before it, in a segment or a pack, or at least once it
is rotated at the broker, since the agent may upload it then. Other offsets in the active segment wait for Kafka or the
agent's ``tail_after``. A topic without an offset that could be landed is idle or caught up, and never late.

Neither ledger nor watermark index dates the waiting, so the observer does: a ``WaitingSince`` is an offset that a
partition had not reached, and the time when that was first seen. One per partition is enough: see :func:`marked`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from pydantic import AwareDatetime

from tidemark.formats.base import Model
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.watermark_index import IndexEntry, LeaderEntry
from tidemark.formats.table.ledger import DateState, Ledger, PartitionState
from tidemark.intervals import Intervals
from tidemark.kafka_log import OpenTransaction
from tidemark.topics import TopicSettings

Key = tuple[int, int]
"""(incarnation, partition)"""

MOST_MARKS = 100
"""The most marks of a topic that are kept: the oldest, since the longest wait matters."""


class WaitingSince(Model):
    """The partition had not reached ``offset`` at ``since``, when it first could have."""

    incarnation: int
    partition: int
    offset: int
    since: AwareDatetime

    @property
    def key(self) -> Key:
        """(incarnation, partition)."""
        return self.incarnation, self.partition


class PartitionHealth(Model):
    """One partition of one incarnation. A field that the ledger or the agents do not report is None.

    ``landed`` and ``watermark`` are next offsets, the latter that of segments and packs in the store. ``log_end`` and
    ``high_watermark`` are the broker's when it was ``observed_at``. ``gaps`` are open: neither filled nor acknowledged.
    ``remote_tier`` are the offsets below the partition's first one in the store that only Kafka's own remote tier has.
    ``unstored_since`` is when the oldest byte that is not in the store was appended; None if there is none, or if the
    agent does not know. ``waits_since`` is None if nothing waits.
    """

    incarnation: int
    partition: int
    landed: int | None = None
    watermark: int | None = None
    rotated: int | None = None
    log_end: int | None = None
    high_watermark: int | None = None
    held_by: tuple[OpenTransaction, ...] = ()
    gaps: tuple[Gap, ...] = ()
    remote_tier: tuple[tuple[int, int], ...] = ()
    broker: int | None = None
    observed_at: AwareDatetime | None = None
    unstored_since: AwareDatetime | None = None
    waits_since: AwareDatetime | None = None

    @property
    def lag(self) -> int:
        """Offsets of the log that have not landed; for a partition that never landed, counted from offset 0."""
        return max(0, (self.log_end or self.watermark or 0) - (self.landed or 0))

    @property
    def waits(self) -> bool:
        """True if offsets wait that could be landed; assumed for a partition behind if its stored end is unknown."""
        return self.waits_since is not None or (self.watermark is None and self.lag > 0)

    @property
    def lost(self) -> tuple[Gap, ...]:
        """The open gaps of offsets that are lost unless an agent finds them."""
        return tuple(gap for gap in self.gaps if not gap.in_remote_tier)

    @property
    def missing(self) -> int:
        """The number of offsets in :attr:`lost` gaps."""
        return Intervals.of(self.lost).size

    @property
    def tiered(self) -> Intervals:
        """The offsets, below the first one in the store or in open gaps, that only Kafka's own remote tier has."""
        return Intervals(self.remote_tier) | Intervals.of(gap for gap in self.gaps if gap.in_remote_tier)


class TopicHealth(Model):
    """One topic. ``behind_since`` is when the longest waiting offset could have been landed; None if none waits.

    ``marks`` are for the next observation.
    """

    cluster: str
    topic: str
    table: str
    owner: str
    ledger_n: int
    committed_at: AwareDatetime | None
    lag: int
    behind_since: AwareDatetime | None
    marks: tuple[WaitingSince, ...]
    partitions: tuple[PartitionHealth, ...]
    dates: dict[str, DateState]

    @property
    def missing(self) -> int:
        """The number of offsets that are lost unless an agent finds them."""
        return sum(partition.missing for partition in self.partitions)

    @property
    def tiered(self) -> int:
        """The number of offsets that only Kafka's own remote tier has."""
        return sum(partition.tiered.size for partition in self.partitions)

    def is_late(self, topic: TopicSettings, now: datetime) -> bool:
        """True if an offset that could be landed has waited for longer than the topic's ``late_after``."""
        return self.behind_since is not None and now - self.behind_since > topic.late_after


def topic_health(
    topic: TopicSettings,
    ledger: Ledger,
    leaders: Iterable[LeaderEntry],
    now: datetime,
    *,
    marks: Iterable[WaitingSince] = (),
) -> TopicHealth:
    """The health of ``topic``, from its committed ledger and its leaders' entries (one a partition).

    ``marks`` are those of the last observation: they date the waiting. An offset that waits without a mark is dated
    ``now``.
    """
    led = {(leader.entry.incarnation, leader.entry.partition): leader for leader in leaders}
    landed = ledger.by_partition
    goals = landable(leader.entry for leader in led.values())
    kept = marked(goals, {key: state.next_offset for key, state in landed.items()}, marks, now)
    waiting = {mark.key: mark.since for mark in kept}
    partitions = tuple(
        _partition(key, landed.get(key), led.get(key), waiting.get(key)) for key in sorted({*led, *landed})
    )
    return TopicHealth(
        cluster=topic.cluster,
        topic=topic.topic,
        table=topic.table,
        owner=topic.owner,
        ledger_n=ledger.n,
        committed_at=ledger.committed_at if ledger.n else None,
        lag=sum(health.lag for health in partitions if (health.incarnation, health.partition) in led),
        behind_since=min(waiting.values(), default=None),
        marks=tuple(kept),
        partitions=partitions,
        dates=ledger.dates,
    )


def landable(entries: Iterable[IndexEntry]) -> dict[Key, int | None]:
    """The end of each partition's landable offsets, at its first gap at the latest; None while that is unknown."""
    return {
        (entry.incarnation, entry.partition): None
        if entry.stored_end is None
        else max(entry.stored_end, _rotated(entry))
        for entry in entries
    }


def _rotated(entry: IndexEntry) -> int:
    """The end of the rotated segments; 0 if a gap keeps them from counting, or if the agent does not know it."""
    return 0 if entry.gaps else entry.active_base_offset or 0


def marked(
    goals: Mapping[Key, int | None], reached: Mapping[Key, int], before: Iterable[WaitingSince], now: datetime
) -> list[WaitingSince]:
    """The marks of partitions that have not reached their goal, the oldest first.

    A partition keeps its mark until it has reached the mark's offset. Then it gets a new mark, at its present goal. So
    while a partition follows a moving goal, its mark is no older than the delay; it ages when progress stops. If the
    goal is not known (None), an old mark stays, and none is made.
    """
    known = {mark.key: mark for mark in before}
    marks: list[WaitingSince] = []
    for key, goal in goals.items():
        at, mark = reached.get(key, 0), known.get(key)
        if mark is not None and at < min(mark.offset, mark.offset if goal is None else goal):
            marks.append(mark)
        elif goal is not None and at < goal:
            marks.append(WaitingSince(incarnation=key[0], partition=key[1], offset=goal, since=now))
    return sorted(marks, key=lambda mark: (mark.since, mark.key))[:MOST_MARKS]


def _partition(
    key: Key, state: PartitionState | None, leader: LeaderEntry | None, waits_since: datetime | None
) -> PartitionHealth:
    health = PartitionHealth(incarnation=key[0], partition=key[1], waits_since=waits_since)
    if state is not None:
        health = health.model_copy(update={"landed": state.next_offset, "held_by": state.held_by})
    if leader is not None:
        entry = leader.entry
        update = {
            "watermark": entry.stored_end,
            "rotated": entry.active_base_offset,
            "log_end": entry.log_end_offset,
            "high_watermark": entry.high_watermark,
            "broker": leader.broker,
            "observed_at": entry.observed_at,
            "unstored_since": _unstored_since(entry),
            "remote_tier": entry.remote_tier,
        }
        health = health.model_copy(update=update)
    return health.model_copy(update={"gaps": _open_gaps(state, leader)})


def _unstored_since(entry: IndexEntry) -> datetime | None:
    """The time when the oldest byte that is not in the store was appended; None if there is none, or if unknown."""
    return entry.observed_at - timedelta(seconds=entry.oldest_unstored) if entry.oldest_unstored else None


def _open_gaps(state: PartitionState | None, leader: LeaderEntry | None) -> tuple[Gap, ...]:
    """Open gaps of the ledger, and the agent's above the landed offsets; of two with one start, the agent's."""
    gaps = {gap.start: gap for gap in (state.gaps if state else ())}
    landed = state.next_offset if state else 0
    gaps |= {gap.start: gap for gap in (leader.entry.gaps if leader else ()) if gap.end > landed}
    return tuple(gaps[start] for start in sorted(gaps))
