"""Fields that no column takes: each parser counts the rows that have them, by name, exactly and in bounded memory."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from tests.tidemark.parsers.support import read_by_loop, refused_alike, rows_of, varint
from tests.tidemark.parsers.test_avro import V1, V2, avro, encoded, framed
from tests.tidemark.parsers.test_avro_loop import Schemas
from tests.tidemark.parsers.test_json import parser_of
from tests.tidemark.parsers.test_protobuf import FIELDS, add_field, add_map, order, order_file, protobuf
from tests.tidemark.parsers.test_protobuf_loop import Files, descriptor
from tidemark.parsers import base, unknown_fields
from tidemark.parsers.json import batch as json_batch
from tidemark.parsers.protobuf import kernel as protobuf_kernel
from tidemark.parsers.slots import FEWEST
from tidemark.parsers.unknown_fields import MAX_LENGTH, MAX_NAMES, OTHERS, field_name, largest, summed

F = FieldDescriptorProto
JSON = parser_of("""
kind: json
columns:
  - {name: id, type: int64, required: true}
  - {name: name, type: string, path: user.name}
  - {name: town, type: string, path: user.home.town}
  - {name: tags, type: list<string>}
""")
PART = parser_of("kind: json\ncolumns: [{name: id, type: int64}, {name: rest, type: json, path: user.rest}]")
MANY = MAX_NAMES + 500


def unknown(parser: Any, values: Sequence[bytes | None]) -> dict[str, int]:
    """What is counted, in blocks and row by row."""
    rows = rows_of(values)
    fast, slow = (parser.parse(rows, vectorised=one) for one in (True, False))
    assert fast.unknown == slow.unknown
    return dict(fast.unknown)


def test_json_keys_that_no_path_names() -> None:
    values = [
        b'{"id":1,"user":{"name":"a","vip":true,"home":{"town":"b","zip":7}},"tags":["x"],"extra":{"deep":{"er":1}}}',
        b'{"id":2,"user":{"vip":false,"name":"b"}}',
        b'{"id":3,"user":null,"extra":[{"deep":1}]}',
        b'{"id":4}',
        None,
    ]
    assert unknown(JSON, values) == {"user.vip": 2, "user.home.zip": 1, "extra": 2}


def test_a_json_key_counts_once_a_row_whatever_its_value() -> None:
    values = [b'{"id":1,"x":null}', b'{"id":2,"x":1,"x":2,"\\u0078":3}', b'{"id":3,"x":{},"y":[]}']
    assert unknown(JSON, values) == {"x": 3, "y": 1}


def test_what_a_json_column_takes_has_no_unknown_key() -> None:
    values = [b'{"id":1,"user":{"rest":{"a":{"b":1}},"more":1}}', b'{"id":1.5,"rest":1}']
    assert unknown(PART, values) == {"user.more": 1}


def test_rows_that_are_refused_do_not_count() -> None:
    good = b'{"id":1,"x":1}'
    bad = [b'{"id":"1","x":1}', b'{"x":1}', b'{"id":1,"id":1,"x":1}', b'{"id":1,"x":1', b'{"id":1,"user":5,"x":1}']
    for one in bad:
        assert unknown(JSON, [good, one, good]) == {"x": 2}
        assert unknown(JSON, [one]) == {}
    small = parser_of("kind: json\ncolumns: [{name: id, type: int8}]")
    assert unknown(small, [good, b'{"id":1000,"x":1,"y":1}']) == {"x": 1}


def test_a_json_key_of_the_kafka_key() -> None:
    parser = parser_of("kind: json\ncolumns_from: key\ncolumns: [{name: id, type: int64}]")
    rows = rows_of([b'{"v":1}'] * 3, [b'{"id":1,"k":2}', None, b'{"k":3}'])
    assert parser.parse(rows).unknown == {"k": 2}
    assert parser.parse(rows.slice(1, 2)).unknown == {"k": 1}


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (r"a.b", "a.b"),
        (r"\ud800", r"\ud800"),
        (r"\n", "\n"),
        ("Zoë", "Zoë"),
        ("", ""),
        ("x" * 5000, "x" * (MAX_LENGTH - 1) + OTHERS),
    ],
)
def test_names_are_text_of_bounded_length(key: str, name: str) -> None:
    found = unknown(JSON, [f'{{"id":1,"{key}":1}}'.encode()])
    assert found == {name: 1}
    json.dumps(found, ensure_ascii=False).encode()


def test_values_that_only_the_slow_reader_takes_are_counted_too() -> None:
    odd = [
        b'\xef\xbb\xbf{"id":1,"x":1}',
        b'{\n"id":1,"x":1}',
        b'{"id":1,"x":"\\ud800"}',
        b'{"id":1,"x":1' + b"0" * 9000 + b"}",
        b'{"id":1,"x":1e999}',
        b'{"id":1,"x":"NaN"}',
        b'{"id":1,"x":' + b"[" * 120 + b"]" * 120 + b"}",
    ]
    assert unknown(JSON, odd) == {"x": len(odd)}


def test_the_number_of_names_is_bounded() -> None:
    values = [b'{"id":%d,"k%05d":1,"user":{"name":"a","vip":1}}' % (at, at) for at in range(MANY)]
    found = unknown(JSON, values)
    assert found == {f"k{at:05}": 1 for at in range(MAX_NAMES)} | {OTHERS: 2 * MANY - MAX_NAMES}
    whole = b'{"id":1,' + b",".join(b'"k%05d":1' % at for at in range(MANY)) + b"}"
    assert unknown(JSON, [whole]) == {f"k{at:05}": 1 for at in range(MAX_NAMES)} | {OTHERS: MANY - MAX_NAMES}


def test_blocks_without_an_unknown_key_are_read_once_and_others_still_in_blocks() -> None:
    """The words of Arrow's error decide; were they others, a block with unknown keys would be read row by row."""
    good, more = [b'{"id":%d}' % at for at in range(100)], [b'{"id":%d,"x":{"y":1}}' % at for at in range(100)]
    with patch.object(json_batch, "from_json", side_effect=AssertionError("counts")):
        assert JSON.parse(rows_of(good)).unknown == {}
    with patch.object(JSON, "_slow", side_effect=AssertionError("reads row by row")):
        assert JSON.parse(rows_of([*good, *more])).unknown == {"x": 100}


def test_json_is_counted_as_a_plain_reader_would(rng: random.Random, full: bool) -> None:
    """Documents near to the declared ones, by columns for the fast reader and for the slow one."""
    counted = 0
    for _ in range(150 if full else 50):
        paths = [path for path in _PATHS if rng.random() < 0.7] or _PATHS[:1]
        kind = rng.choice(("string", "json"))
        columns = ", ".join(f"{{name: c{at}, type: {kind}, path: {list(path)}}}" for at, path in enumerate(paths))
        parser = parser_of(f"kind: json\ncolumns: [{columns}]")
        values = [None if rng.random() < 0.05 else _document(rng) for _ in range(rng.randrange(40))]
        with patch.object(base, "BLOCK_BYTES", rng.choice((100, 1000, 1 << 20))):
            found = unknown(parser, values)
        refused = parser.parse(rows_of(values)).refused
        expected: Counter[str] = Counter()
        for row, value in enumerate(values):
            if value is not None and row not in refused:
                expected.update(_names(json.loads(value), paths))
        assert found == expected
        counted += expected.total()
    assert counted > (1000 if full else 300)


_KEYS = ("a", "b", "c", "d", "é", "")
_PATHS: tuple[tuple[str, ...], ...] = (("a",), ("b", "a"), ("b", "c", "a"), ("b", "c", "b"), ("c", "d"), ("d",))


def _document(rng: random.Random) -> bytes:
    value = {key: _value(rng, 0) for key in _KEYS if rng.random() < 0.5}
    return json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=1 if rng.random() < 0.1 else None).encode()


def _value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(10)
    if kind < 5 and depth < 4:
        return {key: _value(rng, depth + 1) for key in _KEYS if rng.random() < 0.4}
    if kind == 5:
        return [_value(rng, depth + 2)]
    return rng.choice((None, "x", "x", 5))


def _names(found: dict[str, Any], paths: Sequence[tuple[str, ...]]) -> set[str]:
    """The unknown keys of one document, each looked for by itself."""
    names: set[str] = set()
    around = {path[:depth] for path in paths for depth in range(len(path))}
    for where in around:
        at: Any = found
        for key in where:
            at = at.get(key) if isinstance(at, dict) else None
        for key in at if isinstance(at, dict) else ():
            if not any(path[: len(where) + 1] == (*where, key) for path in paths):
                names.add(".".join((*where, key)))
    return names


def record(name: str, **fields: Any) -> dict[str, Any]:
    made = [{"name": key, "type": kind} | ({"default": None} if "null" in kind else {}) for key, kind in fields.items()]
    return {"type": "record", "name": name, "fields": made}


def evolving(directory: Path, table: Any, *writers: Any) -> Any:
    """A parser for records of these writers' schemas, numbered from 0."""
    (directory / "ids").mkdir(exist_ok=True)
    for number, schema in enumerate(writers):
        (directory / "ids" / f"{number}.avsc").write_text(json.dumps(schema))
    return avro(directory, table, "framing: confluent\nschemas: ids")


def test_avro_fields_that_the_tables_schema_lacks(tmp_path: Path) -> None:
    """By the schema that wrote a row, whether the loop or fastavro reads it; rows that are refused do not count."""
    parser = evolving(tmp_path, V2, V2, V1)
    rows = [framed(1, encoded(V1, {"a": at, "gone": ""})) for at in range(FEWEST)]
    few = rows[: FEWEST - 1]
    same = [framed(0, encoded(V2, {"a": 1, "b": None}))]
    assert unknown(parser, [*rows, *same]) == {"gone": FEWEST}
    assert unknown(parser, [*few, *same, None]) == {"gone": FEWEST - 1}
    assert unknown(parser, [*rows, rows[0] + b"\0", framed(1, b""), framed(9, b"\x02"), b"\0"]) == {"gone": FEWEST}
    assert unknown(parser, same) == {}
    assert unknown(avro(tmp_path, V2), [encoded(V2, {"a": 1, "b": None})]) == {}


def test_avro_fields_within_records_lists_maps_and_unions(tmp_path: Path) -> None:
    inner, wider = record("I", x="int"), record("I", x="int", y="int", z=record("Z", q="int"))
    made = [
        record(
            "R",
            one=kind,
            maybe=["null", "I"],
            many={"type": "array", "items": ["null", "I"]},
            named={"type": "map", "values": {"type": "array", "items": "I"}},
        )
        for kind in (inner, wider)
    ]
    value = {"x": 1, "y": 2, "z": {"q": 3}}
    rows = [
        framed(0, encoded(made[1], {"one": value, "maybe": None, "many": [None, value], "named": {"k": [value] * 3}})),
        framed(0, encoded(made[1], {"one": value, "maybe": None, "many": [], "named": {}})),
    ]
    places = ("one", "maybe", "many", "named.value")
    expected = {f"{place}.{name}": 2 for place in places for name in "yz"}
    assert unknown(evolving(tmp_path, made[0], made[1]), rows) == expected


def test_an_avro_field_with_an_alias_is_known(tmp_path: Path) -> None:
    table = {"type": "record", "name": "R", "fields": [{"name": "new", "type": "int", "aliases": ["old"]}]}
    writer = record("R", old="int", more="int")
    rows = [framed(0, encoded(writer, {"old": 5, "more": 6}))]
    parser = evolving(tmp_path, table, writer)
    assert parser.parse(rows_of(rows)).columns.to_pylist() == [{"new": 5}]
    assert unknown(parser, rows) == {"more": 1}


def test_an_avro_writer_with_very_many_fields(tmp_path: Path) -> None:
    writer = record("R", a="int", **{f"f{at:05}": "int" for at in range(MANY)})
    rows = [framed(0, b"\0" * (MANY + 1))] * 3
    found = unknown(evolving(tmp_path, record("R", a="int"), writer), rows)
    assert found == {f"f{at:05}": 3 for at in range(MAX_NAMES)} | {OTHERS: 3 * (MANY - MAX_NAMES)}


def test_avro_schemas_that_evolve(tmp_path: Path, rng: random.Random) -> None:
    """Fields that ``Schemas.evolved`` adds, ``more0`` and ``more1``, wherever the schema of the table has a record."""
    schemas = Schemas(rng)
    counted = 0
    for _ in range(40):
        table = schemas.record(2)
        writers = [table, schemas.evolved(table), schemas.evolved(table)]
        parser = evolving(tmp_path, table, *writers)
        chosen = [rng.randrange(len(writers)) for _ in range(60)]
        values = [framed(at, schemas.encoded(writers[at])) for at in chosen]
        found = unknown(parser, values)
        refused = parser.parse(rows_of(values)).refused
        expected: Counter[str] = Counter()
        for row, at in enumerate(chosen):
            if row not in refused:
                expected.update(_added(writers[at]))
        assert found == expected
        counted += expected.total()
    assert counted > 100


def _added(writer: Any, *path: str) -> list[str]:
    found = []
    for one in writer["fields"]:
        if one["name"].startswith("more"):
            found.append(".".join((*path, one["name"])))
        elif isinstance(one["type"], dict) and one["type"]["type"] == "record":
            found += _added(one["type"], *path, one["name"])
    return found


def field(number: int, wire: int = 0) -> bytes:
    """A field of this number, with a value of its wire type."""
    values = {0: b"\x05", 1: bytes(8), 2: b"\x02ab", 3: b"\x08\x05" + varint(number << 3 | 4), 5: bytes(4)}
    return varint(number << 3 | wire) + values[wire]


def message(number: int, *parts: bytes) -> bytes:
    """A field that is a message of these fields."""
    data = b"".join(parts)
    return varint(number << 3 | 2) + varint(len(data)) + data


def test_protobuf_fields_that_the_descriptor_lacks(tmp_path: Path) -> None:
    parser = protobuf(tmp_path, order_file(), "shop.Order")
    good = order(**FIELDS)
    values = [
        *(good + field(127, wire) for wire in (0, 1, 2, 5)),
        good + field(1 << 28) + field(127) * 3,
        good + message(7, field(9), field(127)) + message(7, field(9)) * 2,
        good,
        good + field(127) + field(127)[:1],
    ]
    assert read_by_loop(parser, values) == len(values) - 1
    assert refused_alike(parser, [*values, None]) == 1
    assert unknown(parser, values) == {"127": 5, "268435456": 1, "lines.9": 1, "lines.127": 1}


def test_protobuf_fields_that_only_the_library_takes_for_unknown(tmp_path: Path) -> None:
    """A group, a known field with another type, one within a time, an entry of a map that has more than two fields."""
    parser = protobuf(tmp_path, order_file(), "shop.Order")
    values = [field(127, 3), field(3, 0), message(6, field(1), field(9)), message(8, field(9)), order(**FIELDS)] * 2
    assert read_by_loop(parser, values) == 2
    assert unknown(parser, values) == {"127": 2, "3": 2, "at.9": 2, "8": 2}


def test_protobuf_enums_extensions_and_maps_of_messages(tmp_path: Path) -> None:
    file = FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    file.enum_type.add(name="E").value.add(name="A", number=0)
    outer, inner = file.message_type.add(name="R"), file.message_type.add(name="I")
    add_field(outer, "e", 1, F.TYPE_ENUM, type_name=".old.E")
    add_field(outer, "i", 2, F.TYPE_MESSAGE, type_name=".old.I")
    add_field(inner, "a", 1, F.TYPE_INT32)
    add_map(outer, "m", 3, F.TYPE_INT32, F.TYPE_MESSAGE, type_name=".old.I")
    values = [
        field(1)[:1] + b"\x07",
        message(3, field(1), message(2, field(9))),
        message(2, field(100)),
        message(2, field(101)),
    ]
    expected = {"1": 1, "m.value.9": 1, "i.100": 1, "i.101": 1}
    assert unknown(protobuf(tmp_path, file, "old.R"), values) == expected
    inner.extension_range.add(start=100, end=200)
    extension = file.extension.add(name="x", number=100, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    extension.extendee = ".old.I"
    assert unknown(protobuf(tmp_path, file, "old.R"), values) == expected


def test_a_protobuf_row_whose_values_do_not_fit_does_not_count(tmp_path: Path) -> None:
    """proto2 takes any bytes for text, so that the library reads the record, and the table's column refuses it."""
    file = FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    add_field(file.message_type.add(name="R"), "text", 1, F.TYPE_STRING)
    values = [b"\x0a\x01\xff" + field(9), b"\x0a\x01a" + field(9)]
    parser = protobuf(tmp_path, file, "old.R")
    assert refused_alike(parser, values) == 1
    assert unknown(parser, values) == {"9": 1}


def test_protobuf_messages_with_very_many_unknown_fields(tmp_path: Path) -> None:
    """What does not fit the loop's table is read by the library, with the same numbers."""
    parser = protobuf(tmp_path, order_file(), "shop.Order")
    values = [field(1) + field(10_000 + at) for at in range(MANY)]
    by_loop = read_by_loop(parser, values)
    assert protobuf_kernel.MOST_UNKNOWN // 2 < by_loop < len(values)
    assert unknown(parser, values) == {f"{10_000 + at}": 1 for at in range(MAX_NAMES)} | {OTHERS: MANY - MAX_NAMES}


def test_protobuf_counts_again_where_a_level_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop begins a block anew when a list is too long for its slots, or leaves a large row to the library."""
    parser = protobuf(tmp_path, order_file(), "shop.Order")
    values = [field(127) + message(7, field(9)) * count for count in (1, 0, 3000, *[2] * 40)]
    assert unknown(parser, values) == {"127": len(values), "lines.9": len(values) - 1}
    monkeypatch.setattr("tidemark.parsers.slots.MAX_SLOTS", 5000)
    assert unknown(parser, values) == {"127": len(values), "lines.9": len(values) - 1}


def test_protobuf_messages_of_a_wider_descriptor(tmp_path: Path, rng: random.Random) -> None:
    """Random messages, of which the table's descriptor lacks random fields: by the loop and by the library alike."""
    files = Files(rng)
    counted = by_loop = 0
    for _ in range(60):
        file = files.file()
        wider = descriptor(file, "t.M3")
        for one in file.message_type:
            left = [field for field in one.field if rng.random() < 0.6] or list(one.field[:1])
            del one.field[:]
            one.field.extend(left)
            if not any(field.HasField("oneof_index") for field in left):
                del one.oneof_decl[:]
        parser: Any = protobuf(tmp_path, file, "t.M3")
        values = [files.encoded(wider) for _ in range(60)]
        refused_alike(parser, values)
        counted += sum(unknown(parser, values).values())
        by_loop += read_by_loop(parser, values) if parser._loop else 0
    assert counted > 1000
    assert by_loop > 500


def test_sums_do_not_depend_on_how_rows_are_cut(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_fields, "MAX_NAMES", 20)
    names = [field_name(rng.choice("abc"), str(at)) for at in range(60)]
    counts = [{name: rng.randrange(1, 9) for name in rng.sample(names, rng.randrange(30))} for _ in range(50)]
    whole = summed(counts)
    total = sum((Counter(one) for one in counts), Counter())
    first = sorted(total)[:20]
    others = total.total() - sum(total[name] for name in first)
    assert whole == {name: total[name] for name in first} | {OTHERS: others}
    for _ in range(20):
        rng.shuffle(counts)
        cut = rng.randrange(1, len(counts))
        assert summed((summed(counts[:cut]), summed(counts[cut:]))) == whole


def test_the_largest_come_first() -> None:
    counts = {"a": 1, OTHERS: 100, "b": 5, "c": 5, "d": 2}
    assert list(largest(counts, 3).items()) == [("b", 5), ("c", 5), ("d", 2), (OTHERS, 101)]
    assert list(largest({"b": 1, "a": 2}, 3)) == ["a", "b"]
    assert largest({}, 3) == {}
