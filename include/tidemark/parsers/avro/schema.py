"""Avro schemas as objects: each name is replaced by the type that it names, so no reader of a schema looks one up.

    >>> parsed(['{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}']).fields[0].type.kind
    'int'

Names, namespaces, logical types and defaults follow the specification; a logical type that it tells readers to ignore
is not there. https://avro.apache.org/docs/1.12.0/specification/

A schema is read only if its records cannot make more values than their bytes can pay for, see :func:`check_bounded`.

An array's item that takes no bytes may occur 2^62 times in a record of ten bytes; a record that holds itself nests as
deep as its bytes say, on the stack of the process; records that hold others twice, thirty levels of them, make 2^30
values of nothing. All three are refused by their schema alone, before a record of it is read.

The rule is one sum. A value counts 1, and each byte that it takes at least pays for ``VALUES_PER_BYTE``. Fields of a
record add up; a union counts as its most expensive branch. An array's item and a map's entry must pay for themselves,
and the record as a whole may cost ``MAX_FREE_VALUES`` more than its bytes pay for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidemark.parsers.json.document import levels

PRIMITIVE: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")

ABSENT: Final = object()
"""The default of a field that has none."""

_LOGICAL: Final = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    **{
        f"{kind}-{unit}": ("long",)
        for kind in ("timestamp", "local-timestamp")
        for unit in ("millis", "micros", "nanos")
    },
    "uuid": ("string", "fixed"),
    "duration": ("fixed",),
    "decimal": ("bytes", "fixed"),
}
_SIZES: Final = {"uuid": 16, "duration": 12}

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


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type that is valid for its type; ``precision`` and ``scale`` are a decimal's."""

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name


@dataclass(slots=True, eq=False)
class Field:
    """A field of a record; ``default`` is JSON, or ABSENT."""

    name: str
    type: Type
    default: Any = ABSENT
    aliases: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Type:
    """A type; ``kind`` is a primitive one's name, record, enum, fixed, array, map or union.

    ``name`` and ``aliases`` are full names. ``parts`` are the branches of a union, or the type of items or values.
    """

    kind: str
    logical: Logical | None = None
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: list[Field] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    default: str | None = None
    size: int = 0
    parts: list[Type] = field(default_factory=list)

    @property
    def item(self) -> Type:
        """The type of a list's items, or of a map's values."""
        return self.parts[0]

    @property
    def short(self) -> str:
        """The name without its namespace."""
        return unqualified(self.name)

    def __str__(self) -> str:
        """The type in words."""
        if self.kind == "union":
            return " or ".join(map(str, self.parts))
        if self.kind in {"array", "map"}:
            return f"{self.kind} of {self.item}"
        if self.name:
            return f"{self.short} {self.logical}" if self.logical else self.short
        return str(self.logical or self.kind)


def unqualified(name: str) -> str:
    """A full name without its namespace."""
    return name.rpartition(".")[2]


def parsed(texts: Sequence[str | bytes]) -> Type:
    """The schema in the last of ``texts``; the others declare types that it refers to.

    Raises:
        ValueError: the text is no Avro schema.
    """
    reader = _Reader()
    made: Type | None = None
    try:
        for text in texts:
            check_levels(text.encode() if isinstance(text, str) else text)
            made = reader.type(json.loads(text), "", "schema")
    except RecursionError as error:
        raise ValueError("schema: is nested too deeply") from error
    if made is None:
        raise ValueError("schema: has no text")
    return made


def registered_schema(texts: Sequence[str | bytes]) -> Type:
    """The schema of :func:`parsed`. Its ValueErrors continue "names schema 7, which"."""
    try:
        return parsed(texts)
    except UnboundedSchema:
        raise
    except ValueError as error:
        raise ValueError(f"is not a valid Avro schema: {error}") from error


class _Reader:
    """Reads JSON; ``_named`` are the types declared so far, by their full names."""

    def __init__(self) -> None:
        self._named: dict[str, Type] = {}

    def type(self, schema: Any, space: str, path: str) -> Type:
        """The type that ``schema``, at ``path``, describes within the namespace ``space``."""
        if isinstance(schema, str):
            return Type(schema) if schema in PRIMITIVE else self._known(schema, space, path)
        if isinstance(schema, list):
            made = Type("union", parts=[self.type(part, space, path) for part in schema])
            if any(part.kind == "union" for part in made.parts):
                raise ValueError(f"{path}: a union holds a union")
            return made
        if not isinstance(schema, Mapping) or "type" not in schema:
            raise ValueError(f"{path}: {_cut(schema)} is not a type")
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.type(kind, space, path)
        if kind in {"record", "error", "enum", "fixed"}:
            return self._declared(schema, "record" if kind == "error" else kind, space, path)
        if kind in {"array", "map"}:
            inner = "items" if kind == "array" else "values"
            if inner not in schema:
                raise ValueError(f"{path}: {_cut(schema)} has no {inner}")
            return Type(
                kind, parts=[self.type(schema[inner], space, f"{path}[]" if kind == "array" else f"{path}{{}}")]
            )
        if kind in PRIMITIVE:
            return Type(kind, _logical(schema, kind, 0))
        return self._known(kind, space, path)

    def _known(self, name: str, space: str, path: str) -> Type:
        full = _full(name, space)
        found = self._named.get(full) or self._named.get(name)
        if found is None:
            raise ValueError(f"{path}: {full} is not a known type")
        return found

    def _declared(self, schema: Mapping[str, Any], kind: str, space: str, path: str) -> Type:
        name = _text(schema, "name", path)
        given = schema.get("namespace")
        space = name.rpartition(".")[0] if "." in name else given if isinstance(given, str) else space
        made = Type(
            kind, name=_full(name, space), aliases=tuple(_full(alias, space) for alias in _texts(schema, "aliases"))
        )
        if made.name in self._named or made.name in PRIMITIVE:
            raise ValueError(f"{made.name} is declared twice")
        self._named[made.name] = made
        if len(self._named) > MAX_NAMED_TYPES:
            raise UnboundedSchema(f"has {len(self._named)} named types, and more than {MAX_NAMED_TYPES} are not read")
        if kind == "record":
            if not isinstance(schema.get("fields"), list):
                raise ValueError(f"{made.name} has no fields")
            made.fields = [self._field(part, space, path) for part in schema["fields"]]
            _check_distinct([part.name for part in made.fields], f"fields of {made.name}")
        elif kind == "enum":
            made.symbols = tuple(_texts(schema, "symbols", needed=True))
            _check_distinct(made.symbols, f"symbols of {made.name}")
            default = schema.get("default")
            made.default = default if isinstance(default, str) and default in made.symbols else None
        else:
            size = schema.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise UnboundedSchema(f"{made.name}: is of {size!r} bytes")
            made.size = size
            made.logical = _logical(schema, kind, size)
        return made

    def _field(self, schema: Any, space: str, path: str) -> Field:
        if not isinstance(schema, Mapping) or "type" not in schema:
            raise ValueError(f"{path}: {_cut(schema)} is not a field")
        name, aliases = _text(schema, "name", path), tuple(_texts(schema, "aliases"))
        kind = self.type(schema["type"], space, f"{path}.{name}")
        return Field(name, kind, schema.get("default", ABSENT), aliases)


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _cut(schema: Any) -> str:
    text = repr(schema)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _text(schema: Mapping[str, Any], key: str, path: str) -> str:
    found = schema.get(key)
    if not isinstance(found, str) or not found:
        raise ValueError(f"{path}: {_cut(schema)} has no {key}")
    return found


def _texts(schema: Mapping[str, Any], key: str, *, needed: bool = False) -> Iterable[str]:
    found = schema.get(key)
    if found is None and not needed:
        return ()
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ValueError(f"{_cut(schema)} has no list {key}")
    return found


def _check_distinct(names: Sequence[str], what: str) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"two {what} have one name")


def _logical(schema: Mapping[str, Any], kind: str, size: int) -> Logical | None:
    """The logical type that ``schema`` gives a type of ``kind``; None if it is unknown or not valid for it."""
    name = schema.get("logicalType")
    if not isinstance(name, str) or kind not in _LOGICAL.get(name, ()):
        return None
    if name != "decimal":
        return None if kind == "fixed" and size != _SIZES.get(name) else Logical(name)
    precision: Any = schema.get("precision")
    scale: Any = schema.get("scale", 0)
    if any(not isinstance(digits, int) or isinstance(digits, bool) for digits in (precision, scale)):
        return None
    if precision <= 0 or not 0 <= scale <= precision:
        return None
    if kind == "fixed" and precision > math.floor(math.log10(2) * (8 * size - 1)):
        return None
    return Logical(name, precision, scale)


def text(schema: Type) -> str:
    """``schema`` as JSON that :func:`parsed` reads.

    Types of one name that are not the same get namespaces of their own: readers compare names without namespaces.
    """
    return json.dumps(_Writer().type(schema), separators=(",", ":"), ensure_ascii=False)


class _Writer:
    """Writes types as JSON; ``_known`` are the types that were declared, by the full names that they got."""

    def __init__(self) -> None:
        self._known: dict[str, Type] = {}

    def type(self, schema: Type, space: str = "") -> Any:
        """``schema`` within the namespace ``space``."""
        if schema.kind == "union":
            return [self.type(part, space) for part in schema.parts]
        if schema.kind in {"array", "map"}:
            return {"type": schema.kind, "items" if schema.kind == "array" else "values": self.type(schema.item, space)}
        if schema.name:
            return self._named(schema, space)
        return {"type": schema.kind, **_written(schema.logical)} if schema.logical else schema.kind

    def _named(self, schema: Type, space: str) -> Any:
        name, count = schema.name, 1
        while name in self._known:
            hidden = "." not in name and f"{space}.{name}" in self._known
            if not hidden and same(self._known[name], schema):
                return name
            count += 1
            name = f"n{count}.{schema.short}"
        self._known[name] = schema
        made: dict[str, Any] = {"type": schema.kind, "name": name}
        if space and "." not in name:
            made["namespace"] = ""
        if schema.aliases:
            made["aliases"] = list(schema.aliases)
        if schema.kind == "enum":
            made["symbols"] = list(schema.symbols)
            return made if schema.default is None else {**made, "default": schema.default}
        if schema.kind == "fixed":
            return {**made, "size": schema.size, **_written(schema.logical)}
        return {**made, "fields": [self._field(part, name.rpartition(".")[0]) for part in schema.fields]}

    def _field(self, field: Field, space: str) -> dict[str, Any]:
        made = {"name": field.name, "type": self.type(field.type, space)}
        if field.aliases:
            made["aliases"] = list(field.aliases)
        return made if field.default is ABSENT else {**made, "default": field.default}


def _written(logical: Logical | None) -> dict[str, Any]:
    if logical is None:
        return {}
    digits = {"precision": logical.precision, "scale": logical.scale} if logical.name == "decimal" else {}
    return {"logicalType": logical.name, **digits}


def same(first: Type, other: Type) -> bool:
    """True if two types that do not hold themselves are equal in all that a reader uses."""
    if first is other:
        return True
    return (
        (first.kind, first.logical, first.name, first.aliases, first.symbols, first.default, first.size)
        == (other.kind, other.logical, other.name, other.aliases, other.symbols, other.default, other.size)
        and len(first.parts) == len(other.parts)
        and len(first.fields) == len(other.fields)
        and all(map(same, first.parts, other.parts))
        and all(
            (mine.name, mine.default, mine.aliases) == (theirs.name, theirs.default, theirs.aliases)
            and same(mine.type, theirs.type)
            for mine, theirs in zip(first.fields, other.fields, strict=True)
        )
    )


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
            key = _simple_cost("string")
            self._check_item(key + self.of(schema.item, f"{path}{{}}", level + 1), f"{path}{{}}")
            return 1 - VALUES_PER_BYTE
        if schema.kind == "record":
            return self._record(schema, path, level)
        return 1 - VALUES_PER_BYTE * schema.size if schema.kind == "fixed" else _simple_cost(schema.kind)

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


def _simple_cost(kind: str) -> int:
    return 1 - VALUES_PER_BYTE * _BYTES[kind]
