"""Functions that the tests' topics name as their parsers."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def sizes(rows: pa.RecordBatch) -> tuple[Any, ...]:
    """The size of each value; those of 3 bytes are refused, empty ones left out."""
    found: Any = pc.binary_length(_values(rows))
    refused = {row: "three bytes" for row, size in enumerate(found.to_pylist()) if size == 3}
    return (
        pa.RecordBatch.from_arrays([found], names=["size"]),
        refused,
        pc.fill_null(pc.not_equal(found, pa.scalar(0)), True),
    )


def _values(rows: pa.RecordBatch) -> Any:
    return rows.column("kafka_value")


def none(rows: pa.RecordBatch) -> tuple[Any, ...]:
    """Refuses all."""
    found: Any = pc.binary_length(_values(rows))
    return pa.RecordBatch.from_arrays([found], names=["size"]), dict.fromkeys(range(len(rows)), "no")


def all_sizes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The size of each value, whatever it is."""
    return pa.RecordBatch.from_arrays([pc.binary_length(_values(rows))], names=["size"])


def not_numbers(rows: pa.RecordBatch) -> pa.RecordBatch:
    """NaN for each row, and a list of it."""
    found = [{"x": math.nan, "xs": [math.nan, None]}] * len(rows)
    return pa.RecordBatch.from_pylist(found, pa.schema([("x", pa.float64()), ("xs", pa.list_(pa.float32()))]))
