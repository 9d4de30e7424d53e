"""Merges of Avro schemas: what is adopted, what waits, and that the result reads what any version wrote."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import fastavro
import pytest

from tidemark.formats.table.schema_state import SchemaChange
from tidemark.parsers.avro.parser import parsed_schema, reader_of
from tidemark.parsers.avro.resolution import resolved
from tidemark.parsers.avro.schema import parsed
from tidemark.parsers.avro.types import Types
from tidemark.parsers.schema_registry import Written
from tidemark.schemas.avro_merge import merged


def record(*fields: dict[str, Any], name: str = "shop.Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def merge(*schemas: Any, widen: bool = False) -> tuple[bytes, list[tuple[str, str, str]]]:
    """The definition after all schemas, and what the last one changes."""
    definition: bytes | None = None
    changes: tuple[SchemaChange, ...] = ()
    for schema in schemas:
        definition, changes = merged(definition, Written((json.dumps(schema),)), widen=widen)
    assert definition is not None
    return definition, [(one.path, one.kind, one.detail) for one in changes]


def read(definition: bytes, writer: Any, value: Any) -> Any:
    """``value``, which was written by ``writer``, as the table has it."""
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(writer), value)
    steps = resolved(parsed_schema([json.dumps(writer)]), parsed_schema([definition]))
    return {name: _dict(value) for name, value in reader_of(steps)(target.getvalue()).items()}


def _dict(value: Any) -> Any:
    """A map's list of entries as it was written."""
    entries = isinstance(value, list) and value and isinstance(value[0], dict) and value[0].keys() == {"key", "value"}
    return {one["key"]: one["value"] for one in value} if entries else value


ADDRESS = record(field("city", "string"), name="shop.Address")
STATE = {"type": "enum", "name": "shop.State", "symbols": ["NEW", "PAID"]}
V1 = record(
    field("id", "int"), field("state", STATE), field("to", ADDRESS), field("tags", {"type": "array", "items": "string"})
)


def test_new_fields_are_added_and_those_that_are_gone_stay() -> None:
    newer = record(field("id", "int"), field("vip", "boolean"), field("currency", "string", default="EUR"))
    definition, changes = merge(V1, newer)
    assert changes == [
        ("state", "removed", "is null, or its default, in new records"),
        ("to", "removed", "is null, or its default, in new records"),
        ("tags", "removed", "is null, or its default, in new records"),
        ("vip", "added", "boolean"),
        ("currency", "added", "string"),
    ]
    old = {"id": 1, "state": "NEW", "to": {"city": "Wien"}, "tags": ["a"]}
    assert read(definition, V1, old) == {**old, "vip": None, "currency": "EUR"}
    new = {"id": 2, "vip": True, "currency": "USD"}
    assert read(definition, newer, new) == {"state": None, "to": None, "tags": None, **new}


def test_symbols_and_nulls_are_merged_wherever_they_are() -> None:
    state = {**STATE, "symbols": ["SENT", "NEW", "PAID"]}
    address = record(field("city", ["null", "string"], default=None), name="shop.Address")
    tags = {"type": "array", "items": ["null", "string"]}
    newer = record(field("id", ["int", "null"]), field("state", state), field("to", address), field("tags", tags))
    definition, changes = merge(V1, newer)
    assert changes == []
    value = {"id": None, "state": "SENT", "to": {"city": None}, "tags": [None, "a"]}
    assert read(definition, newer, value) == value
    old = {"id": 1, "state": "PAID", "to": {"city": "Wien"}, "tags": ["a"]}
    assert read(definition, V1, old) == old


@pytest.mark.parametrize(
    ("before", "after", "detail"),
    [
        ("int", "long", "int becomes long"),
        ("float", "double", "float becomes double"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            "decimal(5,2) becomes decimal(9,2)",
        ),
    ],
)
def test_longer_numbers_wait_for_a_rebuild(before: Any, after: Any, detail: str) -> None:
    schemas = [record(field("x", before)), record(field("x", after))]
    definition, changes = merge(*schemas)
    assert changes == [("x", "wider", detail)]
    types = Types().record(parsed([definition]))
    wide = Types().record(parsed([merge(*schemas, widen=True)[0]]))
    assert types[0].type == Types().record(parsed([json.dumps(schemas[0])]))[0].type
    assert wide[0].type == Types().record(parsed([json.dumps(schemas[1])]))[0].type


def test_a_field_within_a_struct_waits_for_a_rebuild() -> None:
    address = record(field("city", "string"), field("zip", "int"), name="shop.Address")
    newer = record(*V1["fields"][:2], field("to", address), V1["fields"][3])
    definition, changes = merge(V1, newer)
    assert changes == [("to.zip", "wider", "int, is new within a struct, so all rows are written again to have it")]
    value = {"id": 1, "state": "NEW", "to": {"city": "Wien", "zip": 1010}, "tags": []}
    assert read(definition, newer, value)["to"] == {"city": "Wien"}
    wide, _ = merge(V1, newer, widen=True)
    assert read(wide, newer, value) == value
    assert read(wide, V1, {**value, "to": {"city": "Wien"}})["to"] == {"city": "Wien", "zip": None}


@pytest.mark.parametrize(
    ("before", "after", "detail"),
    [
        ("string", "int", "string becomes int"),
        ("long", "int", "long becomes int"),
        ("int", "float", "int becomes float"),
        ("long", {"type": "long", "logicalType": "timestamp-millis"}, "long becomes timestamp-millis"),
        (STATE, "string", "State becomes string"),
        (STATE, {**STATE, "name": "shop.Status"}, "enum State becomes enum Status"),
        ("string", {"type": "array", "items": "string"}, "string becomes array of string"),
        ("string", ["string", "int"], "string becomes string or int"),
        (
            {"type": "fixed", "name": "F", "size": 4},
            {"type": "fixed", "name": "F", "size": 8},
            "fixed F(4) becomes fixed F(8)",
        ),
    ],
)
def test_other_types_are_misfits(before: Any, after: Any, detail: str) -> None:
    schemas = [record(field("x", before), field("id", "int")), record(field("x", after), field("id", "int"))]
    definition, changes = merge(*schemas)
    assert changes == [("x", "misfit", detail)]
    kept = Types().record(parsed([definition]))
    assert kept[0].type == Types().record(parsed([json.dumps(schemas[0])]))[0].type


def test_what_cannot_be_a_column_is_left_out_by_name() -> None:
    node = record(field("next", ["null", "Node"]), name="Node")
    newer = record(
        field("id", "int"), field("u", ["int", "string"]), field("n", node), field("ID", "int"), field("dt", "int")
    )
    definition, changes = merge(newer)
    assert [one["name"] for one in json.loads(definition)["fields"]] == ["id"]
    assert [(path, kind) for path, kind, _ in changes] == [
        ("id", "added"),
        ("u", "misfit"),
        ("n", "misfit"),
        ("ID", "misfit"),
        ("dt", "misfit"),
    ]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("int", "not the schema of a record"),
        (record(), "has no field"),
        (record(field("dt", "int")), "dt is the table's own"),
        ({"type": "record", "fields": []}, "not a valid Avro schema"),
        (record(field("a", "nothing")), "shop.nothing is not a known type"),
    ],
)
def test_what_no_table_can_begin_with_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        merge(schema)


def test_a_record_of_another_name_is_a_misfit_as_a_whole() -> None:
    definition, changes = merge(V1, {**V1, "name": "shop.Purchase"})
    assert [(path, kind) for path, kind, _ in changes] == [("shop.Order", "misfit")]
    assert definition == merge(V1)[0]


def test_types_that_others_refer_to_are_taken_along() -> None:
    order = record(field("id", "int"), field("to", "shop.Address"), field("back", "shop.Address"))
    definition, _ = merged(None, Written((json.dumps(ADDRESS), json.dumps(order)), ("address",)))
    assert json.loads(definition)["fields"][2]["type"] == ["null", "shop.Address"]
    whole = record(field("id", "int"), field("to", ADDRESS), field("back", "shop.Address"))
    value = {"id": 1, "to": {"city": "Wien"}, "back": {"city": "Graz"}}
    assert read(definition, whole, value) == value


KINDS: dict[str, tuple[Any, Any]] = {
    "int": ("int", 7),
    "string": ("string", "text"),
    "double": ("double", 0.5),
    "list": ({"type": "array", "items": "int"}, [1, 2]),
    "map": ({"type": "map", "values": "string"}, {"k": "v"}),
}


def test_random_histories_are_read_whatever_version_wrote_them(rng: random.Random) -> None:
    """Fields come, go, come back and become nullable; a record is read as what it was, null or default elsewhere."""
    for _ in range(60):
        kinds = {name: rng.choice(list(KINDS)) for name in "abcdef"}
        versions, definition = [], None
        for _ in range(rng.randrange(2, 7)):
            names = rng.sample("abcdef", rng.randrange(1, 7))
            fields = []
            for name in names:
                kind, _ = KINDS[kinds[name]]
                more: dict[str, Any] = {}
                if rng.random() < 0.3:
                    kind, more = ["null", kind], {"default": None}
                fields.append(field(name, kind, **more))
            versions.append(record(*fields))
            definition, changes = merged(definition, Written((json.dumps(versions[-1]),)))
            assert {one.kind for one in changes} <= {"added", "removed"}
        assert definition is not None
        columns = [one["name"] for one in json.loads(definition)["fields"]]
        assert set(columns) == {one["name"] for schema in versions for one in schema["fields"]}
        for schema in versions:
            value = {
                one["name"]: None
                if isinstance(one["type"], list) and rng.random() < 0.5
                else KINDS[kinds[one["name"]]][1]
                for one in schema["fields"]
            }
            assert read(definition, schema, value) == {name: value.get(name) for name in columns}
