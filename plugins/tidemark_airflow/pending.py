"""What the watermarks promise beyond the ledger, and whether that is a reason to start a run.

The watermark index says how far each partition is uploaded, the ledger how far it is landed. Where they differ
there may be something to land, but only planning knows: an open transaction or a hole may hold it back. So a run
is started for what is ahead, and when its plan turns out empty the digest of what was ahead is recorded as
*settled*: it starts no further run until a watermark moves, or until ``sweep`` has passed, in case a doorbell was
missed. A gap that nobody has been told of starts a run at once, also when nothing can land.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from pydantic import AwareDatetime

from tidemark.gaps import Gap, GapReason
from tidemark.ledger import Ledger, Published
from tidemark.stored import Part
from tidemark.topics import TopicSettings
from tidemark.watermark_index import IndexEntry

MOST_GAPS = 50
"""As many gaps travel in one event; the others start the next run, since nobody has been told of them either."""


class OpenGap(Part):
    """Missing offsets ``[start, end)`` of a partition."""

    incarnation: int
    partition: int
    start: int
    end: int
    reason: GapReason
    detected_at: AwareDatetime

    @classmethod
    def of(cls, incarnation: int, partition: int, gap: Gap) -> OpenGap:
        """``gap`` with the partition that has it."""
        return cls(incarnation=incarnation, partition=partition, **gap.model_dump())

    @property
    def name(self) -> str:
        """What a person is told of once."""
        return f"{self.incarnation}-{self.partition}-{self.start}"


class Event(Part):
    """Why the waiting is over.

    ``advanced``: there may be something to land, or a gap to tell of. ``refresh``: nothing, but configuration and
    ledger should be looked at again. ``failed``: the indexes could not be read for a long time, ``reason`` says why.
    """

    status: Literal["advanced", "refresh", "failed"]
    settles: str = ""
    partitions: int = 0
    gaps: tuple[OpenGap, ...] = ()
    reason: str = ""


class Ahead(NamedTuple):
    """Of a topic's index entries, those that are not where the ledger is, and their identity as a whole."""

    entries: tuple[IndexEntry, ...]
    digest: str


class Baseline(Part):
    """What is known of a topic when the waiting starts. ``committed`` is keyed by ``<incarnation>-<partition>``."""

    topic: str
    committed: dict[str, int]
    settled: str = ""
    settled_at: AwareDatetime | None = None
    alerted: tuple[str, ...] = ()
    age: timedelta
    sweep: timedelta

    @classmethod
    def of(cls, topic: TopicSettings, ledger: Ledger, published: Published) -> Baseline:
        """The baseline that ledger and outbox pointer give."""
        return cls(
            topic=topic.topic,
            committed={f"{one.incarnation}-{one.partition}": one.next_offset for one in ledger.partitions},
            settled=published.settled,
            settled_at=published.settled_at,
            alerted=tuple(sorted(published.alerted)),
            age=topic.batch.age,
            sweep=topic.freshness,
        )

    def ahead(self, entries: Iterable[IndexEntry]) -> Ahead:
        """Which entries differ from the ledger; also one that is behind it, as after an unclean election."""
        found = tuple(
            sorted(
                (one for one in entries if self.committed.get(f"{one.incarnation}-{one.partition}") != one.next_offset),
                key=lambda one: one.partition,
            )
        )
        lines = [f"{one.incarnation}-{one.partition} {one.leader_epoch} {one.next_offset}" for one in found]
        return Ahead(found, hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] if lines else "")

    def untold(self, entries: Iterable[IndexEntry]) -> list[OpenGap]:
        """The gaps that nobody has been told of."""
        gaps = (OpenGap.of(one.incarnation, one.partition, gap) for one in entries for gap in one.gaps)
        return sorted((gap for gap in gaps if gap.name not in self.alerted), key=lambda gap: (gap.partition, gap.start))


class Watch:
    """Judges one topic's entries, time after time."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self._since: datetime | None = None

    def judge(self, entries: Sequence[IndexEntry], now: datetime) -> Event | None:
        """The event that ends the waiting, or None.

        What is ahead waits for the batch window's age, counted from when it was first seen here, or observed by the
        broker if that was earlier: a restart of the triggerer does not start the window anew.
        """
        ahead = self._baseline.ahead(entries)
        gaps = self._baseline.untold(entries)
        if gaps or self._is_due(ahead, now):
            return Event(
                status="advanced", settles=ahead.digest, partitions=len(ahead.entries), gaps=tuple(gaps[:MOST_GAPS])
            )
        return None

    def _is_due(self, ahead: Ahead, now: datetime) -> bool:
        baseline = self._baseline
        settled_at = baseline.settled_at
        is_settled = ahead.digest == baseline.settled and settled_at is not None and now - settled_at < baseline.sweep
        if not ahead.entries or is_settled:
            self._since = None
            return False
        if self._since is None:
            self._since = min(now, *(one.observed_at for one in ahead.entries))
        return now - self._since >= baseline.age
