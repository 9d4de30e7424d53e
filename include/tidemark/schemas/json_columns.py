"""Columns of JSON documents from JSON Schema, and their merge.

Objects with properties become a column for each property within: ``customer.name`` is ``customer_name``. A value
without a column type becomes its JSON text.
https://json-schema.org/draft/2020-12/json-schema-core
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tidemark.parsers.schema_registry import Written
from tidemark.schemas.merge import Changes, Merge

_SIMPLE: Final = {"boolean": "boolean", "integer": "int64", "number": "double", "string": "string"}
_FORMATS: Final = {"date-time": "timestamp(iso8601)", "date": "date"}
_TEXT: Final = "json"
_MAX_DEPTH: Final = 16


class _ColumnPlace(NamedTuple):
    """The path of a value in a document, and its column's type."""

    keys: tuple[str, ...]
    kind: str

    @property
    def name(self) -> str:
        return "_".join(self.keys)

    @property
    def column(self) -> dict[str, Any]:
        return {"name": self.name, "type": self.kind, "path": list(self.keys)}


def merged(adopted: bytes | None, newest: Written, *, widen: bool = False) -> Merge:
    """The merge of ``adopted``, itself a merge or None, and ``newest``. No type of JSON Schema is wider than another.

    Raises:
        ValueError: ``newest`` is not a JSON Schema of objects, or no property of it can be a column.
    """
    del widen
    columns: list[dict[str, Any]] = json.loads(adopted) if adopted is not None else []
    places = {place.keys: place for place in _JsonSchema(newest).places()}
    changes = Changes([column["name"] for column in columns])
    for column in columns:
        keys = tuple(column["path"])
        known = places.pop(keys, None)
        if known is None:
            changes.note(".".join(keys), "removed", "is null in new records")
        elif known.kind != column["type"]:
            changes.note(".".join(keys), "misfit", f"{column['type']} becomes {known.kind}")
    taken = [tuple(column["path"]) for column in columns]
    for place in places.values():
        if any(_within(place.keys, other) for other in taken):
            changes.note(".".join(place.keys), "misfit", "lies within a column, or has one within")
        elif changes.takes(place.name, place.kind):
            columns.append(place.column)
    if not columns:
        problems = "; ".join(f"{change.path}: {change.detail}" for change in changes.found)
        raise ValueError(problems or "has no properties")
    return Merge(json.dumps(columns, ensure_ascii=False, separators=(",", ":")).encode(), tuple(changes.found))


class _JsonSchema:
    def __init__(self, written: Written) -> None:
        *others, root = [_parsed(text) for text in written.texts]
        self._root: Any = root
        self._others = dict(zip(written.names, others, strict=True))

    def places(self) -> Iterator[_ColumnPlace]:
        """The values that become columns."""
        root = self._resolved(self._root, self._root, 0)
        if not isinstance(root, dict) or not self._properties(root, self._root):
            raise ValueError("is not a JSON Schema of objects with properties")
        yield from self._within(root, self._root, ())

    def _within(self, schema: Any, document: Any, keys: tuple[str, ...]) -> Iterator[_ColumnPlace]:
        for name, part in self._properties(schema, document).items():
            yield from self._value(part, document, (*keys, name))

    def _value(self, schema: Any, document: Any, keys: tuple[str, ...]) -> Iterator[_ColumnPlace]:
        schema, document = self._target(schema, document)
        kind = self._kind(schema)
        inner = self._properties(schema, document) if kind == "object" else {}
        if inner and len(keys) < _MAX_DEPTH:
            yield from self._within(schema, document, keys)
        elif kind == "array":
            yield _ColumnPlace(keys, self._list(schema.get("items"), document))
        else:
            yield _ColumnPlace(keys, self._simple(schema, kind))

    def _list(self, items: Any, document: Any) -> str:
        schema, _ = self._target(items, document)
        kind = self._simple(schema, self._kind(schema))
        return f"list<{kind}>" if kind != _TEXT else _TEXT

    @staticmethod
    def _simple(schema: Any, kind: str) -> str:
        if kind == "string":
            return _FORMATS.get(str(schema.get("format")), "string")
        return _SIMPLE.get(kind, _TEXT)

    @staticmethod
    def _kind(schema: Any) -> str:
        """The single type beside null that a value may have; empty if there is none, or more than one."""
        if not isinstance(schema, dict):
            return ""
        kinds = schema.get("type")
        if kinds is None and "properties" in schema:
            return "object"
        if kinds is None:
            values = schema.get("enum", [schema["const"]] if "const" in schema else [])
            return "string" if values and all(isinstance(value, str) for value in values if value is not None) else ""
        others = [name for name in (kinds if isinstance(kinds, list) else [kinds]) if name != "null"]
        return str(others[0]) if len(others) == 1 else ""

    def _properties(self, schema: Any, document: Any) -> dict[str, Any]:
        """The properties of ``schema`` and of all parts of its ``allOf``."""
        properties: dict[str, Any] = {}
        if not isinstance(schema, dict):
            return properties
        for part in schema.get("allOf") or ():
            target, _ = self._target(part, document)
            properties |= self._properties(target, document)
        own = schema.get("properties")
        return properties | (own if isinstance(own, dict) else {})

    def _target(self, schema: Any, document: Any) -> tuple[Any, Any]:
        """The schema behind a reference or a choice of null and one other, and its document; else ``schema`` itself."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(schema, dict):
                break
            choices = [part for key in ("oneOf", "anyOf") for part in schema.get(key) or () if not _is_null(part)]
            if isinstance(schema.get("$ref"), str):
                schema, document = self._found(schema["$ref"], document)
            elif len(choices) == 1 and "type" not in schema:
                schema = choices[0]
            else:
                break
        return schema, document

    def _resolved(self, schema: Any, document: Any, _level: int) -> Any:
        return self._target(schema, document)[0]

    def _found(self, reference: str, document: Any) -> tuple[Any, Any]:
        name, _, pointer = reference.partition("#")
        if name:
            if name not in self._others:
                raise ValueError(f"refers to {name}, which is not among its references")
            document = self._others[name]
        target = document
        for part in pointer.strip("/").split("/") if pointer.strip("/") else ():
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, dict) or key not in target:
                raise ValueError(f"refers to {reference}, which is not there")
            target = target[key]
        return target, document


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not valid JSON: {error}") from error


def _is_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "null"


def _within(keys: tuple[str, ...], other: tuple[str, ...]) -> bool:
    shorter = min(len(keys), len(other))
    return keys[:shorter] == other[:shorter]
