"""The types of declared columns, as the topics file writes them: ``int64``, ``decimal(10,2)``, ``list<string>``."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

TimeUnit = str
"""The unit of a ``timestamp``'s number since 1970 UTC: ``s``, ``ms``, ``us`` or ``ns``."""

UNITS: Final = ("s", "ms", "us", "ns")

_SIMPLE: Final = (
    *("boolean", "int8", "int16", "int32", "int64", "float", "double"),
    *("string", "binary", "date", "json"),
)
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)")
_TIMESTAMP: Final = re.compile(r"timestamp\((s|ms|us|ns|iso8601)\)")
_LIST: Final = re.compile(r"list<(.+)>")

KNOWN: Final = f"{', '.join(_SIMPLE)}, decimal(p,s), timestamp(s|ms|us|ns|iso8601), list<...>"


class ColumnType(NamedTuple):
    """A parsed type. ``unit`` is a timestamp's, ``precision`` and ``scale`` a decimal's, ``element`` a list's."""

    name: str
    unit: str = ""
    precision: int = 0
    scale: int = 0
    element: ColumnType | None = None

    @property
    def leaf(self) -> ColumnType:
        """The innermost element of a list of lists; the type itself if it is no list."""
        return self.element.leaf if self.element else self


def column_type(text: str) -> ColumnType:
    """The type named ``text``. Raises ValueError: there is no such type."""
    if text in _SIMPLE:
        return ColumnType(text)
    if match := _DECIMAL.fullmatch(text):
        precision, scale = int(match[1]), int(match[2])
        if not 1 <= precision <= 38 or scale > precision:
            raise ValueError("a decimal has 1 to 38 digits, of which those behind the point are a part")
        return ColumnType("decimal", precision=precision, scale=scale)
    if match := _TIMESTAMP.fullmatch(text):
        return ColumnType("timestamp", unit=match[1])
    if match := _LIST.fullmatch(text):
        return ColumnType("list", element=column_type(match[1]))
    raise ValueError(f"must be one of {KNOWN}")
