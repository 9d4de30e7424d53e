"""Random Avro schemas that a table can have, steps of their evolution, and values at the limits of their types."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.tidemark.parsers.support import varint

LONGS = (
    0,
    1,
    -1,
    63,
    64,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 31,
    (1 << 53) + 1,
    (1 << 60) + (1 << 36) + 1,
    (1 << 63) - 1,
    -(1 << 63),
)
TEXTS = ("", "a", "Zoë", "日本語" * 9, "y" * 300, "\0", "\u00ff", '"\\')
FLOATS = (b"\0\0\0\0", b"\0\0\0\x80", b"\0\0\x80\x7f", b"\1\0\0\0", b"\xff\xff\x7f\x7f", b"\xc3\xf5\x48\x40")
DOUBLES = (0.0, -0.0, float("inf"), 5e-324, 1.7976931348623157e308, 0.1)
SYMBOLS = ("NEW", "PAID", "GONE", "LOST", "OTHER")
SIMPLE = ("boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL: dict[str, tuple[dict[str, Any], ...]] = {
    "int": ({"logicalType": "date"}, {"logicalType": "time-millis"}, {"logicalType": "timestamp-millis"}),
    "long": (
        *({"logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros", "nanos")),
        {"logicalType": "local-timestamp-micros"},
        {"logicalType": "date"},
    ),
    "bytes": (
        *({"logicalType": "decimal", "precision": p, "scale": s} for p, s in ((9, 2), (30, 0), (38, 38))),
        {"logicalType": "decimal", "precision": 64, "scale": 127},
        {"logicalType": "decimal", "precision": 0},
        {"logicalType": "decimal"},
        {"logicalType": "decimal", "precision": 4, "scale": -1},
        {"logicalType": "timestamp-millis"},
    ),
    "string": ({"logicalType": "uuid"}, {"logicalType": "decimal", "precision": 4}, {"logicalType": "nothing"}),
    "fixed": ({"logicalType": "decimal", "precision": 4, "scale": 1}, {"logicalType": "decimal", "precision": 30}),
}
ABSENT = ...  # a copy is the same
_TAKE_NULL = {"array", "enum", "map", "record"}


@dataclass(eq=False)
class T:
    """A type; named types may be in several places."""

    kind: str
    name: str = ""
    space: str = ""
    aliases: list[str] = field(default_factory=list)
    logical: dict[str, Any] = field(default_factory=dict)
    fields: list[F] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    default: str | None = None
    size: int = 0
    parts: list[T] = field(default_factory=list)
    moved: bool = False


@dataclass(eq=False)
class F:
    """A field of a record."""

    name: str
    type: T
    default: Any = ABSENT
    aliases: list[str] = field(default_factory=list)


def written(schema: T) -> str:
    """The schema as JSON; a named type is declared where it is first used."""
    return json.dumps(_json(schema, "", {}))


def _json(schema: T, space: str, known: dict[str, T]) -> Any:
    if schema.kind == "union":
        return [_json(one, space, known) for one in schema.parts]
    if schema.kind in {"array", "map"}:
        inner = "items" if schema.kind == "array" else "values"
        return {"type": schema.kind, inner: _json(schema.parts[0], space, known)}
    if not schema.name:
        return {"type": schema.kind, **schema.logical} if schema.logical else schema.kind
    full = f"{schema.space}.{schema.name}" if schema.space else schema.name
    if full in known:
        assert known[full] is schema
        return schema.name if schema.space == space else full
    known[full] = schema
    made: dict[str, Any] = {"type": schema.kind, "name": schema.name}
    if schema.space != space:
        made["namespace"] = schema.space
    if schema.aliases:
        made["aliases"] = schema.aliases
    if schema.kind == "enum":
        return {**made, "symbols": schema.symbols, **({"default": schema.default} if schema.default else {})}
    if schema.kind == "fixed":
        return {**made, "size": schema.size, **schema.logical}
    fields = []
    for one in schema.fields:
        more: dict[str, Any] = {"aliases": one.aliases} if one.aliases else {}
        more |= {} if one.default is ABSENT else {"default": one.default}
        fields.append({"name": one.name, "type": _json(one.type, schema.space, known), **more})
    return {**made, "fields": fields}


class Pairs:
    """Makes schemas and changes them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._count = 0
        self._named: list[T] = []
        self._nests = True

    def root(self) -> T:
        """The schema of a record."""
        self._named, self._nests = [], True
        return self._record(2)

    def evolved(self, schema: T) -> T:
        """A copy with one to three changes, at any depth, and other defaults."""
        made = copy.deepcopy(schema)
        self._named, self._nests = [], False  # a record must not get into itself
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            records = [one for one in everything(made) if one.kind == "record" and one.fields]
            self.rng.choice(self._steps)(self, self.rng.choice(records))
        for one in everything(made):
            for part in one.fields:
                part.default = ABSENT if part.default is ABSENT else self.default(part.type)
                if one.moved:
                    part.aliases = []  # which Java applies only to a record of the same namespace
        return made

    def number(self) -> int:
        self._count += 1
        return self._count

    def _type(self, depth: int) -> T:
        rng = self.rng
        if self._named and rng.random() < 0.3:
            return rng.choice(self._named)
        kind = rng.randrange(14 if depth else 10)
        if kind < 7:
            name = SIMPLE[kind]
            return T(name, logical=dict(rng.choice(LOGICAL[name])) if name in LOGICAL and rng.random() < 0.4 else {})
        if kind in {7, 8}:
            made = T("enum", f"E{self.number()}", self._space(), symbols=rng.sample(SYMBOLS, rng.randrange(1, 5)))
            made.default = made.symbols[0] if rng.random() < 0.3 else None
        elif kind == 9:
            made = T("fixed", f"F{self.number()}", self._space(), size=rng.randrange(1, 17))
            made.logical = dict(rng.choice(LOGICAL["fixed"])) if rng.random() < 0.4 else {}
        elif kind < 12:
            return T("array" if kind == 10 else "map", parts=[self._nullable(depth - 1)])
        else:
            return self._record(depth - 1)
        self._named.append(made)
        return made

    def _space(self) -> str:
        return self.rng.choice(("", "shop", "shop.parts"))

    def _nullable(self, depth: int) -> T:
        kind = self._type(depth)
        if self.rng.random() < 0.6:
            return kind
        return T("union", parts=self.rng.choice(([T("null"), kind], [kind, T("null")], [kind])))

    def _record(self, depth: int) -> T:
        made = T("record", f"R{self.number()}", self._space())
        made.fields = [self._field(depth) for _ in range(self.rng.randrange(1, 6))]
        if self._nests:
            self._named.append(made)
        return made

    def _field(self, depth: int) -> F:
        made = F(f"f{self.number()}", self._nullable(depth))
        if self.rng.random() < 0.5:
            made.default = self.default(made.type)
        return made

    def default(self, kind: T) -> Any:
        """A default of a type, as JSON."""
        rng = self.rng
        if kind.kind == "union":
            part, first = rng.choice(kind.parts), kind.parts[0]
            # Java 1.12.1 takes the default null of [map, null], and such, for one of the first branch.
            return self.default(first if part.kind == "null" and first.kind in _TAKE_NULL else part)
        if kind.kind == "record":
            missing = {one.name for one in kind.fields if one.default is not ABSENT and rng.random() < 0.5}
            return {one.name: self.default(one.type) for one in kind.fields if one.name not in missing}
        if kind.kind == "array":
            return [self.default(kind.parts[0]) for _ in range(rng.randrange(3))]
        if kind.kind == "map":
            return {key: self.default(kind.parts[0]) for key in rng.sample(TEXTS, rng.randrange(3))}
        simple: dict[str, Callable[[], Any]] = {
            "null": lambda: None,
            "boolean": lambda: rng.random() < 0.5,
            "int": lambda: rng.choice(LONGS[:7]),
            "long": lambda: rng.choice(LONGS),
            "float": lambda: rng.choice((0, 1.5, -7, 0.1, 16777217)),
            "double": lambda: rng.choice((0, 1.5, -7, 0.1, 1e300)),
            "string": lambda: rng.choice(TEXTS),
            "bytes": lambda: rng.choice(("", "\u00ff", "\u0000", "a\u0080\u00fe")),
            "fixed": lambda: "".join(chr(rng.randrange(256)) for _ in range(kind.size)),
            "enum": lambda: rng.choice(kind.symbols),
        }
        return simple[kind.kind]()

    def _add(self, record: T) -> None:
        record.fields.insert(self.rng.randrange(len(record.fields) + 1), self._field(1))

    def _remove(self, record: T) -> None:
        if len(record.fields) > 1:
            record.fields.remove(self.rng.choice(record.fields))

    def _shuffle(self, record: T) -> None:
        self.rng.shuffle(record.fields)

    def _rename(self, record: T) -> None:
        one = self.rng.choice(record.fields)
        if self.rng.random() < 0.7:
            one.aliases = [*one.aliases, one.name]
        one.name = f"f{self.number()}"

    def _retype(self, record: T) -> None:
        """Another number, text for bytes, null or no null."""
        one = self.rng.choice(record.fields)
        kind, null = one.type, None
        if kind.kind == "union":
            null = next((part for part in kind.parts if part.kind == "null"), None)
            kind = next(part for part in kind.parts if part.kind != "null")
        others = {"int": "long float double", "long": "int float double", "float": "double long", "double": "float"}
        others |= {"string": "bytes", "bytes": "string"}
        choice = self.rng.randrange(3)
        if choice == 0 and kind.kind in others:
            kind = T(self.rng.choice(others[kind.kind].split()))
        elif choice == 1:
            null = None if null else T("null")
        else:
            kind = self._type(1) if self.rng.random() < 0.3 else kind
            kind = T("long") if kind.kind == "long" else kind  # for Java, another unit is the same number
        parts = [null, kind] if null else [kind]
        self.rng.shuffle(parts)
        one.type = T("union", parts=parts) if len(parts) > 1 or self.rng.random() < 0.2 else kind
        one.default = ABSENT if self.rng.random() < 0.5 else self.default(one.type)

    def _wrap(self, record: T) -> None:
        """A field's type also within a list, or a record around it: its declaration moves."""
        one = self.rng.choice(record.fields)
        inner = T("array", parts=[one.type]) if self.rng.random() < 0.5 else T("record", f"R{self.number()}", "moved")
        if inner.kind == "record":
            inner.fields = [F(f"f{self.number()}", one.type)]
        record.fields.insert(0, F(f"f{self.number()}", inner))

    def _symbols(self, record: T) -> None:
        for one in everything(record):
            if one.kind == "enum" and self.rng.random() < 0.7:
                one.symbols = self.rng.sample(SYMBOLS, self.rng.randrange(1, 5))
                one.default = self.rng.choice(one.symbols) if self.rng.random() < 0.4 else None

    def _name(self, record: T) -> None:
        """Another name of a type, without an alias only if it is a nested record; or another namespace of such."""
        one = self.rng.choice([part for part in everything(record) if part.name])
        full = f"{one.space}.{one.name}" if one.space else one.name
        if one is record or one.kind != "record" or self.rng.random() < 0.5:
            one.aliases = [*one.aliases, full]
            one.name = f"N{self.number()}"
        else:
            one.moved = True
            one.space, one.name = self.rng.choice((("elsewhere", one.name), (one.space, f"N{self.number()}")))

    def _size(self, record: T) -> None:
        for one in everything(record):
            if one.kind == "fixed" and self.rng.random() < 0.3:
                one.size, one.logical = self.rng.randrange(1, 17), {}

    def _annotate(self, record: T) -> None:
        """A logical type goes; another unit, and bytes that become a decimal, are judged by tests of their own."""
        kinds = [one.type for one in record.fields if one.type.kind in {"int", "long", "string"}]
        for one in kinds[:1]:
            one.logical = {}

    _steps = (
        _add,
        _add,
        _remove,
        _shuffle,
        _rename,
        _retype,
        _retype,
        _retype,
        _wrap,
        _symbols,
        _name,
        _size,
        _annotate,
    )


def everything(schema: T) -> list[T]:
    """The types within a type, each once, and itself first."""
    found: list[T] = []

    def walk(one: T) -> None:
        if not any(one is other for other in found):
            found.append(one)
            for part in (*one.parts, *(inner.type for inner in one.fields)):
                walk(part)

    walk(schema)
    return found


def widened_union(rng: random.Random, schema: T) -> T:
    """``schema`` as a writer may have it: with unions that no table can have, and without defaults."""
    made = copy.deepcopy(schema)
    for one in everything(made):
        for part in one.fields:
            part.default = ABSENT
            if part.type.kind != "union" and rng.random() < 0.05:
                others = [T(kind) for kind in ("null", "string", "long", "boolean") if kind != part.type.kind]
                part.type = T("union", parts=[*others[: rng.randrange(2, 4)], part.type])
                rng.shuffle(part.type.parts)
    return made


class Values:
    """Random values of a type, encoded."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def encoded(self, schema: T) -> bytes:
        rng = self.rng
        if schema.kind == "union":
            branch = rng.randrange(len(schema.parts))
            return number(branch) + self.encoded(schema.parts[branch])
        if schema.kind == "record":
            return b"".join(self.encoded(one.type) for one in schema.fields)
        if schema.kind == "array":
            return self._blocks([self.encoded(schema.parts[0]) for _ in range(rng.choice((0, 1, 2, 5)))])
        if schema.kind == "map":
            keys = [key.encode() for key in rng.sample(TEXTS, rng.randrange(3))]
            return self._blocks([number(len(key)) + key + self.encoded(schema.parts[0]) for key in keys])
        return self._simple(schema)

    def _simple(self, schema: T) -> bytes:
        rng, kind = self.rng, schema.kind
        if kind == "null":
            return b""
        if kind == "boolean":
            return bytes([rng.randrange(2)])
        if kind == "int":
            return number(rng.choice(LONGS[:7]) if rng.random() < 0.5 else rng.randrange(-(1 << 31), 1 << 31))
        if kind == "long":
            return number(
                rng.choice((*LONGS, -(1 << 63))) if rng.random() < 0.5 else rng.randrange(-(1 << 63), 1 << 63)
            )
        if kind == "float":
            return rng.choice(FLOATS) if rng.random() < 0.5 else rng.randbytes(4)
        if kind == "double":
            return struct.pack("<d", rng.choice(DOUBLES)) if rng.random() < 0.5 else rng.randbytes(8)
        if kind == "enum":
            return number(rng.randrange(len(schema.symbols)))
        if kind == "fixed":
            return rng.randbytes(schema.size) if rng.random() < 0.7 else bytes(schema.size)
        text = rng.choice(TEXTS).encode()
        if kind == "bytes" and rng.random() < 0.7:
            text = rng.randbytes(rng.choice((0, 1, 2, 3, 8, 9, 16, 33)))
        return number(len(text)) + text

    def _blocks(self, items: list[bytes]) -> bytes:
        """In one block, or in several, of which some say their size."""
        found = b""
        while items:
            size = self.rng.choice((len(items), 1))
            block, items = items[:size], items[size:]
            data = b"".join(block)
            found += (number(-size) + number(len(data)) if self.rng.random() < 0.2 else number(size)) + data
        return found + b"\0"


def number(value: int) -> bytes:
    """A long."""
    return varint(((value << 1) ^ (value >> 63)) & ((1 << 64) - 1))


def histories(pairs: Pairs) -> Iterator[list[T]]:
    """Versions that are registered one after the other."""
    while True:
        versions = [pairs.root()]
        for _ in range(pairs.rng.randrange(1, 4)):
            versions.append(pairs.evolved(versions[-1]))
        yield versions
