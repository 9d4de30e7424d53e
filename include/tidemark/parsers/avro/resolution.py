"""Resolution of the schema that wrote a record into the table's: the one program by which records are read.

:func:`resolved` walks the two schemas once and makes a tree of steps, one for each value in the writer's schema. A step
says how the value is read and what becomes of it. ``parser`` makes of the tree the program of the loop, and functions
that read record by record; neither knows the rules below, so they cannot differ in them.

The rules are those of the specification's section "Schema resolution":

* Fields are matched by name, then by the aliases of the table's field; a field that the writer lacks is its default.
* ``int`` and ``long`` become longer numbers, ``float`` becomes ``double``, ``string`` and ``bytes`` each other.
* A symbol that the table's enum lacks becomes that enum's default.
* Enums and fixed types have one name, without namespaces, or an alias. Records within others may have any names: there
  is no other record that they could be. The name of the whole record counts, as a topic may have records of many.
* A part of a value that cannot be resolved refuses the records that have it, and no others.

A logical type says what a number means. If the writer's type has none, the table's holds, and the other way round; but
plain bytes are no decimal. Two that differ are converted, exactly, if they are both timestamps or both decimals;
otherwise they do not match.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from typing import Any, Final

import numpy as np

from tidemark.decode.schema import MAX_MILLISECONDS
from tidemark.parsers.avro.schema import ABSENT, Field, Logical, Type, unqualified

_NUMBERS: Final = ("int", "long", "float", "double")
_NANOSECONDS: Final = {"timestamp-millis": 1_000_000, "timestamp-micros": 1_000, "timestamp-nanos": 1}
INSTANTS: Final = {"timestamp-millis", "timestamp-micros"}
"""Logical types that are timestamps in the table, in microseconds."""

MAX_DIGITS: Final = 38
_MAX_DECIMAL_BYTES: Final = 32
_EXACT: Final = Context(prec=120)
_HUGE: Final = 1e308
_INT: Final = 1 << 31
_LONG: Final = 1 << 63


@dataclass(frozen=True, slots=True, eq=False)
class ScalarStep:
    """Reads a value of ``kind``, which becomes one of ``target``; a fixed one has ``size`` bytes.

    ``texts`` has the table's text for each of an enum's symbols, or None. A time is multiplied by ``factor``, or
    divided if that is negative. A decimal has the table's ``decimal`` digits after its unscaled number was multiplied
    by 10 to the power of ``shift``.
    """

    kind: str
    target: str
    size: int = 0
    texts: tuple[str | None, ...] = ()
    factor: int = 1
    decimal: Logical | None = None
    shift: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class NullStep:
    """A null, of no bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class FailingStep:
    """A value that refuses its record, for ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class WrittenField:
    """A field of the writer's record, and the number of the table's field that takes it, or -1."""

    name: str
    step: Step
    place: int


@dataclass(frozen=True, slots=True, eq=False)
class RecordStep:
    """The fields in their order, and the values of the table's fields that the writer lacks, by number.

    ``names`` are those of the table's fields; there are none where no column takes the record.
    """

    fields: tuple[WrittenField, ...]
    missing: dict[int, Any]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ItemsStep:
    """A list, or with ``keys`` a map."""

    item: Step
    keys: bool


@dataclass(frozen=True, slots=True, eq=False)
class UnionStep:
    """A number, and then the branch of that number."""

    branches: tuple[Step, ...]


Step = ScalarStep | NullStep | FailingStep | RecordStep | ItemsStep | UnionStep


_NO_NULL: Final = FailingStep("is null, and the table's schema has no null")


def resolved(writer: Type, reader: Type, *, land: bool = False) -> Step:
    """How records of ``writer`` are read into the table of ``reader``; neither holds itself.

    With ``land`` a field of the table is null if its values might be refused.
    """
    if writer.kind == "union":
        return UnionStep(tuple(resolved(branch, reader, land=land) for branch in writer.parts))
    if writer.kind != "record" or reader.kind != "record":
        return FailingStep(f"Schema mismatch: {writer} is not the record {reader}")
    if not _named_alike(writer, reader):
        return FailingStep(f"record {writer.name} is not {reader.name}")
    return _Resolver().record(writer, reader, land=land)


class _Resolver:
    """Makes steps, one for each pair of types: types may be in many places."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Step] = {}

    def step(self, writer: Type, reader: Type | None) -> Step:
        """The step for a value of ``writer``; without a ``reader`` it is passed over."""
        key = id(writer), id(reader)
        if key not in self._known:
            self._known[key] = self._made(writer, reader)
        return self._known[key]

    def _made(self, writer: Type, reader: Type | None) -> Step:
        if writer.kind == "union":
            return UnionStep(tuple(self.step(branch, reader) for branch in writer.parts))
        if reader is None:
            return self._passed(writer)
        if reader.kind == "union":
            return self._branch(writer, reader)
        if writer.kind == "null":
            return _NO_NULL
        if writer.kind != reader.kind:
            return _promoted(writer, reader)
        if writer.kind == "record":
            return self.record(writer, reader)
        if writer.kind in {"array", "map"}:
            return ItemsStep(self.step(writer.item, reader.item), writer.kind == "map")
        return _named(writer, reader) if writer.name else _logical(writer, reader)

    def _passed(self, writer: Type) -> Step:
        if writer.kind == "record":
            return RecordStep(
                tuple(WrittenField(part.name, self.step(part.type, None), -1) for part in writer.fields), {}, ()
            )
        if writer.kind in {"array", "map"}:
            return ItemsStep(self.step(writer.item, None), writer.kind == "map")
        if writer.kind == "null":
            return NullStep()
        return ScalarStep(writer.kind, "long" if writer.kind == "int" else writer.kind, writer.size, writer.symbols)

    def _branch(self, writer: Type, reader: Type) -> Step:
        """Into null, or into the one other branch of ``reader``."""
        if writer.kind == "null":
            return NullStep() if any(part.kind == "null" for part in reader.parts) else _NO_NULL
        [other] = (part for part in reader.parts if part.kind != "null")
        made = self.step(writer, other)
        if isinstance(made, RecordStep) and writer.name != other.name:
            failing = [part for part in made.fields if isinstance(part.step, FailingStep)]
            if failing:
                return FailingStep(f"record {writer.name} is not {other.name}, and has another {failing[0].name}")
        return made

    def record(self, writer: Type, reader: Type, *, land: bool = False) -> RecordStep | FailingStep:
        """The step for a record; see :func:`resolved`."""
        theirs = {part.name: part for part in writer.fields}
        taken: dict[str, tuple[int, Field]] = {}
        missing: dict[int, Any] = {}
        for place, wanted in enumerate(reader.fields):
            name = next((part for part in (wanted.name, *wanted.aliases) if part in theirs and part not in taken), None)
            if name is not None:
                taken[name] = place, wanted
                continue
            if wanted.default is ABSENT:
                return FailingStep(f"{writer.short} lacks {wanted.name}, which has no default")
            try:
                missing[place] = value_of(wanted.default, wanted.type)
            except ValueError as error:
                return FailingStep(f"{writer.short} lacks {wanted.name}, whose default is not valid: {error}")
        fields = []
        for part in writer.fields:
            place, target = taken.get(part.name, (-1, None))
            step = self.step(part.type, target.type if target else None)
            if land and target and may_fail(step := _with_nulls(step)):
                missing[place], place, step = None, -1, self.step(part.type, None)
            if isinstance(step, FailingStep):
                step = FailingStep(f"{part.name}: {step.reason}")
            fields.append(WrittenField(part.name, step, place))
        return RecordStep(tuple(fields), missing, tuple(part.name for part in reader.fields))


def column_logical(kind: Type) -> Logical | None:
    """The logical type of the table's column: a decimal has MAX_DIGITS at most, or else it is bytes."""
    logical = kind.logical
    if logical is None or logical.name != "decimal" or logical.precision <= MAX_DIGITS:
        return logical
    return replace(logical, precision=MAX_DIGITS) if logical.scale <= MAX_DIGITS else None


def _with_nulls(step: Step) -> Step:
    """``step`` with nulls where its field may have none: each of the table's columns may be null."""
    if not isinstance(step, UnionStep):
        return step
    return UnionStep(tuple(NullStep() if branch is _NO_NULL else branch for branch in step.branches))


def may_fail(step: Step) -> bool:
    """True if a sound value may be refused for its type or symbol."""
    return any(
        isinstance(part, FailingStep) or (isinstance(part, ScalarStep) and part.kind == "enum" and None in part.texts)
        for part in steps(step)
    )


def steps(step: Step) -> Iterator[Step]:
    """``step`` and all steps within it, each once."""
    waiting, seen = [step], {id(step)}
    while waiting:
        part = waiting.pop()
        yield part
        inner: tuple[Step, ...] = ()
        if isinstance(part, RecordStep):
            inner = tuple(field.step for field in part.fields)
        elif isinstance(part, ItemsStep):
            inner = (part.item,)
        elif isinstance(part, UnionStep):
            inner = part.branches
        for other in inner:
            if id(other) not in seen:
                seen.add(id(other))
                waiting.append(other)


def _named_alike(writer: Type, reader: Type) -> bool:
    """Names are compared without namespaces: one of none cannot be written as the alias of a type that has one."""
    return writer.short == reader.short or writer.short in map(unqualified, reader.aliases)


def _named(writer: Type, reader: Type) -> Step:
    """The step for an enum or a fixed."""
    if not _named_alike(writer, reader):
        return FailingStep(f"{writer.kind} {writer.name} is not {reader.name}")
    if writer.kind == "enum":
        known = set(reader.symbols)
        texts = tuple(symbol if symbol in known else reader.default for symbol in writer.symbols)
        return ScalarStep("enum", "enum", texts=texts)
    if writer.size != reader.size:
        return FailingStep(f"{writer} of {writer.size} bytes is not of {reader.size}")
    return _logical(writer, reader)


def _promoted(writer: Type, reader: Type) -> Step:
    mismatch = FailingStep(f"{writer} is not {reader}")
    if writer.kind in _NUMBERS and reader.kind in _NUMBERS:
        longer = _NUMBERS.index(writer.kind) < _NUMBERS.index(reader.kind)
        return _logical(writer, reader) if longer else mismatch
    if {writer.kind, reader.kind} == {"string", "bytes"}:
        plain = (reader if writer.kind == "string" else writer).logical is None
        return ScalarStep(writer.kind, reader.kind) if plain else mismatch
    return mismatch


def _logical(writer: Type, reader: Type) -> Step:
    """The step for a simple value, by the logical types of both."""
    plain = ScalarStep(writer.kind, reader.kind, writer.size)
    theirs, ours = writer.logical, column_logical(reader)
    if writer.kind == reader.kind == "string":
        return plain
    if ours is not None and ours.name == "decimal":
        if theirs is not None and theirs.name == "decimal":
            return replace(plain, decimal=ours, shift=ours.scale - theirs.scale)
    elif theirs is None or ours is None or theirs.name == ours.name:
        unit = ours.name if ours else ""
        return replace(plain, factor=_NANOSECONDS[unit] // 1000) if unit in INSTANTS else plain
    elif theirs.name in _NANOSECONDS and ours.name in INSTANTS:
        factor = _NANOSECONDS[theirs.name]
        return replace(plain, factor=factor // 1000 if factor >= 1000 else -1000)
    return FailingStep(f"{writer} is not {reader}")


def value_of(default: Any, kind: Type) -> Any:
    """The value in the table's column that ``default``, JSON, stands for. Null stands for no value of any type.

    Raises:
        ValueError: it is not a value of this type.
    """
    if default is None:
        return None
    if kind.kind == "union":
        for branch in kind.parts:
            if branch.kind != "null":
                return value_of(default, branch)
    if kind.kind == "array" and isinstance(default, list):
        return [value_of(part, kind.item) for part in default]
    if kind.kind == "map" and isinstance(default, dict):
        return [{"key": key, "value": value_of(part, kind.item)} for key, part in default.items()]
    if kind.kind == "record" and isinstance(default, dict):
        return {part.name: _part_of(default, part) for part in kind.fields}
    made = _simple(default, kind)
    if made is None:
        raise ValueError(f"{str(default)[:80]!r} is not a value of {kind}")
    return made


def _part_of(default: dict[str, Any], field: Field) -> Any:
    value = default.get(field.name, field.default)
    if value is ABSENT:
        raise ValueError(f"lacks {field.name}")
    return value_of(value, field.type)


def _simple(default: Any, kind: Type) -> Any:
    """See :func:`value_of`; None if it is no such value."""
    name = kind.kind
    if isinstance(default, bool) or name == "boolean":
        return default if isinstance(default, bool) and name == "boolean" else None
    if isinstance(default, int) and name in {"int", "long"}:
        limit = _INT if name == "int" else _LONG
        return _instant(default, kind) if -limit <= default < limit else None
    if isinstance(default, int | float) and name in {"float", "double"} and abs(default) < _HUGE:
        with np.errstate(over="ignore"):  # beyond a float's range it is infinite, as in Java
            return float(np.float32(default)) if name == "float" else float(default)
    return _text(default, kind) if isinstance(default, str) else None


def _text(default: str, kind: Type) -> Any:
    if kind.kind == "enum":
        return default if default in kind.symbols else None
    if kind.kind == "string":
        return None if any("\ud800" <= part <= "\udfff" for part in default) else default
    if kind.kind not in {"bytes", "fixed"} or any(part > "\u00ff" for part in default):
        return None
    data = default.encode("latin-1")
    if kind.kind == "fixed" and len(data) != kind.size:
        return None
    logical = column_logical(kind)
    return decimal_of(data, logical, 0) if logical and logical.name == "decimal" else data


def _instant(number: int, kind: Type) -> int | None:
    if kind.logical is None or kind.logical.name != "timestamp-millis":
        return number
    return number * 1000 if abs(number) <= MAX_MILLISECONDS else None


def decimal_of(data: bytes, wanted: Logical, shift: int) -> Decimal:
    """The exact decimal of these bytes, with the digits of ``wanted``.

    Raises:
        ValueError: it has other digits.
    """
    if len(data) > _MAX_DECIMAL_BYTES:
        raise ValueError(f"a decimal of {len(data)} bytes")
    unscaled = int.from_bytes(data, "big", signed=True)
    if shift >= 0:
        unscaled *= 10**shift
    else:
        unscaled, rest = divmod(unscaled, 10**-shift)
        if rest:
            raise ValueError(f"a decimal with more than {wanted.scale} digits behind the point")
    if abs(unscaled) >= 10**wanted.precision:
        raise ValueError(f"a decimal of more than {wanted.precision} digits")
    return Decimal(unscaled).scaleb(-wanted.scale, _EXACT)
