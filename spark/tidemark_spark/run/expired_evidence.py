"""The evidence of a retention run for the offsets that it removes from a table: each row without its file."""

from __future__ import annotations

from tidemark.errors import ContinuityError
from tidemark.formats.plan import RunPlan
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import PARSED, EvidenceRow


def expired(table: TopicTable, plan: RunPlan) -> list[EvidenceRow]:
    """The rows of class ``expired`` for all that ``plan`` removes, and those that supersede set-aside rows.

    Raises:
        ContinuityError: the evidence and the files have different numbers of rows.
    """
    standing, replaced = EffectiveEvidence.of(table), frozenset(plan.replaced)
    told = dict.fromkeys(plan.removes, 0)
    found: list[EvidenceRow] = []
    for row in standing.evidence():
        if row.offset_class not in PARSED or row.file not in replaced:
            continue
        one = row._replace(offset_class="expired", file=None)
        found.append(one)
        if row.offset_class == "landed":
            told[row.file] += row.rows
        else:
            found.append(one._replace(offset_class="superseded", file=row.file))
    for path, count in told.items():
        if path in standing.live and standing.live[path].rows != count:
            rows = standing.live[path].rows
            raise ContinuityError(f"{table.url}/{path}: has {rows} rows, but evidence counts {count}")
    return sorted(found, key=lambda one: (one.incarnation, one.partition, one.first, one.next, one.offset_class))
