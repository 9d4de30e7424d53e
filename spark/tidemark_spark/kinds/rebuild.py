"""Runs that make landed records again: rebuild and replay, and the base of those like them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Literal

from typing_extensions import override

from tidemark.errors import ContinuityError
from tidemark.formats.raw.hashsum import combine
from tidemark.parsers.unknown_fields import summed
from tidemark.table.evidence import PARSED, EvidenceRow
from tidemark_spark.convert.conversion import converted
from tidemark_spark.convert.replay import replayed
from tidemark_spark.kinds.kind import Kind, TableChange, no_more
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
