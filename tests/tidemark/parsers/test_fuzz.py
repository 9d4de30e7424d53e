"""All parsers on hostile bytes, by seed, in a child process with limits of memory and of CPU time.

Each input gives rows or refusals: no other error, no crash, no stall, no large memory. Batches are parsed whole, and
some of their rows by themselves, which must give the same.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
import yaml
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tests.support.bounded import bounded
from tests.tidemark.parsers import test_protobuf
from tests.tidemark.parsers.registry_server import Registry, serving
from tests.tidemark.parsers.support import LENGTHS, mutated, rows_of, told, topic_of, varint
from tests.tidemark.parsers.test_avro import FULL, RECORD, encoded, framed
from tests.tidemark.parsers.test_json import COLUMNS
from tests.tidemark.parsers.test_protobuf import order, order_file
from tidemark.parsers.base import Parsed, Parser
from tidemark.parsers.factory import PARSERS, parser_of
from tidemark.parsers.settings import ParserSettings

MEMORY = 1 << 30
SECONDS = 600
BATCH = 64
SCHEMAS = 24
_TYPES: tuple[Any, ...] = (
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string", "State", "User", "Order", "shop.Order"),
    *({"type": "array", "items": "null"}, {"type": "map", "values": "null"}, {"type": "array", "items": "Order"}, []),
    *({"type": "fixed", "name": "F", "size": 0}, {"type": "record", "name": "E", "fields": []}, ["null", "Order"]),
    *(
        {"type": "bytes", "logicalType": "decimal", "precision": 400, "scale": 300},
        {"type": "int", "size": {}},
        7,
        None,
    ),
    {"type": {"type": "string"}},
)


def _json(rng: random.Random) -> bytes:
    kind = rng.randrange(6)
    times = 1 << rng.randrange(14)
    if kind == 0:
        return b'{"tags":' + rng.choice((b"[", b'{"a":', b'[{"b":')) * times
    if kind == 1:
        return b"{" + b",".join(b'"k%d":%d' % (rng.randrange(times), at) for at in range(times // 8 + 1)) + b"}"
    if kind == 2:
        return b'{"grid":[' + b"[" * 129 + b'"' + b'\\"' * times
    if kind == 3:
        return b'{"id":' + b"9" * times + b"}"
    good = {
        "id": 7,
        "user": {"name": "Zoë", "the.age": 3},
        "tags": ["a"] * rng.randrange(9),
        "ratio": 1.5,
        "raw": "AA==",
    }
    return mutated(rng, json.dumps(good).encode())


def _avro(rng: random.Random) -> bytes:
    record = RECORD | {"tags": ["a"] * rng.randrange(200), "sizes": {str(at): at for at in range(rng.randrange(9))}}
    return mutated(rng, encoded(FULL, record))


def _protobuf(rng: random.Random) -> bytes:
    kind = rng.randrange(6)
    times = 1 << rng.randrange(14)
    if kind == 0:
        return b"\x3a\x00" * times  # empty messages in a list
    if kind == 1:
        return b"\x3b" * times + b"\x3c" * times  # groups that nobody knows
    if kind == 2:
        return b"\xf2\x07" + varint(times) + b"\x00" * times  # an unknown field
    fields = {**test_protobuf.FIELDS, "lines": [{"sku": "x", "count": 1}] * rng.randrange(50)}
    return mutated(rng, order(**fields))


def _schema(rng: random.Random) -> str:
    """The text of a schema like the table's, with types put in the place of others; or of none."""
    schema = json.loads(json.dumps(FULL))
    for _ in range(rng.randrange(3)):
        field = rng.choice(schema["fields"])
        kind = rng.choice(_TYPES)
        if rng.random() < 0.3:
            kind = {"type": "array", "items": kind}
        at = rng.randrange(3)
        if at == 0:
            field["type"] = kind
        elif at == 1:
            schema["fields"].append({"name": f"more{rng.randrange(99)}", "type": kind})
        else:
            schema["fields"].remove(field)
    text = json.dumps(schema)
    return text if rng.random() < 0.8 else mutated(rng, text.encode()).decode("utf-8", "replace")


def _in_frame(rng: random.Random, value: bytes, *, inner: bytes = b"") -> bytes:
    number = rng.choice((*range(SCHEMAS + 3), 7, 7, (1 << 31) + 5))
    whole = framed(number, inner + value)
    return whole if rng.random() < 0.9 else mutated(rng, whole)


def fuzz(parser: Parser, make: Callable[[random.Random], bytes], rng: random.Random, count: int) -> Counter[str]:
    """Parse ``count`` values that ``make`` gives: totals of values, bytes, rows and refusals."""
    totals: Counter[str] = Counter()
    for _ in range(0, count, BATCH):
        values = [make(rng) for _ in range(BATCH)]
        rows = rows_of(values)
        parsed = parser.parse(rows)
        _check(parsed, parser, values)
        for row in rng.sample(range(BATCH), 3):
            alone = parser.parse(rows.slice(row, 1))
            assert alone.refused.get(0) == parsed.refused.get(row), values[row]
            assert told(alone.columns) == told(parsed.columns.slice(row, 1)), values[row]
        totals.update(values=BATCH, bytes=sum(map(len, values)), refused=len(parsed.refused))
    totals["rows"] = totals["values"] - totals["refused"]
    return totals


def _check(parsed: Parsed, parser: Parser, values: Sequence[bytes]) -> None:
    parsed.columns.validate(full=True)
    assert parsed.columns.schema == parser.columns
    assert len(parsed.columns) == len(values)
    assert all(0 <= row < len(values) and 0 < len(why) <= 400 for row, why in parsed.refused.items())


def picky(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A function of somebody's own, which raises for each value that is no UTF-8."""
    sizes = [None if value is None else len(value.decode()) for value in rows.column("kafka_value").to_pylist()]
    return pa.RecordBatch.from_arrays([pa.array(sizes, pa.int32())], names=["size"])


_FRAMED_AVRO = "kind: avro\nschema: orders.avsc\nframing: confluent\n"
_PROTOBUF = "kind: protobuf\ndescriptors: set.pb\nmessage: shop.Order\n"
KINDS: dict[str, tuple[str, Callable[[random.Random], bytes]]] = {
    "bytes": ("kind: bytes", _json),
    "json": (COLUMNS, _json),
    "json parts": ("kind: json\ncolumns: [{name: tags, type: json}, {name: ratio, type: 'decimal(9,2)'}]", _json),
    "avro": ("kind: avro\nschema: orders.avsc", _avro),
    "avro and files": (_FRAMED_AVRO + "schemas: ids", lambda rng: _in_frame(rng, _avro(rng))),
    "avro and a registry": (_FRAMED_AVRO + "registry: main", lambda rng: _in_frame(rng, _avro(rng))),
    "protobuf": (_PROTOBUF, _protobuf),
    "protobuf in frames": (
        _PROTOBUF + "framing: confluent",
        lambda rng: _in_frame(rng, _protobuf(rng), inner=rng.choice((b"\x02\x02", b"\x02\x02", *LENGTHS))),
    ),
    "function": (
        "kind: function\nfunction: tests.tidemark.parsers.test_fuzz:picky\ncolumns: [{name: size, type: int32}]",
        _json,
    ),
}


def test_each_kind_of_settings_has_a_parser_and_is_fuzzed() -> None:
    union, *_ = get_args(ParserSettings)
    kinds = [get_args(settings.model_fields["kind"].annotation)[0] for settings in get_args(union)]
    assert [*PARSERS] == kinds
    assert {yaml.safe_load(text)["kind"] for text, _ in KINDS.values()} == set(kinds)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_bytes_give_rows_or_refusals(
    tmp_path: Path, rng: random.Random, full: bool, kind: str, tried: Callable[[str, int], None]
) -> None:
    text, make = KINDS[kind]
    (tmp_path / "orders.avsc").write_text(json.dumps(FULL))
    (tmp_path / "set.pb").write_bytes(FileDescriptorSet(file=[order_file()]).SerializeToString())
    (tmp_path / "ids").mkdir()
    registry = Registry()
    for number in range(SCHEMAS):
        schema = json.dumps(FULL) if number == 7 else _schema(rng)
        more = {"schemaType": "JSON"} if number == 3 else {"references": [{"subject": "x"}]} if number == 4 else {}
        registry.replies[f"/schemas/ids/{number}"] = 200, {"schema": schema, **more}
        try:
            json.loads(schema)
        except ValueError:
            continue
        (tmp_path / "ids" / f"{number}.avsc").write_text(schema)
    with serving(registry):
        settings = topic_of(text, tmp_path, f"url: '{registry.url}'").parser

        def work() -> Counter[str]:
            pa.set_memory_pool(pa.system_memory_pool())  # the usual one reserves addresses that it does not use
            return fuzz(parser_of(settings, "orders"), make, rng, 20_000 if full else 640)

        totals = bounded(work, memory=MEMORY, seconds=SECONDS)
    tried(f"fuzzed values, {kind}", totals["values"])
    tried(f"fuzzed values, {kind}: refused", totals["refused"])
    assert totals["rows"] > 0
    assert totals["refused"] > 0 or kind == "bytes"


def test_the_limits_are_seen() -> None:
    """A child that takes more memory, more time, or dies, fails the test that asked for it."""
    with pytest.raises(AssertionError, match="MemoryError"):
        bounded(lambda: len(bytes(1 << 30)), memory=64 << 20, seconds=5)
    with pytest.raises(AssertionError, match="ended with -24"):
        bounded(lambda: sum(iter(int, 1)), memory=64 << 20, seconds=1)
