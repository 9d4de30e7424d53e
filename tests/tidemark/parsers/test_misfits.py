"""Which fields fit: what is kept is what fastavro resolves, whatever the value."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from tidemark.parsers.avro.misfits import fitting
from tidemark.parsers.avro.parser import _UNREADABLE
from tidemark.parsers.avro.writers import parsed_schema


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
    writer = parsed_schema([json.dumps(record(kind))]).parsed
    for other, _ in KINDS:
        reader = parsed_schema([json.dumps(record(other))]).parsed
        fits = fitting(writer, reader)
        assert (len(fits["fields"]) == 2) is all(_resolves(writer, reader, value) for value in values), other
        for value in values:
            assert _read(writer, fits, value)["id"] == 7


def _resolves(writer: Any, reader: Any, value: Any) -> bool:
    try:
        _read(writer, reader, value)
    except _UNREADABLE:
        return False
    return True


def _read(writer: Any, reader: Any, value: Any) -> Any:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, writer, {"id": 7, "x": value})
    return fastavro.schemaless_reader(io.BytesIO(target.getvalue()), writer, reader)
