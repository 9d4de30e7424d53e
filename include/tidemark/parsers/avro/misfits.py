"""Fields of the table's schema that the records of a writer fit, by Avro's rules of resolution.

https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""

from __future__ import annotations

from typing import Any, Final

from tidemark.parsers.avro.program import DeclaredTypes
from tidemark.parsers.avro.unknown import branches

_PROMOTED: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}


def fitting(writer: Any, reader: Any) -> Any:
    """``reader`` without the fields that values of ``writer`` may not fit; ``reader`` itself if all fit.

    Both are schemas of records as fastavro has parsed them.
    """
    if isinstance(writer, list) or writer.get("type") != "record":
        return reader
    types = _Types(DeclaredTypes(writer), DeclaredTypes(reader))
    theirs = {field["name"]: field["type"] for field in writer["fields"]}
    fields = [
        field
        for field in reader["fields"]
        if all(types.resolve(theirs[name], field["type"]) for name in _names(field) if name in theirs)
    ]
    return reader if len(fields) == len(reader["fields"]) else {**reader, "fields": fields}


class _Types:
    """Walks two schemas side by side; neither holds itself."""

    def __init__(self, writer: DeclaredTypes, reader: DeclaredTypes) -> None:
        self._writer, self._reader = writer, reader

    def resolve(self, writer: Any, reader: Any) -> bool:
        """True if all values of ``writer`` but null can be resolved into ``reader``."""
        targets = list(branches(self._reader, reader))
        sources = [branch for branch in branches(self._writer, writer) if branch[0] != "null"]
        return all(any(self._same(kind, part, other, goal) for other, goal in targets) for kind, part in sources)

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
        theirs = {field["name"]: field["type"] for field in writer["fields"]}
        for field in reader["fields"]:
            kinds = [theirs[name] for name in _names(field) if name in theirs]
            if not (kinds or "default" in field) or not all(self.resolve(kind, field["type"]) for kind in kinds):
                return False
        return True


def _names(field: Any) -> tuple[str, ...]:
    return field["name"], *field.get("aliases", ())
