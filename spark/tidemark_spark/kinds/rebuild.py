"""Runs that make landed records again: rebuild, replay and repair, and their base."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from tidemark.errors import ContinuityError, StaleRun
from tidemark.formats.raw.hashsum import combine
from tidemark.formats.table.ledger import DateState, Ledger, PartitionState
from tidemark.formats.table.plan import BranchCut, PartitionPlan
from tidemark.kafka_log import Lineage
from tidemark.parsers.unknown_fields import summed
from tidemark.table.delta_table import LiveFiles
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import PARSED, EvidenceRow
from tidemark.table.evidence_reader import by_partition
from tidemark_spark.convert.conversion import converted
from tidemark_spark.convert.replay import replayed
from tidemark_spark.kinds.kind import Kind, TableChange, left_behind, no_more
from tidemark_spark.model import Executor, Outcome


class MadeAgain(Kind):
    """A run with evidence of record classes only, which takes the place of the evidence of the same records."""

    parses: ClassVar = True
    awaited: ClassVar = True
    counts: ClassVar = True
    """True if each offset that a task reads must have a class."""

    @override
    def change(self, outcomes: Sequence[Outcome], executor: Executor) -> TableChange | Literal["empty"]:
        change = self.account(outcomes)
        return change._replace(evidence=(*change.evidence, *no_more(self.replaced(change.evidence))))

    def account(self, outcomes: Iterable[Outcome]) -> TableChange:
        """The change of all partitions, before it is known that no record is new or gone. Pure.

        Raises:
            ContinuityError: an offset has no class or two, or there was a hole, damage or a replaced segment.
        """
        of_plan = {part.key: number for number, part in enumerate(self.plan.partitions)}
        ordered = sorted(outcomes, key=lambda one: (of_plan[one.incarnation, one.partition], one.from_offset))
        for outcome in ordered:
            if outcome.stop:
                raise ContinuityError(f"{self.name(outcome)}: cannot be made again: {outcome.stop.detail}")
            counted = sum(row.rows for row in outcome.evidence) + outcome.other_rows
            if self.counts and counted != outcome.next_offset - outcome.from_offset:
                raise ContinuityError(
                    f"{self.name(outcome)}: {counted} offsets have a class from {outcome.from_offset} on"
                )
        return TableChange(
            files=tuple(file for outcome in ordered for file in outcome.files),
            evidence=tuple(row for outcome in ordered for row in outcome.evidence if row.offset_class in PARSED),
            removes=self.plan.removes,
            supersedes=self.plan.supersedes,
            unknown=summed(outcome.unknown for outcome in ordered),
        )

    def replaced(self, evidence: Iterable[EvidenceRow]) -> Sequence[EvidenceRow]:
        """The quarantined and filtered rows that the new ``evidence`` replaces.

        Raises:
            ContinuityError: its records are not exactly those that the run replaces, by number and hash.
        """
        table, plan = self.table, self.plan
        before = self.told(plan.replaced)
        sums = _sums(evidence)
        # Of a batch that cannot be decoded, only its offsets count, before and after.
        both = [*before.aside, *evidence]
        batches = {row.key for row in both if row.offset_class == "quarantined" and not row.dt}
        if any(_known(sums, key, batches) != _known(before.sums, key, batches) for key in {*sums, *before.sums}):
            rows = sum(count for count, _ in sums.values())
            replaced = sum(count for count, _ in before.sums.values())
            subject = f"dates {', '.join(dt or 'none' for dt in plan.dates)}" if plan.dates else "its quarantined rows"
            raise ContinuityError(
                f"{table.url}: {subject} hold {replaced} rows, and made again {rows}, or others; rows may have changed "
                "their date with the topic's settings or code: rebuild.py --extend makes again all dates that exchange "
                "rows, and rebuild.py --all makes all there are"
            )
        return before.aside


class Rebuild(MadeAgain):
    """Makes dates again from raw, with the topic's settings and code of today."""

    same_records: ClassVar = True
    work = staticmethod(converted)


class Replay(MadeAgain):
    """Parses quarantined records again, without raw: those land that the topic's parser of today takes."""

    counts: ClassVar = False
    work = staticmethod(replayed)

    @override
    def change(self, outcomes: Sequence[Outcome], executor: Executor) -> TableChange | Literal["empty"]:
        change = super().change(outcomes, executor)
        if change != "empty" and all(row.offset_class in {"quarantined", "superseded"} for row in change.evidence):
            return "empty"  # no row passes: the rows stay set aside
        return change


_Key = tuple[int, int]


def _sums(evidence: Iterable[EvidenceRow]) -> dict[_Key, tuple[int, int]]:
    """Number and hash of the landed, quarantined and filtered rows of ``evidence``, by (incarnation, partition)."""
    sums: dict[_Key, tuple[int, int]] = {}
    for row in evidence:
        if row.offset_class in PARSED and row.hash128 is not None:
            rows, total = sums.get((row.incarnation, row.partition), (0, 0))
            sums[row.incarnation, row.partition] = rows + row.rows, combine(total, row.hash128)
    return sums


def _known(sums: Mapping[_Key, tuple[int, int]], key: _Key, batches: Collection[_Key]) -> tuple[int, int]:
    """Number and hash of a partition's records; the hash is 0 if some records may be in ``batches``."""
    rows, total = sums.get(key, (0, 0))
    return rows, 0 if key in batches else total


class Repair(MadeAgain):
    """Makes rows again, whatever the table has of them; its ledger states the table's files again."""

    same_records: ClassVar = True
    work = staticmethod(converted)

    @override
    def account(self, outcomes: Iterable[Outcome]) -> TableChange:
        change = super().account(outcomes)
        back = [(part, part.cut) for part in self.plan.partitions if part.cut]
        left = [row for part, cut in back for row in left_behind(part, cut, part.end)]
        return change._replace(
            evidence=(*change.evidence, *left), partitions=tuple(_back(part, cut) for part, cut in back)
        )

    @override
    def replaced(self, evidence: Iterable[EvidenceRow]) -> Sequence[EvidenceRow]:
        """The rows set aside that the repair replaces.

        Raises:
            ContinuityError: after the repair, an offset of its partitions has no class or two.
        """
        table, plan = self.table, self.plan
        standing, replaced = EffectiveEvidence.of(table), frozenset(plan.replaced)
        counted = Counter[tuple[int, int]]()
        ends = {key: state.next_offset for key, state in standing.ledger.by_partition.items()}
        ends |= {part.key: part.end for part in plan.partitions if part.cut}
        for new in evidence:
            if new.offset_class in PARSED:
                counted[new.incarnation, new.partition] += new.rows
        names = pa.array(sorted(replaced), pa.string())
        for rows in standing.parts():
            left = rows.filter(pc.invert(pc.is_in(rows["file"], names)))
            ordered, places = by_partition(left.select(["incarnation", "partition", "first", "rows"]))
            first, numbers = ordered["first"].to_numpy(), ordered["rows"].to_numpy()
            for key, start, end in places:
                counted[key] += int(numbers[start:end][first[start:end] < ends[key]].sum())
        for key, end in ends.items():
            if counted[key] != end:
                raise ContinuityError(
                    f"{table.url}: {counted[key]} of the {end} offsets of partition {key[1]} of incarnation {key[0]} "
                    "would have a class after the repair; nothing was changed: audit the table, and report it"
                )
        return standing.told(files=replaced).aside

    @override
    def check_hands(self, ledger: Ledger, live: LiveFiles) -> None:
        if (ledger.n, live.digest) != (self.plan.ledger_n, self.plan.found):
            raise StaleRun("the table was changed since the repair was planned")

    @override
    def touched(self, dates: Iterable[str], current: Ledger, rows: Mapping[str, int]) -> set[str]:
        return {*dates, *(dt for dt, state in current.dates.items() if state.rows != rows[dt])}

    @override
    def date(self, known: DateState | None, rows: int, fresh: int, cut: int) -> DateState | None:
        if known is None and not rows:
            return None
        return super().date(known, rows, fresh, cut if fresh else 0)


def _back(part: PartitionPlan, cut: BranchCut) -> PartitionState:
    """State of a partition that a repair sets back to its end; the next ingest follows the new branch from there."""
    return PartitionState(
        incarnation=part.incarnation,
        topic_id=part.topic_id,
        partition=part.partition,
        start_offset=part.start,
        next_offset=part.end,
        verdicts_end=cut.at,
        leader_epoch=cut.leader_epoch,
        branch=part.branch + 1,
        lineage=Lineage(cut.lineage).truncated(cut.at).entries,
        restores=cut.restores,
    )
