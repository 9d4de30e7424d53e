"""Protobuf by the compiled loop and by Google's library: equal columns and reasons, whatever message and bytes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from tests.tidemark.parsers.support import mutated, read_by_loop, refused_alike, rows_of, varint
from tests.tidemark.parsers.test_protobuf import FIELDS, add_map, order, order_file, protobuf
from tidemark.parsers.slots import FEWEST

F = FieldDescriptorProto
NUMBERS = (1, 2, 3, 4, 5, 15, 16, 17, 1000, 1500, 536_870_911)
TEXTS = ("", "a", "Zoë", "eight by", "日本語" * 9, "y" * 300)
SCALARS = [kind for kind in range(1, 19) if kind not in {F.TYPE_GROUP, F.TYPE_MESSAGE, F.TYPE_ENUM}]
KEYS = (F.TYPE_STRING, F.TYPE_INT32, F.TYPE_UINT64, F.TYPE_BOOL, F.TYPE_SINT64, F.TYPE_FIXED32)
KNOWN = (
    "Timestamp",
    "StringValue",
    "BytesValue",
    "BoolValue",
    "Int32Value",
    "UInt64Value",
    "FloatValue",
    "DoubleValue",
)


class Files:
    """Random files of messages that make columns, and values of them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def file(self) -> FileDescriptorProto:
        """A file whose message ``t.M3`` holds those before it."""
        self.proto3 = self.rng.random() < 0.7
        file = FileDescriptorProto(name="t.proto", package="t", syntax="proto3" if self.proto3 else "proto2")
        file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
        enum = file.enum_type.add(name="E")
        for number in (0, 1, 2, -1, 7):
            enum.value.add(name=f"V{number}".replace("-", "_"), number=number)
        for at in range(4):
            self.message(file.message_type.add(name=f"M{at}"), at)
        return file

    def message(self, message: DescriptorProto, at: int) -> None:
        rng = self.rng
        numbers = rng.sample(NUMBERS, rng.randrange(1, 8))
        in_oneof = 0
        for place, number in enumerate(numbers):
            field = message.field.add(name=f"f{place}", number=number, label=F.LABEL_OPTIONAL)
            self.type(field, at)
            kind = rng.randrange(10)
            if kind < 3:
                field.label = F.LABEL_REPEATED
                if field.type not in {F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_MESSAGE} and rng.random() < 0.5:
                    field.options.packed = rng.random() < 0.5
            elif kind == 3:
                self.map(message, field)
            elif kind < 6:
                in_oneof += 1
                field.oneof_index = 0
            elif kind == 6 and not self.proto3 and rng.random() < 0.5:
                field.label = F.LABEL_REQUIRED
        if in_oneof:
            message.oneof_decl.add(name="one")

    def type(self, field: FieldDescriptorProto, at: int) -> None:
        rng = self.rng
        kind = rng.randrange(10)
        if kind < 5:
            field.type = rng.choice(SCALARS)  # type: ignore[assignment]
        elif kind == 5:
            field.type, field.type_name = F.TYPE_ENUM, ".t.E"
        elif kind == 6:
            field.type, field.type_name = F.TYPE_MESSAGE, f".google.protobuf.{rng.choice(KNOWN)}"
        elif at:
            field.type, field.type_name = F.TYPE_MESSAGE, f".t.M{rng.randrange(at)}"
        else:
            field.type = F.TYPE_STRING

    def map(self, message: DescriptorProto, field: FieldDescriptorProto) -> None:
        name = f"{field.name.capitalize()}Entry"
        entry = message.nested_type.add(name=name)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=F.LABEL_OPTIONAL, type=self.rng.choice(KEYS))
        value = entry.field.add(name="value", number=2, label=F.LABEL_OPTIONAL, type=field.type)
        if field.type_name:
            value.type_name = field.type_name
        field.label, field.type = F.LABEL_REPEATED, F.TYPE_MESSAGE
        field.type_name = f".t.{message.name}.{name}"

    def encoded(self, message: Descriptor) -> bytes:
        """A message, field by field as they come, some of them twice, and some unknown."""
        rng = self.rng
        fields = [one for one in message.fields if rng.random() < 0.7 or one.is_required]
        fields += rng.sample(fields, min(len(fields), rng.choice((0, 0, 0, 1))))
        rng.shuffle(fields)
        found = b"".join(self.field(one) for one in fields)
        if rng.random() < 0.1:
            found += rng.choice(
                (
                    b"\xf8\x07\x05",
                    b"\xf9\x07" + bytes(8),
                    b"\xfa\x07\x02ab",
                    b"\xfd\x07" + bytes(4),
                    b"\xfb\x07\xfc\x07",
                )
            )
        return found

    def field(self, field: Any) -> bytes:
        rng = self.rng
        times = rng.choice((0, 1, 3)) if field.is_repeated else 1
        values = [self.value(field) for _ in range(times)]
        wire = self.wire(field)
        tag = varint(field.number << 3 | wire)
        if field.is_repeated and wire != 2 and rng.random() < 0.5:
            data = b"".join(values)
            return varint(field.number << 3 | 2) + varint(len(data)) + data
        return b"".join(tag + (varint(len(one)) if wire == 2 else b"") + one for one in values)

    @staticmethod
    def wire(field: Any) -> int:
        if field.type in {F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_MESSAGE}:
            return 2
        if field.type in {F.TYPE_DOUBLE, F.TYPE_FIXED64, F.TYPE_SFIXED64}:
            return 1
        return 5 if field.type in {F.TYPE_FLOAT, F.TYPE_FIXED32, F.TYPE_SFIXED32} else 0

    def value(self, field: Any) -> bytes:
        rng = self.rng
        wire = self.wire(field)
        if field.type == F.TYPE_MESSAGE:
            if field.message_type.full_name == "google.protobuf.Timestamp":
                return self.timestamp()
            return self.encoded(field.message_type)
        if field.type == F.TYPE_STRING and rng.random() < 0.99:
            return rng.choice(TEXTS).encode()
        if wire == 2:
            return rng.randbytes(rng.choice((0, 1, 5)))
        if wire in {1, 5}:
            return rng.randbytes(8 if wire == 1 else 4)
        if field.type == F.TYPE_ENUM:
            return varint(rng.choice((0, 1, 2, 7, (1 << 64) - 1)) if rng.random() < 0.98 else 99)
        return varint(rng.getrandbits(rng.choice((1, 7, 31, 32, 33, 64))))

    def timestamp(self) -> bytes:
        rng = self.rng
        seconds = rng.choice((0, 5, 1_770_000_000, (1 << 64) - 5)) if rng.random() < 0.98 else 1 << 60
        nanos = rng.choice((0, 999, 1000, 999_999_999)) if rng.random() < 0.98 else (1 << 64) - 1
        parts = [b"\x08" + varint(seconds), b"\x10" + varint(nanos)]
        return b"".join(rng.sample(parts, rng.randrange(3)))


def descriptor(file: FileDescriptorProto, name: str) -> Descriptor:
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return pool.FindMessageTypeByName(name)


def test_any_message_and_any_bytes(
    tmp_path: Path, rng: random.Random, full: bool, tried: Callable[[str, int], None]
) -> None:
    files = Files(rng)
    total = refused = by_loop = 0
    for _ in range(1000 if full else 80):
        file = files.file()
        parser: Any = protobuf(tmp_path, file, "t.M3")
        message = descriptor(file, "t.M3")
        good = [files.encoded(message) for _ in range(60)]
        joined = [one + other for one, other in zip(good[:10], good[10:20], strict=True)]
        values = [*good, *joined, *(mutated(rng, one) for one in good[:20])]
        refused += refused_alike(parser, [*values, None, b""])
        total += len(values)
        by_loop += read_by_loop(parser, good) if parser._loop else 0
    tried("messages by the loop and by Google's library", total)
    assert 0 < refused < total
    assert by_loop > total // 4


def test_written_messages_are_read_by_the_loop(tmp_path: Path, rng: random.Random) -> None:
    parser = protobuf(tmp_path, order_file(), "shop.Order")
    values = [order(**FIELDS | {"id": at, "lines": [{"sku": "x"}] * rng.randrange(5)}) for at in range(100)]
    assert read_by_loop(parser, values) == len(values)
    assert refused_alike(parser, values) == 0


def test_maps_come_in_the_order_of_their_keys(tmp_path: Path, rng: random.Random) -> None:
    parser = protobuf(tmp_path, order_file(), "shop.Order")
    values = []
    for _ in range(40):
        keys = rng.sample(["", "a", "b", "Zoë", "日", "\U0001f600", "aa"], 5)
        values.append(b"".join(order(sizes={key: at}) for at, key in enumerate(keys)))
    assert read_by_loop(parser, values) == len(values)
    assert refused_alike(parser, values) == 0


@pytest.mark.parametrize("message", ["shop.Order", "shop.Other", "shop.Order.Line"])
def test_frames(tmp_path: Path, message: str) -> None:
    parser = protobuf(tmp_path, order_file(), message, "framing: confluent")
    frames = [b"\x02\x02", b"\x00", b"\x02\x00", b"\x04\x02\x00", b"\x82\x00\x02", b"\xff\xff\xff\xff\xff", b""]
    values = [b"\0\0\0\0\x07" + frame + data for frame in frames for data in (b"", b"\x0a\x01a", b"\x08\x05")]
    values += [b"", b"\x01\0\0\0\x07\x00", b"\0\0\0\0"]
    assert 0 < refused_alike(parser, [*values * FEWEST, None]) < len(values) * FEWEST


def test_each_cut_and_each_tail(tmp_path: Path) -> None:
    good = order(**FIELDS)
    values = [good[:cut] for cut in range(len(good))] + [good + bytes([tail]) for tail in range(256)] + [good]
    assert refused_alike(protobuf(tmp_path, order_file(), "shop.Order"), values) > 256


@pytest.mark.parametrize(
    "data",
    [
        b"\xf2\x07" + varint((1 << 64) - 10) + b"\x08\x05",
        b"\x1a" + varint((1 << 64) - 10),
        b"\x1a" + varint((1 << 32) - 1),
        b"\x1a\x81\x80\x80\x80\x80\x00a",
        b"\x4a\x01a\x50\x01",
        b"\x50\x01\x4a\x01a",
        b"\x32\x0d\x08\x05\x10" + varint((1 << 64) - 1000),
        b"\x32\x02\x08\x05\x32\x02\x10\x07",
        b"\x32\x03\x10\xe8\x07\x32\x02\x08\x05",
        varint((1 << 35 | 1) << 3) + b"\x05",
        b"\x88\x80\x80\x80\x00\x05",
        b"\x88\x80\x80\x80\x80\x00\x05",
        b"\x00\x05",
        b"\x42\x05\x0a\x01a\x10\x01\x42\x05\x0a\x01a\x10\x02",
        b"\x42\x02\x10\x01\x42\x00",
        b"\x42\x05\x0a\x01a\x18\x01",
        b"\x08" + b"\xff" * 9 + b"\x7f",
        b"\x08" + b"\xff" * 10 + b"\x01",
        b"\x0a\x01a",
        b"\x1a\x02\xc3\x28",
        b"\x28" + varint((1 << 32) + 1),
        b"\x0b\x0c",
    ],
)
def test_unusual_bytes(tmp_path: Path, data: bytes) -> None:
    refused_alike(protobuf(tmp_path, order_file(), "shop.Order"), [data] * FEWEST)


def test_what_has_no_tables(tmp_path: Path) -> None:
    file = FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    extended = file.message_type.add(name="Extended")
    extended.field.add(name="a", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    extended.extension_range.add(start=100, end=200)
    grouped = file.message_type.add(name="Grouped")
    grouped.nested_type.add(name="G").field.add(name="b", number=2, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    grouped.field.add(name="g", number=1, type=F.TYPE_GROUP, type_name=".old.Grouped.G", label=F.LABEL_OPTIONAL)
    for name, data in (("Extended", b"\x08\x05"), ("Grouped", b"\x0b\x10\x05\x0c")):
        parser: Any = protobuf(tmp_path, file, f"old.{name}")
        assert parser._loop is None
        assert refused_alike(parser, [data] * FEWEST) == 0


def test_a_required_field_that_is_missing_beside_a_map_refuses_its_row_alone(tmp_path: Path) -> None:
    """The library's own list of what is missing may end the process where there are maps."""
    file = FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="a", number=1, type=F.TYPE_INT32, label=F.LABEL_REQUIRED)
    outer = file.message_type.add(name="Outer")
    add_map(outer, "m", 1, F.TYPE_STRING, F.TYPE_MESSAGE, type_name=".old.Inner")
    parsed = protobuf(tmp_path, file, "old.Outer").parse(rows_of([b"\x0a\x02\x12\x00", b"\x0a\x04\x12\x02\x08\x05"]))
    assert parsed.refused == {0: "lacks fields that old.Outer requires"}


def test_keys_of_a_map_that_are_not_utf8_refuse_their_row_alone(tmp_path: Path) -> None:
    file = FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    add_map(file.message_type.add(name="Outer"), "m", 1, F.TYPE_STRING, F.TYPE_INT32)
    good = b"\x0a\x03\x0a\x01a"
    parsed = protobuf(tmp_path, file, "old.Outer").parse(rows_of([good + b"\x0a\x03\x0a\x01\xff", good]))
    assert parsed.refused == {0: "has a value that no column holds: keys of a map that are not UTF-8"}


def test_a_large_message_is_read_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [order(lines=[{"sku": "x"}] * count) for count in (0, 1, 3000, *[2] * 40)]
    parser = protobuf(tmp_path, order_file(), "shop.Order")
    assert read_by_loop(parser, values) == len(values)
    monkeypatch.setattr("tidemark.parsers.slots.MAX_SLOTS", 5000)
    assert read_by_loop(parser, values) == len(values) - 1
    assert refused_alike(parser, values) == 0
