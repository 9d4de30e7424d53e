"""A run that replaces the evidence of many landed attempts by one object, and converts nothing."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from tidemark.planning.maintenance.forgetting import Forgetting
from tidemark.table.evidence_reader import folded
from tidemark_spark.kinds.kind import TableChange, TasklessKind
from tidemark_spark.model import Executor, Outcome


class FoldAttempts(TasklessKind):
    """Its evidence is that of the folded attempts, row for row, but for what tells of records that it forgets."""

    @override
    def change(self, outcomes: Sequence[Outcome], executor: Executor) -> TableChange:
        return self.removed()

    @override
    def stored_evidence(self, change: TableChange) -> bytes:
        forgotten = Forgetting.of(self.table).rewritten if self.plan.forgets else None
        return folded(self.table, self.plan.folds, forgotten)
