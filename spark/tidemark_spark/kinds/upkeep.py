"""Runs that change no record: a compaction, and those without tasks, of which the driver does what they do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from tidemark.errors import ContinuityError, FormatError
from tidemark.formats.raw.hashsum import combine
from tidemark.formats.table.ledger import DateState, Ledger
from tidemark.planning.maintenance.erasure import Forgetting
from tidemark.planning.maintenance.vacuum import digest_in, digest_of
from tidemark.table.delta_table import committed_ledger
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import EvidenceRow, to_bytes
from tidemark.table.evidence_reader import folded, renamed
from tidemark_spark.convert.rewriting.compaction import compacted
from tidemark_spark.kinds.kind import Kind, RewritingKind, TableChange
from tidemark_spark.model import Executor, Job, Outcome


class AddColumns(Kind):
    """Only adds columns, as is done before any commit; the base of other kinds that have no tasks."""

    @staticmethod
    def work(job: Job, task: Any) -> Outcome:
        """Refuse: no planner gives such a run tasks."""
        raise FormatError(job.keys.attempt(job.attempt), "has tasks, and a run of its kind has none: report it")

    @override
    def change(self, outcomes: Sequence[Outcome], executor: Executor) -> TableChange:
        return TableChange(removes=self.plan.removes, supersedes=self.plan.supersedes)


class FoldAttempts(AddColumns):
    """Replaces the evidence of many landed attempts by one object: row for row, but for what it forgets."""

    @override
    def stored_evidence(self, change: TableChange) -> bytes:
        forgotten = Forgetting.of(self.table).rewritten if self.plan.forgets else None
        return folded(self.table, self.plan.folds, forgotten)


class Retain(AddColumns):
    """Removes past dates, files and quarantined rows; each of their offsets keeps a class."""

    @override
    def change(self, outcomes: Sequence[Outcome], executor: Executor) -> TableChange:
        """Rows of class ``expired`` for the removed offsets, and rows that supersede set-aside rows.

        Raises:
            ContinuityError: the evidence and the files have different numbers of rows.
        """
        standing, replaced = EffectiveEvidence.of(self.table), frozenset(self.plan.replaced)
        counted = dict.fromkeys(self.plan.removes, 0)
        evidence: list[EvidenceRow] = []
        for row in standing.of_files(replaced):
            assert row.file is not None
            removed = row._replace(offset_class="expired", file=None)
            evidence.append(removed)
            if row.offset_class == "landed":
                counted[row.file] += row.rows
            else:
                evidence.append(removed._replace(offset_class="superseded", file=row.file))
        for path, count in counted.items():
            if path in standing.live and standing.live[path].rows != count:
                rows = standing.live[path].rows
                raise ContinuityError(f"{self.table.url}/{path}: has {rows} rows, but evidence counts {count}")
        evidence.sort(key=lambda row: (row.incarnation, row.partition, row.first, row.next, row.offset_class))
        return super().change(outcomes, executor)._replace(evidence=tuple(evidence))

    @override
    def touched(self, dates: Iterable[str], current: Ledger, rows: Mapping[str, int]) -> set[str]:
        return {*dates, *self.plan.dates}

    @override
    def date(self, known: DateState | None, rows: int, fresh: int, cut: int) -> DateState | None:
        update: dict[str, object] = {"rows": rows}
        if not rows:  # the next run removes rows that landed since the plan
            update |= {"state": "expired", "closed_at": self.plan.created_at}
        return (known or DateState(rows=0)).model_copy(update=update)


class Compaction(RewritingKind):
    """Makes one file of several: no date changes."""

    work = staticmethod(compacted)

    @override
    def change(self, outcomes: Sequence[Outcome], executor: Executor) -> TableChange:
        return self.rewritten(outcomes)

    @override
    def stored_evidence(self, change: TableChange) -> bytes:
        """The evidence of the merged files, under the names of the new files.

        Raises:
            ContinuityError: a new file has other rows than the evidence counts in its sources.
        """
        table, plan = self.table, self.plan
        merged_rows = {digest_in(row.file or ""): row for row in change.evidence}
        names: dict[str, str] = {}
        for task in plan.tasks:
            file = merged_rows[digest_of(plan, task)].file or ""
            names |= {part.key.removeprefix(f"{table.keys.root}/"): file for part in task.ranges}
        evidence = renamed(table, committed_ledger(table).landed, names, plan.attempt)
        sums: dict[str, tuple[int, int]] = {}
        for row in evidence.select(["file", "rows", "hash128"]).to_pylist():
            rows, total = sums.get(row["file"], (0, 0))
            sums[row["file"]] = rows + row["rows"], combine(total, int.from_bytes(row["hash128"], "big"))
        for new in merged_rows.values():
            rows, total = sums.get(new.file or "", (0, 0))
            if new.rows != rows or new.hash128 not in {None, total}:
                raise ContinuityError(
                    f"{table.url}/{new.file}: has {new.rows} rows, but evidence counts {rows} in the files that it was "
                    f"merged from, or their hashes differ; the table was not changed: audit {new.dt}, and rebuild it"
                )
        return to_bytes(evidence)

    @override
    def touched(self, dates: Iterable[str], current: Ledger, rows: Mapping[str, int]) -> set[str]:
        return set()
