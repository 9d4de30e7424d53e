"""Names of a table's columns that each catalog can list, for the columns and the fields within them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from tidemark.parsers.settings import check_struct

LONGEST: Final = 255
"""The most bytes of a name: AWS's Glue allows no more (https://docs.aws.amazon.com/glue/latest/webapi/API_Column.html),
and no control characters."""


def paths_of(path: str, kind: pa.DataType) -> Iterator[str]:
    """The paths of the column ``path`` and its fields: ``price``, ``tags.element``, ``kafka_headers.element.key``."""
    yield path
    if isinstance(kind, pa.StructType):
        for child in kind:
            yield from paths_of(f"{path}.{child.name}", child.type)
    elif isinstance(kind, pa.ListType):
        yield from paths_of(f"{path}.element", kind.value_type)


def check_columns(columns: Iterable[pa.Field[Any]]) -> None:
    """Check that catalogs can list ``columns``.

    Catalogs tell columns and fields apart by their paths, so a column ``tags.element`` cannot stand beside a list
    ``tags``.

    Raises:
        ValueError: two paths are the same, or a name is too long or has control characters.
    """
    seen: dict[str, str] = {}
    for column in columns:
        if len(column.name.encode()) > LONGEST:
            raise ValueError(f"column {column.name!r}: catalogs allow {LONGEST} bytes for a name")
        if any(char < " " or char == "\x7f" for char in column.name):
            raise ValueError(f"column {column.name!r}: catalogs allow no control characters in a name")
        for path in paths_of(column.name, column.type):
            folded = path.casefold()
            if folded in seen and path != column.name:
                raise ValueError(_same(seen[folded], path, column.name))
            if folded in seen and seen[folded] != column.name:
                raise ValueError(_same(column.name, path, seen[folded]))
            seen[folded] = column.name


def check_struct_names(kind: pa.DataType, path: str) -> None:
    """Check the names of fields at all levels within the column ``path`` of this type, as tables have them.

    Raises:
        ValueError: no table can have them; names the path.
    """
    if isinstance(kind, pa.StructType):
        try:
            check_struct(field.name for field in kind)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        for field in kind:
            check_struct_names(field.type, f"{path}.{field.name}")
    elif isinstance(kind, pa.ListType):
        check_struct_names(kind.value_type, f"{path}[]")


def _same(name: str, path: str, other: str) -> str:
    return f"column {name!r}: catalogs do not tell it from {path}, a part of the column {other}; give it another name"
