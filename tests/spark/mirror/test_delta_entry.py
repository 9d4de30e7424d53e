"""What catalogs of Hive's kind say of a Delta table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidemark.errors import MirrorError
from tidemark_spark.mirror.delta_entry import hive_type


def test_each_type_has_its_name_there() -> None:
    inner = pa.struct([("a", pa.list_(pa.list_(pa.float32()))), ("b", pa.decimal128(38, 6))])
    kinds: list[pa.DataType] = [pa.bool_(), pa.int8(), pa.int16(), pa.float64(), pa.string(), inner]
    assert [hive_type(one, "x") for one in kinds] == [
        *("boolean", "tinyint", "smallint", "double", "string"),
        "struct<a:array<array<float>>,b:decimal(38,6)>",
    ]
    with pytest.raises(MirrorError, match=r"column x\.element\.t: Hive has no type for time64"):
        hive_type(pa.list_(pa.struct([("t", pa.time64("us"))])), "x")
