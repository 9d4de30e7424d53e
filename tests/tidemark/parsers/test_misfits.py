"""Which fields fit: what is kept is what is resolved, whatever the value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.tidemark.parsers.test_avro import encoded
from tidemark.parsers.avro.parser import parsed_schema, reader_of
from tidemark.parsers.avro.resolution import RecordStep, resolved
from tidemark.parsers.avro.schema import Type
from tidemark.parsers.row_parser import RefusedRecord


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "S", "fields": list(fields)}


A, B = {"name": "a", "type": "int"}, {"name": "b", "type": "string"}
KINDS: list[tuple[Any, list[Any]]] = [
    ("int", [1, -5]),
    ("long", [1 << 40]),
    ("float", [0.5]),
    ("double", [0.25]),
    ("boolean", [True]),
    ("string", ["x"]),
    ("bytes", [b"x"]),
    (["null", "int"], [3]),
    (["int", "string"], [3, "x"]),
    (["null", "long", "string"], [1 << 40, "x"]),
    ({"type": "array", "items": "int"}, [[1]]),
    ({"type": "array", "items": "string"}, [["x"]]),
    ({"type": "map", "values": "long"}, [{"k": 1}]),
    ({"type": "fixed", "name": "F", "size": 2}, [b"ab"]),
    ({"type": "fixed", "name": "F", "size": 3}, [b"abc"]),
    (enum("X"), ["X"]),
    (enum("X", "Y"), ["X", "Y"]),
    (enum("Z", default="Z"), ["Z"]),
    (struct(A), [{"a": 1}]),
    (struct(A, B), [{"a": 1, "b": "x"}]),
    (struct(A, {**B, "default": "-"}), [{"a": 1, "b": "x"}]),
    (struct({"name": "a", "type": "string"}), [{"a": "x"}]),
]


def record(kind: Any) -> Any:
    return {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}, {"name": "x", "type": kind}]}


@pytest.mark.parametrize(("kind", "values"), KINDS)
def test_a_field_fits_if_each_of_its_values_is_resolved(kind: Any, values: list[Any]) -> None:
    writer = parsed_schema([json.dumps(record(kind))])
    for other in (one for one, _ in KINDS if not isinstance(one, list) or ("null" in one[:-1] and len(one) == 2)):
        reader = parsed_schema([json.dumps(record(other))])
        fits = resolved(writer, reader, land=True)
        assert isinstance(fits, RecordStep)
        data = [encoded(record(kind), {"id": 7, "x": value}) for value in values]
        assert (1 not in fits.missing) is all(_resolves(writer, reader, one) for one in data), other
        for one in data:
            assert reader_of(fits)(one)["id"] == 7


def test_a_null_where_the_table_has_none_lands_with_what_fits() -> None:
    writer, reader = (parsed_schema([json.dumps(record(kind))]) for kind in (["null", "int"], "int"))
    data = encoded(record(["null", "int"]), {"id": 7, "x": None})
    assert not _resolves(writer, reader, data)
    assert reader_of(resolved(writer, reader, land=True))(data) == {"id": 7, "x": None}


def _resolves(writer: Type, reader: Type, data: bytes) -> bool:
    try:
        reader_of(resolved(writer, reader))(data)
    except RefusedRecord:
        return False
    return True
