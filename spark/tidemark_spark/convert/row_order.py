"""Rows lie in the order of their offsets, in raw segments and in files of tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemark.errors import ContinuityError
from tidemark_spark.convert.date_partitioner import numbers


def ascending(rows: pa.RecordBatch, last: int, name: str) -> int:
    """The last offset of ``rows``, which must ascend from above ``last``."""
    offsets = numbers(rows.column("kafka_offset"))
    if offsets[0] <= last or (np.diff(offsets) <= 0).any():
        raise ContinuityError(f"{name}: record offsets from {offsets[0]} on do not ascend, after offset {last}")
    return int(offsets[-1])
