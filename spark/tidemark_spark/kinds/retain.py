"""A run that removes past dates from a table; each of their offsets keeps a class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from typing_extensions import override

from tidemark.errors import ContinuityError
from tidemark.formats.table.ledger import DateState, Ledger
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import EvidenceRow
from tidemark_spark.kinds.kind import TableChange, TasklessKind
from tidemark_spark.model import Executor, Outcome


class Retain(TasklessKind):
    """Only removes: files of dates, and their quarantined rows."""

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
        return self.removed()._replace(evidence=tuple(evidence))

    @override
    def touched(self, dates: Iterable[str], current: Ledger, rows: Mapping[str, int]) -> set[str]:
        return {*dates, *self.plan.dates}

    @override
    def date(self, known: DateState | None, rows: int, fresh: int, cut: int) -> DateState | None:
        update: dict[str, object] = {"rows": rows}
        if not rows:  # the next run removes rows that landed since the plan
            update |= {"state": "expired", "closed_at": self.plan.created_at}
        return (known or DateState(rows=0)).model_copy(update=update)
