"""Evidence of a retention run for the offsets that it removes from a table: each row without its file."""

from __future__ import annotations

from tidemark.errors import ContinuityError
from tidemark.formats.table.plan import RunPlan
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import PARSED, EvidenceRow


def expired(table: TopicTable, plan: RunPlan) -> list[EvidenceRow]:
    """Rows of class ``expired`` for the offsets that ``plan`` removes, and rows that supersede set-aside rows.

    Raises:
        ContinuityError: the evidence and the files have different numbers of rows.
    """
    standing, replaced = EffectiveEvidence.of(table), frozenset(plan.replaced)
    counted = dict.fromkeys(plan.removes, 0)
    evidence: list[EvidenceRow] = []
    for row in standing.evidence():
        if row.offset_class not in PARSED or row.file not in replaced:
            continue
        removed = row._replace(offset_class="expired", file=None)
        evidence.append(removed)
        if row.offset_class == "landed":
            counted[row.file] += row.rows
        else:
            evidence.append(removed._replace(offset_class="superseded", file=row.file))
    for path, count in counted.items():
        if path in standing.live and standing.live[path].rows != count:
            rows = standing.live[path].rows
            raise ContinuityError(f"{table.url}/{path}: has {rows} rows, but evidence counts {count}")
    return sorted(evidence, key=lambda row: (row.incarnation, row.partition, row.first, row.next, row.offset_class))
