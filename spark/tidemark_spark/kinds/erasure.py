"""A run that takes erased rows out of files. Its evidence says of each what is kept and what is gone.

Kept and erased rows together have number and hash of the evidence before. The hash of an erased row is never written:
with a guess of the record one could test it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import ClassVar, NamedTuple

from typing_extensions import override

from tidemark.errors import ContinuityError
from tidemark.formats.raw.hashsum import combine, without
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import PartitionPlan, RunPlan, SegmentTask
from tidemark.intervals import Intervals
from tidemark.planning.common import Key, masked_offsets
from tidemark.planning.read import plan_reading, spans_of
from tidemark.raw_topic import RawTopic
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import EvidenceRow
from tidemark_spark.convert.rewriting.erasure import erased
from tidemark_spark.kinds.kind import RewritingKind, TableChange
from tidemark_spark.model import Executor, Job, Outcome


class _Division(NamedTuple):
    """A span of one file's evidence: the rows ``before``, what is ``kept``, and the erased offsets."""

    before: Sequence[EvidenceRow]
    kept: EvidenceRow
    gone: Sequence[EvidenceRow]


class Erasure(RewritingKind):
    """Makes files of the table and of quarantine again, without their erased rows."""

    same_records: ClassVar = True
    work = staticmethod(erased)

    @override
    def change(self, outcomes: Sequence[Outcome], executor: Executor) -> TableChange:
        evidence = _evidence(self.table, self.plan, outcomes, executor)
        return self.rewritten(outcomes)._replace(evidence=tuple(evidence))

    @override
    def stored_evidence(self, change: TableChange) -> bytes:
        return self.parquet(change.evidence, kept=True)

    @override
    def masks(self, current: Ledger) -> dict[str, int]:
        return {**current.masks, **self.plan.masks}


def _evidence(table: TopicTable, plan: RunPlan, outcomes: Iterable[Outcome], executor: Executor) -> list[EvidenceRow]:
    """The evidence that the run writes; ``executor`` reads raw where the files cannot tell.

    Raises:
        ContinuityError: kept and erased rows are not those of the evidence; nothing was committed.
        StoreError: a store did not answer.
    """
    standing = EffectiveEvidence.of(table)
    files: dict[str, list[EvidenceRow]] = {}
    for row in standing.of_files(frozenset(plan.replaced)):
        files.setdefault(row.file or "", []).append(row)
    divided = [division for outcome in outcomes for division in _divided(files.pop(_path(table, outcome)), outcome)]
    # What is left are filtered rows, whose names are of no file; and of other files the hash cannot be divided.
    filtered = [rows for rows in files.values() if rows[0].offset_class == "filtered"]
    unhashed = [division for division in divided if division.kept.hash128 is None and division.gone]
    found = _raw_sums(table, plan, standing, [*filtered, *(division.before for division in unhashed)], executor)
    gone = (row for division in divided for row in division.gone)
    landed = {(row.incarnation, row.partition, offset) for row in gone for offset in _each(row)}
    divided += [_of_filtered(rows, found, landed) for rows in filtered]
    evidence: list[EvidenceRow] = []
    for division in divided:
        evidence += _checked(table, division, found)
        if division.before[0].offset_class != "landed":
            evidence += [row._replace(offset_class="superseded") for row in division.before]
    return sorted(evidence, key=lambda row: (row.incarnation, row.partition, row.first, row.next, row.offset_class))


_Found = dict[tuple[int, int, int], EvidenceRow]
"""Erased records of raw by incarnation, partition and offset: each with its hash, and the date of its timestamp."""


def _raw_sums(
    table: TopicTable,
    plan: RunPlan,
    standing: EffectiveEvidence,
    groups: Iterable[Sequence[EvidenceRow]],
    executor: Executor,
) -> _Found:
    """The erased records in the byte ranges of ``groups``, as far as raw has them."""
    masks = {part.key: part.masks for part in plan.partitions if part.masks is not None}
    rows: dict[Key, list[EvidenceRow]] = {}
    for row in (row for group in groups for row in group):
        rows.setdefault(row.key, []).append(row)
    raw = RawTopic(table)
    tasks: list[SegmentTask] = []
    plans: list[PartitionPlan] = []
    for key, around in sorted(rows.items()):
        masked = masked_offsets(table, masks[key])
        spans = (masked[bisect_left(masked, row.first) : bisect_left(masked, row.next)] for row in around)
        wanted = Intervals((within[0], within[-1] + 1) for within in spans if within)
        state = standing.ledger.by_partition[key]
        reading = plan_reading(raw, raw.partition(key), state.history, wanted, verdicts_end=state.verdicts_end)
        tasks += reading.tasks
        plans.append(reading.plan.model_copy(update={"masks": masks[key]}))  # which knows the aborted transactions
    if not tasks:
        return {}
    found: _Found = {}
    job = Job.of(table, plan.model_copy(update={"partitions": tuple(plans)}))
    for outcome in executor.on_each(erased, job, tasks):
        if outcome.stop:
            raise ContinuityError(f"{table.url}: raw cannot be read for the erasure: {outcome.stop.detail}")
        for row in outcome.evidence:
            if row.offset_class == "erased":
                found[row.incarnation, row.partition, row.first] = row
    return found


def _path(table: TopicTable, outcome: Outcome) -> str:
    """The path of the file that a task has read."""
    source = outcome.evidence[0].segment or ""
    quarantine = f"{table.keys.quarantine}/"
    return source.removeprefix(quarantine if source.startswith(quarantine) else f"{table.keys.root}/")


def _divided(before: Sequence[EvidenceRow], outcome: Outcome) -> Iterable[_Division]:
    kept = [row for row in outcome.evidence if row.offset_class != "erased"]
    gone = [row for row in outcome.evidence if row.offset_class == "erased"]
    for span, row in zip(spans_of(before), kept, strict=True):
        start, end = span
        yield _Division(
            [old for old in before if start <= old.first < end],
            row,
            [erased for erased in gone if start <= erased.first < end],
        )


def _of_filtered(before: Sequence[EvidenceRow], found: _Found, landed: set[tuple[int, int, int]]) -> _Division:
    """The division of filtered rows: erased are the masked records that raw has there, and no file had."""
    gone = [
        record
        for at, record in sorted(found.items())
        if at not in landed
        and any((row.key, row.dt) == (record.key, record.dt) and row.first <= record.first < row.next for row in before)
    ]
    rows, total = sum(row.rows for row in before), _sum(row.hash128 or 0 for row in before)
    name = f"{before[0].file}.erased"
    kept = before[-1]._replace(
        rows=rows - len(gone), hash128=without(total, _sum(row.hash128 or 0 for row in gone)), file=name
    )
    return _Division(before, kept, gone)


def _checked(table: TopicTable, division: _Division, found: _Found) -> list[EvidenceRow]:
    """The new rows of a division. Raises ContinuityError if it is not that of the rows before."""
    before, kept, gone = division
    total = _sum(row.hash128 or 0 for row in before)
    erased = _sum(row.hash128 or 0 for row in gone)
    hash128 = kept.hash128
    if hash128 is None:
        known = [found.get((row.incarnation, row.partition, offset)) for row in gone for offset in _each(row)]
        hashes = [record.hash128 or 0 for record in known if record is not None]
        hash128 = without(total, _sum(hashes)) if len(hashes) == len(known) else None
    elif combine(hash128, erased) != total:
        raise _differs(table, division)
    if kept.rows + sum(row.rows for row in gone) != sum(row.rows for row in before):
        raise _differs(table, division)
    last = before[-1]
    first, after = min(row.first for row in before), max(row.next for row in before)
    rows = [last._replace(first=first, next=after, rows=kept.rows, hash128=hash128, file=kept.file)]
    source = last._replace(offset_class="erased", dt=None, hash128=None, file=None)
    gone_rows = [source._replace(first=row.first, next=row.next, rows=row.rows) for row in gone]
    return [*(rows if kept.rows else ()), *gone_rows]


def _differs(table: TopicTable, division: _Division) -> ContinuityError:
    first = division.before[0]
    return ContinuityError(
        f"{table.url}/{first.file}: from offset {first.first} on, kept and erased rows are not those of the evidence; "
        f"nothing was changed: audit {first.day or 'the rows without a date'}"
    )


def _each(row: EvidenceRow) -> Iterable[int]:
    return range(row.first, row.next)


def _sum(hashes: Iterable[int]) -> int:
    return reduce(combine, hashes, 0)
