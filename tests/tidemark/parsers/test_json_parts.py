"""JSON: columns of type ``json`` and ``decimal`` are read in blocks as they are row by row."""

from __future__ import annotations

import json
import random
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from tests.tidemark.parsers.support import records, rows_of
from tests.tidemark.parsers.test_json import _NAMES, _NOISE, one, parser_of
from tidemark.parsers import type_conversion
from tidemark.parsers.json.batch import LARGEST_QUOTED, JsonColumns
from tidemark.parsers.settings import ColumnType

PARSERS = [
    parser_of(text)
    for text in (
        """
kind: json
columns:
  - {name: tags, type: json}
  - {name: ratio, type: "decimal(9,2)"}
  - {name: id, type: int64}
""",
        """
kind: json
misfits: land
columns:
  - {name: user, type: json}
  - {name: grid, type: "list<decimal(5,2)>"}
  - {name: v, type: json, path: [zz, tags]}
  - {name: w, type: "decimal(38,5)", path: zz.id}
""",
        """
kind: json
columns:
  - {name: n, type: json, path: user.name}
  - {name: i, type: "decimal(3,3)", path: [user, the.age]}
  - {name: good, type: json, required: true}
""",
    )
]
PART = parser_of("kind: json\ncolumns: [{name: v, type: json}, {name: id, type: int64}]")

PLAIN = ("0", "1", "-0", "2.50", "-0.0", "0.00001", "0.30000000000000001", "1e5", "1E-2", "1e999", "9" * 30, "1" * 999)
"""Numbers of at most 1000 bytes."""
NUMBERS = ("1" * 1500, "1" * 4100, "01", "1.", "-", ".5", "+1", "1e", "1x")
TEXTS = (
    '""',
    '"a"',
    '"\\n\\t\\b\\f\\r\\/\\\\\\""',
    '"\\u0000\\u001F\\b\\u0022\\u005c\\u007f\\u00e9\\u0800\\uffff"',
    '"\U0001f600\x7f"',
)
ODD_TEXTS = (
    *(
        '"\\ud83d\\ude00"',
        '"\\ud83d"',
        '"\\ude00"',
        '"\\ud83d\\u0041"',
        '"\\u00G0"',
        '"\\x"',
        '"\x1f"',
        '"',
        '"\\"',
        '"\\u12"',
    ),
)
CONSTANTS = ("null", "true", "false", "nul", "True", "NaN", "-Infinity")


def _text(rng: random.Random, depth: int = 0) -> str:
    """A value, mostly valid."""
    kind = rng.randrange(7 if depth < 4 else 4)
    space = rng.choice(("", "", " "))
    comma = f"{space},{space}"
    if kind == 0:
        return rng.choice(CONSTANTS[:3] if rng.random() < 0.9 else CONSTANTS)
    if kind == 1:
        return rng.choice(PLAIN if rng.random() < 0.8 else NUMBERS)
    if kind == 2:
        return rng.choice(TEXTS if rng.random() < 0.8 else ODD_TEXTS)
    if kind == 3:
        return str(round(rng.uniform(-1e6, 1e6), rng.randrange(8)))
    if kind < 6:
        return f"[{space}{comma.join(_text(rng, depth + 1) for _ in range(rng.randrange(4)))}{space}]"
    keys = ('"a"', '"é"', '"\\u0061"', '"c\\n"', '"id"', f'"k{rng.randrange(50)}"')
    pairs = (f"{rng.choice(keys)}{space}:{space}{_text(rng, depth + 1)}" for _ in range(rng.randrange(4)))
    return f"{{{space}{comma.join(pairs)}{space}}}"


def _document(rng: random.Random) -> bytes:
    space = rng.choice(("", "", " "))
    names = rng.sample(_NAMES, rng.randrange(1, 6))
    if rng.random() < 0.05:
        names.append(rng.choice(names))
    pairs = []
    for name in names:
        value = _text(rng)
        if name in {"user", "zz"} and rng.random() < 0.8:
            inner = rng.sample(("name", "the.age", "tags", "id", "x", "t\\u0061gs"), rng.randrange(4))
            value = f"{{{','.join(f'{json.dumps(key)}:{_text(rng)}' for key in inner)}}}"
        pairs.append(f'"{name}"{space}:{space}{value}')
    document = bytearray(f"{{{space}{','.join(pairs)}{space}}}".encode())
    for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 2))):
        at = rng.randrange(len(document) + 1)
        document[at : at + rng.randrange(3)] = rng.choice(_NOISE)
    return bytes(document)


@pytest.mark.timeout(1800)
def test_documents_are_read_as_they_are_row_by_row(rng: random.Random, full: bool) -> None:
    accepted = 0
    for _ in range(20_000 if full else 200):
        parser = rng.choice(PARSERS)
        rows = rows_of([None if rng.random() < 0.03 else _document(rng) for _ in range(rng.randrange(24))])
        blocks, slow = (parser.parse(rows, vectorised=vectorised) for vectorised in (True, False))
        assert blocks.refused == slow.refused
        assert blocks.unknown == slow.unknown
        assert repr(blocks.columns.to_pylist()) == repr(slow.columns.to_pylist())
        blocks.columns.validate(full=True)
        accepted += len(rows) - len(blocks.refused)
    assert accepted > 300


@pytest.mark.parametrize("text", [*PLAIN, *NUMBERS, *TEXTS, *ODD_TEXTS, *CONSTANTS])
def test_each_number_text_and_constant(text: str) -> None:
    """Alone, in a list, in an object, and as a decimal; ``one`` compares both ways."""
    for value in (text, f"[{text}]", f'[ {{ "k" : {text} }} ]', f'{{"a":{text},"b":[{text},{text}]}}'):
        found = one(f'{{"v" : {value} ,"id":1}}'.encode(), PART)
        if not isinstance(found, str):
            assert found == {"v": value, "id": 1} if value != "null" else {"id": 1}
        one(f'{{"ratio":{value},"id":1}}'.encode(), PARSERS[0])
        one(f'{{"grid":{value},"id":1}}'.encode(), PARSERS[1])


@pytest.mark.parametrize(
    "text", ['{"a":1,}', "[1,]", "[,]", "[1 2]", '{"a" 1}', "{1:2}", '{"a":1]', "[1}", "[[[", '{"a":}']
)
def test_what_is_not_json_is_refused(text: str) -> None:
    assert isinstance(one(f'{{"v":{text},"id":1}}'.encode(), PART), str)


@pytest.mark.parametrize("text", ['{"b": [1, 2.5,"é"],"a":null, "a":1}', *PLAIN, *TEXTS])
def test_usual_documents_are_read_in_blocks(text: str) -> None:
    value = f'{{"v":{text},"id":1}}'.encode()
    with patch.object(JsonColumns, "_slow", side_effect=AssertionError("read row by row")):
        [made] = {json.dumps(row) for row in records(PART.parse(rows_of([value] * 20)))}
    assert json.loads(made)["id"] == 1


def test_large_documents_are_left_to_the_rows() -> None:
    assert one(b'{"v":{"a": 1},"y":"' + b"x" * LARGEST_QUOTED + b'"}', PART) == {"v": '{"a": 1}'}


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ('{"b":{"v":0},"v":\n [ {"v" : "\\"v"},\t2 ] }', "json", '[ {"v" : "\\"v"},\t2 ]'),
        (' {"a":"v","\\u0076" :[ 1 , null,{ } ,"]"] }', "list<json>", ["1", None, "{ }", '"]"']),
        ('{"v":[[1.0 ],[ ], null]}', "list<list<json>>", [["1.0"], [], None]),
        ('{"a":1,"a":2,"v":"\\ud83d"}', "json", '"\\ud83d"'),
        ('{"v":\r\nnull}', "list<json>", None),
    ],
)
def test_a_part_is_the_documents_own_text(text: str, kind: str, expected: object) -> None:
    parser = parser_of(f"kind: json\ncolumns: [{{name: v, type: '{kind}'}}]")
    assert one(text.encode(), parser) == ({} if expected is None else {"v": expected})


def test_decimals_of_a_column_are_those_of_each_value(rng: random.Random, full: bool) -> None:
    odd = (
        "",
        "-",
        "1_0",
        " 1",
        "1 ",
        "1\n",
        "+1",
        "NaN",
        "-0",
        "0",
        "\u0663",
        "1e3",
        "1e-999",
        "0e999",
        ".5",
        "5.",
        "007",
    )
    for _ in range(3000 if full else 60):
        precision = rng.randrange(1, 39)
        kind = ColumnType("decimal", precision=precision, scale=rng.randrange(precision + 1))
        texts: list[str | None] = [None]
        for _ in range(rng.randrange(30)):
            whole, fraction = rng.randrange(precision - kind.scale + 2), rng.randrange(kind.scale + 2)
            digits = "".join(rng.choices("0012345", k=whole + fraction))
            texts.append(rng.choice(("", "-")) + digits[:whole] + ("." if fraction else "") + digits[whole:])
            texts += rng.choices(odd, k=rng.randrange(2))
        raw = pa.array(texts, pa.string())
        column, found = type_conversion.converted(raw, kind)
        bad = [row for row, text in enumerate(texts) if text is not None and not _fits(text, kind)]
        assert np.array_equal(found, bad)
        column.validate(full=True)
        fitting = [
            None if row in bad or text is None else type_conversion._decimal(text, kind)
            for row, text in enumerate(texts)
        ]
        assert repr(column.to_pylist()) == repr(pa.array(fitting, column.type).to_pylist())


def _fits(text: str, kind: ColumnType) -> bool:
    try:
        type_conversion._decimal(text, kind)
    except (ValueError, ArithmeticError):
        return False
    return True
