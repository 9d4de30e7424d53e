"""Avro: schemas by which few bytes would make values without end are refused, before a record is read by them."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.support.bounded import bounded
from tests.tidemark.parsers.support import records, rows_of
from tests.tidemark.parsers.test_avro import V2, avro, encoded, framed
from tidemark.errors import ConfigError
from tidemark.parsers.avro.parser import parsed_schema
from tidemark.parsers.avro.schema import MAX_NAMED_TYPES
from tidemark.parsers.base import Parser

EMPTY = {"type": "record", "name": "Empty", "fields": []}
NOTHING = {"type": "fixed", "name": "Nothing", "size": 0}
HUGE = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
"""A count of almost 2^62."""


def record(kind: Any, name: str = "R") -> dict[str, Any]:
    """A record whose field ``x`` is of ``kind``."""
    return {"type": "record", "name": name, "fields": [{"name": "a", "type": "long"}, {"name": "x", "type": kind}]}


def doubled(times: int) -> Any:
    """A record of 2^``times`` nulls, which take no byte."""
    found: Any = "null"
    for number in range(times):
        fields = [{"name": "a", "type": found}, {"name": "b", "type": f"D{number - 1}" if number else "null"}]
        found = {"type": "record", "name": f"D{number}", "fields": fields}
    return found


UNBOUNDED: dict[str, Any] = {
    "recursive": (["null", "R"], "R holds itself"),
    "recursive by another": (record(["null", "R"], "S"), "R holds itself"),
    "recursive by a list": ({"type": "array", "items": "R"}, "R holds itself"),
    "items of null": ({"type": "array", "items": "null"}, "takes so few bytes"),
    "items of empty records": ({"type": "array", "items": EMPTY}, "takes so few bytes"),
    "items of fixed 0": ({"type": "array", "items": NOTHING}, "takes so few bytes"),
    "items of records of nothing": (
        {"type": "array", "items": {"type": "record", "name": "S", "fields": [{"name": "n", "type": NOTHING}]}},
        "takes so few bytes",
    ),
    "items within items": (
        {"type": "map", "values": {"type": "array", "items": {"type": "array", "items": "null"}}},
        "takes so few bytes",
    ),
    "items of many nulls for a byte": (
        {
            "type": "array",
            "items": {
                "type": "record",
                "name": "S",
                "fields": [{"name": "b", "type": "boolean"}]
                + [{"name": f"n{number}", "type": "null"} for number in range(30)],
            },
        },
        "takes so few bytes",
    ),
    "entries of many nulls": ({"type": "map", "values": doubled(6)}, "takes so few bytes"),
    "values of no bytes": (doubled(40), "values of no bytes"),
    "fixed of less than nothing": ({"type": "fixed", "name": "F", "size": -1}, "is of -1 bytes"),
    "deep": (json.loads('{"type":"array","items":' * 300 + '"int"' + "}" * 300), "more than 256 levels"),
    "said to be parsed": (
        ["null", {**EMPTY, "__fastavro_parsed": True, "fields": [{"name": "x", "type": "R"}]}],
        "R holds",
    ),
}


@pytest.mark.parametrize(("kind", "words"), UNBOUNDED.values(), ids=UNBOUNDED.keys())
def test_a_writers_schema_that_is_not_bounded_is_refused(tmp_path: Path, kind: Any, words: str) -> None:
    (tmp_path / "ids").mkdir()
    (tmp_path / "ids" / "1.avsc").write_text(json.dumps(record(kind)))
    (tmp_path / "ids" / "2.avsc").write_text(json.dumps(V2))
    parser = avro(tmp_path, V2, "framing: confluent\nschemas: ids")
    parsed = parser.parse(rows_of([framed(1, b"\x02" + HUGE), framed(2, encoded(V2, {"a": 2}))]))
    assert set(parsed.refused) == {0}
    assert words in parsed.refused[0]
    assert records(parsed) == [{}, {"a": 2}]


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": NOTHING},
        {"type": "array", "items": {"type": "record", "name": "S", "fields": [{"name": "n", "type": NOTHING}]}},
        {"type": "array", "items": "R"},
    ],
)
def test_a_tables_schema_that_is_not_bounded_is_an_error_of_the_configuration(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"takes so few bytes|holds itself"):
        avro(tmp_path, record(kind))


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": ["null", "string"]},
        {"type": "map", "values": "null"},
        {"type": "map", "values": EMPTY},
        {"type": "array", "items": {"type": "array", "items": "int"}},
        {"type": "array", "items": record(["null", {"type": "array", "items": "boolean"}], "S")},
        record({"type": "array", "items": ["null", EMPTY]}, "S"),
        doubled(10),
    ],
)
def test_what_pays_for_itself_is_read(kind: Any) -> None:
    parsed_schema([json.dumps(record(kind))])


def test_so_many_named_types_are_read() -> None:
    kinds = [{"type": "fixed", "name": f"F{number}", "size": 1} for number in range(MAX_NAMED_TYPES)]
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]
    with pytest.raises(ValueError, match="2001 named types"):
        parsed_schema([json.dumps({"type": "record", "name": "R", "fields": fields})])
    parsed_schema([json.dumps({"type": "record", "name": "R", "fields": fields[1:]})])


def test_six_bytes_take_no_gibibyte(tmp_path: Path) -> None:
    """A count of 2^27 nulls, read into a list of texts that may be null, and skipped; both under limits."""
    (tmp_path / "ids").mkdir()
    (tmp_path / "ids" / "1.avsc").write_text(json.dumps(record({"type": "array", "items": "null"})))
    optional = {"name": "x", "type": {"type": "array", "items": ["null", "string"]}, "default": []}
    table = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}, optional]}
    parsers: list[Parser] = [avro(tmp_path, one, "framing: confluent\nschemas: ids") for one in (table, V2)]
    value = framed(1, b"\x02\x80\x80\x80\x80\x01\x00")

    def work() -> list[str]:
        return [parser.parse(rows_of([value])).refused[0] for parser in parsers]

    assert all("takes so few bytes" in one for one in bounded(work, memory=64 << 20, seconds=10))


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("boolean", 1),
        ("float", 4),
        ("double", 8),
        ({"type": "fixed", "name": "F", "size": 3}, 3),
        (["null", "double"], 9),
        (
            {"type": "record", "name": "S", "fields": [{"name": "d", "type": "double"}, {"name": "n", "type": "null"}]},
            8,
        ),
    ],
)
def test_a_record_that_ends_in_a_field_that_is_passed_over_is_refused_if_it_is_cut(
    tmp_path: Path, kind: Any, size: int
) -> None:
    (tmp_path / "ids").mkdir()
    (tmp_path / "ids" / "1.avsc").write_text(json.dumps(record(kind)))
    whole = b"\x02" + (b"\x02" if isinstance(kind, list) else b"\0") + b"\0" * (size - 1)
    parser = avro(tmp_path, V2, "framing: confluent\nschemas: ids")
    parsed = parser.parse(rows_of([framed(1, whole[:end]) for end in range(1, len(whole) + 1)]))
    assert set(parsed.refused) == {*range(size)}
    assert all("ends too early" in reason for reason in parsed.refused.values())
    assert records(parsed)[-1] == {"a": 1}


def test_decimals_are_exact_and_bounded(tmp_path: Path) -> None:
    """Of 38 digits, padded or not; and megabytes of digits end at once."""
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}, {"name": "d", "type": kind}]}
    digits = -(10**38 - 1)
    plain = {**schema, "fields": [schema["fields"][0], {"name": "d", "type": "bytes"}]}
    values = [digits.to_bytes(size, "big", signed=True) for size in (16, 32, 1 << 22)]
    parser = avro(tmp_path, schema)
    rows = rows_of([encoded(plain, {"a": 1, "d": one}) for one in values])

    def work() -> tuple[list[Any], str]:
        parsed = parser.parse(rows)
        return [row.get("d") for row in records(parsed)], parsed.refused[2]

    found, reason = bounded(work, memory=256 << 20, seconds=20)
    assert found == [Decimal(f"-{'9' * 36}.99")] * 2 + [None]
    assert "a decimal of 4194304 bytes" in reason


POINT = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "double"}, {"name": "y", "type": "double"}],
}


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "boolean"},
        {"type": "array", "items": "float"},
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 4}},
        {"type": "array", "items": POINT},
        {"type": "map", "values": {"type": "array", "items": "double"}},
        ["null", record({"type": "array", "items": record(POINT, "T")}, "S")],
    ],
    ids=["boolean", "float", "fixed", "record", "in a map", "in a record"],
)
def test_a_count_that_the_bytes_do_not_have_ends_where_the_table_lacks_the_field(kind: Any, tmp_path: Path) -> None:
    """Such items are skipped by fastavro without a look whether they are there: 2^62 times."""
    (tmp_path / "ids").mkdir()
    (tmp_path / "ids" / "1.avsc").write_text(json.dumps(record(kind)))
    table = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    parser = avro(tmp_path, table, "framing: confluent\nschemas: ids")
    before = b"\x02" if isinstance(kind, list) else b"\x02\x02k" if kind["type"] == "map" else b""
    inner = b"\x00" if isinstance(kind, list) else b""  # the field before, of the record within
    good: Any = None if isinstance(kind, list) else {} if kind["type"] == "map" else []
    values = [
        framed(1, b"\x0e" + before + inner + HUGE + bytes(9)),
        framed(1, encoded(record(kind), {"a": 7, "x": good})),
    ]

    def work() -> tuple[dict[int, str], list[Any]]:
        parsed = parser.parse(rows_of(values))
        return dict(parsed.refused), records(parsed)

    refused, found = bounded(work, memory=256 << 20, seconds=10)
    assert list(refused) == [0]
    assert "does not match its Avro schema" in refused[0]
    assert found[1] == {"a": 7}
