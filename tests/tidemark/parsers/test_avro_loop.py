"""Avro by the compiled loop and by the interpreter: equal columns and reasons, whatever the schema and the bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tidemark.parsers.support import mutated, read_by_loop, records, refused_alike, rows_of, varint
from tests.tidemark.parsers.test_avro import FULL, RECORD, avro, encoded, framed
from tidemark.parsers.avro.parser import AvroColumns
from tidemark.parsers.slots import FEWEST

HUGE = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
NAMES = tuple("abcdefgh")
TEXTS = ("", "a", "Zoë", "x" * 7, "eight by", "日本語" * 9, "y" * 300, "\0")
SIMPLE: tuple[Any, ...] = (
    *("boolean", "int", "long", "float", "double", "bytes", "string"),
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "int", "logicalType": "date"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 0},
)


class Schemas:
    """Random schemas that make columns, and values of them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"T{self.names}"

    def type(self, depth: int) -> Any:
        kind = self.rng.randrange(12 if depth else 9)
        if kind < 6:
            return self.rng.choice(SIMPLE)
        if kind == 6:
            return {"type": "enum", "name": self.name(), "symbols": ["NEW", "PAID", "GONE"][: self.rng.randrange(1, 4)]}
        if kind == 7:
            return {"type": "fixed", "name": self.name(), "size": self.rng.randrange(1, 20)}
        if kind == 8:
            fixed = {"type": "fixed", "name": self.name(), "size": self.rng.randrange(1, 12)}
            return fixed | {"logicalType": "decimal", "precision": self.rng.randrange(1, 20), "scale": 1}
        if kind == 9:
            return {"type": "array", "items": self.nullable(depth - 1)}
        if kind == 10:
            return {"type": "map", "values": self.nullable(depth - 1)}
        return self.record(depth - 1)

    def nullable(self, depth: int) -> Any:
        kind = self.type(depth)
        return self.rng.choice((kind, kind, ["null", kind], [kind, "null"], [kind]))

    def record(self, depth: int) -> dict[str, Any]:
        names = self.rng.sample(NAMES, self.rng.randrange(1, len(NAMES)))
        fields = [{"name": one, "type": self.nullable(depth)} for one in names]
        for one in fields:
            if isinstance(one["type"], list) and one["type"][0] == "null":
                one["default"] = None
        return {"type": "record", "name": self.name(), "fields": fields}

    def encoded(self, schema: Any) -> bytes:
        """A value, as Avro has it, and now and then as it should not be."""
        rng = self.rng
        if isinstance(schema, list):
            branch = rng.randrange(len(schema))
            return number(branch) + self.encoded(schema[branch])
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind == "null":
            return b""
        if kind == "record":
            return b"".join(self.encoded(one["type"]) for one in schema["fields"])
        if kind == "array":
            return self.blocks([self.encoded(schema["items"]) for _ in range(rng.choice((0, 1, 2, 9)))])
        if kind == "map":
            keys = [text.encode() for text in rng.sample(TEXTS, rng.choice((0, 1, 3)))]
            keys += keys[:1] if rng.random() < 0.02 else []
            return self.blocks([number(len(key)) + key + self.encoded(schema["values"]) for key in keys])
        return self.simple(kind, schema)

    def simple(self, kind: str, schema: Any) -> bytes:
        rng = self.rng
        if kind == "boolean":
            return bytes([rng.randrange(2) if rng.random() < 0.99 else 7])
        if kind in {"int", "long"}:
            bits = rng.choice((1, 6, 13, 31, 31, 31)) if rng.random() < 0.99 or kind == "long" else rng.choice((33, 63))
            return number(
                rng.getrandbits(bits if kind == "int" else bits + rng.choice((0, 20, 32))) * rng.choice((1, -1))
            )
        if kind in {"float", "double"}:
            return rng.randbytes(4 if kind == "float" else 8)
        if kind == "enum":
            return number(
                rng.randrange(len(schema["symbols"])) if rng.random() < 0.99 else rng.choice((-1, 3, 1 << 40))
            )
        if kind == "fixed":
            return rng.randbytes(schema["size"]) if rng.random() < 0.5 else bytes(schema["size"])
        if kind == "string":
            text = (
                rng.choice(TEXTS).encode()
                if rng.random() < 0.99
                else rng.choice((b"\xff", b"\xed\xa0\x80", b"abc\xc3"))
            )
            return number(len(text)) + text
        data = rng.randbytes(rng.choice((0, 1, 2, 3, 4, 8, 9, 33) if rng.random() < 0.1 else (1, 2, 3)))
        return number(len(data)) + data

    def blocks(self, items: list[bytes]) -> bytes:
        """In one block, or in several, of which some say their size."""
        found = b""
        while items:
            size = self.rng.choice((len(items), len(items), 1))
            block, items = items[:size], items[size:]
            data = b"".join(block)
            found += (number(-size) + number(len(data)) if self.rng.random() < 0.1 else number(size)) + data
        return found + b"\0"

    def evolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema that wrote what ``schema`` reads."""
        rng = self.rng
        fields = [dict(one) for one in schema["fields"] if "default" not in one or rng.random() < 0.7]
        for one in fields:
            if one["type"] == "long" and rng.random() < 0.5:
                one["type"] = "int"
            elif one.get("default", 0) is None and rng.random() < 0.3:
                one["type"] = one["type"][1]
            elif isinstance(one["type"], dict) and one["type"]["type"] == "record":
                one["type"] = self.evolved(one["type"])
        fields += [{"name": f"more{at}", "type": self.nullable(1)} for at in range(rng.randrange(3))]
        rng.shuffle(fields)
        return {**schema, "doc": "of another writer", "fields": fields}


def number(value: int) -> bytes:
    """A long."""
    return varint(((value << 1) ^ (value >> 63)) & ((1 << 64) - 1))


def test_any_schema_and_any_bytes(
    tmp_path: Path, rng: random.Random, full: bool, tried: Callable[[str, int], None]
) -> None:
    schemas = Schemas(rng)
    total = refused = 0
    for _ in range(1000 if full else 60):
        schema = schemas.record(3)
        parser = avro(tmp_path, schema)
        good = [schemas.encoded(schema) for _ in range(60)]
        values = [mutated(rng, one) if rng.random() < 0.3 else one for one in good]
        refused += refused_alike(parser, [*values, None, b"", good[0] + b"\0", *good[:1]])
        total += len(values)
    tried("values by the loop and by the interpreter", total)
    assert 0 < refused < total


def test_schemas_that_evolve(tmp_path: Path, rng: random.Random, full: bool) -> None:
    (tmp_path / "ids").mkdir()
    schemas = Schemas(rng)
    by_loop = 0
    for _ in range(400 if full else 30):
        table = schemas.record(2)
        writers = [table, *(schemas.evolved(table) for _ in range(3))]
        for at, one in enumerate(writers):
            (tmp_path / "ids" / f"{at}.avsc").write_text(json.dumps(one))
        parser = avro(tmp_path, table, "framing: confluent\nschemas: ids")
        chosen = [rng.randrange(len(writers)) for _ in range(120)]
        values = [framed(at, schemas.encoded(writers[at])) for at in chosen]
        refused_alike(parser, [mutated(rng, one) if rng.random() < 0.3 else one for one in values])
        assert isinstance(parser, AvroColumns)
        assert parser._writers is not None
        by_loop += sum(one.loop is not None for one in parser._writers.known.values())
    assert by_loop > 0


def test_the_loop_reads_what_is_usual(tmp_path: Path, rng: random.Random) -> None:
    parser = avro(tmp_path, FULL)
    values = [encoded(FULL, RECORD | {"id": at, "tags": ["x"] * rng.randrange(9)}) for at in range(100)]
    assert read_by_loop(parser, values) == len(values)
    assert refused_alike(parser, values) == 0


def test_each_cut_and_each_tail(tmp_path: Path) -> None:
    good = encoded(FULL, RECORD)
    values = [good[:cut] for cut in range(len(good))] + [good + bytes([tail]) for tail in range(256)] + [good]
    parser = avro(tmp_path, FULL)
    assert read_by_loop(parser, values) == 1
    assert refused_alike(parser, values) == len(values) - 1


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("int", number(1 << 31)),
        ("int", number((1 << 33) + (1 << 31) - 1)),
        ("long", b"\xff" * 9 + b"\x01"),
        ("long", b"\xff" * 9 + b"\x7f"),
        ("long", b"\x80" * 9 + b"\x00"),
        ("long", b"\xff" * 10 + b"\x01"),
        ("boolean", b"\x02"),
        ("string", number(-1)),
        ("bytes", HUGE),
        (["null", "int"], b"\x80\x00"),
        (["null", "int"], b"\x01\x02"),
        ({"type": "array", "items": "int"}, HUGE + b"\x02\x00"),
        ({"type": "array", "items": "int"}, number(-(1 << 63)) + b"\x00\x00"),
        ({"type": "array", "items": "int"}, number(-2) + HUGE + b"\x02\x04\x00"),
        ({"type": "map", "values": "int"}, b"\x04\x02a\x02\x02a\x04\x00"),
        ({"type": "map", "values": "int"}, b"\x02\x02a\x02\x02\x02a\x04\x00"),
        ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, b"\x01"),
        ({"type": "long", "logicalType": "timestamp-millis"}, number((1 << 63) // 1000)),
        ({"type": "long", "logicalType": "timestamp-millis"}, number(-((1 << 63) // 1000) - 1)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, b"\x04\x03\xe8"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, b"\x04\xfc\x19"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 1}, b"\x12\x7f" + b"\xff" * 8),
        ("float", b"\x01\x00\x80\x7f"),
    ],
)
def test_unusual_bytes(tmp_path: Path, kind: Any, data: bytes) -> None:
    parser = avro(tmp_path, {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]})
    refused_alike(parser, [data] * FEWEST)


def test_signalling_nans_are_the_same_bits(tmp_path: Path) -> None:
    parser: Any = avro(tmp_path, {"type": "record", "name": "R", "fields": [{"name": "x", "type": "float"}]})
    rows = rows_of([b"\x01\x00\x80\x7f"] * FEWEST)
    both = [parser.parse(rows, vectorised=one).columns.column(0).buffers()[1] for one in (True, False)]
    assert both[0].to_pybytes()[:32] == both[1].to_pybytes()[:32]


def test_long_lists_between_short_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels grow within a block; a record that is too large by itself is the interpreter's, its neighbours are not."""
    kind = {"type": "array", "items": {"type": "map", "values": ["null", "long"]}}
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}
    sizes = [1, 0, 3000, 1, 50, *[2] * 40, 1000]
    values = [encoded(schema, {"x": [{"k": at, "n": None} for at in range(size)]}) for size in sizes]
    parser = avro(tmp_path, schema)
    assert refused_alike(parser, values) == 0
    assert read_by_loop(parser, values) == len(values)
    monkeypatch.setattr("tidemark.parsers.slots.MAX_SLOTS", 10_000)
    assert read_by_loop(parser, values) == len(values) - 1
    assert refused_alike(parser, values) == 0


def test_many_rows_are_read_in_blocks(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "long"}]}
    parser = avro(tmp_path, schema)
    values = [encoded(schema, {"x": at}) + b"\0" * (at % 7000 == 6999) for at in range(40_000)]
    parsed = parser.parse(rows_of(values))
    assert set(parsed.refused) == set(range(6999, 40_000, 7000))
    assert [row.get("x") for row in records(parsed)] == [None if at in parsed.refused else at for at in range(40_000)]


def schema_of(kind: Any) -> dict[str, Any]:
    """A record with the field ``x``."""
    return {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}


def test_what_has_no_program(tmp_path: Path) -> None:
    """The interpreter reads it."""
    (tmp_path / "ids").mkdir()
    written = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}
    (tmp_path / "ids" / "1.avsc").write_text(json.dumps(schema_of(written)))
    parser = avro(tmp_path, schema_of({**written, "scale": 2}), "framing: confluent\nschemas: ids")
    values = [framed(1, number(2) + at.to_bytes(2, "big", signed=True)) for at in range(-20, 20)]
    values.append(framed(1, number(2) + (1000).to_bytes(2, "big")))  # 100.00
    assert refused_alike(parser, values) == 1
    assert parser._writers.known[1].loop is None  # type: ignore[attr-defined]
