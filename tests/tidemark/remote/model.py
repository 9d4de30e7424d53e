"""Random logs, what agents may have stored of them, and by brute force what a reader must find at each offset.

A :class:`Log` is one replica's: the batches of a branch, with its lineage. A :class:`Model` stores runs of its batches
as segments, of any branch and with any boundaries, and writes the watermark as the leader's agent would.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.raw_builder import RawBuilder
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, reseal
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.manifest import SegmentDamage
from tidemark.formats.raw.watermark import Watermark, render
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage, OpenTransaction

PRODUCERS = (7, 8, 9)


class Row(NamedTuple):
    """A record that a reader may get."""

    offset: int
    timestamp: int
    value: bytes
    epoch: int


class Transaction(NamedTuple):
    """Data of a producer from ``first`` on; the marker, at offset ``last`` (far away while there is none)."""

    producer: int
    first: int
    last: int
    aborted: bool


@dataclass(frozen=True)
class Batch:
    """A batch as it lies in a log; ``producer`` is -1 outside transactions, ``commits`` None for data."""

    base: int
    end: int
    raw: bytes
    rows: tuple[Row, ...]
    producer: int = -1
    commits: bool | None = None


@dataclass
class Log:
    """A branch of a partition's log."""

    name: str
    lineage: list[tuple[int, int]]
    batches: list[Batch] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The log end offset."""
        return self.batches[-1].end if self.batches else 0

    def lead(self, epoch: int) -> None:
        """A leader is elected: batches are of ``epoch`` from here on."""
        self.lineage.append((epoch, self.end))

    def fork(self, name: str, count: int, epoch: int) -> Log:
        """A log that has the first ``count`` batches, and goes on under a later epoch."""
        kept = self.batches[:count]
        end = kept[-1].end if kept else 0
        found = Log(name, [one for one in self.lineage if one[1] < end], kept)
        found.lead(epoch)
        return found

    def grow(self, rng: random.Random, count: int) -> None:
        """Append ``count`` random batches: plain ones, those of transactions, and markers."""
        for _ in range(count):
            opened = [one.producer for one in self.transactions() if one.last > self.end]
            kind = rng.choice(["plain", "plain", "data", "marker"])
            if kind == "marker" and opened:
                self._append_marker(rng.choice(opened), commit=rng.random() < 0.5)
            else:
                producer = rng.choice(PRODUCERS) if kind == "data" else -1
                self._append_data(rng, producer)

    def transactions(self) -> list[Transaction]:
        """All transactions, by first offset."""
        found: list[Transaction] = []
        first: dict[int, int] = {}
        for one in self.batches:
            if one.producer >= 0 and one.commits is None:
                first.setdefault(one.producer, one.base)
            elif one.commits is not None:
                found.append(Transaction(one.producer, first.pop(one.producer), one.base, not one.commits))
        found += [Transaction(producer, start, 1 << 62, False) for producer, start in first.items()]
        return sorted(found, key=lambda one: one.first)

    def aborts(self) -> list[Transaction]:
        """The aborted transactions, by marker."""
        return sorted((one for one in self.transactions() if one.aborted), key=lambda one: one.last)

    def open_at(self, offset: int) -> list[Transaction]:
        """The transactions without a marker below ``offset``."""
        return [one for one in self.transactions() if one.first < offset <= one.last]

    def _append_data(self, rng: random.Random, producer: int) -> None:
        base, epoch, count = self.end, self.lineage[-1][0], rng.randint(1, 5)
        rows = tuple(
            Row(base + at, T0 + 1 + rng.randrange(10_000), f"{self.name}:{base + at}".encode(), epoch)
            for at in range(count)
        )
        raw = batch(
            base,
            [Record(at, row.timestamp, b"k", row.value) for at, row in enumerate(rows)],
            rng.choice(["none", "zstd"]),
            attributes=0x10 if producer >= 0 else 0,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=0 if producer >= 0 else -1,
            leader_epoch=epoch,
        )
        self.batches.append(Batch(base, base + count, raw, rows, producer))

    def _append_marker(self, producer: int, *, commit: bool) -> None:
        base = self.end
        raw = reseal(marker(base, producer, commit=commit), leader_epoch=self.lineage[-1][0])
        self.batches.append(Batch(base, base + 1, raw, (), producer, commit))


@dataclass(frozen=True)
class Stored:
    """A stored segment: batches of a log. ``readable`` ends at damage, if there is some."""

    log: Log
    base: int
    end: int
    readable: int
    lineage: Lineage
    batches: tuple[Batch, ...]

    def speaks(self, offset: int, newest: Lineage) -> bool:
        """Whether it has ``offset`` on the newest lineage; by looking at each offset for itself."""
        return self.base <= offset < self.readable and self.lineage.epoch_at(offset) == newest.epoch_at(offset)


class Model:
    """What is stored of one partition, and what the leader's agent says of it."""

    def __init__(self, raw: RawBuilder, log: Log, *, compacted: bool = False) -> None:
        """Nothing is stored; ``log`` is the leader's."""
        self.raw, self.log, self.compacted = raw, log, compacted
        self.stored: dict[int, Stored] = {}
        self.removed: set[int] = set()
        self.start = 0
        self.recorded = Intervals()
        self.acknowledged = Intervals()
        self.watermark: Watermark | None = None
        self.newest = Lineage()

    def store(self, log: Log, first: int, after: int, *, damaged: int | None = None) -> None:
        """Upload the batches ``[first, after)`` of ``log``, the one at index ``damaged`` with a broken byte."""
        batches = log.batches[first:after]
        base, end = batches[0].base, batches[-1].end
        bodies = [one.raw for one in batches if not (self.compacted and one.base in self.removed)]
        known = self.raw.partition()
        known.open_transactions = tuple(
            OpenTransaction(producer_id=one.producer, producer_epoch=0, first_offset=one.first)
            for one in log.open_at(base)
        )
        damage = None
        if damaged is not None:
            position = sum(len(one.raw) for one in log.batches[first:damaged])
            offset = log.batches[damaged].base
            damage = SegmentDamage(position=position, offset=offset, rule="seeded")
        lineage = tuple(one for one in log.lineage if one[1] < end)
        self.raw.segment(
            bodies,
            base=base,
            next_offset=end,
            lineage=lineage,
            compacted=self.compacted,
            damage=damage,
            aborted=[(one.producer, one.first, one.last) for one in log.aborts() if base <= one.last < end],
        )
        readable = damage.offset if damage else end
        kept = tuple(one for one in batches if not (self.compacted and one.base in self.removed))
        self.stored[base] = Stored(log, base, end, readable, Lineage(lineage), kept)

    def present(self, newest: Lineage, end: int) -> Intervals:
        """Every offset below ``end`` that some segment has, one by one."""
        return Intervals(
            (at, at + 1) for at in range(end) if any(one.speaks(at, newest) for one in self.stored.values())
        )

    def publish(self, *, leader_epoch: int, record: bool = True) -> None:
        """Write the watermark and the index; what is missing below the last upload is recorded if ``record``."""
        self.newest = newest = Lineage(tuple(self.log.lineage))
        present = self.present(newest, self.log.end)
        uploaded = present.parts[-1].end if present else self.start
        missing = present.missing(self.start, uploaded)
        self.recorded = missing if record else self.recorded & missing
        passed = self.recorded & self.acknowledged
        contiguous = (present | passed).contiguous_from(self.start)
        self.watermark = Watermark(
            topic_id="A" * 22,
            start_offset=self.start,
            leader_epoch=leader_epoch,
            next_offset=contiguous,
            ranges_above=tuple((one.start, one.end) for one in present if one.start > contiguous),
            lineage=newest.entries,
            gaps=tuple(self._gap(*one) for one in self.recorded - passed),
            acknowledged_gaps=tuple(self._gap(*one) for one in passed),
            broker=1,
            written_at=self.raw.now,
        )
        below = [base for base, one in self.stored.items() if base < contiguous and one.readable == one.end]
        known = self.raw.partition()
        known.end = uploaded
        self.raw.publish()
        self.raw.store.put(self.raw.keys().watermark, render(max(below, default=self.start), self.watermark))

    @property
    def end(self) -> int:
        """The offset after the last that can be read: walking from the watermark's, until a hole without a record."""
        assert self.watermark is not None
        at = end = max(self.start, self.watermark.next_offset)
        present = self.present(self.newest, self.log.end)
        while at < self.log.end and (at in present or at in self.recorded):
            at += 1
            end = at if at - 1 in present else end
        while end > self.start and end - 1 in self.recorded and end - 1 not in present:
            end -= 1
        return end

    def rows(self, start: int, end: int, *, committed: bool) -> list[Row]:
        """The records of the live branch in ``[start, end)``, without those known to be aborted if ``committed``."""
        aborted = [one for one in self.log.transactions() if one.aborted] if committed else []
        return [
            row
            for one in self.log.batches
            for row in one.rows
            if start <= row.offset < end
            and one.base not in self.removed
            and not any(one.producer == each.producer and each.first <= one.base <= each.last for each in aborted)
        ]

    def _gap(self, start: int, end: int) -> Gap:
        return self.raw.gap(start, end, "corrupt")


def compact(log: Log, rng: random.Random) -> set[int]:
    """The bases of the batches that compaction takes: plain ones, but not the last of the log."""
    return {one.base for one in log.batches[:-1] if one.producer < 0 and one.base and rng.random() < 0.4}
