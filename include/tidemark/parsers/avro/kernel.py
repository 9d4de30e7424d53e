"""The compiled loop that reads Avro records: a program with one operation for each value in the writer's schema.

The loop reads a record exactly as the interpreter does, or leaves it to that: damaged bytes, and valid but unusual
values, such as a decimal of more than eight bytes.

Source: Avro's specification, "Binary encoding".
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tidemark.decode.jit import BOOLEANS, NUMBER_ROWS, NUMBERS, READ_ONLY_BYTES, helper, kernel, load_u64
from tidemark.decode.schema import MAX_MILLISECONDS
from tidemark.decode.wire import is_utf8, varint
from tidemark.parsers.base import Bits, Indices
from tidemark.parsers.slots import NO_LEVEL, SLOTS, Slots, bytes_slot, put, put_nulls, same_bytes

END = 0
LONG = 1
INT = 2
DOUBLE = 3
FLOAT = 4
BOOLEAN = 5
STRING = 6
BYTES = 7
FIXED = 8
"""Argument: its size."""
ENUM = 9
"""Argument: the number of symbols."""
MILLIS = 10
DECIMAL = 11
"""Argument: 10 to the power of its precision, or 0 if any number of eight bytes fits."""
FIXED_DECIMAL = 12
"""Arguments: the same, and its size."""
UNION = 13
"""Arguments: the branch of null or -1, that of the value or -1, columns of the value, the operation after it."""
STRUCT = 14
ARRAY = 15
"""Arguments: the level of the items or -1, and the operation NEXT of this array; the items' first one follows."""
NEXT = 16
"""Arguments: those of the array."""
KEY = 17
"""Like STRING, but all keys of a map differ."""
NULLS = 18
"""Argument: the number of columns that are null."""
CONSTANT = 19
"""Argument: the slot's value."""
LONG_TO_DOUBLE = 20
LONG_TO_FLOAT = 21
FLOAT_TO_DOUBLE = 22
NANOS = 23
CHOICE = 24
"""Like UNION, but with any branches. Argument: their number; as many operations JUMP follow, one for each."""
JUMP = 25
"""Argument: the next operation."""
SYMBOL = 26
"""Like ENUM; as many operations JUMP follow, whose argument is the slot's value, or -1 for a symbol without a text."""
FAIL = 27

CODE, COLUMN, ARGUMENT = range(3)
"""Entries of an operation: its code, its column or -1 if no column takes the value, and its first argument."""

SIZE = 3
"""Further entry of FIXED_DECIMAL."""
VALUE_BRANCH, VALUE_COLUMNS, AFTER = range(3, 6)
"""Further entries of UNION."""
AT_NEXT = 3
"""Further entry of ARRAY."""

WIDTH: Final = 6
"""Width of an operation; what it does not use is 0."""

OUTER_POSITION, OUTER_LEVEL, FIRST_OPERATION, LEFT, FIRST_POSITION = range(5)
"""Entries of a list that is being read: position and level around it, its items' first operation, the number of items
left in the block, and the position of the first item."""

FRAME_WIDTH: Final = 5

_MAX_KEYS = 64
_MAX_SHORT = 8
_MIN_INT64 = -(1 << 63)
_MIN_INT32 = -(1 << 31)
_MAX_INT32 = (1 << 31) - 1


@kernel(READ_ONLY_BYTES, NUMBERS, NUMBERS, NUMBER_ROWS, NUMBER_ROWS, NUMBERS, SLOTS, BOOLEANS)
def read_records(
    data: NDArray[np.uint8],
    starts: Indices,
    ends: Indices,
    program: NDArray[np.int64],
    frames: NDArray[np.int64],
    before: Indices,
    slots: Slots,
    good: Bits,
) -> int:
    """Run the loop of a program; a :data:`~tidemark.parsers.slots.Loop` with memory for frames and for lengths."""
    slots.lengths[:] = 0
    for row in range(len(starts)):
        before[:] = slots.lengths
        slots.lengths[0] += 1
        result: int = _read_record(data, starts[row], ends[row], program, frames, slots)
        if result >= 0:
            return result
        good[row] = result == _READ
        if result != _READ:
            slots.lengths[:] = before
    return NO_LEVEL


_READ = -1
_UNREAD = -2


@helper
def _read_record(  # noqa: C901  # one loop: numba pays for state that goes through calls
    data: NDArray[np.uint8], at: int, end: int, program: NDArray[np.int64], frames: NDArray[np.int64], slots: Slots
) -> int:
    """Read a record: _READ, _UNREAD, or the level that is too short."""
    place = 0
    depth = 0
    level = 0
    position = slots.lengths[0] - 1
    here = slots.starts[0] + position
    stride = slots.strides[0]
    while True:
        operation = program[place, CODE]
        column = program[place, COLUMN]
        argument = program[place, ARGUMENT]
        place += 1
        value = 0
        if operation in (LONG, INT, ENUM, MILLIS, LONG_TO_DOUBLE, LONG_TO_FLOAT, NANOS, SYMBOL):
            value, at = varint(data, at, end, 10)
            if at < 0:
                return _UNREAD
            if operation == INT and (value < _MIN_INT32 or value > _MAX_INT32):
                return _UNREAD
            if operation == ENUM:
                value += 1
                if value < 1 or value > argument:
                    return _UNREAD
            if operation == MILLIS:
                if value < -MAX_MILLISECONDS or value > MAX_MILLISECONDS:
                    return _UNREAD
                value *= 1000
            elif operation == NANOS:
                value //= 1000
            elif operation == LONG_TO_DOUBLE:
                value = int(np.float64(value).view(np.int64))
            elif operation == LONG_TO_FLOAT:
                value = int(np.float32(value).view(np.uint32))
            elif operation == SYMBOL:
                if value < 0 or value >= argument:
                    return _UNREAD
                value = program[place + value, ARGUMENT]
                if value < 0:
                    return _UNREAD
                place += argument
        elif operation in (STRING, BYTES, KEY):
            size, at = varint(data, at, end, 10)
            if at < 0 or size < 0 or size > end - at:
                return _UNREAD
            if operation != BYTES and not is_utf8(data, at, at + size):
                return _UNREAD
            value = bytes_slot(at, size)
            at += size
            if operation == KEY and column >= 0:
                first = here - position + frames[depth - 1, FIRST_POSITION] + column * stride
                last = here + column * stride
                if last - first > _MAX_KEYS:
                    return _UNREAD
                for other in range(first, last):
                    if same_bytes(data, slots.values[other], value):
                        return _UNREAD
        elif operation == UNION:
            branch, at = varint(data, at, end, 10)
            if at < 0 or branch < 0 or (branch != argument and branch != program[place - 1, VALUE_BRANCH]):
                return _UNREAD
            if branch == argument:
                if column >= 0:
                    put_nulls(slots, here + column * stride, stride, program[place - 1, VALUE_COLUMNS])
                place = program[place - 1, AFTER]
            continue
        elif operation == DOUBLE:
            if end - at < 8:
                return _UNREAD
            value = int(np.int64(load_u64(data, at)))
            at += 8
        elif operation == BOOLEAN:
            if end - at < 1 or data[at] > 1:
                return _UNREAD
            value = int(np.int64(data[at]))
            at += 1
        elif operation in (FLOAT, FLOAT_TO_DOUBLE):
            if end - at < 4:
                return _UNREAD
            for index in range(3, -1, -1):
                value = (value << 8) | data[at + index]
            at += 4
            if operation == FLOAT_TO_DOUBLE:
                value = int(np.float64(np.uint32(value).view(np.float32)).view(np.int64))
        elif operation == FIXED:
            if argument > end - at:
                return _UNREAD
            value = bytes_slot(at, argument)
            at += argument
        elif operation in (DECIMAL, FIXED_DECIMAL):
            size = program[place - 1, SIZE]
            if operation == DECIMAL:
                size, at = varint(data, at, end, 10)
            if at < 0 or size < 0 or size > end - at or size > _MAX_SHORT:
                return _UNREAD
            if size > 0 and data[at] > 0x7F:
                value = -1
            for index in range(size):
                value = (value << 8) | data[at + index]
            at += size
            if argument > 0 and (value >= argument or value <= -argument):
                return _UNREAD
        elif operation == NULLS:
            put_nulls(slots, here + column * stride, stride, argument)
            continue
        elif operation == ARRAY:
            frames[depth, OUTER_POSITION] = position
            frames[depth, OUTER_LEVEL] = level
            frames[depth, FIRST_OPERATION] = place
            frames[depth, LEFT] = 0
            frames[depth, FIRST_POSITION] = slots.lengths[argument] if argument >= 0 else 0
            depth += 1
            place = program[place - 1, AT_NEXT]
            continue
        elif operation == NEXT:
            left = frames[depth - 1, LEFT]
            if left == 0:
                left, at = varint(data, at, end, 10)
                if at < 0 or left == _MIN_INT64:
                    return _UNREAD
                if left < 0:
                    _, at = varint(data, at, end, 10)  # the block's size
                    if at < 0:
                        return _UNREAD
                    left = -left
            if left == 0:
                depth -= 1
                position = frames[depth, OUTER_POSITION]
                level = frames[depth, OUTER_LEVEL]
                here = slots.starts[level] + position
                stride = slots.strides[level]
                if column < 0:
                    continue
                value = int(slots.lengths[argument])
            else:
                frames[depth - 1, LEFT] = left - 1
                place = frames[depth - 1, FIRST_OPERATION]
                if argument >= 0:
                    if slots.lengths[argument] == slots.strides[argument]:
                        return int(argument)
                    level = argument
                    position = slots.lengths[level]
                    slots.lengths[level] += 1
                    here = slots.starts[level] + position
                    stride = slots.strides[level]
                continue
        elif operation == END:
            return _READ if at == end else _UNREAD
        elif operation == CONSTANT:
            value = argument
        elif operation == JUMP:
            place = argument
            continue
        elif operation == CHOICE:
            branch, at = varint(data, at, end, 10)
            if at < 0 or branch < 0 or branch >= argument:
                return _UNREAD
            place = program[place + branch, ARGUMENT]
            continue
        elif operation == FAIL:
            return _UNREAD
        # STRUCT is left; its slot has nothing.
        if column >= 0:
            put(slots, here + column * stride, value)
