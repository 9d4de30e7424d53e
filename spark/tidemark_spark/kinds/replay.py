"""A run that parses quarantined records again, without raw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

from typing_extensions import override

from tidemark.table.evidence import EvidenceRow
from tidemark_spark.convert.replay import replayed
from tidemark_spark.kinds.kind import TableChange
from tidemark_spark.kinds.rebuild import MadeAgain
from tidemark_spark.model import Executor, Outcome


class Replay(MadeAgain):
    """Lands the quarantined records that the topic's parser of today takes."""

    counts: ClassVar = False
    work = staticmethod(replayed)

    @override
    def change(self, outcomes: Sequence[Outcome], executor: Executor) -> TableChange | Literal["empty"]:
        change = super().change(outcomes, executor)
        if change != "empty" and all(row.offset_class in {"quarantined", "superseded"} for row in change.evidence):
            return "empty"  # no row passes: the rows stay set aside
        return change

    @override
    def replaced(self, evidence: Iterable[EvidenceRow]) -> Sequence[EvidenceRow]:
        return self.same(evidence)
