"""The base columns are declared once: what is derived, and what computes their values, agrees with the declaration."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tests.support.paths import ROOT
from tests.tidemark.kafka_log.build import T0, Record, batch, legacy
from tidemark.decode import SCHEMA, decode_batches, row_hash_sum, scan_headers
from tidemark.formats.table.base_columns import BASE_COLUMNS, HASHED, IDENTITY, OPTIONAL, PREFIX
from tidemark.topics import TopicSettings

OTHER: dict[str, Any] = {"int32": 77, "int64": 77, "string": "other", "binary": b"other", "timestamp": 77}
OTHER["headers"] = [{"key": "other", "value": b"other"}]


def decoded(data: bytes) -> pa.RecordBatch:
    """The rows of ``data``."""
    headers = scan_headers(data, "segment", 3)
    [rows] = decode_batches(data, headers, name="segment", partition=1, incarnation=2)
    return rows


@pytest.mark.parametrize("data", [batch(3, [Record(0, T0, b"key", b"value")]), legacy(1, 3, 1)])
def test_the_decoder_gives_each_column(data: bytes) -> None:
    rows = decoded(data)
    assert rows.schema == SCHEMA
    assert rows.schema.names == [one.name for one in BASE_COLUMNS]
    assert not [one.name for one in BASE_COLUMNS if not one.nullable and rows.column(one.name).null_count]


@pytest.mark.parametrize("column", BASE_COLUMNS, ids=lambda one: one.name)
def test_a_rows_hash_covers_what_is_declared_and_nothing_else(column: Any) -> None:
    rows = decoded(batch(3, [Record(0, T0, b"key", b"value")]))
    at = rows.schema.get_field_index(column.name)
    other = pa.array([OTHER[column.type]], rows.schema.field(at).type)
    changed = rows.set_column(at, rows.schema.field(at), other)
    assert (row_hash_sum(changed) != row_hash_sum(rows)) is column.hashed


def test_every_column_either_stays_or_may_be_left_out() -> None:
    assert {*IDENTITY, *(f"{PREFIX}{one}" for one in OPTIONAL)} == set(SCHEMA.names)
    assert set(HASHED) < set(SCHEMA.names) - set(IDENTITY)
    assert TopicSettings(topic="orders", cluster="east", table="orders", keep=("value",)).keep == ("value",)
    for wrong in ("offset", "kafka_value", "price"):
        with pytest.raises(ValidationError, match=r"must be one of timestamp, timestamp_type, key, value"):
            TopicSettings(topic="orders", cluster="east", table="orders", keep=(wrong,))


def test_every_column_is_documented() -> None:
    text = (ROOT / "docs" / "reading.md").read_text()
    assert not [one.name for one in BASE_COLUMNS if f"`{one.name}`" not in text]


def test_what_may_be_left_out_is_documented() -> None:
    [row] = [line for line in (ROOT / "docs" / "topics.md").read_text().splitlines() if "`topics[].keep`" in line]
    assert re.findall(r"`(\w+)`", row.split("|")[3]) == [*OPTIONAL]
