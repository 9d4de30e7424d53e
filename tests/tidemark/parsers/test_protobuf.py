"""Protobuf: types, presence, framing, and bytes that are no message. Descriptor sets are made without protoc."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from tests.tidemark.parsers.support import records, rows_of, topic_of
from tidemark.errors import ConfigError
from tidemark.parsers.base import Parser
from tidemark.parsers.factory import parser_of

_F = FieldDescriptorProto
AT = datetime(2026, 2, 2, 3, 4, 5, 678901, tzinfo=UTC)


def add_field(message: DescriptorProto, name: str, number: int, kind: Any, **more: Any) -> None:
    message.field.add(name=name, number=number, type=kind, **{"label": _F.LABEL_OPTIONAL, **more})


def add_map(message: DescriptorProto, name: str, number: int, key: Any, value: Any, **more: Any) -> None:
    """Add a map; ``more`` is of its values."""
    entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
    entry.options.map_entry = True
    add_field(entry, "key", 1, key)
    add_field(entry, "value", 2, value, **more)
    add_field(message, name, number, _F.TYPE_MESSAGE, type_name=entry.name, label=_F.LABEL_REPEATED)


def order_file(*, syntax: str = "proto3") -> FileDescriptorProto:
    """``shop.Order`` with a nested ``Line``, and before it ``shop.Other``."""
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax=syntax)
    file.dependency.append("google/protobuf/timestamp.proto")
    add_field(file.message_type.add(name="Other"), "x", 1, _F.TYPE_INT32)
    order = file.message_type.add(name="Order")
    add_field(order, "id", 1, _F.TYPE_INT64)
    add_field(order, "big", 2, _F.TYPE_UINT64)
    add_field(order, "name", 3, _F.TYPE_STRING)
    add_field(order, "note", 4, _F.TYPE_STRING, proto3_optional=True, oneof_index=1)
    add_field(order, "state", 5, _F.TYPE_ENUM, type_name=".shop.State")
    add_field(order, "at", 6, _F.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    add_field(order, "lines", 7, _F.TYPE_MESSAGE, type_name=".shop.Order.Line", label=_F.LABEL_REPEATED)
    add_field(order, "card", 9, _F.TYPE_STRING, oneof_index=0)
    add_field(order, "cash", 10, _F.TYPE_BOOL, oneof_index=0)
    add_field(order, "raw", 11, _F.TYPE_BYTES)
    order.oneof_decl.add(name="payment")
    order.oneof_decl.add(name="_note")
    line = order.nested_type.add(name="Line")
    add_field(line, "sku", 1, _F.TYPE_STRING)
    add_field(line, "count", 2, _F.TYPE_UINT32)
    add_map(order, "sizes", 8, _F.TYPE_STRING, _F.TYPE_INT32)
    state = file.enum_type.add(name="State")
    for number, name in enumerate(("NEW", "PAID")):
        state.value.add(name=name, number=number)
    return file


def proto2_file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    message = file.message_type.add(name="R")
    add_field(message, "a", 1, _F.TYPE_INT32, label=_F.LABEL_REQUIRED)
    add_field(message, "b", 2, _F.TYPE_INT32, default_value="5")
    add_field(message, "again", 3, _F.TYPE_MESSAGE, type_name=".old.R")
    plain = file.message_type.add(name="Plain")
    add_field(plain, "a", 1, _F.TYPE_INT32, label=_F.LABEL_REQUIRED)
    add_field(plain, "b", 2, _F.TYPE_INT32, default_value="5")
    return file


def new(file: FileDescriptorProto, name: str, /, **fields: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))(**fields)


def order(**fields: Any) -> bytes:
    found: bytes = new(order_file(), "shop.Order", **fields).SerializeToString()
    return found


def protobuf(directory: Path, file: FileDescriptorProto, message: str, more: str = "", **registry: str) -> Parser:
    (directory / "set.pb").write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    text = f"kind: protobuf\ndescriptors: set.pb\nmessage: {message}\n{more}"
    return parser_of(topic_of(text, directory, **registry).parser, "orders")


FIELDS: dict[str, Any] = {
    "id": -(1 << 63),
    "big": (1 << 64) - 1,
    "name": "Zoë",
    "note": "",
    "state": 1,
    "at": {"seconds": 1_770_001_445, "nanos": 678_901_999},
    "lines": [{"sku": "a", "count": 1}, {}],
    "sizes": {"m": 2, "a": 1},
    "cash": False,
    "raw": b"\xff",
}
EXPECTED: dict[str, Any] = {
    **{name: FIELDS[name] for name in ("id", "name", "note", "cash", "raw")},
    "big": Decimal((1 << 64) - 1),
    "state": "PAID",
    "at": AT,
    "lines": [{"sku": "a", "count": 1}, {"sku": "", "count": 0}],
    "sizes": [{"key": "a", "value": 1}, {"key": "m", "value": 2}],
}
EMPTY = {"id": 0, "big": Decimal(0), "name": "", "state": "NEW", "lines": [], "sizes": [], "raw": b""}


def test_each_type_is_read_and_presence_kept(tmp_path: Path) -> None:
    parser = protobuf(tmp_path, order_file(), "shop.Order", "event_time: {field: at}")
    values = [order(**FIELDS), None, b"", order(state=9), order(id=1) + b"\xf8\x07\x01"]
    parsed = parser.parse(rows_of(values))
    assert parsed.refused == {}
    assert records(parsed) == [EXPECTED, {}, EMPTY, EMPTY | {"state": "9"}, EMPTY | {"id": 1}]
    assert parsed.event_time is not None
    assert parsed.event_time.to_pylist() == [1_770_001_445_678_901, None, None, None, None]


def test_bytes_that_are_no_message_are_refused(tmp_path: Path) -> None:
    good = order(**FIELDS)
    insane = order(at={"seconds": 1 << 60})
    values = [good[:-1], b"\xff", b"\x1a\x01\xff", insane, good]
    parsed = protobuf(tmp_path, order_file(), "shop.Order").parse(rows_of(values))
    assert set(parsed.refused) == {0, 1, 2, 3}
    assert "is not a valid shop.Order" in parsed.refused[0]
    assert "a Timestamp of" in parsed.refused[3]
    assert records(parsed)[4] == EXPECTED


def test_confluents_framing_names_the_message(tmp_path: Path) -> None:
    good = order(id=5)
    frames = [b"\x02\x02", b"\x04\x02\x00", b"\x00", b"\xff\xff\xff\xff\xff", b""]
    values = [b"\0\0\0\0\x07" + frame + good for frame in frames]
    parsed = protobuf(tmp_path, order_file(), "shop.Order", "framing: confluent").parse(rows_of(values))
    assert set(parsed.refused) == {1, 2, 3, 4}
    assert "has message [1, 0] of its file, but shop.Order is [1]" in parsed.refused[1]
    assert "has message [0]" in parsed.refused[2]
    nested = protobuf(tmp_path, order_file(), "shop.Order.Line", "framing: confluent")
    line = new(order_file(), "shop.Order.Line", sku="q").SerializeToString()
    assert records(nested.parse(rows_of([b"\0\0\0\0\x07\x04\x02\x00" + line]))) == [{"sku": "q", "count": 0}]


def test_proto2_has_required_fields_and_presence(tmp_path: Path) -> None:
    file = proto2_file()
    values = [
        b"",
        new(file, "old.Plain", a=1).SerializeToString(),
        new(file, "old.Plain", a=1, b=0).SerializeToString(),
    ]
    parsed = protobuf(tmp_path, file, "old.Plain").parse(rows_of(values))
    assert set(parsed.refused) == {0}
    assert "requires: a" in parsed.refused[0]
    assert records(parsed) == [{}, {"a": 1}, {"a": 1, "b": 0}]


def test_a_newer_writer_and_an_older_one_are_read(tmp_path: Path) -> None:
    older = order_file()
    del older.message_type[1].field[2:]
    del older.message_type[1].oneof_decl[:]
    del older.message_type[1].nested_type[:]
    old = new(older, "shop.Order", id=3, big=4).SerializeToString()
    assert records(protobuf(tmp_path, order_file(), "shop.Order").parse(rows_of([old]))) == [
        EMPTY | {"id": 3, "big": Decimal(4)}
    ]
    parsed = protobuf(tmp_path, older, "shop.Order").parse(rows_of([order(**FIELDS)]))
    assert records(parsed) == [{"id": FIELDS["id"], "big": EXPECTED["big"]}]


def test_what_makes_no_columns_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set\.pb has no message shop\.Nothing"):
        protobuf(tmp_path, order_file(), "shop.Nothing")
    with pytest.raises(ConfigError, match=r"again: old\.R holds itself"):
        protobuf(tmp_path, proto2_file(), "old.R")
    with pytest.raises(ConfigError, match=r"event_time\.field: name is string"):
        protobuf(tmp_path, order_file(), "shop.Order", "event_time: {field: name}")
    (tmp_path / "set.pb").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not a valid FileDescriptorSet"):
        parser_of(topic_of("kind: protobuf\ndescriptors: set.pb\nmessage: a.B", tmp_path).parser, "orders")
