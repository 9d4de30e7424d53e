"""Bounds of Avro schemas: a schema is read only if its records cannot make more values than their bytes can pay for.

An array's item that takes no bytes may occur 2^62 times in a record of ten bytes; a record that holds itself nests as
deep as its bytes say, on the stack of the process; records that hold others twice, thirty levels of them, make 2^30
values of nothing. All three are refused by their schema alone, before a record of it is read.

The rule is one sum. A value counts 1, and each byte that it takes at least pays for ``VALUES_PER_BYTE``. Fields of a
record add up; a union counts as its most expensive branch. An array's item and a map's entry must pay for themselves,
and the record as a whole may cost ``MAX_FREE_VALUES`` more than its bytes pay for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemark.parsers.json.document import levels

if TYPE_CHECKING:
    from tidemark.parsers.avro.schema import Type

VALUES_PER_BYTE: Final = 16
MAX_FREE_VALUES: Final = 1 << 14
MAX_NAMED_TYPES: Final = 2000
MAX_LEVELS: Final = 256
"""The most levels of objects and lists in the JSON of a schema; an Avro type in another takes two or three."""

MAX_DEPTH: Final = 128
"""The most types that lie in each other: names let them be more than the levels of the JSON."""

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


class UnboundedSchema(ValueError):
    """A schema that is not read; the message says why, with the path of the field."""


def check_levels(text: bytes) -> None:
    """Raise UnboundedSchema if ``text``, JSON, is nested so deep that a reader of schemas might not return."""
    if levels(text) > MAX_LEVELS:
        raise UnboundedSchema(f"has more than {MAX_LEVELS} levels")


def check_bounded(schema: Type) -> None:
    """Check ``schema``.

    Raises:
        UnboundedSchema: a record's values are not bounded by its bytes, or it is nested too deeply.
    """
    cost = _Costs().of(schema, "schema", 0)
    if cost > MAX_FREE_VALUES:
        raise UnboundedSchema(f"may make {cost} values of no bytes, and more than {MAX_FREE_VALUES} are not read")


class _Costs:
    """Costs of types: the values that a type makes and its bytes do not pay for; negative if they pay for more."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}
        """By the identity of a named type: its cost, and the levels of types within it."""
        self._open: set[int] = set()
        self._levels = 0

    def of(self, schema: Type, path: str, level: int) -> int:
        """The cost of ``schema``, which lies in ``level`` types."""
        self._levels = max(self._levels, level)
        if level > MAX_DEPTH:
            raise UnboundedSchema(f"{path}: has more than {MAX_DEPTH} levels of types")
        if schema.kind == "union":
            if not schema.parts:
                raise UnboundedSchema(f"{path}: is a union of nothing")
            return 1 - VALUES_PER_BYTE + max(self.of(branch, path, level + 1) for branch in schema.parts)
        if schema.kind == "array":
            self._check_item(self.of(schema.item, f"{path}[]", level + 1), f"{path}[]")
            return 1 - VALUES_PER_BYTE
        if schema.kind == "map":
            key = _simple("string")
            self._check_item(key + self.of(schema.item, f"{path}{{}}", level + 1), f"{path}{{}}")
            return 1 - VALUES_PER_BYTE
        if schema.kind == "record":
            return self._record(schema, path, level)
        return 1 - VALUES_PER_BYTE * schema.size if schema.kind == "fixed" else _simple(schema.kind)

    @staticmethod
    def _check_item(cost: int, path: str) -> None:
        if cost > 0:
            raise UnboundedSchema(f"{path}: takes so few bytes that a short record could have unlimited values")

    def _record(self, schema: Type, path: str, level: int) -> int:
        if id(schema) in self._open:
            raise UnboundedSchema(f"{path}: {schema.name} holds itself")
        if id(schema) in self._known:
            cost, levels = self._known[id(schema)]
            if level + levels > MAX_DEPTH:
                raise UnboundedSchema(f"{path}: has more than {MAX_DEPTH} levels of types")
            self._levels = max(self._levels, level + levels)
            return cost
        outside, self._levels = self._levels, level
        self._open.add(id(schema))
        cost = 1 + sum(self.of(field.type, f"{path}.{field.name}", level + 1) for field in schema.fields)
        self._open.remove(id(schema))
        self._known[id(schema)] = cost, self._levels - level
        self._levels = max(self._levels, outside)
        return cost


def _simple(kind: str) -> int:
    return 1 - VALUES_PER_BYTE * _BYTES[kind]
