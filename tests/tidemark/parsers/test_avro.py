"""Avro: types, framing, schemas that evolve, and bytes that no schema wrote."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tests.tidemark.parsers.support import records, rows_of, topic_of
from tidemark.errors import ConfigError
from tidemark.parsers.base import Parser
from tidemark.parsers.factory import parser_of

AT = datetime(2026, 2, 2, 3, 4, 5, 678000, tzinfo=UTC)

FULL: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "State"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "sizes", "type": {"type": "map", "values": "int"}},
        {
            "name": "user",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "User",
                    "fields": [
                        {"name": "name", "type": "string"},
                        {"name": "since", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
                        {"name": "uuid", "type": {"type": "fixed", "name": "Raw", "size": 2}},
                    ],
                },
            ],
            "default": None,
        },
    ],
}
RECORD: dict[str, Any] = {
    "id": 7,
    "note": None,
    "state": "PAID",
    "before": "NEW",
    "at": AT,
    "day": date(2026, 2, 2),
    "price": Decimal("12.50"),
    "tags": ["a", "b"],
    "sizes": {"s": 1, "m": 2},
    "user": {"name": "Zoë", "since": AT, "uuid": b"\x00\x01"},
}
EXPECTED = {
    **{name: value for name, value in RECORD.items() if name not in {"note", "sizes"}},
    "sizes": [{"key": "s", "value": 1}, {"key": "m", "value": 2}],
}
V1 = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "gone", "type": "string"}]}
V2 = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": ["null", "string"], "default": None}],
}
V3 = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}


def encoded(schema: Any, record: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), record)
    return target.getvalue()


def framed(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data


def avro(directory: Path, schema: Any, more: str = "", **registry: str) -> Parser:
    (directory / "orders.avsc").write_text(json.dumps(schema))
    return parser_of(topic_of(f"kind: avro\nschema: orders.avsc\n{more}", directory, **registry).parser, "orders")


def test_each_type_is_read(tmp_path: Path) -> None:
    parser = avro(tmp_path, FULL, "event_time: {field: user.since}")
    parsed = parser.parse(rows_of([encoded(FULL, RECORD), None, encoded(FULL, RECORD | {"user": None})]))
    assert parsed.refused == {}
    assert records(parsed) == [EXPECTED, {}, {name: value for name, value in EXPECTED.items() if name != "user"}]
    assert parsed.event_time is not None
    assert parsed.event_time.to_pylist() == [round(AT.timestamp() * 1e6), None, None]
    assert parsed.columns.schema == parser.columns


def test_bytes_that_the_schema_did_not_write_are_refused(tmp_path: Path) -> None:
    good = encoded(FULL, RECORD)
    values = [good[:cut] for cut in range(len(good))] + [good + b"x", b"\xff" * 30, good]
    parsed = avro(tmp_path, FULL).parse(rows_of(values))
    assert set(parsed.refused) == set(range(len(values) - 1))
    assert "more bytes" in parsed.refused[len(good)]
    assert records(parsed)[-1] == EXPECTED


@pytest.mark.parametrize(
    ("kind", "data", "rule"),
    [
        (["null", "long"], b"\x04", "names a branch of a union"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "a symbol of an enum"),
        ("long", b"\xff" * 11, "ends too early"),
        ("long", b"", "ends too early"),
        ("string", b"\x06ab", "ends too early"),
        ("string", b"\x02\xff", "has a string that is not valid UTF-8"),
    ],
    ids=["branch", "symbol", "within a number", "before a number", "within a string", "not UTF-8"],
)
def test_a_refusal_names_the_rule_and_no_error_of_the_language(
    tmp_path: Path, kind: Any, data: bytes, rule: str
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}
    [reason] = avro(tmp_path, schema).parse(rows_of([data])).refused.values()
    assert rule in reason
    assert "Error" not in reason
    assert "out of range" not in reason


def test_an_empty_record_of_a_column_that_the_table_lacks_is_refused(tmp_path: Path) -> None:
    """The reader looks up the missing byte when it passes the field over."""
    (tmp_path / "ids").mkdir()
    table = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "long", "default": 0}]}
    for kind in ("int", "string", {"type": "enum", "name": "E", "symbols": ["A"]}, ["null", "string"]):
        written = {"type": "record", "name": "R", "fields": [{"name": "gone", "type": kind}]}
        (tmp_path / "ids" / "1.avsc").write_text(json.dumps(written))
        parser: Any = avro(tmp_path, table, "framing: confluent\nschemas: ids")
        [reason] = parser.parse(rows_of([framed(1, b"")]), vectorised=False).refused.values()
        assert "ends too early" in reason


def test_a_time_that_does_not_fit_refuses_its_row_alone(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "R", "fields": [FULL["fields"][4]]}
    plain = {"type": "record", "name": "R", "fields": [{"name": "at", "type": "long"}]}
    values = [encoded(plain, {"at": at}) for at in (1, 1 << 62, 2)]
    parsed = avro(tmp_path, schema).parse(rows_of(values))
    assert set(parsed.refused) == {1}
    assert "do not fit" in parsed.refused[1]
    assert [row["at"].microsecond for row in records(parsed) if row] == [1000, 2000]


def test_a_schema_that_wrote_another_kind_of_value_refuses_its_rows_alone(tmp_path: Path) -> None:
    """A reader gets what the writer's logical type gives, and the writer may have given none, or another."""
    [price] = (one for one in FULL["fields"] if one["name"] == "price")
    table, plain = ({"type": "record", "name": "R", "fields": [one]} for one in (price, {**price, "type": "bytes"}))
    (tmp_path / "ids").mkdir()
    for number, schema in ((1, table), (2, plain)):
        (tmp_path / "ids" / f"{number}.avsc").write_text(json.dumps(schema))
    parser = avro(tmp_path, table, "framing: confluent\nschemas: ids")
    values = [
        framed(1, encoded(table, {"price": Decimal("1.25")})),
        framed(2, encoded(plain, {"price": b"\x7d"})),
        framed(1, encoded(table, {"price": Decimal("2.50")})),
    ]
    parsed = parser.parse(rows_of(values))
    assert [row.get("price") for row in records(parsed)] == [Decimal("1.25"), None, Decimal("2.50")]
    assert set(parsed.refused) == {1}


def test_schemas_that_evolve_are_read_into_the_tables(tmp_path: Path) -> None:
    (tmp_path / "ids").mkdir()
    for number, schema in ((1, V1), (2, V2), (3, V3)):
        (tmp_path / "ids" / f"{number}.avsc").write_text(json.dumps(schema))
    parser = avro(tmp_path, V2, "framing: confluent\nschemas: ids")
    values = [
        framed(1, encoded(V1, {"a": 1, "gone": "x"})),
        framed(2, encoded(V2, {"a": 1 << 40, "b": "y"})),
        framed(3, encoded(V3, {"a": "z"})),
        framed(9, b"\x02"),
        b"{}",
        None,
    ]
    parsed = parser.parse(rows_of(values))
    assert records(parsed) == [{"a": 1}, {"a": 1 << 40, "b": "y"}, {}, {}, {}, {}]
    assert set(parsed.refused) == {2, 3, 4}
    assert "string is not long" in parsed.refused[2]
    assert "schema 9, which is unknown" in parsed.refused[3]
    assert "zero byte" in parsed.refused[4]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"name": "a", "type": ["int", "string"]}, r"parser\.avro: schema\.a: a union may be of null and one"),
        ({"name": "a", "type": ["null", "R"]}, r"schema\.a: R holds itself"),
        ({"name": "a", "type": "wat"}, r"schema\.a: wat is not a known type"),
        ({"name": "a", "type": "null"}, r"schema\.a: is always null"),
        ({"name": "a", "type": {"type": "array", "items": "null"}}, r"schema\.a\[\]: is always null"),
    ],
)
def test_a_schema_that_makes_no_columns_is_an_error_of_the_configuration(
    tmp_path: Path, field: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        avro(tmp_path, {"type": "record", "name": "R", "fields": [field]})


def test_a_changed_schema_is_a_changed_configuration(tmp_path: Path) -> None:
    path = tmp_path / "orders.avsc"
    path.write_text(json.dumps(V1))
    before = topic_of("kind: avro\nschema: orders.avsc", tmp_path).digest
    path.write_text(json.dumps(V2))
    assert topic_of("kind: avro\nschema: orders.avsc", tmp_path).digest != before
