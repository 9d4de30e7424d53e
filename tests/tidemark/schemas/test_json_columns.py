"""Columns from JSON Schema: which types they have, what is adopted and what waits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemark.formats.table.schema_state import SchemaChange
from tidemark.parsers.schema_registry import Written
from tidemark.schemas.json_columns import merged


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def columns(found: Any, **others: Any) -> dict[str, str]:
    """The types of the columns of a schema, by path; ``others`` are what it refers to."""
    written = Written((*map(json.dumps, others.values()), json.dumps(found)), tuple(others))
    return {".".join(one["path"]): one["type"] for one in json.loads(merged(None, written).definition)}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"type": "integer"}, "int64"),
        ({"type": ["null", "integer"]}, "int64"),
        ({"type": "number"}, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "date-time"}, "timestamp(iso8601)"),
        ({"type": "string", "format": "date"}, "date"),
        ({"enum": ["NEW", "PAID", None]}, "string"),
        ({"const": "x"}, "string"),
        ({"enum": [1, "x"]}, "json"),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, "int64"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "json"),
        ({"type": ["string", "integer"]}, "json"),
        ({"type": "array", "items": {"type": "string"}}, "list<string>"),
        ({"type": "array", "items": {"type": "object"}}, "json"),
        ({"type": "array"}, "json"),
        ({"type": "object"}, "json"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "json"),
        ({}, "json"),
        (True, "json"),
        ({"$ref": "#/$defs/Money"}, "double"),
        ({"$ref": "#"}, "json"),
    ],
)
def test_types(value: Any, kind: str) -> None:
    found = columns({**schema(x=value), "$defs": {"Money": {"type": "number"}}})
    assert [one for path, one in found.items() if path == "x" or path.endswith(".x")][-1] == kind


def test_objects_become_a_column_for_each_property() -> None:
    address = {"type": "object", "properties": {"city": {"type": "string"}, "at": schema(lat={"type": "number"})}}
    assert columns(schema(to=address, id={"type": "integer"})) == {
        "to.city": "string",
        "to.at.lat": "double",
        "id": "int64",
    }
    written = Written((json.dumps(schema(to=address)),))
    assert [one["name"] for one in json.loads(merged(None, written).definition)] == ["to_city", "to_at_lat"]


def test_references_and_all_of_are_followed() -> None:
    base = {"type": "object", "properties": {"id": {"type": "integer"}}, "definitions": {"T": {"type": "boolean"}}}
    found = {
        "allOf": [{"$ref": "base.json"}, {"properties": {"vip": {"$ref": "base.json#/definitions/T"}}}],
        "type": "object",
    }
    assert columns(found, **{"base.json": base}) == {"id": "int64", "vip": "boolean"}


def merge(*schemas: Any) -> tuple[list[str], list[tuple[str, str, str]]]:
    definition: bytes | None = None
    changes: tuple[SchemaChange, ...] = ()
    for one in schemas:
        definition, changes = merged(definition, Written((json.dumps(one),)))
    assert definition is not None
    return [one["name"] for one in json.loads(definition)], [(one.path, one.kind, one.detail) for one in changes]


def test_columns_are_added_stay_and_do_not_change() -> None:
    integer, text = {"type": "integer"}, {"type": "string"}
    names, changes = merge(
        schema(id=integer, note=text, a=integer), schema(id=text, vip=integer, ID=text, a=schema(b=integer))
    )
    assert names == ["id", "note", "a", "vip"]
    assert changes == [
        ("id", "misfit", "int64 becomes string"),
        ("note", "removed", "is null in new records"),
        ("a", "removed", "is null in new records"),
        ("vip", "added", "int64"),
        ("ID", "misfit", "appears twice: engines do not distinguish id and ID"),
        ("a.b", "misfit", "lies within a column, or has one within"),
    ]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"type": "string"}, "not a JSON Schema of objects"),
        ({"type": "object"}, "not a JSON Schema of objects"),
        (schema(dt={"type": "string"}), "dt is the table's own"),
        (schema(x={"$ref": "other.json"}), "other.json, which is not among its references"),
        (schema(x={"$ref": "#/$defs/none"}), "which is not there"),
    ],
)
def test_what_no_table_can_begin_with_is_refused(found: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        merge(found)
