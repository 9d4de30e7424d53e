"""Bounds of Avro schemas: a schema is read only if its records cannot make more values than their bytes can pay for.

An array's item that takes no bytes may occur 2^62 times in a record of ten bytes; a record that holds itself nests as
deep as its bytes say, on the stack of the process; records that hold others twice, thirty levels of them, make 2^30
values of nothing. All three are refused by their schema alone, before a record of it is read.

The rule is one sum. A value counts 1, and each byte that it takes at least pays for ``VALUES_PER_BYTE``. Fields of a
record add up; a union counts as its most expensive branch. An array's item and a map's entry must pay for themselves,
and the record as a whole may cost ``MAX_FREE_VALUES`` more than its bytes pay for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tidemark.parsers.json.document import levels

VALUES_PER_BYTE: Final = 16
MAX_FREE_VALUES: Final = 1 << 14
MAX_NAMED_TYPES: Final = 2000
MAX_LEVELS: Final = 256
"""The most levels of objects and lists in the JSON of a schema; an Avro type in another takes two or three."""

_BYTES: Final = {
    "null": 0,
    "boolean": 1,
    "int": 1,
    "long": 1,
    "float": 4,
    "double": 8,
    "bytes": 1,
    "string": 1,
    "enum": 1,
}
"""The least bytes of a value."""


_UNION: Final = "union"
_RECORDS: Final = {"record", "error"}


class UnboundedSchema(ValueError):
    """A schema that is not read; the message says why, with the path of the field."""


def check_levels(text: bytes) -> None:
    """Raise UnboundedSchema if ``text``, JSON, is nested so deep that a reader of schemas might not return."""
    if levels(text) > MAX_LEVELS:
        raise UnboundedSchema(f"has more than {MAX_LEVELS} levels")


def check_bounded(schema: Any, named: dict[str, Any]) -> None:
    """Check ``schema``, parsed by fastavro, and the types that it refers to by their full names.

    Raises:
        UnboundedSchema: a record's values are not bounded by its bytes.
    """
    if len(named) > MAX_NAMED_TYPES:
        raise UnboundedSchema(f"has {len(named)} named types, and more than {MAX_NAMED_TYPES} are not read")
    cost = _Costs(named).of(schema, "schema")
    if cost > MAX_FREE_VALUES:
        raise UnboundedSchema(f"may make {cost} values of no bytes, and more than {MAX_FREE_VALUES} are not read")


def skips_blindly(schema: Any, named: dict[str, Any]) -> bool:
    """True if skipping a record of ``schema`` may continue past its end: by its last value, or by an array's items.

    fastavro 1.13.1 skips a boolean, a float, a double and a fixed without a check of the end. All other types begin
    with a number, and its end is checked. fastavro skips the fields that the table's schema does not have.
    """
    return _ends_blindly(schema, named) or any(_is_blind(items, named) for items in _items(schema, named, set()))


def _items(schema: Any, named: dict[str, Any], seen: set[str]) -> Iterator[Any]:
    """The types of the items of all arrays in ``schema``."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _items(branch, named, seen)
    elif isinstance(schema, str):
        if schema in named and schema not in seen:
            seen.add(schema)
            yield from _items(named[schema], named, seen)
    elif schema["type"] == "array":
        yield schema["items"]
        yield from _items(schema["items"], named, seen)
    elif schema["type"] == "map":
        yield from _items(schema["values"], named, seen)
    elif schema["type"] in {"record", "error"}:
        seen.add(schema["name"])
        for field in schema["fields"]:
            yield from _items(field["type"], named, seen)
    elif not isinstance(schema["type"], str):
        yield from _items(schema["type"], named, seen)


def _resolved(schema: Any, named: dict[str, Any]) -> tuple[Any, str]:
    """The declaration that ``schema`` wraps or names, and its kind."""
    if isinstance(schema, list):
        return schema, _UNION
    kind = schema if isinstance(schema, str) else schema["type"]
    if not isinstance(kind, str):
        return _resolved(kind, named)
    return _resolved(named[kind], named) if kind in named else (schema, kind)


def _is_blind(schema: Any, named: dict[str, Any]) -> bool:
    """True if a value of ``schema`` is skipped without a check of the end; types do not hold themselves."""
    declared, kind = _resolved(schema, named)
    if kind in _RECORDS:
        return all(_is_blind(field["type"], named) for field in declared["fields"])
    return kind in {"null", "boolean", "float", "double", "fixed"}


def _ends_blindly(schema: Any, named: dict[str, Any]) -> bool:
    """True if the last bytes of a value of ``schema`` may be of a type that is skipped without a check of the end."""
    declared, kind = _resolved(schema, named)
    if kind == _UNION:
        return any(_ends_blindly(branch, named) for branch in declared)
    if kind in _RECORDS:
        for field in reversed(declared["fields"]):
            if _ends_blindly(field["type"], named):
                return True
            if not _is_blind(field["type"], named):  # it takes bytes: those before it are no end
                return False
        return False
    return kind in {"boolean", "float", "double", "fixed"}


class _Costs:
    """Costs of types: the values that a type makes and its bytes do not pay for; negative if they pay for more."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._known: dict[str, int] = {}
        self._open: set[str] = set()

    def of(self, schema: Any, path: str) -> int:
        if isinstance(schema, list):
            if not schema:
                raise UnboundedSchema(f"{path}: is a union of nothing")
            return 1 - VALUES_PER_BYTE + max(self.of(branch, path) for branch in schema)
        if isinstance(schema, str):
            return _simple(schema) if schema in _BYTES else self._of_name(schema, path)
        kind = schema["type"]
        if kind in {"record", "error", "enum", "fixed"}:
            return self._of_name(schema["name"], path)
        if kind == "array":
            self._check_item(self.of(schema["items"], f"{path}[]"), f"{path}[]")
            return 1 - VALUES_PER_BYTE
        if kind == "map":
            key = _simple("string")
            self._check_item(key + self.of(schema["values"], f"{path}{{}}"), f"{path}{{}}")
            return 1 - VALUES_PER_BYTE
        return self.of(kind, path)

    @staticmethod
    def _check_item(cost: int, path: str) -> None:
        if cost > 0:
            raise UnboundedSchema(f"{path}: takes so few bytes that a short record could have unlimited values")

    def _of_name(self, name: str, path: str) -> int:
        if name in self._open:
            raise UnboundedSchema(f"{path}: {name} holds itself")
        if name not in self._known:
            self._open.add(name)
            self._known[name] = self._declared(self._named[name], path)
            self._open.remove(name)
        return self._known[name]

    def _declared(self, schema: Any, path: str) -> int:
        kind = schema["type"]
        if kind == "enum":
            return _simple("enum")
        if kind == "fixed":
            size = schema["size"]
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise UnboundedSchema(f"{path}: is of {size!r} bytes")
            return 1 - VALUES_PER_BYTE * size
        return 1 + sum(self.of(field["type"], f"{path}.{field['name']}") for field in schema["fields"])


def _simple(kind: str) -> int:
    return 1 - VALUES_PER_BYTE * _BYTES[kind]
