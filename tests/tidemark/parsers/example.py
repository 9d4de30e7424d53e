"""The function that docs/topics.md names."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def sizes(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str], Any]:
    """The size of each value, but for empty ones, which are left out."""
    values: Any = rows.column("kafka_value")
    size: Any = pc.binary_length(values)
    return pa.RecordBatch.from_arrays([size], names=["size"]), {}, pc.fill_null(pc.not_equal(size, pa.scalar(0)), True)
