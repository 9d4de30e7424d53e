"""Columns of JSON documents from JSON Schema, and their merge.

Objects with properties become a column for each property within: ``customer.name`` is ``customer_name``. A value
without a column type becomes its JSON text.
https://json-schema.org/draft/2020-12/json-schema-core
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import urljoin

from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7

from tidemark.parsers.base import MOST_FIELDS
from tidemark.parsers.schema_registry import Written
from tidemark.schemas.merge import Changes, Merge

_SIMPLE: Final = {"boolean": "boolean", "integer": "int64", "number": "double", "string": "string"}
_FORMATS: Final = {"date-time": "timestamp(iso8601)", "date": "date"}
_TEXT: Final = "json"
_MAX_DEPTH: Final = 16
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_MOST_LOOKS: Final = 100_000
"""The most schemas within one another, counted each time, that are read: definitions may multiply."""


_Keys = tuple[str, ...]
"""The path of a value in a document."""


def merged(adopted: bytes | None, newest: Written, *, widen: bool = False) -> Merge:
    """The merge of ``adopted``, itself a merge or None, and ``newest``. No type of JSON Schema is wider than another.

    Raises:
        ValueError: ``newest`` is not a JSON Schema of objects, or no property of it can be a column.
    """
    del widen
    columns: list[dict[str, Any]] = json.loads(adopted) if adopted is not None else []
    kinds = _JsonSchema(newest).kinds()
    changes = Changes([column["name"] for column in columns])
    for column in columns:
        keys = tuple(column["path"])
        known = kinds.pop(keys, None)
        if known is None:
            changes.note(".".join(keys), "removed", "is null in new records")
        elif known != column["type"]:
            changes.note(".".join(keys), "misfit", f"{column['type']} becomes {known}")
    taken = [tuple(column["path"]) for column in columns]
    for keys, kind in kinds.items():
        if any(_within(keys, other) for other in taken):
            changes.note(".".join(keys), "misfit", "lies within a column, or has one within")
        elif changes.takes(name := "_".join(keys), kind):
            columns.append({"name": name, "type": kind, "path": list(keys)})
    if not columns:
        problems = "; ".join(f"{change.path}: {change.detail}" for change in changes.found)
        raise ValueError(problems or "has no properties")
    return Merge(json.dumps(columns, ensure_ascii=False, separators=(",", ":")).encode(), tuple(changes.found))


class _SchemaPart(NamedTuple):
    """A schema within a document, and what its references are relative to."""

    schema: Any
    resolver: Any
    """One of :mod:`referencing`, whose class is not public."""


class _JsonSchema:
    """A registered schema and its references, which are found by their names, or by their own ``$id``."""

    def __init__(self, written: Written) -> None:
        *others, root = [_parsed(text) for text in written.texts]
        base = root.get("$id", root.get("id")) if isinstance(root, Mapping) else None
        base = base if isinstance(base, str) else ""
        documents = [(name, _resource(document)) for name, document in zip(written.names, others, strict=True)]
        registry = Registry[Any]().with_resource(base, _resource(root))
        for name, resource in documents:
            # A reference is written as its name, which is relative to the schema's own address.
            registry = registry.with_resources([(name, resource), (urljoin(base, name), resource)])
            own = resource.id()
            registry = registry.with_resource(own, resource) if own else registry
        self._root = _SchemaPart(root, registry.resolver(base))
        self._looked_at = 0

    def kinds(self) -> dict[_Keys, str]:
        """The types of the columns, MOST_FIELDS at most, by the paths of their values. Raises ValueError."""
        root = self._target(self._root)
        if not self._properties(root):
            raise ValueError("is not a JSON Schema of objects with properties")
        kinds = dict(islice(self._within(root, (), (id(root.schema),)), MOST_FIELDS + 1))
        if len(kinds) > MOST_FIELDS:
            raise ValueError(f"has more than {MOST_FIELDS} columns")
        return kinds

    def _within(self, part: _SchemaPart, keys: _Keys, above: tuple[int, ...]) -> Iterator[tuple[_Keys, str]]:
        for name, inner in self._properties(part).items():
            yield from self._value(inner, (*keys, name), above)

    def _value(self, part: _SchemaPart, keys: _Keys, above: tuple[int, ...]) -> Iterator[tuple[_Keys, str]]:
        """The columns of a value; JSON text if its schema is one of those around it, by their identities ``above``."""
        part = self._target(part)
        kind = self._kind(part.schema)
        inner = kind == "object" and id(part.schema) not in above and self._properties(part)
        if inner and len(keys) < _MAX_DEPTH:
            yield from self._within(part, keys, (*above, id(part.schema)))
        else:
            yield keys, self._list(part) if kind == "array" else self._simple(part.schema, kind)

    def _list(self, part: _SchemaPart) -> str:
        schema = self._target(_SchemaPart(part.schema.get("items"), part.resolver)).schema
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

    def _properties(self, part: _SchemaPart, above: tuple[int, ...] = ()) -> dict[str, _SchemaPart]:
        """The properties of a schema and of all parts of its ``allOf``, each with its own resolver."""
        self._count()
        schema, resolver = part
        properties: dict[str, _SchemaPart] = {}
        if not isinstance(schema, dict) or id(schema) in above:
            return properties
        for inner in _list_of(schema.get("allOf")):
            properties |= self._properties(self._target(_SchemaPart(inner, resolver)), (*above, id(schema)))
        own = schema.get("properties")
        if isinstance(own, dict):
            properties |= {name: _SchemaPart(inner, resolver) for name, inner in own.items()}
        return properties

    def _target(self, part: _SchemaPart) -> _SchemaPart:
        """The schema behind references, or a choice of null and one other; else the schema itself."""
        seen = set[int]()
        while isinstance(part.schema, dict) and id(part.schema) not in seen:
            self._count()
            schema, resolver = part
            seen.add(id(schema))
            choices = [
                inner for key in ("oneOf", "anyOf") for inner in _list_of(schema.get(key)) if not _is_null(inner)
            ]
            reference = next((schema[key] for key in _REFERENCES if isinstance(schema.get(key), str)), None)
            if reference is not None:
                part = self._found(reference, resolver)
            elif len(choices) == 1 and "type" not in schema:
                part = _SchemaPart(choices[0], resolver)
            else:
                break
        return part

    @staticmethod
    def _found(reference: str, resolver: Any) -> _SchemaPart:
        try:
            found = resolver.lookup(reference)
        except (Unresolvable, AttributeError, KeyError, TypeError) as error:  # the latter of schemas that are none
            raise ValueError(f"refers to {reference}, which is not there, nor among its references") from error
        return _SchemaPart(found.contents, found.resolver)

    def _count(self) -> None:
        self._looked_at += 1
        if self._looked_at > _MOST_LOOKS:
            raise ValueError(f"needs more than {_MOST_LOOKS} steps to read: its definitions hold one another too often")


def _resource(document: Any) -> Resource[Any]:
    return Resource.from_contents(document, default_specification=DRAFT7)


def _list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not valid JSON: {error}") from error


def _is_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "null"


def _within(keys: _Keys, other: _Keys) -> bool:
    shorter = min(len(keys), len(other))
    return keys[:shorter] == other[:shorter]
