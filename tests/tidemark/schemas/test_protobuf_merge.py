"""Merges of Protobuf's descriptors: what is adopted, what waits, and that the result reads what any version wrote."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from tests.tidemark.parsers.support import rows_of
from tidemark.formats.table.schema_state import SchemaChange
from tidemark.parsers.protobuf.parser import ProtobufColumns
from tidemark.parsers.schema_registry import Written
from tidemark.parsers.settings import ProtobufParser, SettingsFile
from tidemark.schemas.protobuf_merge import merged

F = FieldDescriptorProto
Field = tuple[str, int, Any]


def add(message: DescriptorProto, name: str, number: int, kind: Any) -> None:
    """A field: of a type, or of a message's or an enum's name; in a list it is repeated, in a tuple ``optional``."""
    field = message.field.add(name=name, number=number, label=F.LABEL_OPTIONAL)
    if isinstance(kind, list):
        [kind], field.label = kind, F.LABEL_REPEATED
    if isinstance(kind, tuple):
        [kind], field.proto3_optional = kind, True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    if isinstance(kind, str):
        field.type = F.TYPE_ENUM if kind.startswith(".shop.State") else F.TYPE_MESSAGE
        field.type_name = kind
    else:
        field.type = kind


def file(*fields: Field, address: tuple[Field, ...] = (("city", 1, F.TYPE_STRING),), states: str = "NEW PAID") -> Any:
    """shop.Order with these fields, and an address and a state that it may have."""
    found = FileDescriptorProto(name="", package="shop", syntax="proto3")
    order = found.message_type.add(name="Order")
    for one in fields:
        add(order, *one)
    other = found.message_type.add(name="Address")
    for one in address:
        add(other, *one)
    enum = found.enum_type.add(name="State")
    for number, name in enumerate(states.split()):
        enum.value.add(name=name, number=number)
    return found


def written(*files: FileDescriptorProto) -> Written:
    texts = tuple(base64.b64encode(one.SerializeToString()).decode() for one in files)
    return Written(texts, tuple(one.name for one in files[:-1]))


def merge(*files: FileDescriptorProto | Written, widen: bool = False) -> tuple[bytes, list[tuple[str, str, str]]]:
    definition: bytes | None = None
    changes: tuple[SchemaChange, ...] = ()
    for one in files:
        registered = one if isinstance(one, Written) else written(one)
        definition, changes = merged(definition, registered, "shop.Order", widen=widen)
    assert definition is not None
    return definition, [(one.path, one.kind, one.detail) for one in changes]


def encoded(of: FileDescriptorProto, **values: Any) -> bytes:
    named = FileDescriptorProto()
    named.CopyFrom(of)
    named.name = "main.proto"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(named.SerializeToString())
    data: bytes = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(
        **values
    ).SerializeToString()
    return data


def read(definition: bytes, *values: bytes) -> list[dict[str, Any]]:
    settings = ProtobufParser(kind="protobuf", descriptors=SettingsFile("x", definition), message="shop.Order")
    parsed = ProtobufColumns(settings).parse(rows_of(values))
    assert not parsed.refused
    return parsed.columns.to_pylist()


V1 = file(("id", 1, F.TYPE_INT32), ("note", 2, F.TYPE_STRING), ("to", 3, ".shop.Address"), ("state", 4, ".shop.State"))


def test_new_fields_are_added_and_those_that_are_gone_stay() -> None:
    newer = file(
        ("id", 1, F.TYPE_INT32), ("vip", 5, (F.TYPE_BOOL,)), ("tags", 6, [F.TYPE_STRING]), ("back", 7, ".shop.Address")
    )
    definition, changes = merge(V1, newer)
    assert [(path, kind) for path, kind, _ in changes] == [
        *((name, "removed") for name in ("note", "to", "state")),
        *((name, "added") for name in ("vip", "tags", "back")),
    ]
    old = encoded(V1, id=1, note="n", to={"city": "Wien"}, state="PAID")
    new = encoded(newer, id=2, vip=True, tags=["a"], back={"city": "Graz"})
    assert read(definition, old, new) == [
        {"id": 1, "note": "n", "to": {"city": "Wien"}, "state": "PAID", "vip": None, "tags": [], "back": None},
        {"id": 2, "note": "", "to": None, "state": "NEW", "vip": True, "tags": ["a"], "back": {"city": "Graz"}},
    ]


def test_an_optional_field_has_a_oneof_of_its_own() -> None:
    """Nothing asks that it be named after the field, and another one may have its name."""
    before, after, chosen = (
        file(("id", 1, F.TYPE_INT32), *more) for more in ([("a", 2, (F.TYPE_INT32,))], [("b", 3, (F.TYPE_INT32,))], ())
    )
    after.message_type[0].oneof_decl[0].name = "_a"
    add(chosen.message_type[0], "c", 4, F.TYPE_INT32)
    add(chosen.message_type[0], "d", 5, F.TYPE_INT32)
    chosen.message_type[0].oneof_decl.add(name="_a")
    for field in chosen.message_type[0].field[1:]:
        field.oneof_index = 0
    definition, changes = merge(before, after, chosen)
    assert [(path, kind) for path, kind, _ in changes if kind != "removed"] == [("c", "added"), ("d", "added")]
    [found] = read(definition, encoded(chosen, d=7))
    assert found == {"id": 0, "a": None, "b": None, "c": None, "d": 7}


def test_new_symbols_get_their_names_and_new_types_come_along() -> None:
    newer = file(
        *((one.name, one.number, one.type_name or one.type) for one in V1.message_type[0].field), states="NEW PAID SENT"
    )
    newer.message_type.add(name="Line")
    add(newer.message_type[-1], "sku", 1, F.TYPE_STRING)
    add(newer.message_type[0], "lines", 8, [".shop.Line"])
    definition, changes = merge(V1, newer)
    assert changes == [("lines", "added", "repeated Line")]
    [found] = read(definition, encoded(newer, state="SENT", lines=[{"sku": "x"}]))
    assert found["state"] == "SENT"
    assert found["lines"] == [{"sku": "x"}]


@pytest.mark.parametrize(
    ("before", "after", "kind", "detail"),
    [
        (F.TYPE_INT32, F.TYPE_INT64, "wider", "int32 becomes int64"),
        (F.TYPE_SINT32, F.TYPE_SINT64, "wider", "sint32 becomes sint64"),
        (F.TYPE_INT32, F.TYPE_SINT32, "misfit", "int32 becomes sint32"),
        (F.TYPE_UINT32, F.TYPE_UINT64, "misfit", "uint32 becomes uint64"),
        (F.TYPE_FLOAT, F.TYPE_DOUBLE, "misfit", "float becomes double"),
        (F.TYPE_STRING, F.TYPE_BYTES, "misfit", "string becomes bytes"),
        (F.TYPE_STRING, [F.TYPE_STRING], "misfit", "string becomes repeated string"),
        (".shop.Address", ".shop.State", "misfit", "Address becomes State"),
    ],
)
def test_what_happens_to_types(before: Any, after: Any, kind: str, detail: str) -> None:
    files = [file(("x", 1, before), ("id", 2, F.TYPE_INT32)), file(("x", 1, after), ("id", 2, F.TYPE_INT32))]
    definition, changes = merge(*files)
    assert changes == [("x", kind, detail)]
    assert read(definition, b"")[0].keys() == {"x", "id"}
    if kind == "wider":
        wide, _ = merge(*files, widen=True)
        assert read(wide, encoded(files[1], x=1 << 40), encoded(files[0], x=-5)) == [
            {"x": 1 << 40, "id": 0},
            {"x": -5, "id": 0},
        ]


def test_names_and_numbers_that_change_are_misfits() -> None:
    newer = file(("number", 1, F.TYPE_INT32), ("note", 9, F.TYPE_STRING))
    _, changes = merge(file(("id", 1, F.TYPE_INT32), ("note", 2, F.TYPE_STRING)), newer)
    assert ("id", "misfit", "field 1 is named number now") in changes
    assert ("note", "misfit", "is field 9 now, and was 2") in changes


def test_a_field_within_a_message_waits_for_a_rebuild() -> None:
    fields = [(one.name, one.number, one.type_name or one.type) for one in V1.message_type[0].field]
    newer = file(*fields, address=(("city", 1, F.TYPE_STRING), ("zip", 2, (F.TYPE_INT32,))))
    definition, changes = merge(V1, newer)
    assert [(path, kind) for path, kind, _ in changes] == [("to.zip", "wider")]
    value = encoded(newer, to={"city": "Wien", "zip": 1010})
    assert read(definition, value)[0]["to"] == {"city": "Wien"}
    wide, _ = merge(V1, newer, widen=True)
    assert read(wide, value)[0]["to"] == {"city": "Wien", "zip": 1010}


def test_imports_are_taken_along_under_their_names() -> None:
    types = FileDescriptorProto(name="types/line.proto", package="types", syntax="proto3")
    add(types.message_type.add(name="Line"), "sku", 1, F.TYPE_STRING)
    main = file(("id", 1, F.TYPE_INT32), ("at", 2, ".google.protobuf.Timestamp"))
    main.dependency.extend(["types/line.proto", "google/protobuf/timestamp.proto"])
    add(main.message_type[0], "line", 3, ".types.Line")
    definition, changes = merged(None, written(types, main), "shop.Order")
    assert [(one.path, one.kind) for one in changes] == [("id", "added"), ("at", "added"), ("line", "added")]
    assert read(definition, b"\x1a\x03\x0a\x01x")[0]["line"] == {"sku": "x"}


def test_what_no_table_can_begin_with_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has no message shop\.Other, but shop\.Address, shop\.Order"):
        merged(None, written(V1), "shop.Other")
    with pytest.raises(ValueError, match="does not give its descriptor"):
        merged(None, Written(('syntax = "proto3";',)), "shop.Order")
    with pytest.raises(ValueError, match="dt is the table's own"):
        merge(file(("dt", 1, F.TYPE_INT32)))


def test_what_cannot_be_a_column_is_left_out_by_name() -> None:
    definition, changes = merge(file(("id", 1, F.TYPE_INT32), ("self", 2, ".shop.Order"), ("ID", 3, F.TYPE_INT32)))
    assert read(definition, b"")[0].keys() == {"id"}
    assert {path for path, kind, _ in changes if kind == "misfit"} == {"self", "ID"}
