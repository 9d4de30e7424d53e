"""When the bytes of a record were shipped, by which it is judged whether its time is plausible.

A range of a pack was shipped as a whole. A seal lists the parts of it that had been packed before, so that its records
get the same class and date from both.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tidemark.formats.plan import SegmentRange
from tidemark_spark.convert.date_partitioner import numbers


def by_shipping(part: SegmentRange, rows: pa.RecordBatch) -> Iterator[tuple[SegmentRange, pa.RecordBatch]]:
    """``rows`` of ``part``, by ascending offset, in runs of the same time; each with ``part`` as of that time."""
    if not part.shipped:
        yield part, rows
        return
    edges = sorted({edge for one in part.shipped for edge in (one.first, one.next)})
    offsets = numbers(rows.column("kafka_offset"))
    bounds = sorted({0, *np.searchsorted(offsets, np.array(edges, np.int64)).tolist(), len(rows)})
    for start, end in pairwise(bounds):
        yield shipped_at(part, int(offsets[start])), rows.slice(start, end - start)


def shipped_at(part: SegmentRange, offset: int) -> SegmentRange:
    """``part``, uploaded when ``offset`` was shipped."""
    at = next((one.at for one in part.shipped if one.first <= offset < one.next), part.uploaded_at)
    return part if at == part.uploaded_at else part.model_copy(update={"uploaded_at": at})
