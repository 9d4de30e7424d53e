"""One JSON document after the other, with Python's own reader and rules of our own: slow, and the reference.

A document is an object in UTF-8 according to RFC 8259; a byte-order mark at its start is skipped. NaN and Infinity,
more than MAX_DEPTH levels, and a key of a declared path that appears twice are refused. Undeclared keys are skipped.
A column of type ``json`` has the text of its part as the document writes it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tidemark.parsers.base import shortened
from tidemark.parsers.row_parser import RefusedRecord
from tidemark.parsers.settings import ColumnType

MAX_DEPTH: Final = 128

_BOM: Final = b"\xef\xbb\xbf"
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A string, or the rest after the last quote if nothing ends it: so each byte is matched once."""
_OPENING, _CLOSING, _BRACKET_BIT = b"{} "
"""Braces; brackets differ from them in one bit."""

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_TOKEN: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[\]{}]|[^ \t\n\r,:"\[\]{}]++')
"""A string, a bracket or brace, or a number or constant."""

_INT64: Final = 1 << 63
_MAX_DIGITS: Final = 4000


class _Whole(int):
    """A whole number that Python's do not tell apart from others."""


_MINUS_ZERO: Final = _Whole()
"""The number ``-0``: a negative zero as a double, and 0 as a whole number."""

_ENDLESS: Final = _Whole()
"""A whole number with more digits than any column can hold, and than Python reads."""


class _Number(float):
    """A number with a fraction or exponent, and its text."""

    text: str


class _Twice(dict[str, Any]):
    """An object with repeated keys, which are in ``keys_twice``."""

    keys_twice: frozenset[str]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    twice = _Twice(members)
    twice.keys_twice = frozenset(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    return twice


def _whole(text: str) -> int:
    if text == "-0":
        return _MINUS_ZERO
    return int(text) if len(text) < _MAX_DIGITS else _ENDLESS


def _number(text: str) -> _Number:
    value = _Number(text)
    value.text = text
    return value


def _constant(text: str) -> Any:
    raise RefusedRecord(f"{text} is not valid JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_whole, parse_float=_number, parse_constant=_constant
)


def document(value: bytes) -> dict[str, Any]:
    """The object in ``value``. Raises RefusedRecord."""
    return read(value).root


class Document(NamedTuple):
    """A document's object, and its text."""

    root: dict[str, Any]
    text: str


def read(value: bytes) -> Document:
    """Read the document in ``value``. Raises RefusedRecord."""
    data = value.removeprefix(_BOM)
    if levels(data) > MAX_DEPTH:
        raise RefusedRecord(f"its JSON has more than {MAX_DEPTH} levels")
    try:
        text = data.decode()
        parsed = _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise RefusedRecord(f"is not valid UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise RefusedRecord(shortened(f"is not valid JSON: {error}")) from error
    if not isinstance(parsed, dict):
        raise RefusedRecord("is JSON, but not an object")
    return Document(parsed, text)


def levels(data: bytes) -> int:
    """The number of levels of objects and lists in a document, or a bound of it that is at most MAX_DEPTH."""
    opening = data.count(b"[") + data.count(b"{")
    if opening <= MAX_DEPTH:
        return opening
    folded = np.frombuffer(_STRING.sub(b"", data), np.uint8) | _BRACKET_BIT
    depths = np.cumsum((folded == _OPENING).astype(np.int32) - (folded == _CLOSING))
    return int(depths.max(initial=0))


def value_at(document: dict[str, Any], keys: Sequence[str]) -> Any:
    """The value under ``keys``, None if there is none. Raises RefusedRecord if a key leads through another type."""
    at: Any = document
    for index, key in enumerate(keys):
        if not isinstance(at, dict):
            raise RefusedRecord(f"{'.'.join(keys[:index])}: is {_kind(at)}, not an object")
        if isinstance(at, _Twice) and key in at.keys_twice:
            raise RefusedRecord(f"{'.'.join(keys[: index + 1])}: appears twice")
        at = at.get(key)
        if at is None:
            return None
    return at


def column_value(parsed: Document, keys: Sequence[str], kind: ColumnType, name: str) -> Any:
    """The value under ``keys`` in :func:`tidemark.parsers.type_conversion.raw_type`. Raises RefusedRecord."""
    value = value_at(parsed.root, keys)
    if value is None or kind.leaf.name != "json":
        return _raw_value(value, kind, name)
    at = _after_space(parsed.text, 0)
    for key in keys:
        at = _below(parsed.text, at, key)
    return _part(parsed.text, at, kind, name)[0]


def _raw_value(value: Any, kind: ColumnType, name: str) -> Any:
    if value is None:
        return None
    if kind.element:
        if not isinstance(value, list):
            raise RefusedRecord(f"{name}: is {_kind(value)}, not a list")
        return [_raw_value(element, kind.element, name) for element in value]
    if kind.name == "decimal":
        return _decimal(value, name)
    wanted = _WANTED.get(kind.name, "text" if kind.unit == "iso8601" else "a whole number")
    if _kind(value) != wanted and not (wanted == "a number" and _kind(value) == "a whole number"):
        raise RefusedRecord(f"{name}: is {_kind(value)}, not {wanted}")
    return _RAW[wanted](value, name)


_WANTED: Final = {
    "boolean": "a truth value",
    "float": "a number",
    "double": "a number",
    **dict.fromkeys(("string", "binary", "date"), "text"),
}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "a truth value"
    for kind, name in ((int, "a whole number"), (float, "a number"), (str, "text"), (list, "a list")):
        if isinstance(value, kind):
            return name
    return "an object"


def _int64(value: int, name: str) -> int:
    if value is _ENDLESS or not -_INT64 <= value < _INT64:
        raise RefusedRecord(f"{name}: a whole number that does not fit 64 bits")
    return int(value)


def _double(value: Any, name: str) -> float:
    if value is _MINUS_ZERO:
        return -0.0
    if value is _ENDLESS:
        return float("inf")
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _string(value: str, name: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RefusedRecord(f"{name}: has half a surrogate pair") from error
    return value


_RAW: Final[dict[str, Callable[[Any, str], Any]]] = {
    "a truth value": lambda value, _: value,
    "a whole number": _int64,
    "a number": _double,
    "text": _string,
}


def _decimal(value: Any, name: str) -> str:
    if value is _ENDLESS:
        raise RefusedRecord(f"{name}: a number with too many digits")
    if isinstance(value, _Number):
        return value.text
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return _string(str(value), name)
    raise RefusedRecord(f"{name}: is {_kind(value)}, not a number")


def _part(text: str, at: int, kind: ColumnType, name: str) -> tuple[Any, int]:
    """The value at ``at`` of a valid document as its text, or as a list of texts; and the index after it."""
    if text.startswith("null", at) or kind.element is None:
        end = _after_value(text, at)
        return None if text[at] == "n" else text[at:end], end
    if text[at] != "[":
        raise RefusedRecord(f"{name}: is {_kind(_DECODER.raw_decode(text, at)[0])}, not a list")
    parts: list[Any] = []
    at = _after_space(text, at + 1)
    while text[at] != "]":
        part, at = _part(text, _after_space(text, at + (text[at] == ",")), kind.element, name)
        parts.append(part)
        at = _after_space(text, at)
    return parts, at + 1


def _below(text: str, at: int, key: str) -> int:
    """The index of the value under ``key``, which the object at ``at`` of a valid document has once."""
    while True:
        other, at = _DECODER.raw_decode(text, _after_space(text, at + 1))
        at = _after_space(text, _after_space(text, at) + 1)
        if other == key:
            return at
        at = _after_space(text, _after_value(text, at))


def _after_value(text: str, at: int) -> int:
    """The index after the value at ``at`` of a valid document."""
    depth = 0
    for token in _TOKEN.finditer(text, at):
        first = text[token.start()]
        depth += (first in "[{") - (first in "]}")
        if depth == 0:
            return token.end()
    raise AssertionError("the document is not valid")


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()
