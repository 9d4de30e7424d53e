"""``module:function``: what it may return, and what becomes of rows that it cannot bear."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.tidemark.parsers.support import records, rows_of, topic_of
from tidemark.errors import ConfigError, ParserError
from tidemark.parsers.base import Parser
from tidemark.parsers.factory import parser_of
from tidemark.parsers.function import ParserAnswer

SCHEMA = pa.schema([("size", pa.int32())])


def sizes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The size of each value."""
    values: Any = rows.column("kafka_value")
    return pa.RecordBatch.from_arrays([pc.binary_length(values)], schema=SCHEMA)


def picky(rows: pa.RecordBatch) -> tuple[Any, ...]:
    """Refuses values of 3 bytes, and leaves out empty ones."""
    found = sizes(rows)
    size: Any = found.column(0)
    refused = {row: "three" for row, size in enumerate(size.to_pylist()) if size == 3}
    return found, refused, pc.fill_null(pc.not_equal(size, pa.scalar(0)), True)


def fragile(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Cannot bear the value ``x``."""
    if b"x" in rows.column("kafka_value").to_pylist():
        raise KeyError("x")
    return sizes(rows)


def broken(rows: pa.RecordBatch) -> Any:
    return {
        b"none": None,
        b"short": sizes(rows.slice(1)),
        b"type": pa.RecordBatch.from_pydict({"size": pa.array([1] * len(rows), pa.int64())}),
        b"row": ParserAnswer(sizes(rows), {7: "why"}),
        b"reason": ParserAnswer(sizes(rows), {0: ""}),
        b"keep": ParserAnswer(sizes(rows), keep=pa.nulls(len(rows), pa.bool_())),
    }[rows.column("kafka_value")[0].as_py()]


def function(name: str, more: str = "") -> Parser:
    text = f"kind: function\nfunction: {__name__}:{name}\ncolumns: [{{name: size, type: int32{more}}}]"
    return parser_of(topic_of(text).parser, "orders")


def test_columns_refusals_and_filters() -> None:
    parsed = function("picky").parse(rows_of([b"a", b"", b"abc", None]))
    assert records(parsed) == [{"size": 1}, {"size": 0}, {"size": 3}, {}]
    assert parsed.refused == {2: "three"}
    assert parsed.filtered is not None
    assert parsed.filtered.tolist() == [False, True, False, False]


def test_a_row_that_it_cannot_bear_is_found_and_refused() -> None:
    values = [b"ab"] * 100
    for row in (0, 17, 18, 99):
        values[row] = b"x"
    parsed = function("fragile").parse(rows_of(values))
    assert set(parsed.refused) == {0, 17, 18, 99}
    assert "raised KeyError" in parsed.refused[17]
    assert [row.get("size") for row in records(parsed)] == [None if value == b"x" else 2 for value in values]


def test_a_required_column_that_it_leaves_null_refuses_the_row() -> None:
    parsed = function("sizes", ", required: true").parse(rows_of([b"a", None]))
    assert parsed.refused == {}  # a tombstone has nothing to require


@pytest.mark.parametrize("what", ["none", "short", "type", "row", "reason", "keep"])
def test_a_function_that_breaks_its_promise_ends_the_run(what: str) -> None:
    with pytest.raises(ParserError, match=f"{__name__}:broken"):
        function("broken").parse(rows_of([what.encode(), b"b"]))


def test_a_function_that_is_not_there_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="nowhere cannot be imported"):
        function("nowhere")
