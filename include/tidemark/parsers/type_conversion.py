"""Conversion of JSON's values (whole number, number, text, truth) to the declared types, column by column.

Each value is judged by itself, so it does not matter which rows stand beside it.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.decode.schema import TIMESTAMP_TYPE, array, flags
from tidemark.parsers.base import MAX_INT64, MICROSECONDS, valid_rows
from tidemark.parsers.settings import ColumnType

_BITS: Final = {"int8": 8, "int16": 16, "int32": 32}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DATE: Final = date(1970, 1, 1)
_ISO: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d)(:\d\d)?(?:[.,](\d{1,9}))?([Zz]|[+-]\d\d:\d\d|[+-]\d\d(?:\d\d)?)?", re.ASCII
)
_ISO_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_YEAR: Final = r"(\d{3}[1-9]|\d\d[1-9]\d|\d[1-9]\d\d|[1-9]\d{3})"  # Arrow would take the year 0000
_USUAL_ISO: Final = rf"^{_YEAR}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{{3}}|\.\d{{6}})?(Z|[+-]\d\d:\d\d)$"

_ARROW: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "json": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP_TYPE,
}
_NUMBERS: Final = {"float", "double"}
_TEXTS: Final = {"string", "json", "binary", "date", "decimal"}


Converted: TypeAlias = "tuple[pa.Array[Any], NDArray[np.int64]]"
"""A column of its declared type, and the rows at which it is null because their values do not fit it."""


def arrow_type(kind: ColumnType) -> pa.DataType:
    """The type of a declared column in the table."""
    if kind.element:
        return pa.list_(arrow_type(kind.element))
    if kind.name == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    return _ARROW[kind.name]


def raw_type(kind: ColumnType) -> pa.DataType:
    """The type in which the values of a declared column are read: bool, int64, double, string, or lists of them."""
    if kind.element:
        return pa.list_(raw_type(kind.element))
    if kind.name == "boolean":
        return pa.bool_()
    if kind.name in _NUMBERS:
        return pa.float64()
    return pa.string() if kind.name in _TEXTS or kind.unit == "iso8601" else pa.int64()


def converted(raw: pa.Array[Any], kind: ColumnType) -> Converted:
    """``raw``, of :func:`raw_type`, converted to the declared type."""
    if kind.element:
        return _list(raw, kind.element)
    if kind.name in _BITS:
        return _narrowed(raw, kind.name)
    if kind.name in _NUMBERS:
        return _finite(raw, _ARROW[kind.name])
    if kind.unit == "iso8601":
        return _iso(raw)
    if kind.unit:
        return _instants(raw, kind.unit)
    if kind.name in _BY_VALUE:
        return _by_value(raw, arrow_type(kind), _BY_VALUE[kind.name])
    if kind.name == "decimal":
        return _decimals(raw, kind)
    return raw, np.empty(0, np.int64)


def _list(raw: pa.Array[Any], element: ColumnType) -> Converted:
    inner: pa.Array[Any] = pc.list_flatten(raw)
    inner_column, inner_bad = converted(inner, element)
    lengths = np.zeros(len(raw) + 1, np.int32)
    lengths[1:] = _filled(pc.list_value_length(raw), 0).astype(np.int32)
    offsets = np.cumsum(lengths, dtype=np.int32)
    bits = None if not raw.null_count else pa.py_buffer(np.packbits(valid_rows(raw), bitorder="little").data)
    kind = pa.list_(inner_column.type)
    column = pa.Array.from_buffers(kind, len(raw), [bits, pa.py_buffer(offsets.data)], children=[inner_column])
    bad = np.unique(np.searchsorted(offsets, inner_bad, "right") - 1).astype(np.int64)
    return _without(column, bad)


def _narrowed(raw: pa.Array[Any], name: str) -> Converted:
    bound = 1 << (_BITS[name] - 1)
    values = _filled(raw, 0)
    bad = np.flatnonzero((values < -bound) | (values >= bound))
    return _nulled(raw, bad).cast(_ARROW[name]), bad


def _finite(raw: pa.Array[Any], dtype: pa.DataType) -> Converted:
    narrow = raw.cast(dtype, safe=False)
    bad = np.flatnonzero(~np.isfinite(_filled(narrow, 0.0)))
    return _without(narrow, bad)


def _instants(raw: pa.Array[Any], unit: str) -> Converted:
    if unit == "ns":
        return _floored(raw).cast(TIMESTAMP_TYPE), np.empty(0, np.int64)
    values = _filled(raw, 0)
    bound = MAX_INT64 // MICROSECONDS[unit]
    bad = np.flatnonzero((values > bound) | (values < -bound))
    return pc.multiply(_nulled(raw, bad), pa.scalar(MICROSECONDS[unit])).cast(TIMESTAMP_TYPE), bad


def _floored(raw: pa.Array[Any]) -> pa.Array[Any]:
    """Nanoseconds as microseconds, rounded down before 1970 too."""
    values = _filled(raw, 0) // 1000
    return array(pa.int64(), values, np.packbits(valid_rows(raw), bitorder="little") if raw.null_count else None)


def _iso(raw: pa.Array[Any]) -> Converted:
    usual: pa.Array[Any] = pc.match_substring_regex(raw, _USUAL_ISO)
    if pc.all(usual).as_py() is not False:
        try:
            return raw.cast(TIMESTAMP_TYPE), np.empty(0, np.int64)
        except pa.ArrowInvalid:
            pass  # a day or an hour that no calendar has: found below, value by value
    return _by_value(raw, TIMESTAMP_TYPE, _microseconds)


def _microseconds(text: str) -> int:
    match = _ISO.fullmatch(text)
    if not match:
        raise ValueError(text)
    day, minute, second, fraction, zone = match.groups()
    zone = "+00:00" if zone is None or zone in "Zz" else zone
    whole = datetime.fromisoformat(f"{day}T{minute}{second or ':00'}{zone}")
    micros = int(f"{fraction:0<6}"[:6]) if fraction else 0
    difference = whole - _EPOCH
    return (difference.days * 86_400 + difference.seconds) * 1_000_000 + micros


def is_instant(text: str) -> bool:
    """True if a column of type ``timestamp(iso8601)`` can hold ``text``."""
    try:
        _microseconds(text)
    except ValueError:
        return False
    return True


def is_date(text: str) -> bool:
    """True if a column of type ``date`` can hold ``text``."""
    try:
        _date(text)
    except ValueError:
        return False
    return True


def _date(text: str) -> int:
    if not _ISO_DATE.fullmatch(text):
        raise ValueError(text)
    return (date.fromisoformat(text) - _EPOCH_DATE).days


def _base64(text: str) -> bytes:
    return binascii.a2b_base64(text, strict_mode=True)


def _decimals(raw: pa.Array[Any], kind: ColumnType) -> Converted:
    """Convert with Arrow if a number is written out and has no more digits than the type around the point."""
    dtype = arrow_type(kind)
    whole = rf"\d{{1,{kind.precision - kind.scale}}}" if kind.precision > kind.scale else "0"
    fraction = rf"(\.\d{{1,{kind.scale}}})?" if kind.scale else ""
    usual: Any = pc.match_substring_regex(raw, f"^-?{whole}{fraction}$")
    if pc.all(usual).as_py() is not False:
        return raw.cast(dtype), np.empty(0, np.int64)
    nothing = pa.scalar(None, raw.type)
    others, bad = _by_value(pc.if_else(usual, nothing, raw), dtype, lambda text: _decimal(text, kind))
    column: pa.Array[Any] = pc.if_else(usual, pc.if_else(usual, raw, nothing).cast(dtype), others)
    return column, bad


def _decimal(text: str, kind: ColumnType) -> Decimal:
    """The exact value, if it has no more digits than the type."""
    with localcontext() as context:
        context.prec = 60
        value = Decimal(text)
        if not value.is_finite() or abs(value.adjusted()) > 60:
            if not value.is_zero():
                raise ValueError(text)
            value = Decimal(0)
        exact = value.quantize(Decimal(1).scaleb(-kind.scale))
    if exact != value or (not exact.is_zero() and exact.adjusted() >= kind.precision - kind.scale):
        raise ValueError(text)
    return exact


_BY_VALUE: Final[dict[str, Callable[[str], Any]]] = {"date": _date, "binary": _base64}


def _by_value(raw: pa.Array[Any], dtype: pa.DataType, convert: Callable[[str], Any]) -> Converted:
    values: list[Any] = []
    bad: list[int] = []
    for row, text in enumerate(raw.to_pylist()):
        try:
            values.append(None if text is None else convert(text))
        except (ValueError, InvalidOperation):
            values.append(None)
            bad.append(row)
    return pa.array(values, dtype), np.array(bad, np.int64)


def _filled(column: pa.Array[Any], value: float) -> NDArray[Any]:
    filled = column.fill_null(value) if column.null_count else column
    values: NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return values


def _nulled(column: pa.Array[Any], rows: NDArray[np.int64]) -> pa.Array[Any]:
    if not len(rows):
        return column
    keep = np.ones(len(column), np.bool_)
    keep[rows] = False
    nulled: pa.Array[Any] = pc.if_else(flags(keep), column, pa.scalar(None, column.type))
    return nulled


def _without(column: pa.Array[Any], bad: NDArray[np.int64]) -> Converted:
    return _nulled(column, bad), bad
