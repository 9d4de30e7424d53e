"""What a producer may do to an Avro topic: each change lands as the specification says, for one record as for many."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.tidemark.parsers.avro_pairs import number
from tests.tidemark.parsers.support import rows_of
from tests.tidemark.parsers.test_avro import avro, encoded, framed
from tests.tidemark.schemas.test_avro_merge import field, record
from tidemark.errors import ConfigError
from tidemark.formats.table.schema_state import SchemaChange
from tidemark.parsers.base import Parser
from tidemark.parsers.schema_registry import Written
from tidemark.schemas.avro_merge import merged

MANY = 12


class Landed(NamedTuple):
    """Rows, reasons of refusals by row, and what waits, as (path, kind)."""

    rows: list[dict[str, Any]]
    refused: dict[int, str]
    waiting: list[tuple[str, str]]


def landed(folder: Path, versions: Sequence[Any], *values: tuple[int, Any], widen: bool = False) -> Landed:
    """``values``, of the versions with these numbers from 1 on, when all are registered; bytes are encoded already."""
    definition: bytes | None = None
    waiting: list[SchemaChange] = []
    for version in versions:
        definition, changes = merged(definition, Written((json.dumps(version),)), widen=widen)
        waiting = [change for change in changes if change.waits]
    assert definition is not None
    data = [framed(at, value if isinstance(value, bytes) else encoded(versions[at - 1], value)) for at, value in values]
    parser = parser_by(folder, versions, json.loads(definition))
    one, many = parser.parse(rows_of(data)), parser.parse(rows_of(data * MANY))
    assert many.columns.to_pylist() == one.columns.to_pylist() * MANY, "the number of records decides"
    assert {at % len(data): reason for at, reason in many.refused.items()} == one.refused
    return Landed(one.columns.to_pylist(), dict(one.refused), [(change.path, change.kind) for change in waiting])


def parser_by(folder: Path, writers: Sequence[Any], table: Any) -> Parser:
    """A parser into ``table`` of records of ``writers``, by their numbers from 1 on."""
    (folder / "ids").mkdir(exist_ok=True)
    for at, writer in enumerate(writers, 1):
        (folder / "ids" / f"{at}.avsc").write_text(json.dumps(writer))
    return avro(folder, table, "framing: confluent\nschemas: ids")


def logical(kind: str, name: str) -> dict[str, str]:
    """A type with a logical type."""
    return {"type": kind, "logicalType": name}


ID = field("id", "int")
FIXED = {"type": "fixed", "name": "F", "size": 1}
STATE = {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}
MONEY = record(field("amount", "long"), field("currency", "string"), name="Money")
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
INNER = record(field("a", "int", default=7), field("b", "bytes", default="\u00fe"), name="Inner")


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("bytes", "\u00ff", b"\xff"),
        ("bytes", "a\u0000", b"a\0"),
        ({"type": "fixed", "name": "F", "size": 2}, "\u0080\u00ff", b"\x80\xff"),
        (INNER, {}, {"a": 7, "b": b"\xfe"}),
        (INNER, {"a": 1}, {"a": 1, "b": b"\xfe"}),
        (record(field("in", INNER), name="Outer"), {"in": {}}, {"in": {"a": 7, "b": b"\xfe"}}),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        ({"type": "map", "values": INNER}, {"k": {}}, [{"key": "k", "value": {"a": 7, "b": b"\xfe"}}]),
        (PRICE, "\u0001\u0000", Decimal("2.56")),
        (["bytes", "null"], "\u00ff", b"\xff"),
        (["null", "bytes"], "\u00ff", b"\xff"),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1, datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)),
        ({"type": "int", "logicalType": "date"}, 1, date(1970, 1, 2)),
        (STATE, "PAID", "PAID"),
        ("float", 16777217, 16777216.0),
        ("float", 1e300, float("inf")),
        ("string", None, None),
    ],
)
def test_a_default_is_what_the_specification_says(tmp_path: Path, kind: Any, default: Any, value: Any) -> None:
    table = record(ID, field("x", kind, default=default))
    parser = parser_by(tmp_path, [record(ID)], table)
    for count in (1, MANY):
        parsed = parser.parse(rows_of([framed(1, encoded(record(ID), {"id": 5}))] * count))
        assert parsed.columns.to_pylist() == [{"id": 5, "x": value}] * count


def test_a_default_that_is_no_value_refuses_the_records_that_need_it(tmp_path: Path) -> None:
    parser = parser_by(tmp_path, [record(ID)], record(ID, field("x", "int", default="seven")))
    [reason] = parser.parse(rows_of([framed(1, encoded(record(ID), {"id": 5}))])).refused.values()
    assert "lacks x, whose default is not valid: 'seven' is not a value of int" in reason


def test_a_decimal_with_a_default_comes_and_goes(tmp_path: Path) -> None:
    """As Debezium writes NUMERIC NOT NULL DEFAULT 0."""
    second = record(ID, field("price", PRICE, default="\u0000"))
    found = landed(
        tmp_path,
        [record(ID), second, record(ID)],
        (1, {"id": 1}),
        (2, {"id": 2, "price": Decimal("1.5")}),
        (3, {"id": 3}),
    )
    assert [row["price"] for row in found.rows] == [Decimal("0.00"), Decimal("1.50"), Decimal("0.00")]
    assert (found.refused, found.waiting) == ({}, [])


AT = datetime(2026, 11, 20, 1, 2, 3, 456000, UTC)
MICROS = (AT - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
UNITS = {"millis": MICROS // 1000, "micros": MICROS, "nanos": MICROS * 1000 + 999}


@pytest.mark.parametrize("after", UNITS)
@pytest.mark.parametrize("before", ["millis", "micros"])
def test_a_time_of_another_unit_is_the_same_time(tmp_path: Path, before: str, after: str) -> None:
    versions = [record(field("at", {"type": "long", "logicalType": f"timestamp-{unit}"})) for unit in (before, after)]
    found = landed(tmp_path, versions, (1, number(UNITS[before])), (2, number(UNITS[after])), (2, number(-1)))
    assert [row["at"] for row in found.rows[:2]] == [AT, AT]
    assert found.rows[2]["at"] < datetime(1970, 1, 1, tzinfo=UTC)
    assert (found.refused, found.waiting) == ({}, [])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            {"type": "long", "logicalType": "local-timestamp-millis"},
        ),
        ({"type": "long", "logicalType": "timestamp-millis"}, {"type": "int", "logicalType": "date"}),
        ({"type": "long", "logicalType": "time-micros"}, {"type": "long", "logicalType": "timestamp-micros"}),
        ({"type": "int", "logicalType": "date"}, {"type": "int", "logicalType": "time-millis"}),
        (PRICE, "bytes"),
        (PRICE, "string"),
    ],
)
def test_another_meaning_of_a_number_is_a_misfit_and_never_a_value(tmp_path: Path, before: Any, after: Any) -> None:
    versions = [record(ID, field("x", one)) for one in (before, after)]
    found = landed(tmp_path, versions, (2, number(1) + number(1) + b"a"[: after in ("bytes", "string")]))
    assert found.waiting == [("x", "misfit")]
    assert list(found.refused) == [0]


def test_a_declaration_moves_to_another_field(tmp_path: Path) -> None:
    first = record(ID, field("paid", MONEY), field("state", STATE))
    second = record(ID, field("due", MONEY), field("was", STATE), field("paid", "Money"), field("state", "State"))
    money, other = {"amount": 5, "currency": "EUR"}, {"amount": 7, "currency": "USD"}
    values = {"id": 2, "due": other, "was": "NEW", "paid": money, "state": "PAID"}
    found = landed(tmp_path, [first, second], (1, {"id": 1, "paid": money, "state": "NEW"}), (2, values))
    assert found.rows[1] == values
    assert found.rows[0] == {"id": 1, "paid": money, "state": "NEW", "due": None, "was": None}
    assert (found.refused, found.waiting) == ({}, [])


@pytest.mark.parametrize(
    "kind", [STATE, MONEY, {"type": "fixed", "name": "F", "size": 1}], ids=["enum", "record", "fixed"]
)
def test_a_column_gets_another_name_and_its_type_stays(tmp_path: Path, kind: Any) -> None:
    value: Any = {"enum": "PAID", "fixed": b"x"}.get(kind["type"], {"amount": 1, "currency": "EUR"})
    versions = [record(ID, field(name, kind)) for name in ("old", "fresh")]
    found = landed(tmp_path, versions, (1, {"id": 1, "old": value}), (2, {"id": 2, "fresh": value}))
    assert found.rows == [{"id": 1, "old": value, "fresh": None}, {"id": 2, "old": None, "fresh": value}]
    assert (found.refused, found.waiting) == ({}, [])


def test_a_type_in_two_places_has_two_pasts(tmp_path: Path) -> None:
    """A field was dropped from the type before it came into a second place."""
    small = {**MONEY, "fields": MONEY["fields"][:1]}
    first = record(field("paid", MONEY), field("state", STATE))
    second = record(field("paid", small), field("state", {**STATE, "symbols": ["GONE"]}), field("was", "State"))
    third = record(field("paid", small), field("due", "Money"))
    money = {"amount": 1}
    found = landed(
        tmp_path,
        [first, second, third],
        (1, {"paid": {**money, "currency": "EUR"}, "state": "PAID"}),
        (2, {"paid": money, "state": "GONE", "was": "GONE"}),
        (3, {"paid": money, "due": money}),
    )
    assert [row["paid"] for row in found.rows] == [{"amount": 1, "currency": one} for one in ("EUR", None, None)]
    assert [row["state"] for row in found.rows] == ["PAID", "GONE", None]
    assert [row["was"] for row in found.rows] == [None, "GONE", None]
    assert found.rows[2]["due"] == money
    assert (found.refused, found.waiting) == ({}, [])


def test_names_that_differ_by_case_within_a_struct_are_misfits(tmp_path: Path) -> None:
    both = record(field("userid", "int"), field("userId", "int"), name="User")
    one = record(field("userid", "int"), name="User")
    versions = [record(ID, field("early", one)), record(ID, field("early", both), field("user", "User"))]
    value = {"userid": 1, "userId": 2}
    found = landed(tmp_path, versions, (2, {"id": 1, "early": value, "user": value}))
    assert found.rows == [{"id": 1, "early": {"userid": 1}}]
    assert found.waiting == [("early.userId", "misfit"), ("user", "misfit")]
    lists = record(ID, field("users", {"type": "map", "values": {"type": "array", "items": both}}))
    assert landed(tmp_path, [lists], (1, {"id": 1, "users": {}})).waiting == [("users", "misfit")]
    with pytest.raises(ConfigError, match=r"user: field 'userId': appears twice"):
        avro(tmp_path, record(ID, field("user", both)))


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        ({"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 127}, b"\x02\x05", b"\x05"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, b"\x02\x05", b"\x05"),
        ({"type": "bytes", "logicalType": "decimal"}, b"\x02\x05", b"\x05"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": -2}, b"\x02\x05", b"\x05"),
        ({"type": "bytes", "logicalType": "decimal", "precision": "4"}, b"\x02\x05", b"\x05"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 2}, b"\x02\x05", Decimal("0.05")),
        ({"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 50}, b"\x02\x05", b"\x05"),
        ({"type": "string", "logicalType": "decimal", "precision": 4}, b"\x021", "1"),
        ({"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 9}, b"\x05", b"\x05"),
        ({"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 4}, b"\0\x05", Decimal(5)),
        ({"type": "int", "logicalType": "timestamp-millis"}, b"\x02", 1),
        ({"type": "long", "logicalType": "date"}, b"\x02", 1),
        ({"type": "string", "logicalType": "date"}, b"\x021", "1"),
        ({"type": "long", "logicalType": "nothing"}, b"\x02", 1),
        ({"type": "long", "logicalType": 7}, b"\x02", 1),
    ],
)
def test_a_logical_type_that_is_not_valid_is_ignored(tmp_path: Path, kind: Any, data: bytes, value: Any) -> None:
    """As with Oracle's NUMBER, whose scale is 127. More than 38 digits are a decimal of 38, if its scale allows."""
    found = landed(tmp_path, [record(field("x", kind))], (1, data))
    assert found.rows == [{"x": value}]
    assert (found.refused, found.waiting) == ({}, [])


def test_a_decimal_of_more_digits_than_a_table_has_is_refused_and_never_cut(tmp_path: Path) -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 2}
    values = [(10**power).to_bytes(20, "big") for power in (37, 38)]
    found = landed(tmp_path, [record(field("x", kind))], *((1, number(20) + value) for value in values))
    assert found.rows[0] == {"x": Decimal(10) ** 35}
    assert "a decimal of more than 38 digits" in found.refused[1]


def around(kind: Any, way: str) -> Any:
    """``kind`` within a list, a map, or both."""
    for one in reversed(way):
        kind = {"type": "array", "items": kind} if one == "[" else {"type": "map", "values": kind}
    return kind


def within(value: Any, way: str, *, read: bool = False) -> Any:
    """``value`` within the same, as it is written or read."""
    for one in reversed(way):
        value = [value] if one == "[" else [{"key": "k", "value": value}] if read else {"k": value}
    return value


PATHS = {"[": "[]", "{": "{}", "[[": "[][]", "{[": "{}[]", "[{": "[]{}"}


@pytest.mark.parametrize("way", PATHS)
def test_a_field_within_items_comes_goes_and_gets_longer(tmp_path: Path, way: str) -> None:
    line = record(field("n", "int"), field("gone", "string"), name="Line")
    newer = record(field("n", "long"), field("price", "double"), name="Line")
    versions = [record(ID, field("lines", around(one, way))) for one in (line, newer)]
    old = {"id": 1, "lines": within({"n": 1, "gone": "x"}, way)}
    new = {"id": 2, "lines": within({"n": 2, "price": 0.5}, way)}
    found = landed(tmp_path, versions, (1, old), (2, new))
    path = f"lines{PATHS[way]}"
    assert found.waiting == [(f"{path}.n", "wider"), (f"{path}.price", "wider")]
    assert found.rows[0] == {"id": 1, "lines": within({"n": 1, "gone": "x"}, way, read=True)}
    assert "n: long is not int" in found.refused[1]
    wide = landed(tmp_path, versions, (1, old), (2, new), widen=True)
    assert [row["lines"] for row in wide.rows] == [
        within({"n": 1, "gone": "x", "price": None}, way, read=True),
        within({"n": 2, "gone": None, "price": 0.5}, way, read=True),
    ]


@pytest.mark.parametrize("way", PATHS)
def test_items_that_get_longer_wait(tmp_path: Path, way: str) -> None:
    versions = [record(ID, field("ns", around(kind, way))) for kind in ("int", "long")]
    values = [(1, {"id": 1, "ns": within(1, way)}), (2, {"id": 2, "ns": within(1 << 40, way)})]
    found = landed(tmp_path, versions, *values)
    assert (found.waiting, list(found.refused)) == ([(f"ns{PATHS[way]}", "wider")], [1])
    assert landed(tmp_path, versions, *values, widen=True).rows[1]["ns"] == within(1 << 40, way, read=True)


@pytest.mark.parametrize("way", ["", *PATHS])
def test_a_nested_record_gets_another_name(tmp_path: Path, way: str) -> None:
    versions = [record(field("x", around({**MONEY, "name": name}, way))) for name in ("Money", "shop.parts.Amount")]
    value = {"amount": 1, "currency": "EUR"}
    found = landed(tmp_path, versions, *((at, {"x": within(value, way)}) for at in (1, 2)))
    assert found.rows == [{"x": within(value, way, read=True)}] * 2
    assert (found.refused, found.waiting) == ({}, [])


@pytest.mark.parametrize("kind", [STATE, FIXED], ids=["enum", "fixed"])
def test_an_enum_or_fixed_gets_another_name(tmp_path: Path, kind: Any) -> None:
    """A misfit, unless the newer schema has the older name as an alias; a namespace alone is no other name."""
    value: Any = "PAID" if kind is STATE else b"x"
    names = {"Other": ([("x", "misfit")], [1]), "shop.parts." + kind["name"]: ([], [])}
    for name, (waiting, refused) in names.items():
        versions = [record(field("x", one)) for one in (kind, {**kind, "name": name})]
        found = landed(tmp_path, versions, (1, {"x": value}), (2, {"x": value}))
        assert (found.waiting, list(found.refused)) == (waiting, refused)
    renamed = {**kind, "name": "Other", "aliases": [f"shop.{kind['name']}"]}
    versions = [record(field("x", one)) for one in (kind, renamed, renamed)]
    found = landed(tmp_path, versions, *((at, {"x": value}) for at in (1, 2, 3)))
    assert found.rows == [{"x": value}] * 3
    assert (found.refused, found.waiting) == ({}, [])


def test_a_union_of_more_types_lands_where_the_column_has_the_branch(tmp_path: Path) -> None:
    versions = [record(ID, field("x", kind)) for kind in ("long", ["null", "int", "string"])]
    found = landed(tmp_path, versions, (2, {"id": 1, "x": 7}), (2, {"id": 2, "x": "a"}), (2, {"id": 3, "x": None}))
    assert found.waiting == [("x", "misfit")]
    assert [row["x"] for row in found.rows] == [7, None, None]
    assert list(found.refused) == [1]


def test_of_a_writers_union_of_records_those_of_the_tables_name_land(tmp_path: Path) -> None:
    other = record(field("n", "int"), name="shop.Other")
    parser = parser_by(tmp_path, [[other, "null", record(ID)]], record(ID))
    data = [framed(1, part) for part in (b"\x04\x0a", b"\x00\x02", b"\x02", b"\x06\x02")]
    for count in (1, MANY):
        parsed = parser.parse(rows_of(data * count))
        assert parsed.columns.to_pylist()[:4] == [{"id": 5}, {"id": None}, {"id": None}, {"id": None}]
        assert [reason.partition(": ")[2] for _, reason in sorted(parsed.refused.items())][:3] == [
            "record shop.Other is not shop.Order",
            "Schema mismatch: null is not the record Order",
            "names a branch of a union, or a symbol of an enum, that the schema does not have",
        ]


def test_a_schema_that_refuses_all_records_is_told_as_a_whole(tmp_path: Path) -> None:
    node = record(field("next", ["null", "Node"]), name="Node")
    first = record(ID, field("node", record(field("n", "int"), name="Node")))
    second = record(ID, field("node", record(field("n", "int"), field("next", ["null", "Node"]), name="Node")))
    found = landed(tmp_path, [first, second], (2, b"\x02\x02\0"))
    assert ("node.next", "misfit") in found.waiting
    assert "holds itself" in found.refused[0]
    assert landed(tmp_path, [record(ID), record(ID, field("node", node))], (1, {"id": 1})).waiting == [
        ("node", "misfit")
    ]


def test_a_type_that_is_used_in_many_places_is_bounded(tmp_path: Path) -> None:
    """Each of thirty records holds the one before it twice: 2^30 columns of a few hundred bytes."""
    kind: Any = "int"
    for at in range(30):
        kind = record(field("a", kind), field("b", f"D{at - 1}" if at else "int"), name=f"D{at}")
    found = landed(tmp_path, [record(ID, field("deep", kind))], (1, b"\x02"))
    assert found.waiting == [("deep", "misfit")]
    deep: Any = "int"
    for at in range(140):
        deep = record(field("a", deep), name=f"D{at}") if at % 50 else {"type": "array", "items": deep}
    with pytest.raises(ValueError, match="levels"):
        merged(None, Written((json.dumps(record(ID, field("deep", deep))),)))
