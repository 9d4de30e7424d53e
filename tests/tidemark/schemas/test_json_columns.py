"""Columns from JSON Schema: which types they have, what is adopted and what waits."""

from __future__ import annotations

import json
import random
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
        (schema(x={"$ref": "other.json"}), "other.json, which is not there, nor among its references"),
        (schema(x={"$ref": "#/$defs/none"}), "which is not there"),
    ],
)
def test_what_no_table_can_begin_with_is_refused(found: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        merge(found)


TREE = {
    **schema(value={"type": "integer"}, left={"$ref": "#"}, right={"oneOf": [{"type": "null"}, {"$ref": "#"}]}),
    "$id": "https://example.com/tree.json",
}


def test_a_schema_that_refers_to_itself_is_json_text_from_the_first_repetition_on() -> None:
    assert columns(TREE) == {"value": "int64", "left": "json", "right": "json"}
    wrapped = schema(root={"$ref": "tree.json"}, all={"type": "array", "items": {"$ref": "tree.json"}})
    assert columns(wrapped, **{"tree.json": TREE}) == {
        "root.value": "int64",
        "root.left": "json",
        "root.right": "json",
        "all": "json",
    }
    loop = {**schema(x={"$ref": "#/$defs/A"}), "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}
    assert columns(loop) == {"x": "json"}
    inherits = {"allOf": [{"$ref": "#"}], **schema(id={"type": "integer"})}
    assert columns(inherits) == {"id": "int64"}
    dynamic = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$dynamicAnchor": "node"}
    assert columns({**dynamic, **schema(id={"type": "integer"}, next={"$dynamicRef": "#node"})}) == {
        "id": "int64",
        "next": "json",
    }


def test_references_are_relative_to_the_schema_that_has_them() -> None:
    money = {**schema(amount={"type": "number"}, of={"$ref": "#/definitions/Unit"}), "definitions": {"Unit": schema()}}
    money["definitions"]["Unit"] = schema(name={"type": "string"})
    order = {"$id": "https://example.com/v1/order.json", **schema(price={"$ref": "money.json"})}
    expected = {"price.amount": "double", "price.of.name": "string"}
    assert columns(order, **{"money.json": money}) == expected
    assert (
        columns({**schema(price={"$ref": "money"})}, money={"$id": "https://example.com/m.json", **money}) == expected
    )


@pytest.mark.parametrize("levels", [8, 60])
def test_definitions_that_multiply_are_refused_in_time(levels: int) -> None:
    parts = {f"L{n}": schema(**{f"p{i}": {"$ref": f"#/$defs/L{n + 1}"} for i in range(4)}) for n in range(levels)}
    found = {**schema(x={"$ref": "#/$defs/L0"}), "$defs": {**parts, f"L{levels}": {"type": "integer"}}}
    with pytest.raises(ValueError, match="has more than 4096 columns"):
        columns(found)
    parts = {f"L{n}": {"allOf": [{"$ref": f"#/$defs/L{n + 1}"}] * 4} for n in range(levels)}
    found = {"allOf": [{"$ref": "#/$defs/L0"}], "type": "object", "$defs": {**parts, f"L{levels}": schema()}}
    with pytest.raises(ValueError, match=r"needs more than 100000 steps|is not a JSON Schema of objects"):
        columns(found)


def test_any_document_is_a_schema_or_refused(rng: random.Random) -> None:
    words = ("type", "properties", "allOf", "oneOf", "$ref", "$id", "$defs", "items", "a", "#", "#/a", "object", "null")
    values: list[Any] = [None, True, 5, "x", *words, []]

    def document(level: int) -> Any:
        if level == 0 or rng.random() < 0.2:
            return rng.choice(values)
        if rng.random() < 0.3:
            return [document(level - 1) for _ in range(rng.randint(0, 3))]
        return {rng.choice(words): document(level - 1) for _ in range(rng.randint(0, 4))}

    refused = 0
    for _ in range(500):
        try:
            columns({**schema(a=document(4)), **dict.fromkeys(rng.choices(words, k=2), document(4))})
        except ValueError:
            refused += 1
    assert 0 < refused < 500
