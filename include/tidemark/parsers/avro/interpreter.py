"""Runs the steps of a resolution on one record at a time: what the compiled loop leaves, and the reasons of refusals.

Source: Avro's specification, "Binary encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tidemark.decode.schema import MAX_MILLISECONDS
from tidemark.parsers.avro.resolution import FailingStep, ItemsStep, RecordStep, ScalarStep, Step, UnionStep, decimal_of
from tidemark.parsers.row_parser import RefusedRecord

_DOUBLE: Final = struct.Struct("<d")
_FLOAT: Final = struct.Struct("<f")
_MOST_BYTES: Final = 10
_ENDS: Final = "ends too early"
_NO_BRANCH: Final = "names a branch of a union, or a symbol of an enum, that the schema does not have"


class _Source:
    """A record's bytes, and the place of the next one."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def taken(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise RefusedRecord(_ENDS)
        found = self.data[self.at : end]
        self.at = end
        return found

    def number(self) -> int:
        """An int or a long; bits beyond the 64th are dropped."""
        data, at = self.data, self.at
        if at < len(data) and (byte := data[at]) < 0x80:
            self.at = at + 1
            return -(byte + 1 >> 1) if byte & 1 else byte >> 1
        raw = shift = 0
        for place in range(at, min(at + _MOST_BYTES, len(data))):
            byte = data[place]
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = place + 1
                raw &= (1 << 64) - 1
                return (raw >> 1) ^ -(raw & 1)
            shift += 7
        cut = all(byte >= 0x80 for byte in data[at:])
        raise RefusedRecord(_ENDS if cut else "has a number of more than 64 bits")


_Read = Callable[[_Source], Any]


class _UnfitValue(Exception):
    """A value that its column cannot hold; the message says why."""


def reader_of(step: Step) -> Callable[[bytes], dict[str, Any]]:
    """A function that reads a record as the table's fields.

    Raises:
        RefusedRecord: the bytes are not a record of the writer's schema, or do not resolve into the table's.
    """
    read = _Compiler().read(step)

    def whole(data: bytes) -> dict[str, Any]:
        source = _Source(data)
        try:
            fields: dict[str, Any] = read(source)
        except RefusedRecord as error:
            raise RefusedRecord(f"does not match its Avro schema: {error}") from error
        except _UnfitValue as error:
            raise RefusedRecord(f"its values do not fit the table: {error}") from error
        except RecursionError as error:
            raise RefusedRecord("does not match its Avro schema: is nested too deeply") from error
        if source.at < len(data):
            raise RefusedRecord(f"has {len(data) - source.at} more bytes than its Avro schema says")
        return fields

    return whole


class _Compiler:
    """Makes functions of steps, one for each step."""

    def __init__(self) -> None:
        self._made: dict[int, _Read] = {}

    def read(self, step: Step) -> _Read:
        if id(step) not in self._made:
            self._made[id(step)] = self._new(step)
        return self._made[id(step)]

    def _new(self, step: Step) -> _Read:
        if isinstance(step, ScalarStep):
            return _scalar(step)
        if isinstance(step, RecordStep):
            return self._record(step)
        if isinstance(step, UnionStep):
            return self._union(step)
        if isinstance(step, ItemsStep):
            return self._items(step)
        return _failing(step) if isinstance(step, FailingStep) else _null

    def _record(self, step: RecordStep) -> _Read:
        fields = [(step.names[part.place] if part.place >= 0 else None, self.read(part.step)) for part in step.fields]
        given = {name: step.missing.get(place) for place, name in enumerate(step.names)}

        def record(source: _Source) -> dict[str, Any]:
            found = given.copy()
            for name, read in fields:
                if name is None:
                    read(source)
                else:
                    found[name] = read(source)
            return found

        return record

    def _union(self, step: UnionStep) -> _Read:
        branches = [self.read(part) for part in step.branches]

        def union(source: _Source) -> Any:
            number = source.number()
            if not 0 <= number < len(branches):
                raise RefusedRecord(_NO_BRANCH)
            return branches[number](source)

        return union

    def _items(self, step: ItemsStep) -> _Read:
        read = self.read(step.item)

        def items(source: _Source) -> list[Any]:
            found: list[Any] = []
            while count := _count(source):
                for _ in range(count):
                    found.append(read(source))  # noqa: PERF401 - a comprehension would lose what was read before an error
            return found

        def entries(source: _Source) -> list[dict[str, Any]]:
            found: dict[str, Any] = {}
            while count := _count(source):
                for _ in range(count):
                    key = _text(source)
                    found[key] = read(source)
            return [{"key": key, "value": value} for key, value in found.items()]

        return entries if step.keys else items


def _count(source: _Source) -> int:
    """The number of items in the next block; the block's size in bytes, if there is one, is passed over."""
    count = source.number()
    if count < 0:
        source.number()
        if count == -(1 << 63):
            raise RefusedRecord(_ENDS)
    return abs(count)


def _null(_source: _Source) -> None:
    return None


def _failing(step: FailingStep) -> _Read:
    def fail(_source: _Source) -> Any:
        raise RefusedRecord(step.reason)

    return fail


def _scalar(step: ScalarStep) -> _Read:
    if step.decimal is not None:
        return _decimal(step)
    if step.kind == "enum":
        return _symbol(step)
    if step.kind == "fixed":
        return lambda source: source.taken(step.size)
    if step.kind in {"bytes", "string"}:
        return _text if step.target == "string" else _bytes
    return _number(step) if step.kind in {"int", "long"} else _REALS[step.kind]


def _number(step: ScalarStep) -> _Read:
    factor, target = step.factor, step.target
    if target == "double":
        return lambda source: float(source.number())
    if target == "float":
        return lambda source: float(np.float32(np.int64(source.number())))
    if target == "int":
        return _int
    if factor == 1:
        return _Source.number
    if factor < 0:
        return lambda source: source.number() // -factor

    def instant(source: _Source) -> int:
        number = source.number()
        if abs(number) > MAX_MILLISECONDS:
            raise _UnfitValue("a time that is too far from 1970")
        return number * factor

    return instant


def _int(source: _Source) -> int:
    number = source.number()
    if not -(1 << 31) <= number < 1 << 31:
        raise RefusedRecord("has an int of more than 32 bits")
    return number


def _real(source: _Source) -> float:
    found: float = _FLOAT.unpack(source.taken(4))[0]
    return found


def _double(source: _Source) -> float:
    found: float = _DOUBLE.unpack(source.taken(8))[0]
    return found


def _boolean(source: _Source) -> bool:
    [byte] = source.taken(1)
    if byte > 1:
        raise RefusedRecord("has a boolean that is neither 0 nor 1")
    return byte == 1


def _bytes(source: _Source) -> bytes:
    return source.taken(source.number())


def _text(source: _Source) -> str:
    try:
        return str(source.taken(source.number()), "utf-8")
    except UnicodeDecodeError as error:
        raise RefusedRecord("has a string that is not valid UTF-8") from error


_REALS: Final[dict[str, _Read]] = {"boolean": _boolean, "float": _real, "double": _double}


def _symbol(step: ScalarStep) -> _Read:
    texts = step.texts

    def symbol(source: _Source) -> str:
        number = source.number()
        if not 0 <= number < len(texts):
            raise RefusedRecord(_NO_BRANCH)
        text = texts[number]
        if text is None:
            raise RefusedRecord("has a symbol that the table's enum does not have")
        return text

    return symbol


def _decimal(step: ScalarStep) -> _Read:
    wanted, shift, size = step.decimal, step.shift, step.size
    assert wanted is not None

    def decimal(source: _Source) -> Any:
        data = source.taken(size if step.kind == "fixed" else source.number())
        try:
            return decimal_of(data, wanted, shift)
        except ValueError as error:
            raise _UnfitValue(str(error)) from error

    return decimal
