"""Merges Avro schemas. The result reads the records of both, by Avro's own rules of resolution.

https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from tidemark.parsers.avro.bounds import check_levels
from tidemark.parsers.avro.types import Types
from tidemark.parsers.schema_registry import Written
from tidemark.schemas.merge import NESTED, Changes, Merge

_NAMED: Final = {"record", "enum", "fixed"}
_WIDER: Final = (("int", "long"), ("float", "double"))
_ABSENT: Final = object()


def merged(adopted: bytes | None, newest: Written, *, widen: bool = False) -> Merge:
    """The merge of ``adopted``, which is itself a merge or None, and ``newest``, which is taken whole after None.

    Raises:
        ValueError: ``newest`` is not the schema of a record, or none of its fields can be a column.
    """
    new = _NamedSchema(newest.texts)
    if not isinstance(new.root, str) or new.named.get(new.root, {}).get("type") != "record":
        raise ValueError("is not the schema of a record")
    if adopted is None:
        empty = {**new.named[new.root], "fields": []}
        old = _NamedSchema([])
        old.root, old.named = new.root, {**new.named, new.root: empty}
    else:
        old = _NamedSchema([adopted.decode()])
    merge = _AvroMerge(old, new, widen=widen)
    root = merge.root()
    if not merge.named[root]["fields"]:
        problems = "; ".join(f"{change.path}: {change.detail}" for change in merge.changes.found)
        raise ValueError(problems or "has no field")
    body = json.dumps(_declared(root, merge.named, set()), separators=(",", ":"), ensure_ascii=False).encode()
    return Merge(body, tuple(merge.changes.found))


class _NamedSchema:
    """A schema in which named types stand by their names; ``named`` has their declarations."""

    def __init__(self, texts: list[str] | tuple[str, ...]) -> None:
        self.named: dict[str, dict[str, Any]] = {}
        self.root: Any = None
        known: dict[str, Any] = {}
        try:
            for text in texts:
                check_levels(text.encode())
                self.root = self._by_name(fastavro.parse_schema(json.loads(text), known))
        except UnknownType as error:
            raise ValueError(f"is not a valid Avro schema: {error.name} is not a known type") from error
        except (SchemaParseException, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ValueError(f"is not a valid Avro schema: {type(error).__name__} {error}") from error

    def _by_name(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self._by_name(branch) for branch in schema]
        if isinstance(schema, str):
            return schema
        kind = schema["type"]
        if kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            return {"type": kind, inner: self._by_name(schema[inner])}
        if kind in _NAMED:
            return self._declare(schema, kind)
        if not isinstance(kind, str):
            return self._by_name(kind)
        kept = {key: schema[key] for key in ("logicalType", "precision", "scale") if key in schema}
        return {"type": kind, **kept} if kept else kind

    def _declare(self, schema: Any, kind: str) -> str:
        name: str = schema["name"]
        keys = {"enum": ("symbols", "default"), "fixed": ("size", "logicalType", "precision", "scale"), "record": ()}
        body = {"type": kind, "name": name, **{key: schema[key] for key in keys[kind] if key in schema}}
        self.named[name] = body
        if kind == "record":
            body["fields"] = [
                {
                    "name": field["name"],
                    "type": self._by_name(field["type"]),
                    **({"default": field["default"]} if "default" in field else {}),
                }
                for field in schema["fields"]
            ]
        return name


class _AvroMerge:
    """A merge of two schemas; ``named`` are the named types of the result."""

    def __init__(self, old: _NamedSchema, new: _NamedSchema, *, widen: bool) -> None:
        self._old = old
        self._new = new
        self._widen = widen
        self._done: set[str] = set()
        self.named: dict[str, dict[str, Any]] = {**new.named, **old.named}
        self.changes = Changes([field["name"] for field in old.named[old.root]["fields"]])

    def root(self) -> str:
        """The name of the merged record."""
        name: str = self._old.root
        if _unqualified(name) != _unqualified(self._new.root):
            detail = f"the record is named {self._new.root} now, so records of that name cannot be read as {name}"
            self.changes.note(name, "misfit", detail)
        else:
            self._record(name, self._new.root, "")
        return name

    def _record(self, old: str, new: str, path: str) -> None:
        """Merge the newer schema's record ``new`` into ``old``, once."""
        if old in self._done:
            return
        self._done.add(old)
        theirs = {field["name"]: field for field in self._new.named[new]["fields"]}
        fields = [
            self._field(field, theirs.pop(field["name"], None), f"{path}{field['name']}")
            for field in self._old.named[old]["fields"]
        ]
        self.named[old] = {**self.named[old], "fields": fields}
        for field in theirs.values():
            place = f"{path}{field['name']}"
            if path:
                self.changes.note(place, "wider", f"{_shown(field['type'])}, {NESTED}")
                if self._widen:
                    fields.append(_with_default(field))
            elif self._can_be_column(field):
                fields.append(_with_default(field))

    def _can_be_column(self, field: Mapping[str, Any]) -> bool:
        alone = {"type": "record", "name": "alone", "fields": [{"name": field["name"], "type": field["type"]}]}
        try:
            Types().record(_declared("alone", {**self.named, "alone": alone}, set()))
        except ValueError as error:
            self.changes.note(field["name"], "misfit", str(error).removeprefix(f".{field['name']}: "))
            return False
        self._used_again(field["type"], field["name"])
        return self.changes.takes(field["name"], _shown(field["type"]))

    def _used_again(self, kind: Any, path: str) -> None:
        """Merge types of the adopted schema wherever the new ``kind`` uses them again."""
        if isinstance(kind, list):
            for branch in kind:
                self._used_again(branch, path)
        elif isinstance(kind, dict):
            self._used_again(kind.get("items", kind.get("values")), path)
        elif kind in self._old.named and kind in self._new.named:
            self._named(kind, kind, path)
        elif kind in self._new.named:
            for field in self._new.named[kind].get("fields", ()):
                self._used_again(field["type"], f"{path}.{field['name']}")

    def _field(self, old: dict[str, Any], new: dict[str, Any] | None, path: str) -> dict[str, Any]:
        if new is None:
            self.changes.note(path, "removed", "is null, or its default, in new records")
            return _with_default(old)
        kind, nullable = self._value(old["type"], new["type"], path)
        default = new.get("default", old.get("default", _ABSENT))
        return _field(old["name"], kind, default, nullable=nullable)

    def _value(self, old: Any, new: Any, path: str) -> tuple[Any, bool]:
        """(the merged type without null, true if it may be null)."""
        before, nullable = _without_null(old)
        after, also = _without_null(new)
        return self._type(before, after, path), nullable or also

    def _type(self, old: Any, new: Any, path: str) -> Any:
        if isinstance(old, str) and isinstance(new, str) and old in self._old.named and new in self._new.named:
            return self._named(old, new, path)
        if old == new:
            return old
        for kind, inner in (("array", "items"), ("map", "values")):
            if _is(old, kind) and _is(new, kind):
                value, nullable = self._value(old[inner], new[inner], f"{path}[]" if kind == "array" else f"{path}{{}}")
                return {"type": kind, inner: ["null", value] if nullable else value}
        words = f"{_shown(old)} becomes {_shown(new)}"
        if (old, new) in _WIDER or _is_longer_decimal(old, new):
            self.changes.note(path, "wider", words)
            return new if self._widen else old
        self.changes.note(path, "misfit", words)
        return old

    def _named(self, old: str, new: str, path: str) -> str:
        before, after = self._old.named[old], self._new.named[new]
        kind = before["type"]
        if kind != after["type"] or (kind != "record" and _unqualified(old) != _unqualified(new)):
            self.changes.note(path, "misfit", f"{_of(before)} becomes {_of(after)}")
        elif kind == "record":
            self._record(old, new, f"{path}.")
        elif kind == "enum":
            more = [symbol for symbol in after["symbols"] if symbol not in before["symbols"]]
            self.named[old] = {**before, "symbols": [*before["symbols"], *more]}
        elif {**before, "name": ""} != {**after, "name": ""}:
            self.changes.note(path, "misfit", f"{_of(before)} becomes {_of(after)}")
        return old


def _with_default(field: Mapping[str, Any]) -> dict[str, Any]:
    """``field`` with a default, so that records without it can be read: the schema's, or else null."""
    kind, nullable = _without_null(field["type"])
    default = field.get("default", _ABSENT)
    return _field(field["name"], kind, None if default is _ABSENT else default, nullable=nullable or default is _ABSENT)


def _field(name: str, kind: Any, default: Any, *, nullable: bool) -> dict[str, Any]:
    """A field; the first type of a union is its default's."""
    if nullable:
        others = kind if isinstance(kind, list) else [kind]
        kind = [*others, "null"] if default is not None and default is not _ABSENT else ["null", *others]
    return {"name": name, "type": kind, **({} if default is _ABSENT else {"default": default})}


def _without_null(kind: Any) -> tuple[Any, bool]:
    if not isinstance(kind, list):
        return kind, False
    others = [branch for branch in kind if branch != "null"]
    return others[0] if len(others) == 1 else others, len(others) < len(kind)


def _declared(kind: Any, named: Mapping[str, Any], done: set[str]) -> Any:
    """``kind`` with each named type declared at its first use."""
    if isinstance(kind, list):
        return [_declared(branch, named, done) for branch in kind]
    if isinstance(kind, str):
        if kind not in named or kind in done:
            return kind
        done.add(kind)
        body = named[kind]
        if body["type"] != "record":
            return body
        fields = [{**field, "type": _declared(field["type"], named, done)} for field in body["fields"]]
        return {**body, "fields": fields}
    return {key: _declared(part, named, done) if key in {"items", "values"} else part for key, part in kind.items()}


def _is(kind: Any, name: str) -> bool:
    return isinstance(kind, dict) and kind["type"] == name


def _is_longer_decimal(old: Any, new: Any) -> bool:
    """True if both are decimals in bytes, and ``new`` can hold each value of ``old``."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return False
    if any(kind.get("logicalType") != "decimal" or kind["type"] != "bytes" for kind in (old, new)):
        return False
    digits = new["precision"] - old["precision"]
    return bool(new.get("scale", 0) == old.get("scale", 0) and digits > 0)


def _unqualified(name: str) -> str:
    return name.rpartition(".")[2]


def _of(body: Mapping[str, Any]) -> str:
    return f"{body['type']} {_unqualified(body['name'])}" + (f"({body['size']})" if body["type"] == "fixed" else "")


def _shown(kind: Any) -> str:
    """A type in words."""
    if isinstance(kind, list):
        return " or ".join(_shown(branch) for branch in kind)
    if isinstance(kind, str):
        return _unqualified(kind)
    if kind["type"] in {"array", "map"}:
        return f"{kind['type']} of {_shown(kind['items' if kind['type'] == 'array' else 'values'])}"
    digits = f"({kind['precision']},{kind.get('scale', 0)})" if "precision" in kind else ""
    return f"{kind.get('logicalType', kind['type'])}{digits}"
