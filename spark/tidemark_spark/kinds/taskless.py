"""Runs without tasks: the driver does what they do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from tidemark.errors import ContinuityError, FormatError
from tidemark.formats.table.ledger import DateState, Ledger
from tidemark.planning.maintenance.forgetting import Forgetting
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import EvidenceRow
from tidemark.table.evidence_reader import folded
from tidemark_spark.kinds.kind import Kind, TableChange
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
