"""What each reader is asked, and the right answers, computed by Python from the rows that were sent.

Nothing but Python's library is imported: readers of other environments run this, too.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

Row = Mapping[str, Any]
Operator = Literal["=", "!=", "<", ">=", "in", "null", "not null", "like", "between", "min", "max", "count"]
AGGREGATES: Final = ("min", "max", "count")
ROW: Final = "kafka_offset"
"""The column that identifies a row."""


class Question(NamedTuple):
    """A condition on a column, of which the rows' offsets are wanted, or an aggregate; of one date, or of all."""

    column: str
    operator: Operator
    operands: tuple[Any, ...] = ()
    dt: date | None = None


class Asked(NamedTuple):
    """A table for readers: its URL, its live files, the type of each column, its rows, and the questions.

    ``partitions`` are the columns of folders, ``metadata`` is the location of Iceberg's metadata, if a catalog has it.
    """

    name: str
    url: str
    files: tuple[str, ...]
    types: Mapping[str, str]
    partitions: tuple[str, ...]
    rows: tuple[Row, ...]
    questions: tuple[Question, ...]
    metadata: str = ""


class Column(NamedTuple):
    """A column of the tables, by the topics file's type; and its values, of which each row has one."""

    type: str
    values: tuple[Any, ...]


def _integers(bits: int) -> tuple[int | None, ...]:
    return (0, -(1 << bits - 1), (1 << bits - 1) - 1, None, 1, -1, 7)


def _floats(largest: float, least: float) -> tuple[float | None, ...]:
    return (0.0, 1.5, -0.0, math.nan, math.inf, None, -math.inf, largest, -largest, least, 2.5)


def _decimals(*texts: str | None) -> tuple[Decimal | None, ...]:
    return tuple(None if text is None else Decimal(text) for text in texts)


NINES: Final = "9" * 28 + "." + "9" * 10
LONG: Final = "long text, " * 1000
FRAMED: Final = tuple(b"\x00\x00\x00\x00\x07key-%d" % number for number in range(6))

COLUMNS: Final[Mapping[str, Column]] = {
    "flag": Column("boolean", (True, False, None)),
    "i8": Column("int8", _integers(8)),
    "i16": Column("int16", _integers(16)),
    "i32": Column("int32", _integers(32)),
    "i64": Column("int64", _integers(64)),
    "f32": Column("float", _floats(3.4028234663852886e38, 1.401298464324817e-45)),
    "f64": Column("double", _floats(1.7976931348623157e308, 5e-324)),
    "money": Column("decimal(9,2)", _decimals("0.00", "9999999.99", None, "-9999999.99", "0.01", "12.50")),
    "huge": Column("decimal(38,10)", _decimals("0.0000000000", NINES, None, f"-{NINES}", "1.0000000001")),
    "text": Column(
        "string",
        (
            *(
                "",
                "a",
                None,
                "A",
                "é",
                "e\u0301",
                "\U0001f600",
                "null",
                "NaN",
                "100%",
                "a_b",
                "a'b",
                'a"b',
                "two\nlines",
            ),
            *("abc", LONG + "1", LONG + "2", " a", "zz\uffff"),
        ),
    ),
    "bytes": Column("binary", (b"", b"\x00", None, b"\xff\xff\xff", b"a", *FRAMED)),
    "day": Column(
        "date", (date(1, 1, 1), date(9999, 12, 31), date(1970, 1, 1), None, date(1969, 12, 31), date(2026, 11, 20))
    ),
    "moment": Column(
        "timestamp(us)",
        (
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            None,
            datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime(1970, 1, 1, tzinfo=UTC),
            datetime(2026, 11, 20, 12, 30, 0, 1, tzinfo=UTC),
        ),
    ),
    "tags": Column("list<int32>", ([1, 2], None, [], [None])),
}
NARROW: Final[Mapping[str, Column]] = {
    "i32": Column("int16", _integers(16)),
    "i64": Column("int32", _integers(32)),
    "f64": Column("float", _floats(3.4028234663852886e38, 1.401298464324817e-45)),
    "huge": Column("decimal(9,2)", _decimals("0.00", "9999999.99", None, "-1.25")),
}
"""The columns that become wider, as they were before."""

FOLDERS: Final[Mapping[str, Column]] = {
    "part": Column(
        "string",
        (
            "null",
            "NULL",
            "nUll",
            "NaN",
            "01",
            "1",
            "1.0",
            "true",
            "inf",
            "2026-01-01",
            "a=b/c%41",
            "é",
            " x",
            "None",
            None,
        ),
    ),
    "sure": Column("boolean", (True, False, None)),
    "number": Column("int32", (1, -5, None)),
    "birthday": Column("date", (date(1, 1, 1), date(9999, 12, 31), None)),
}
"""Columns that partition a table."""


def value_of(column: Column, name: str, row: int) -> Any:
    """The value of a row; each column goes through its values at a place of its own."""
    return column.values[(row + len(name)) % len(column.values)]


_ABSENT: Final[Mapping[str, Sequence[Any]]] = {
    "int": (5,),
    "float": (3.25,),
    "double": (3.25,),
    "decimal(9,2)": (Decimal("7.77"),),
    "decimal(38,10)": (Decimal("7.7700000000"),),
    "string": ("nowhere",),
    "binary": (b"nowhere",),
    "date": (date(2000, 2, 29),),
    "timestamp(us)": (datetime(2000, 2, 29, tzinfo=UTC),),
}
_LIKE: Final = ("a%", "%é%", "%1", "_", "%'%")


def questions(
    types: Mapping[str, str], values: Mapping[str, Sequence[Any]], dates: Sequence[date]
) -> Iterator[Question]:
    """All questions about columns with these types and values."""
    for name, kind in types.items():
        for question in _about(name, kind, _distinct(values[name])):
            yield question
            if dates and question.operator not in AGGREGATES:
                yield question._replace(dt=dates[len(str(question)) % len(dates)])


def _distinct(values: Sequence[Any]) -> list[Any]:
    return [*{repr(value): value for value in values if value is not None}.values()]


def _about(name: str, kind: str, values: list[Any]) -> Iterator[Question]:
    yield Question(name, "null")
    yield Question(name, "not null")
    yield Question(name, "count")
    if kind.startswith("list"):
        return
    if kind != "boolean":
        yield Question(name, "min")
        yield Question(name, "max")
        values += _ABSENT["int" if kind.startswith("int") else kind]
    for value in values:
        yield Question(name, "=", (value,))
    for value in values[:3]:
        yield Question(name, "!=", (value,))
    yield Question(name, "in", tuple(values[:2]))
    if kind == "boolean":
        return
    yield Question(name, "in", tuple(values[-2:]))
    for value in values[1:6]:
        yield Question(name, "<", (value,))
        yield Question(name, ">=", (value,))
    ordered = sorted((value for value in values if value == value), key=lambda value: value)
    yield Question(name, "between", (ordered[1], ordered[-2]))
    yield Question(name, "between", (ordered[-1], ordered[0]))
    if kind == "string":
        for pattern in _LIKE:
            yield Question(name, "like", (pattern,))


def right_answers(rows: Sequence[Row], question: Question) -> list[Any]:
    """The right answers. There are two where a NaN is compared: IEEE's, and that of engines to which it is greatest."""
    if question.operator in AGGREGATES:
        return _aggregates([row.get(question.column) for row in rows], question.operator)
    chosen = [row for row in rows if question.dt is None or row["dt"] == question.dt]
    answers: list[Any] = []
    for order in (_plain, _nan_greatest):
        found = sorted(row[ROW] for row in chosen if _holds(row.get(question.column), question, order))
        if found not in answers:
            answers.append(found)
    return answers


def _plain(value: Any) -> Any:
    return value


def _nan_greatest(value: Any) -> Any:
    return (value != value, 0.0 if value != value else value) if isinstance(value, float) else value


def _holds(value: Any, question: Question, order: Callable[[Any], Any]) -> bool:
    if question.operator in {"null", "not null"}:
        return (value is None) == (question.operator == "null")
    if value is None:
        return False
    if question.operator == "like":
        pattern = "".join({"%": ".*", "_": "."}.get(char, re.escape(char)) for char in question.operands[0])
        return re.fullmatch(pattern, value, re.DOTALL) is not None
    found, operands = order(value), [order(operand) for operand in question.operands]
    return bool(_COMPARED[question.operator](found, operands))


_COMPARED: Final[Mapping[str, Callable[[Any, list[Any]], bool]]] = {
    "=": lambda value, operands: value == operands[0],
    "!=": lambda value, operands: value != operands[0],
    "<": lambda value, operands: value < operands[0],
    ">=": lambda value, operands: value >= operands[0],
    "in": lambda value, operands: any(value == operand for operand in operands),
    "between": lambda value, operands: operands[0] <= value <= operands[1],
}


def _aggregates(values: Sequence[Any], operator: Operator) -> list[Any]:
    known = [value for value in values if value is not None]
    if operator == "count":
        return [len(known)]
    sane = [value for value in known if value == value]
    best = (min if operator == "min" else max)(sane, default=None)
    return [best, math.nan] if len(sane) < len(known) else [best]


def is_right(answer: Any, right: Sequence[Any]) -> bool:
    """True if ``answer`` is one of the ``right`` ones; NaN is NaN."""
    return any(answer == one or (answer != answer and one != one) for one in right)


def sampled(rng: random.Random, asked: Asked, count: int) -> Asked:
    """``asked`` with ``count`` of its questions."""
    return asked._replace(questions=tuple(rng.sample(asked.questions, min(count, len(asked.questions)))))
