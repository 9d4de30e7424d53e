"""What a run of retention says of the offsets that it takes from a table: of each row what it was, but for its file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import ContinuityError
from tidemark.evidence import PARSED, EvidenceRow, evidence_that_counts
from tidemark.runs import RunPlan
from tidemark.table import Lake, ledger_of, live_files, open_table


def expired(lake: Lake, plan: RunPlan) -> list[EvidenceRow]:
    """The rows of class ``expired`` for all that ``plan`` takes away, and those that supersede what was set aside.

    Raises:
        ContinuityError: the evidence tells of other rows than the files have.
    """
    table = open_table(lake)
    rows = {one.path: one.rows for one in live_files(table)} if table is not None else {}
    told = dict.fromkeys(plan.removes, 0)
    found: list[EvidenceRow] = []
    for row in _rows(lake, ledger_of(lake, table).landed, plan.replaced):
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
        if path in rows and rows[path] != count:
            raise ContinuityError(f"{lake.url}/{path}: has {rows[path]} rows, and evidence tells of {count}")
    return sorted(found, key=lambda one: (one.incarnation, one.partition, one.first, one.next, one.offset_class))


def _rows(lake: Lake, landed: Collection[int], files: Collection[str]) -> Iterator[dict[str, Any]]:
    """The rows of landed, quarantined and filtered offsets that name one of ``files``."""
    wanted, classes = pa.array(sorted(files), pa.string()), pa.array(PARSED)
    for _, table in evidence_that_counts(lake, landed):
        yield from table.filter(pc.and_(pc.is_in(table["class"], classes), pc.is_in(table["file"], wanted))).to_pylist()
