"""JSON: the fast path is the slow one's equal, and the slow one keeps the rules."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pytest

from tests.tidemark.parsers.support import records, rows_of, topic_of
from tidemark.parsers import base
from tidemark.parsers.json.batch import JsonColumns
from tidemark.parsers.settings import JsonParser

COLUMNS = """
kind: json
columns:
  - {name: id, type: int64, required: true}
  - {name: small, type: int8}
  - {name: ratio, type: double}
  - {name: narrow, type: float}
  - {name: name, type: string, path: user.name}
  - {name: age, type: int32, path: [user, "the.age"]}
  - {name: good, type: boolean}
  - {name: at, type: timestamp(ms)}
  - {name: iso, type: timestamp(iso8601)}
  - {name: day, type: date}
  - {name: raw, type: binary}
  - {name: tags, type: list<string>}
  - {name: grid, type: list<list<int16>>}
event_time: {field: at}
"""


def parser_of(text: str) -> JsonColumns:
    settings = topic_of(text).parser
    assert isinstance(settings, JsonParser)
    return JsonColumns(settings)


PARSER = parser_of(COLUMNS)
ID = parser_of("kind: json\ncolumns: [{name: id, type: int64}, {name: x, type: double}]")


def one(value: bytes, parser: JsonColumns = ID) -> Any:
    """What becomes of a value, alone and among others, on both paths: a dict, or the reason."""
    answers = []
    for values in ([value], [b'{"id":1}', value, b'{"id":2}']):
        for vectorised in (True, False):
            parsed = parser.parse(rows_of(values), vectorised=vectorised)
            at = len(values) // 2
            answers.append(parsed.refused.get(at) or records(parsed)[at])
            assert set(parsed.refused) <= {at}
    assert all(repr(answer) == repr(answers[0]) for answer in answers), answers
    return answers[0]


def test_each_type_is_read() -> None:
    value = {
        "id": (1 << 63) - 1,
        "small": -128,
        "ratio": 0.1,
        "narrow": 0.5,
        "user": {"name": "Zoë \U0001f600", "the.age": 30, "more": {}},
        "good": True,
        "at": 1_770_000_000_123,
        "iso": "2026-02-02T03:04:05.678901+01:00",
        "day": "2026-02-02",
        "raw": "AAH/",
        "tags": ["a", None, ""],
        "grid": [[1, 2], [], None],
        "other": [{"x": 1}],
    }
    found = one(json.dumps(value).encode(), PARSER)
    assert found == {
        "id": (1 << 63) - 1,
        "small": -128,
        "ratio": 0.1,
        "narrow": 0.5,
        "name": "Zoë \U0001f600",
        "age": 30,
        "good": True,
        "at": datetime.fromtimestamp(1_770_000_000.123, UTC),
        "iso": datetime(2026, 2, 2, 2, 4, 5, 678901, tzinfo=UTC),
        "day": date(2026, 2, 2),
        "raw": b"\x00\x01\xff",
        "tags": ["a", None, ""],
        "grid": [[1, 2], [], None],
    }


def test_null_and_missing_are_null_and_a_tombstone_is_no_error() -> None:
    parsed = PARSER.parse(rows_of([None, b'{"id":1,"name":null,"user":null}', b'{"id":2,"user":{}}', None]))
    assert parsed.refused == {}
    assert records(parsed) == [{}, {"id": 1}, {"id": 2}, {}]
    assert parsed.event_time is not None
    assert parsed.event_time.to_pylist() == [None] * 4


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"null", "not an object"),
        (b"[1]", "not an object"),
        (b'"x"', "not an object"),
        (b'{"id":1} {"id":2}', "not valid JSON"),
        (b'{"id":1},{"id":2}', "not valid JSON"),
        (b'{"id":1', "not valid JSON"),
        (b'{"id":1,}', "not valid JSON"),
        (b'{"id":01}', "not valid JSON"),
        (b'{"id":1}\x00', "not valid JSON"),
        (b'{"y":"a\nb"}', "not valid JSON"),
        (b'{"y":"\x01"}', "not valid JSON"),
        (b'{"y":"\\x"}', "not valid JSON"),
        (b'{"y":NaN}', "NaN is not valid JSON"),
        (b'{"x":NaN}', "NaN is not valid JSON"),
        (b'{"x":-Infinity}', "Infinity is not valid JSON"),
        (b'{"y":"In \\"Nadia\\"","x":NaN}', "NaN is not valid JSON"),
        (b'{"y":"In \\\\","x":Infinity}', "Infinity is not valid JSON"),
        (b'{"\\"Na":[{"x":"\\\\\\""},NaN]}', "NaN is not valid JSON"),
        (b'{"x":1e400}', "x: a value that is not a double"),
        (b'{"x":1' + b"0" * 400 + b"}", "x: a value that is not a double"),
        (b'{"x":1' + b"0" * 5000 + b"}", "x: a value that is not a double"),
        (b'{"x":"1"}', "x: is text, not a number"),
        (b'{"id":"1"}', "id: is text, not a whole number"),
        (b'{"id":1.0}', "id: is a number, not a whole number"),
        (b'{"id":1e2}', "id: is a number, not a whole number"),
        (b'{"id":true}', "id: is a truth value"),
        (b'{"id":{}}', "id: is an object"),
        (b'{"id":9223372036854775808}', "does not fit 64 bits"),
        (b'{"id":1' + b"0" * 5000 + b"}", "does not fit 64 bits"),
        (b'{"id":1,"id":1}', "id: appears twice"),
        (b'{"id":null,"\\u0069d":1}', "id: appears twice"),
        (b'{"y":"\xff"}', "not valid UTF-8 at byte 6"),
        (b'{"y":"\xed\xa0\x80"}', "not valid UTF-8"),
        (b"\xff\xfe{\x00}\x00", "not valid UTF-8"),
        (b'{"y":' + b"[" * 200 + b"]" * 200 + b"}", "more than 128 levels"),
        (b'{"y":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "more than 128 levels"),
    ],
)
def test_what_is_refused_and_why(value: bytes, reason: str) -> None:
    assert reason in one(value)


def test_text_that_looks_like_a_constant_is_read_in_blocks() -> None:
    value = b'{"y":"Nadia, \\"India\\" and NaN","id":1}'
    with patch("tidemark.parsers.json.batch.document", side_effect=AssertionError("read row by row")):
        assert records(ID.parse(rows_of([value] * 20))) == [{"id": 1}] * 20


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"{}", {}),
        (b' {"id" : 1}\r\n', {"id": 1}),
        (b'{\n  "id": 1\n}', {"id": 1}),
        (b'\xef\xbb\xbf{"id":1}', {"id": 1}),
        (b'{"y":1,"y":2,"id":1}', {"id": 1}),
        (b'{"y":"NaN Infinity","id":1}', {"id": 1}),
        (b'{"y":"\\\\\\": NaN, \\"Infinity","id":1}', {"id": 1}),
        (b'{"y":1e999,"id":1}', {"id": 1}),
        (b'{"y":1' + b"0" * 5000 + b',"id":1}', {"id": 1}),
        (b'{"y":"\\ud800","id":1}', {"id": 1}),
        (b'{"x":-0}', {"x": -0.0}),
        (b'{"x":7}', {"x": 7.0}),
        (b'{"x":1e-999}', {"x": 0.0}),
        (b'{"id":-9223372036854775808}', {"id": -(1 << 63)}),
        (b'{"y":[' + b"[]," * 300 + b'1],"id":1}', {"id": 1}),
        (b'{"y":"' + b"[" * 300 + b'","id":1}', {"id": 1}),
    ],
)
def test_what_is_read_all_the_same(value: bytes, expected: dict[str, Any]) -> None:
    assert one(value) == expected


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("int8", "128", None),
        ("int16", "-32768", -32768),
        ("int32", "2147483648", None),
        ("float", "1e39", None),
        ("boolean", "0", None),
        ("string", "5", None),
        ("date", '"2026-02-30"', None),
        ("date", '"20260202"', None),
        ("binary", '"AAH"', None),
        ("binary", '""', b""),
        ("timestamp(s)", "9223372036854775807", None),
        ("timestamp(s)", "1770000000", datetime.fromtimestamp(1_770_000_000, UTC)),
        ("timestamp(us)", "-1", datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        ("timestamp(ns)", "-1", datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        ("timestamp(ns)", "1999", datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ("timestamp(iso8601)", '"2026-02-02T03:04:05Z"', datetime(2026, 2, 2, 3, 4, 5, tzinfo=UTC)),
        ("timestamp(iso8601)", '"2026-02-02 03:04:05,5"', datetime(2026, 2, 2, 3, 4, 5, 500000, tzinfo=UTC)),
        ("timestamp(iso8601)", '"2026-02-02t03:04-0130"', datetime(2026, 2, 2, 4, 34, tzinfo=UTC)),
        ("timestamp(iso8601)", '"2026-02-02T03:04:05.123456789z"', datetime(2026, 2, 2, 3, 4, 5, 123456, tzinfo=UTC)),
        ("timestamp(iso8601)", '"2026-02-30T03:04:05Z"', None),
        ("timestamp(iso8601)", '"2026-02-02"', None),
        ("decimal(5,2)", "123.45", Decimal("123.45")),
        ("decimal(5,2)", '"1.5e2"', Decimal("150.00")),
        ("decimal(5,2)", "1000", None),
        ("decimal(5,2)", "0.001", None),
        ("decimal(5,2)", '"NaN"', None),
        ("decimal(38,0)", "9" * 38, Decimal("9" * 38)),
        ("decimal(5,2)", "1e99999999", None),
        ("json", '{"b": [1, 2.50], "a": null, "é": "\\u00e9"}', '{"b": [1, 2.50], "a": null, "é": "\\u00e9"}'),
        ("json", "5", "5"),
        ("json", '{"a":1,"a":2}', '{"a":1,"a":2}'),
        ("list<int8>", "[1,128]", None),
        ("list<date>", '["2026-02-02"]', [date(2026, 2, 2)]),
        ("list<int8>", "5", None),
        ("list<json>", '[{"a":1},2]', ['{"a":1}', "2"]),
    ],
)
def test_types_and_their_limits(text: str, value: str, expected: Any) -> None:
    parser = parser_of(f"kind: json\ncolumns: [{{name: v, type: '{text}'}}, {{name: id, type: int64}}]")
    found = one(f'{{"v":{value},"id":7}}'.encode(), parser)
    if expected is None:
        assert isinstance(found, str), found
        assert found.startswith("v: ")
    else:
        assert found == {"v": expected, "id": 7}


_NEIGHBOURS = {
    "timestamp(iso8601)": ("2026-02-02T03:04:05Z", "2026-02-02T03:04:05.123+01:00", "2026-02-02 03:04"),
    "date": ("2026-02-02", "0001-01-01"),
    "decimal(5,2)": ("1.50", "1.5e1", "-0"),
    "double": (1.5, -0.0),
    "int8": (1, -128),
    "timestamp(ms)": (0, -1),
}


@pytest.mark.parametrize("text", _NEIGHBOURS)
def test_a_value_lands_or_not_whatever_stands_beside_it(text: str, rng: random.Random, full: bool) -> None:
    """Times and numbers at the ends of their types, and beyond, alone and beside each kind of sound value."""
    parser = parser_of(f"kind: json\ncolumns: [{{name: v, type: '{text}'}}]")

    def strange() -> object:
        if text == "timestamp(iso8601)":
            day = f"{rng.choice(('0000', '0001', '1969', '9999'))}-{rng.randrange(14):02d}-{rng.randrange(33):02d}"
            time = ":".join(f"{rng.choice((0, 23, 24, 59, 60, 61)):02d}" for _ in range(3))
            fraction, zone = (
                rng.choice(("", ".999", ".123456", ".1")),
                rng.choice(("Z", "+23:59", "-24:00", "+05:60", "")),
            )
            return day + rng.choice("T ") + time + fraction + zone
        if text == "date":
            return f"{rng.choice(('0000', '0001', '9999'))}-{rng.randrange(14):02d}-{rng.randrange(33):02d}"
        if text == "decimal(5,2)":
            return rng.choice(("999.99", "1000", "0.001", "-0.00", "+1", "1e-400", "00.10", ".5", "5.", " 1", "1\n"))
        return rng.choice((1 << 63, -(1 << 63), (1 << 63) - 1, 1e308, 128, 127, -129, 9_223_372_036_854_776))

    sound = [json.dumps({"v": value}).encode() for value in _NEIGHBOURS[text]]
    for _ in range(150 if full else 50):
        value = json.dumps({"v": strange()}).encode()
        alone = one(value, parser)
        for beside in sound:
            parsed = parser.parse(rows_of([beside, value]))
            assert (parsed.refused.get(1) or records(parsed)[1]) == alone, (beside, value)


def test_a_required_column_must_be_there() -> None:
    parsed = PARSER.parse(rows_of([b"{}", b'{"id":null}', None, b'{"id":3}']))
    assert parsed.refused == dict.fromkeys((0, 1), "id: is required, and missing or null")


def test_the_bisection_finds_exactly_the_bad_rows(rng: random.Random) -> None:
    for _ in range(20):
        count = rng.randrange(1, 400)
        bad = {row for row in range(count) if rng.random() < rng.choice((0.0, 0.01, 0.3))}
        wrong = (b'{"id":', b"x", b'{"id":"1"}', b'{"id":1,"small":999}', b'{"id":1}{"id":2}', b'{"id":1,', b'"id":2}')
        values = [rng.choice(wrong) if row in bad else b'{"id":%d}' % row for row in range(count)]
        with patch.object(base, "BLOCK_BYTES", 300):
            parsed = PARSER.parse(rows_of(values))
        assert set(parsed.refused) == bad
        assert [row.get("id") for row in records(parsed)] == [None if row in bad else row for row in range(count)]


@pytest.mark.parametrize(
    "values",
    [
        [b'{"id":1,', b'"x":2}'],
        [b'{"id":5,"y":{"z":1}', b',"x":1}'],
        [b'{"id":1,"y":', b'{"z":1}}'],
        [b'{"id":5,"y":{"z":1}', b"}"],
        [b'{"id":1,"y":"', b'"}'],
    ],
)
def test_halves_of_documents_do_not_join(values: list[bytes]) -> None:
    values = [*values, b'{"id":3} {"id":4}']  # which would make up for the number of documents
    for vectorised in (True, False):
        assert set(ID.parse(rows_of(values), vectorised=vectorised).refused) == {0, 1, 2}


def test_keys_and_slices_are_parsed_too() -> None:
    parser = parser_of("kind: json\ncolumns_from: key\ncolumns: [{name: id, type: int64}]")
    rows = rows_of([b"x"] * 5, [b'{"id":0}', None, b'{"id":2}', b"bad", b'{"id":4}'])
    parsed = parser.parse(rows.slice(1, 4))
    assert (records(parsed), set(parsed.refused)) == ([{}, {"id": 2}, {}, {"id": 4}], {2})


_NAMES = ("id", "small", "ratio", "narrow", "user", "good", "at", "iso", "day", "raw", "tags", "grid", "zz")
_TEXTS = ("", "a", "é\U0001f600", "\ud800", "2026-02-02", "2026-02-02T03:04:05Z", "2026-02-02T25:00:00Z", "AAH/", "AA")
_NUMBERS = (0, -0.0, 7, -128, 128, 32768, 1 << 31, 1 << 63, -(1 << 63), 1.5, 1e39, 1e308, float("nan"), float("-inf"))
_NOISE = (b"", b"{", b"}", b'"', b",", b"\n", b"\\", b"0", b"-", b"e", b"\xff", b"\x00", b"[", b"{}", b'"id":1,')


def _value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind > 5:
        return {rng.choice((*_NAMES, "name", "the.age")): _value(rng, depth + 1) for _ in range(rng.randrange(3))}
    if kind == 5:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return (None, rng.random() < 0.5, rng.choice(_TEXTS), rng.choice(_NUMBERS), rng.randrange(-200, 200))[kind]


def _document(rng: random.Random) -> bytes:
    """A document of ``COLUMNS``, nearly; sometimes with bytes changed, taken out or put in."""
    found = {name: _value(rng) for name in rng.sample(_NAMES, rng.randrange(5))} | {"id": rng.randrange(99)}
    space = rng.choice(("", "", " ", "\n"))
    text = json.dumps(found, ensure_ascii=rng.random() < 0.5, separators=(",", ":" + space))
    value = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        at = rng.randrange(len(value) + 1)
        value[at : at + rng.randrange(3)] = rng.choice(_NOISE)
    return bytes(value)


@pytest.mark.timeout(1800)
def test_the_fast_path_is_the_slow_ones_equal(rng: random.Random, full: bool) -> None:
    accepted = 0
    for _ in range(20_000 if full else 80):
        values = [None if rng.random() < 0.05 else _document(rng) for _ in range(rng.randrange(24))]
        rows = rows_of(values)
        fast, slow = (PARSER.parse(rows, vectorised=vectorised) for vectorised in (True, False))
        assert fast.refused == slow.refused
        assert fast.unknown == slow.unknown
        assert repr(fast.columns.to_pylist()) == repr(slow.columns.to_pylist())
        assert fast.columns.schema == slow.columns.schema == PARSER.columns
        accepted += len(values) - len(fast.refused)
        for row in range(0, len(values), 7):  # and each by itself
            alone = PARSER.parse(rows.slice(row, 1))
            assert alone.refused.get(0) == fast.refused.get(row)
            assert repr(alone.columns.to_pylist()) == repr(fast.columns.slice(row, 1).to_pylist())
    assert accepted > 100
