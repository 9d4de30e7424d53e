"""Merges Avro schemas. The result reads the records of both, by Avro's own rules of resolution.

Each place of a named type is merged by itself, and has a declaration of its own if the places differ: a schema may
move a declaration, rename the record around it, or use one type in a second place with another past.
https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tidemark.parsers.avro.resolution import (
    INSTANTS,
    FailingStep,
    RecordStep,
    ScalarStep,
    Step,
    column_logical,
    may_fail,
    resolved,
    steps,
    value_of,
)
from tidemark.parsers.avro.schema import (
    ABSENT,
    Field,
    Type,
    UnboundedSchema,
    check_bounded,
    registered_schema,
    text,
    unqualified,
)
from tidemark.parsers.avro.types import Types
from tidemark.parsers.column_names import check_struct_names
from tidemark.parsers.schema_registry import Written
from tidemark.schemas.merge import NESTED, Changes, Merge, clash_of

_WIDER: Final = {("int", "long"), ("float", "double")}
_INSTANTS: Final = INSTANTS | {"timestamp-nanos"}


def merged(adopted: bytes | None, newest: Written, *, widen: bool = False) -> Merge:
    """The merge of ``adopted``, which is itself a merge or None, and ``newest``, which is taken whole after None.

    Raises:
        ValueError: ``newest`` is not the schema of a record, or none of its fields can be a column.
    """
    new = registered_schema(newest.texts)
    if new.kind != "record":
        raise ValueError("is not the schema of a record")
    old = replace(new, aliases=(), fields=[]) if adopted is None else registered_schema([adopted])
    merge = _AvroMerge(old, widen=widen)
    result = merge.root(old, new)
    changes = tuple(merge.changes.found)
    if not result.fields:
        problems = "; ".join(f"{change.path}: {change.detail}" for change in changes)
        raise ValueError(problems or "has no field")
    return Merge(text(result).encode(), changes)


class _AvroMerge:
    """A merge into ``old``."""

    def __init__(self, old: Type, *, widen: bool) -> None:
        self._widen = widen
        self._types = Types()
        if old.fields:
            self._types.record(old)
        self.changes = Changes([field.name for field in old.fields])

    def root(self, old: Type, new: Type) -> Type:
        """The merged record."""
        if old.short != new.short and old.name not in new.aliases:
            detail = f"the record is named {new.name} now, so records of that name cannot be read as {old.name}"
            self.changes.note(old.name, "misfit", detail)
            return old
        result = self._record(_also_named(old, new), new, "")
        if result.fields:
            self._check(new, result)
        return result

    def _check(self, new: Type, result: Type) -> None:
        """Note what would refuse records of the newer schema, if no change says so."""
        waiting = [change.path for change in self.changes.found if change.waits]
        try:
            check_bounded(new)
        except UnboundedSchema as error:
            if not waiting:
                self.changes.note(new.name, "misfit", str(error))
            return
        step = resolved(new, result)
        if isinstance(step, FailingStep):
            self.changes.note(new.name, "misfit", step.reason)
            return
        assert isinstance(step, RecordStep)
        for part in step.fields:
            inner = tuple(f"{part.name}{mark}" for mark in ".[{")
            if may_fail(part.step) and not any(path == part.name or path.startswith(inner) for path in waiting):
                self.changes.note(part.name, "misfit", _reason(part.step))

    def _record(self, old: Type, new: Type, path: str) -> Type:
        theirs = {field.name: field for field in new.fields}
        fields = [self._field(field, theirs.pop(field.name, None), f"{path}{field.name}") for field in old.fields]
        for field in theirs.values():
            if self._can_be_nested(field, fields, path) if path else self._can_be_column(field):
                fields.append(_with_default(replace(field, type=_bare(field.type))))
        return replace(old, fields=fields)

    def _can_be_nested(self, field: Field, beside: list[Field], path: str) -> bool:
        place = f"{path}{field.name}"
        problem = clash_of(field.name, [part.name for part in beside]) or self._problem(field, place)
        if problem:
            self.changes.note(place, "misfit", problem)
            return False
        self.changes.note(place, "wider", f"{field.type}, {NESTED}")
        return self._widen

    def _can_be_column(self, field: Field) -> bool:
        problem = self._problem(field, field.name)
        if problem:
            self.changes.note(field.name, "misfit", problem)
            return False
        return self.changes.takes(field.name, str(field.type))

    def _problem(self, field: Field, place: str) -> str | None:
        """Why ``field`` can be no part of a table, if so."""
        found = self._types.found
        try:
            check_struct_names(self._types.arrow(field.type, place), place)
            self._types.found += 1
        except ValueError as error:
            self._types.found = found
            return str(error).removeprefix(f"{place}: ")
        return None

    def _field(self, old: Field, new: Field | None, path: str) -> Field:
        if new is None:
            self.changes.note(path, "removed", "is null, or its default, in new records")
            return _with_default(old)
        kind, nullable = self._value(old.type, new.type, path)
        return _made(old.name, kind, nullable, new.default, old.default)

    def _value(self, old: Type, new: Type, path: str) -> tuple[Type, bool]:
        """(the merged type without null, true if it may be null)."""
        before, nullable = _without_null(old)
        after, also = _without_null(new)
        return self._type(before, after, path), nullable or also

    def _type(self, old: Type, new: Type, path: str) -> Type:
        if old.kind == new.kind == "record":
            return self._record(old, new, f"{path}.")
        if old.kind == new.kind and old.kind in {"array", "map"}:
            item, nullable = self._value(old.item, new.item, f"{path}[]" if old.kind == "array" else f"{path}{{}}")
            return replace(old, parts=[_nullable(item) if nullable else item])
        if old.kind == new.kind and (not old.name or _are_one(old, new)):
            if old.kind == "enum":
                more = [symbol for symbol in new.symbols if symbol not in old.symbols]
                return replace(_also_named(old, new), symbols=(*old.symbols, *more))
            if column_logical(old) == column_logical(new) or _are_instants(old, new):
                return _also_named(old, new)
        words = f"{_of(old)} becomes {_of(new)}" if old.name and new.name else f"{old} becomes {new}"
        if _is_wider(old, new):
            self.changes.note(path, "wider", words)
            return _bare(new) if self._widen else old
        self.changes.note(path, "misfit", words)
        return old


def _reason(step: Step) -> str:
    for part in steps(step):
        if isinstance(part, FailingStep):
            return part.reason
        if isinstance(part, ScalarStep) and None in part.texts:
            return "has symbols that the table's enum does not have"
    raise AssertionError("nothing in it fails")


def _are_one(old: Type, new: Type) -> bool:
    """True if readers take two enums, or two fixed types, for one."""
    return (old.short == new.short or old.name in new.aliases) and old.size == new.size


def _also_named(old: Type, new: Type) -> Type:
    """``old``, which reads values of ``new`` too: it gets its name as an alias, if it needs to."""
    if old.short == new.short or new.short in map(unqualified, old.aliases):
        return old
    return replace(old, aliases=(*old.aliases, new.name)) if new.name else old


def _are_instants(old: Type, new: Type) -> bool:
    """True if both are timestamps, which are converted to the table's unit; see ``resolution``."""
    return bool(old.logical and new.logical and old.logical.name in INSTANTS and new.logical.name in _INSTANTS)


def _is_wider(old: Type, new: Type) -> bool:
    """True if the columns of ``new`` can hold all values of ``old``."""
    before, after = column_logical(old), column_logical(new)
    if before is None and after is None:
        return (old.kind, new.kind) in _WIDER
    if (
        old.kind != new.kind
        or old.size != new.size
        or not (before and after and before.name == after.name == "decimal")
    ):
        return False
    return before.scale == after.scale and before.precision < after.precision and _are_one(old, new)


def _with_default(field: Field) -> Field:
    """``field`` with a default, so that records without it can be read: the schema's, or else null."""
    kind, nullable = _without_null(field.type)
    return _made(field.name, kind, nullable, field.default)


def _made(name: str, kind: Type, nullable: bool, *defaults: Any) -> Field:
    """A field with the first of ``defaults`` that is valid, or else null; a union begins with its default's type."""
    default = next((part for part in defaults if _is_value(part, kind, nullable)), None)
    if default is None:
        kind = _nullable(kind)
    elif nullable:
        kind = Type("union", parts=[kind, Type("null")])
    return Field(name, kind, default)


def _is_value(default: Any, kind: Type, nullable: bool) -> bool:
    if default is ABSENT or default is None:
        return default is None and nullable
    try:
        value_of(default, kind)
    except ValueError:
        return False
    return True


def _nullable(kind: Type) -> Type:
    return Type("union", parts=[Type("null"), kind])


def _bare(kind: Type) -> Type:
    """``kind`` without aliases, and with a default for each field within it."""
    fields = [_with_default(replace(part, type=_bare(part.type), aliases=())) for part in kind.fields]
    return replace(kind, aliases=(), fields=fields, parts=[_bare(part) for part in kind.parts])


def _without_null(kind: Type) -> tuple[Type, bool]:
    if kind.kind != "union":
        return kind, False
    others = [branch for branch in kind.parts if branch.kind != "null"]
    return others[0] if len(others) == 1 else replace(kind, parts=others), len(others) < len(kind.parts)


def _of(kind: Type) -> str:
    return f"{kind.kind} {kind}" + (f"({kind.size})" if kind.kind == "fixed" else "")
