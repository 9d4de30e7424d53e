"""The compiled loop that reads Protobuf messages, with tables of the fields that each message may hold.

The loop reads a message exactly as Google's library does, or leaves it to that library: damaged bytes, and valid but
unusual values, such as groups, and enum values without a name.

Source: Protobuf's documentation, "Encoding"; and that library for all that it leaves open.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidemark.decode.jit import BOOLEANS, NUMBERS, READ_ONLY_BYTES, helper, kernel, load_u64, type_of
from tidemark.decode.wire import is_utf8, unsigned_varint
from tidemark.parsers.base import Bits, Indices
from tidemark.parsers.slots import NO_LEVEL, SLOTS, Slots, bytes_slot, put, put_nulls, same_bytes

INT64 = 0
INT32 = 1
UINT32 = 2
BOOL = 3
SINT32 = 4
SINT64 = 5
ENUM = 6
"""Its numbers are in ``Tables.enums``."""
FIXED64 = 7
FIXED32 = 8
SFIXED32 = 9
STRING = 10
BYTES = 11
MESSAGE = 12
"""``FIRST`` is its row in ``Tables.messages``."""
TIMESTAMP = 13
WRAPPER = 14
"""``FIRST`` is the kind of its value."""

NUMBER, WIRE, KIND, COLUMN, ITEMS, ITEM, FIRST, COUNT, MEMBERS, MEMBER_COUNT = range(10)
"""Entries of a field: its number and wire type; its kind and column; level and column of its items, or -1; arguments of
its kind; and the columns of its oneof in ``Tables.members``."""

LEVEL, FIELDS, FIELD_COUNT, LOOKUP, LOOKUP_SIZE, INITS, INIT_COUNT, REQUIRED, REQUIRED_COUNT, KEY, KEY_KIND = range(11)
"""Entries of a message: its level; its fields; their places by number, below ``LOOKUP_SIZE``; the beginning of a new
message; its required columns; and for a map's entry, which has column 0 of its level, the column and the kind of its
key, else -1."""

INIT_COLUMN, INIT_SLOT, INIT_NULLS = range(3)
"""Entries of a column's beginning: the column, a slot, and the number of columns that are null instead, or 0."""

OUTER_MESSAGE, OUTER_END = range(2)
"""Entries of a frame: the message around the message that is being read, and its end."""

FIELD_WIDTH: Final = 10
MESSAGE_WIDTH: Final = 11
INIT_WIDTH: Final = 3
FRAME_WIDTH: Final = 2

WHERE, WHICH, ROWS, LAST = range(4)
"""Entries of an unknown field: its message, its number, the number of rows that have it, and the last of them."""

UNKNOWN_WIDTH: Final = 4
MOST_UNKNOWN: Final = 1024
"""Places for unknown fields; a power of two."""

VARINT, EIGHT, LENGTH, _START, _STOP, FOUR = range(6)
"""Wire types."""

_MAX_KEYS = 64
_MAX_TRIES = 64
_LOW = 0xFFFFFFFF
_SIGN = 0x80000000
_MIN_SECONDS = -62_135_596_800
_MAX_SECONDS = 253_402_300_799
_SECONDS_TAG = 8
_NANOS_TAG = 16
_READ = -1
_UNREAD = -2


class Tables(NamedTuple):
    """The fields that messages may hold."""

    messages: NDArray[np.int64]
    fields: NDArray[np.int64]
    lookup: Indices
    inits: NDArray[np.int64]
    members: Indices
    required: Indices
    enums: Indices
    frames: NDArray[np.int64]
    """Memory for the messages around the message that is being read."""
    before: Indices
    """Memory for lengths of levels."""
    unknown: NDArray[np.int64]
    """The fields that were met and that a message may not hold, at places by their hash: the message and the number (0
    at a free place), the number of rows, and the last of these, counted from 1."""


def rows(lists: list[list[int]], width: int) -> NDArray[np.int64]:
    """A table of rows of this width."""
    return np.array(lists, np.int64).reshape(-1, width)


_NONE: Final = np.zeros(0, np.int64)
_NO_ROWS: Final = np.zeros((0, 1), np.int64)
TABLES: Final = type_of(Tables(_NO_ROWS, _NO_ROWS, _NONE, _NO_ROWS, _NONE, _NONE, _NONE, _NO_ROWS, _NONE, _NO_ROWS))


@kernel(READ_ONLY_BYTES, NUMBERS, NUMBERS, TABLES, SLOTS, BOOLEANS)
def read_messages(
    data: NDArray[np.uint8], starts: Indices, ends: Indices, tables: Tables, slots: Slots, good: Bits
) -> int:
    """Run the loop, a :data:`~tidemark.parsers.slots.Loop`, with tables; their first message is that of the values."""
    slots.lengths[:] = 0
    tables.unknown[:] = 0
    for row in range(len(starts)):
        tables.before[:] = slots.lengths
        slots.lengths[0] += 1
        result: int = _read_message(data, starts[row], ends[row], row + 1, tables, slots)
        if result >= 0:
            return result
        good[row] = result == _READ
        if result != _READ:
            slots.lengths[:] = tables.before
            _forget(tables.unknown, row + 1)
    return NO_LEVEL


@helper
def _read_message(  # noqa: C901  # one loop: numba pays for state, and for tuples of arrays, that go through calls
    data: NDArray[np.uint8], at: int, end: int, row: int, tables: Tables, slots: Slots
) -> int:
    """Read a message: _READ, _UNREAD, or the level that is too short. Rows are counted from 1."""
    messages, fields, lookup = tables.messages, tables.fields, tables.lookup
    starts, strides, lengths = slots.starts, slots.strides, slots.lengths
    depth = 0
    message = 0
    here = starts[0] + lengths[0] - 1
    stride = strides[0]
    _begin(messages[message], tables.inits, slots, here, stride)
    while True:
        if at == end:
            must = messages[message, REQUIRED_COUNT] > 0
            if must and _lacks(messages[message], tables.required, slots.valid, here, stride):
                return _UNREAD
            if messages[message, KEY] >= 0:
                first = starts[messages[message, LEVEL]]
                if _is_another(data, messages[message], slots.values, first, here, stride):
                    return _UNREAD
            if depth == 0:
                return _READ
            depth -= 1
            message = tables.frames[depth, OUTER_MESSAGE]
            end = tables.frames[depth, OUTER_END]
            level = messages[message, LEVEL]
            here = starts[level] + lengths[level] - 1
            stride = strides[level]
            continue
        tag, at = _small(data, at, end)
        if at < 0 or tag < 8:
            return _UNREAD
        wire = tag & 7
        if tag >> 3 < messages[message, LOOKUP_SIZE]:
            field = lookup[messages[message, LOOKUP] + (tag >> 3)]
        else:
            field = _find(messages[message], fields, tag >> 3)
        stop = at
        if wire == LENGTH:
            size, at = _small(data, at, end)
            if at < 0 or size > end - at:
                return _UNREAD
            stop = at + size
        if field < 0:
            at = stop if wire == LENGTH else _behind(data, at, end, wire)
            if at < 0 or messages[message, KEY] >= 0 or not _noted(tables.unknown, message, tag >> 3, row):
                return _UNREAD
            continue
        kind = fields[field, KIND]
        column = here + fields[field, COLUMN] * stride
        items = fields[field, ITEMS]
        if wire != fields[field, WIRE]:
            # Packed numbers, or another type, which is an unknown field.
            if wire != LENGTH or items < 0 or fields[field, WIRE] == LENGTH:
                return _UNREAD
            while at < stop:
                value, at = _number(data, at, stop, kind, tables.enums, fields[field, FIRST], fields[field, COUNT])
                if at < 0:
                    return _UNREAD
                if lengths[items] == strides[items]:
                    return int(items)
                put(slots, starts[items] + lengths[items], value)
                lengths[items] += 1
            put(slots, column, lengths[items])
            continue
        place = column
        if items >= 0:
            if lengths[items] == strides[items]:
                return int(items)
            place = starts[items] + lengths[items]
            lengths[items] += 1
            put(slots, column, lengths[items])
        elif fields[field, MEMBER_COUNT] > 0 and _has_another(fields[field], tables.members, slots.valid, here, stride):
            return _UNREAD
        if kind == MESSAGE:
            tables.frames[depth, OUTER_MESSAGE] = message
            tables.frames[depth, OUTER_END] = end
            depth += 1
            message = fields[field, FIRST]
            end = stop
            if items >= 0:
                here = place
                stride = strides[items]
            if items >= 0 or slots.valid[place] == 0:
                # The slot of a struct is free: that of a map's entry identifies the map.
                put(slots, place, column)
                _begin(messages[message], tables.inits, slots, here, stride)
            continue
        value = 0
        if kind in (STRING, BYTES):
            if kind == STRING and not is_utf8(data, at, stop):
                return _UNREAD
            value = bytes_slot(at, stop - at)
            at = stop
        elif kind in (TIMESTAMP, WRAPPER):
            # A message that occurs twice is one message merged from both.
            if items < 0 and slots.valid[column] == 1 and slots.values[column] != 0:
                return _UNREAD
            if kind == TIMESTAMP:
                value, at = _timestamp(data, at, stop)
            else:
                value, at = _wrapped(data, at, stop, fields[field, FIRST], fields[field, COUNT])
        else:
            value, at = _number(data, at, end, kind, tables.enums, fields[field, FIRST], fields[field, COUNT])
        if at < 0:
            return _UNREAD
        put(slots, place, value)


@helper
def _begin(message: Indices, inits: NDArray[np.int64], slots: Slots, here: int, stride: int) -> None:
    """Put the content of a message before its first field."""
    for index in range(message[INITS], message[INITS] + message[INIT_COUNT]):
        column = here + inits[index, INIT_COLUMN] * stride
        if inits[index, INIT_NULLS] > 0:
            put_nulls(slots, column, stride, inits[index, INIT_NULLS])
        else:
            put(slots, column, inits[index, INIT_SLOT])


@helper
def _noted(unknown: NDArray[np.int64], message: int, number: int, row: int) -> bool:
    """Count an unknown field of a row, once; False if there is no place for it."""
    place = (message * 31 + number) & (MOST_UNKNOWN - 1)
    for _ in range(_MAX_TRIES):
        if unknown[place, WHICH] == 0:
            unknown[place, WHERE] = message
            unknown[place, WHICH] = number
        if unknown[place, WHICH] == number and unknown[place, WHERE] == message:
            if unknown[place, LAST] != row:
                unknown[place, LAST] = row
                unknown[place, ROWS] += 1
            return True
        place = (place + 1) & (MOST_UNKNOWN - 1)
    return False


@helper
def _forget(unknown: NDArray[np.int64], row: int) -> None:
    """Undo the counts of a row, which is the last."""
    for place in range(len(unknown)):
        if unknown[place, LAST] == row:
            unknown[place, LAST] = 0
            unknown[place, ROWS] -= 1


@helper
def _lacks(message: Indices, required: Indices, valid: NDArray[np.uint8], here: int, stride: int) -> bool:
    """True if a message lacks a required field."""
    lacking = False
    for index in range(message[REQUIRED], message[REQUIRED] + message[REQUIRED_COUNT]):
        lacking |= valid[here + required[index] * stride] == 0
    return lacking


@helper
def _is_another(data: NDArray[np.uint8], message: Indices, values: Indices, first: int, here: int, stride: int) -> bool:
    """True if a map has another entry with this entry's key, or too many to check; its level begins at ``first``."""
    column = message[KEY] * stride
    key = values[here + column]
    other = here - 1
    while other >= first and values[other] == values[here]:
        value = values[other + column]
        if value == key or (message[KEY_KIND] == STRING and same_bytes(data, value, key)) or here - other > _MAX_KEYS:
            return True
        other -= 1
    return False


@helper
def _find(message: Indices, fields: NDArray[np.int64], number: int) -> int:
    """The field of this number, or -1."""
    field = -1
    for index in range(message[FIELDS], message[FIELDS] + message[FIELD_COUNT]):
        if fields[index, NUMBER] == number:
            field = index
    return field


@helper
def _has_another(field: Indices, members: Indices, valid: NDArray[np.uint8], here: int, stride: int) -> bool:
    """True if another member of the field's oneof is there, which this field would remove."""
    other = False
    for index in range(field[MEMBERS], field[MEMBERS] + field[MEMBER_COUNT]):
        other |= members[index] != field[COLUMN] and valid[here + members[index] * stride] == 1
    return other


@helper
def _small(data: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """(a tag or a length, index after it); the index is -1 if it cannot be read."""
    if at < end and data[at] < 0x80:
        return int(np.int64(data[at])), at + 1
    raw, at = unsigned_varint(data, at, end, 5)
    value = int(np.int64(raw))
    return value, at if value <= _LOW else -1


@helper
def _behind(data: NDArray[np.uint8], at: int, end: int, wire: int) -> int:
    """The index after an unknown field that has no length, or -1."""
    if wire == VARINT:
        _, at = unsigned_varint(data, at, end, 10)
        return at
    size = 8 if wire == EIGHT else 4 if wire == FOUR else end - at + 1
    return at + size if size <= end - at else -1


@helper
def _number(  # noqa: C901  # a line for each kind
    data: NDArray[np.uint8], at: int, end: int, kind: int, enums: Indices, first: int, count: int
) -> tuple[int, int]:
    """(the slot of a number, index after it), for an enum from its numbers; the index is -1 if it cannot be read."""
    value = 0
    if kind == FIXED64:
        if end - at < 8:
            return 0, -1
        return int(np.int64(load_u64(data, at))), at + 8
    if kind in (FIXED32, SFIXED32):
        if end - at < 4:
            return 0, -1
        for index in range(3, -1, -1):
            value = (value << 8) | data[at + index]
        return (_signed(value) if kind == SFIXED32 else value), at + 4
    raw, at = unsigned_varint(data, at, end, 10)
    value = int(np.int64(raw))
    if kind == INT32:
        value = _signed(value)
    elif kind == UINT32:
        value &= _LOW
    elif kind == BOOL:
        value = 1 if value != 0 else 0
    elif kind == SINT32:
        value &= _LOW
        value = (value >> 1) ^ -(value & 1)
    elif kind == SINT64:
        value = int(np.int64(raw >> np.uint64(1))) ^ -(value & 1)
    elif kind == ENUM:
        value = _place(_signed(value), enums, first, count)
        if value < 0:
            at = -1
    return value, at


@helper
def _place(number: int, enums: Indices, first: int, count: int) -> int:
    """The place of a number among an enum's values, counted from 1; -1 if the enum does not have it."""
    if 0 <= number < count and enums[first + number] == number:
        return number + 1
    place = -1
    for index in range(count):
        if enums[first + index] == number:
            place = index + 1
    return place


@helper
def _signed(value: int) -> int:
    """The lower 32 bits as a number with a sign."""
    return ((value & _LOW) ^ _SIGN) - _SIGN


@helper
def _timestamp(data: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """(microseconds of a Timestamp, ``end``); the index is -1 if it cannot be read."""
    seconds = 0
    nanos = 0
    while at < end:
        tag, at = _small(data, at, end)
        raw, at = unsigned_varint(data, at, end, 10)
        if at < 0 or tag not in (_SECONDS_TAG, _NANOS_TAG):
            return 0, -1
        if tag == _SECONDS_TAG:
            seconds = int(np.int64(raw))
        else:
            nanos = _signed(int(np.int64(raw)))
    if seconds < _MIN_SECONDS or seconds > _MAX_SECONDS or nanos < 0 or nanos >= 1_000_000_000:
        return 0, -1
    return seconds * 1_000_000 + nanos // 1000, at


@helper
def _wrapped(data: NDArray[np.uint8], at: int, end: int, kind: int, wire: int) -> tuple[int, int]:
    """(the slot of a wrapper's value, ``end``); the index is -1 if it cannot be read."""
    if at == end:
        return 0, at
    tag, at = _small(data, at, end)
    if at < 0 or tag != 8 | wire:
        return 0, -1
    if wire == LENGTH:
        size, at = _small(data, at, end)
        if at < 0 or size != end - at or (kind == STRING and not is_utf8(data, at, end)):
            return 0, -1
        return bytes_slot(at, size), end
    value, at = _number(data, at, end, kind, _NONE, 0, 0)
    return value, at if at == end else -1
