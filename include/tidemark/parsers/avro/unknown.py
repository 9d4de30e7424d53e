"""Fields of a writer's schema that the table's schema lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidemark.parsers.avro.program import DeclaredTypes
from tidemark.parsers.slots import Unsupported
from tidemark.parsers.unknown_fields import field_name, summed


def unknown_fields(writer: Any, reader: Any) -> dict[str, int]:
    """Each field that records of ``writer`` have and ``reader`` does not name, counted as for one row.

    Both schemas are as fastavro has parsed them. All branches of a writer's union count.
    """
    paths = _Fields(DeclaredTypes(writer), DeclaredTypes(reader)).of(writer, reader)
    return summed({field_name(*path): 1} for path in set(paths))


class _Fields:
    """Walks two schemas side by side; neither holds itself."""

    def __init__(self, writer: DeclaredTypes, reader: DeclaredTypes) -> None:
        self._writer, self._reader = writer, reader

    def of(self, writer: Any, reader: Any, *path: str) -> Iterator[tuple[str, ...]]:
        """The paths of unknown fields in values of ``writer``; all lie under ``path``."""
        wanted = dict(branches(self._reader, reader))
        for kind, declared in branches(self._writer, writer):
            if kind in wanted:
                yield from self._within(kind, declared, wanted[kind], *path)

    def _within(self, kind: str, writer: Any, reader: Any, *path: str) -> Iterator[tuple[str, ...]]:
        if kind == "array":
            yield from self.of(writer["items"], reader["items"], *path)
        elif kind == "map":
            yield from self.of(writer["values"], reader["values"], *path, "value")
        elif kind == "record":
            known = {
                name: field["type"] for field in reader["fields"] for name in (field["name"], *field.get("aliases", ()))
            }
            for field in writer["fields"]:
                name = field["name"]
                if name in known:
                    yield from self.of(field["type"], known[name], *path, name)
                else:
                    yield (*path, name)


def branches(types: DeclaredTypes, schema: Any) -> Iterator[tuple[str, Any]]:
    """(kind, declaration) of the types that a value of ``schema`` may have."""
    try:
        kind, declared = types.resolved(schema)
    except Unsupported:
        return  # a decimal, which has no fields
    if kind == "union":
        for branch in declared:
            yield from branches(types, branch)
    else:
        yield ("record" if kind == "error" else kind), declared
