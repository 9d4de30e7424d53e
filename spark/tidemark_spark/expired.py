"""What a run of retention says of the offsets that it takes from a table: of each row what it was, but for its file."""

from __future__ import annotations

from tidemark.errors import ContinuityError
from tidemark.evidence import PARSED, EvidenceRow
from tidemark.runs import RunPlan
from tidemark.standing import Standing
from tidemark.table import Lake


def expired(lake: Lake, plan: RunPlan) -> list[EvidenceRow]:
    """The rows of class ``expired`` for all that ``plan`` takes away, and those that supersede what was set aside.

    Raises:
        ContinuityError: the evidence tells of other rows than the files have.
    """
    standing, replaced = Standing.of(lake), frozenset(plan.replaced)
    told = dict.fromkeys(plan.removes, 0)
    found: list[EvidenceRow] = []
    for row in standing.evidence():
        if row["class"] not in PARSED or row["file"] not in replaced:
            continue
        one = EvidenceRow(
            incarnation=row["incarnation"],
            partition=row["partition"],
            first=row["first"],
            next=row["next"],
            offset_class="expired",
            rows=row["rows"],
            dt=row["dt"],
            segment=row["segment"],
            byte_start=row["byte_start"],
            byte_end=row["byte_end"],
            hash128=int.from_bytes(row["hash128"], "big"),
        )
        found.append(one)
        if row["class"] == "landed":
            told[row["file"]] += row["rows"]
        else:
            found.append(one._replace(offset_class="superseded", file=row["file"]))
    for path, count in told.items():
        if path in standing.live and standing.live[path].rows != count:
            rows = standing.live[path].rows
            raise ContinuityError(f"{lake.url}/{path}: has {rows} rows, and evidence tells of {count}")
    return sorted(found, key=lambda one: (one.incarnation, one.partition, one.first, one.next, one.offset_class))
