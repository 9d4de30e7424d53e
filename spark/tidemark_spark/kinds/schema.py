"""A run that only adds columns to a table."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from tidemark_spark.kinds.kind import TableChange, TasklessKind
from tidemark_spark.model import Executor, Outcome


class AddColumns(TasklessKind):
    """The columns themselves are added before its commit, as before any other."""

    @override
    def change(self, outcomes: Sequence[Outcome], executor: Executor) -> TableChange:
        return self.removed()
