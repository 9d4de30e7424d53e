"""The time at which a record's bytes were shipped; the record's own time is judged against it.

A range of a pack was shipped as a whole. A seal lists its parts that had been packed before, so that its records get
the same class and date from both.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tidemark.formats.table.plan import SegmentRange
from tidemark_spark.convert.date_partitioner import numbers


def by_shipping(part: SegmentRange, rows: pa.RecordBatch) -> Iterator[tuple[SegmentRange, pa.RecordBatch]]:
    """``rows`` of ``part``, ascending by offset, in runs of the same time, each with ``part`` as of that time."""
    if not part.shipped:
        yield part, rows
        return
    edges = sorted({edge for shipped in part.shipped for edge in (shipped.first, shipped.next)})
    offsets = numbers(rows.column("kafka_offset"))
    bounds = sorted({0, *np.searchsorted(offsets, np.array(edges, np.int64)).tolist(), len(rows)})
    for start, end in pairwise(bounds):
        yield shipped_at(part, int(offsets[start])), rows.slice(start, end - start)


def shipped_at(part: SegmentRange, offset: int) -> SegmentRange:
    """``part`` with the time at which ``offset`` was shipped."""
    at = next((shipped.at for shipped in part.shipped if shipped.first <= offset < shipped.next), part.uploaded_at)
    return part if at == part.uploaded_at else part.model_copy(update={"uploaded_at": at})
