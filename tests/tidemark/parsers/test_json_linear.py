"""JSON: the time that a hostile document takes grows with its bytes, whatever path reads it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.tidemark.parsers.support import rows_of
from tests.tidemark.parsers.test_json import PARSER, parser_of
from tidemark.parsers.json.batch import JsonColumns

PARTS = parser_of(
    "kind: json\ncolumns: [{name: a, type: json}, {name: d, type: 'decimal(20,2)'}, {name: s, type: string}]"
)
"""Parts of documents as text."""

TIMES = 8
MARGIN = 3

DOCUMENTS: dict[str, Callable[[int], bytes]] = {
    "an unterminated string after many brackets": lambda size: b'{"a":' + b"[" * 129 + b'"' + b'\\"' * (size // 2),
    "quotes after many brackets": lambda size: b'{"a":' + b"[" * 129 + b'"' * (size | 1),
    "a key twice among many": lambda size: b'{"k0":1,' + b",".join(b'"k%d":1' % at for at in range(size // 10)) + b"}",
    "a key that is repeated": lambda size: b"{" + b",".join([b'"k":1'] * (size // 6)) + b"}",
    "levels without end": lambda size: b'{"a":' + b"[" * size,
    "many lists": lambda size: b'{"a":[' + b"[]," * (size // 3) + b"[]]}",
    "a number of many digits": lambda size: b'{"d":' + b"1" * size + b"}",
    "numbers of many digits": lambda size: b'{"a":[' + b",".join([b"1" * 3999] * (size // 4000 + 1)) + b"]}",
    "a fraction of many digits": lambda size: b'{"d":0.' + b"1" * size + b"}",
    "a decimal of many zeros": lambda size: b'{"d":"0.' + b"0" * size + b'1"}',
    "escapes": lambda size: b'{"s":"' + b"\\ud800" * (size // 6) + b'"}',
    "bytes that are no UTF-8": lambda size: b'{"s":"' + b"\xff" * size + b'"}',
    "empty lines": lambda size: b"{" + b"\n" * size + b"x}",
    "brackets that close nothing": lambda size: b"{" + b"}" * size,
}


@pytest.mark.sampled(14)
@pytest.mark.parametrize("parser", [PARSER, PARTS], ids=["values", "parts"])
@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_time_grows_with_the_bytes_alone(document: Callable[[int], bytes], parser: JsonColumns) -> None:
    """A document of eight times the size may take eight times the time, and never 64 times."""
    size = 1 << 14
    small, large = _seconds(parser, document(size)), _seconds(parser, document(TIMES * size))
    assert large < MARGIN * TIMES * small


def _seconds(parser: JsonColumns, value: bytes) -> float:
    """The least CPU time of five tries."""
    rows = rows_of([value])
    found = []
    for _ in range(5):
        began = time.process_time()
        parser.parse(rows)
        found.append(time.process_time() - began)
    return min(found)
