"""Which fields of the table's schema the records of a writer fill, by Avro's rules of resolution.

https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""

from __future__ import annotations

from typing import Any, Final

from tidemark.parsers.avro_program import DeclaredTypes
from tidemark.parsers.avro_unknown import branches

_PROMOTED: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}


def fitting(writer: Any, reader: Any) -> Any:
    """``reader`` without the fields that values of ``writer`` may not be resolved into; itself if there are none.

    Both are schemas of records as fastavro has parsed them.
    """
    if isinstance(writer, list) or writer.get("type") != "record":
        return reader
    types = _Types(DeclaredTypes(writer), DeclaredTypes(reader))
    theirs = {one["name"]: one["type"] for one in writer["fields"]}
    fields = [
        one
        for one in reader["fields"]
        if all(types.resolve(theirs[name], one["type"]) for name in _names(one) if name in theirs)
    ]
    return reader if len(fields) == len(reader["fields"]) else {**reader, "fields": fields}


class _Types:
    """Goes along two schemas at once; neither holds itself."""

    def __init__(self, writer: DeclaredTypes, reader: DeclaredTypes) -> None:
        self._writer, self._reader = writer, reader

    def resolve(self, writer: Any, reader: Any) -> bool:
        """Whether all values of ``writer`` but null can be resolved into ``reader``."""
        wanted = list(branches(self._reader, reader))
        found = [one for one in branches(self._writer, writer) if one[0] != "null"]
        return all(any(self._same(kind, one, other, there) for other, there in wanted) for kind, one in found)

    def _same(self, kind: str, writer: Any, other: str, reader: Any) -> bool:
        if kind != other:
            return other in _PROMOTED.get(kind, ())
        if kind == "array":
            return self.resolve(writer["items"], reader["items"])
        if kind == "map":
            return self.resolve(writer["values"], reader["values"])
        if kind == "enum":
            return "default" in reader or set(writer["symbols"]) <= set(reader["symbols"])
        if kind == "fixed":
            return bool(writer["size"] == reader["size"])
        return kind != "record" or self._records(writer, reader)

    def _records(self, writer: Any, reader: Any) -> bool:
        theirs = {one["name"]: one["type"] for one in writer["fields"]}
        for one in reader["fields"]:
            there = [theirs[name] for name in _names(one) if name in theirs]
            if not (there or "default" in one) or not all(self.resolve(kind, one["type"]) for kind in there):
                return False
        return True


def _names(field: Any) -> tuple[str, ...]:
    return field["name"], *field.get("aliases", ())
