"""Columns that a compiled loop fills row by row, and their conversion to Arrow.

A *level* has a length of its own: the rows are one, and so are the items of each list. Each column belongs to a level,
and has a *slot* of 64 bits and a byte of validity for each row or item of it. A number lies in its slot. Text and bytes
stay in the data: their slot has the place (upper half) and the size (lower half). The slot of a list has the number of
items up to its end; that of a struct has nothing.

The columns of a struct, and of structs within it, follow the struct's own if they are of its level. Within a null
struct they have slots of zero that are valid, as ``pa.array`` makes them of None: zero, no text, an empty list.

A parser has a library, too (:mod:`tidemark.parsers.row_parser`). The loop reads a value only as the library would, and
leaves all others to it (:func:`parse_in_blocks`). So rows may share a block with any others, and the library alone
gives the reason for a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.decode.jit import BYTES, NUMBERS, READ_ONLY_BYTES, copy_bytes, helper, kernel, type_of
from tidemark.decode.schema import array, variable
from tidemark.parsers.base import Bits, Indices, Parsed, blocks, bounds, event_time_of, joined, valid_rows
from tidemark.parsers.row_parser import ParsedRecord, read_rows
from tidemark.parsers.settings import EventTime
from tidemark.parsers.unknown_fields import summed

MAX_SLOTS: Final = 8 << 20
"""The most of a block's columns together, 9 bytes each. A record that needs more by itself is left to the library."""

MAX_COLUMNS: Final = 4096

NO_LEVEL: Final = -1
"""Result of a loop: all levels were long enough."""

_SIZE_BITS = 32
_SIZE = (1 << 32) - 1


class Unsupported(Exception):
    """A schema that no compiled loop reads."""


class Slots(NamedTuple):
    """By level: the start of its first column, slots of a column, and slots in use. Then all columns' slots."""

    starts: Indices
    strides: Indices
    lengths: Indices
    values: Indices
    valid: NDArray[np.uint8]

    @classmethod
    def sized(cls, columns: list[int], lengths: list[int]) -> Slots:
        """Slots for these numbers of columns, and of slots in a column, by level."""
        sizes = [count * length for count, length in zip(columns, lengths, strict=True)]
        starts = np.cumsum([0, *sizes[:-1]])
        total = sum(sizes)
        used = np.zeros(len(columns), np.int64)
        return cls(starts, np.array(lengths, np.int64), used, np.empty(total, np.int64), np.empty(total, np.uint8))


SLOTS: Final = type_of(Slots.sized([1], [1]))


@dataclass(frozen=True, slots=True)
class Node:
    """A column of the table, or a part of one.

    ``index`` is its place among the columns of its level, ``count`` the number of columns with those within it.
    ``texts`` are an enum's, or the one value of all rows; the slot has the number of a text, and the first is empty. A
    decimal's slot is ``unsigned`` or not. The entries of a list that is ``ordered`` are sorted by their keys.
    """

    type: pa.DataType
    level: int
    index: int
    count: int = 1
    children: tuple[Node, ...] = ()
    texts: pa.Array[Any] | None = None
    unsigned: bool = False
    ordered: bool = False


class Layout:
    """Gives columns their places."""

    def __init__(self) -> None:
        self.columns: list[int] = [0]

    def level(self) -> int:
        """Add a level; return its number."""
        self.columns.append(0)
        return len(self.columns) - 1

    def column(self, level: int) -> int:
        """Add a column to this level; return its index. Raises Unsupported if there are too many."""
        self.columns[level] += 1
        if sum(self.columns) > MAX_COLUMNS:
            raise Unsupported(f"has more than {MAX_COLUMNS} columns")
        return self.columns[level] - 1


Loop = Callable[[NDArray[np.uint8], Indices, Indices, Slots, Bits], int]
"""Reads the values between starts and ends into slots, and marks those that it has read; returns the level that is too
short, or NO_LEVEL. A value that it leaves unmarked has left nothing in the slots."""


class BlockReader:
    """Reads values with a compiled loop, block by block.

    ``unknown`` returns the fields that no column takes in the values of the loop's last call.
    """

    def __init__(
        self,
        layout: Layout,
        columns: tuple[Node, ...],
        schema: pa.Schema,
        loop: Loop,
        unknown: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._layout = layout
        self._columns = columns
        self._schema = schema
        self._loop = loop
        self._unknown = unknown
        self._items = [1] * len(layout.columns)

    def read(
        self, data: NDArray[np.uint8], starts: Indices, ends: Indices
    ) -> Iterator[tuple[Indices, pa.RecordBatch, Mapping[str, int]]]:
        """Read the values between ``starts`` and ``ends``, block by block; values in no block are for another reader.

        A block has the numbers of the values, their columns, and the number of values with each field that no column
        takes.
        """
        waiting = list(reversed(blocks(ends - starts)))
        while waiting:
            first, end = waiting.pop()
            good = np.zeros(end - first, np.bool_)
            slots = self._filled(data, starts[first:end], ends[first:end], good)
            if slots is None:
                if end - first > 1:
                    middle = (first + end) // 2
                    waiting += [(middle, end), (first, middle)]
            elif good.any():
                columns = [_arrow(node, slots, data) for node in self._columns]
                batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
                yield first + np.flatnonzero(good), batch, self._unknown()

    def _filled(self, data: NDArray[np.uint8], starts: Indices, ends: Indices, good: Bits) -> Slots | None:
        """The slots of a block; None if they were too many."""
        rows = len(starts)
        lengths = [rows, *(rows * items for items in self._items[1:])]
        if self._slots(lengths) > MAX_SLOTS:
            lengths = [rows] * len(lengths)
        while self._slots(lengths) <= MAX_SLOTS:
            slots = Slots.sized(self._layout.columns, lengths)
            level = self._loop(data, starts, ends, slots, good)
            if level == NO_LEVEL:
                self._items = [int(2 * used // rows) + 1 for used in slots.lengths]
                return slots
            lengths[level] *= 2
        return None

    def _slots(self, lengths: list[int]) -> int:
        return sum(count * length for count, length in zip(self._layout.columns, lengths, strict=True))


def _arrow(node: Node, slots: Slots, data: NDArray[np.uint8]) -> pa.Array[Any]:
    length = int(slots.lengths[node.level])
    at = int(slots.starts[node.level] + node.index * slots.strides[node.level])
    values = slots.values[at : at + length]
    valid = slots.valid[at : at + length]
    bits = None if valid.all() else np.packbits(valid, bitorder="little")
    kind = node.type
    if node.texts is not None:
        texts: pa.Array[Any] = node.texts.take(array(pa.int64(), values.copy(), bits))
        return texts
    if pa.types.is_struct(kind) or pa.types.is_list(kind):
        return _nested(node, slots, data, values, bits)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        offsets = _offsets(np.cumsum(values & _SIZE))
        copied = np.empty(offsets[-1], np.uint8)
        _copy_all(data, values, copied)
        return variable(kind, offsets, copied, bits)
    return _fixed_width(node, values, bits)


def _nested(
    node: Node, slots: Slots, data: NDArray[np.uint8], values: Indices, bits: NDArray[np.uint8] | None
) -> pa.Array[Any]:
    validity = None if bits is None else pa.py_buffer(bits.data)
    children = [_arrow(child, slots, data) for child in node.children]
    if pa.types.is_struct(node.type):
        return pa.Array.from_buffers(node.type, len(values), [validity], children=children)
    # A list that is empty or null ends with the one before it.
    offsets = _offsets(np.maximum.accumulate(values))
    if node.ordered:
        children = [_by_key(children[0], offsets)]
    return pa.Array.from_buffers(node.type, len(values), [validity, pa.py_buffer(offsets.data)], children=children)


def _offsets(ends: Indices) -> NDArray[np.int32]:
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    return offsets


def _by_key(entries: pa.Array[Any], offsets: NDArray[np.int32]) -> pa.Array[Any]:
    """``entries`` sorted by list and key; the entries between two offsets are in one list."""
    lists = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    columns = [array(pa.int64(), lists), pc.struct_field(entries, [0])]
    order = pc.sort_indices(
        pa.RecordBatch.from_arrays(columns, names=["list", "key"]),
        sort_keys=[("list", "ascending"), ("key", "ascending")],
    )
    ordered: pa.Array[Any] = entries.take(order)
    return ordered


def _fixed_width(node: Node, values: Indices, bits: NDArray[np.uint8] | None) -> pa.Array[Any]:
    kind = node.type
    made: NDArray[Any]
    if pa.types.is_boolean(kind):
        made = np.packbits(values != 0, bitorder="little")
    elif pa.types.is_decimal(kind):
        made = np.empty((len(values), 2), np.int64)
        made[:, 0] = values
        made[:, 1] = 0 if node.unsigned else values >> 63
    elif pa.types.is_float32(kind):
        # By way of a double, like Python's numbers: the bits of NaN show it.
        with np.errstate(invalid="ignore"):
            made = values.astype(np.int32).view(np.float32).astype(np.float64).astype(np.float32)
    else:
        made = values.astype(np.int32) if kind.bit_width == 32 else values.copy()
    validity = None if bits is None else pa.py_buffer(bits.data)
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(cast("Any", made.data))])


@kernel(READ_ONLY_BYTES, NUMBERS, BYTES)
def _copy_all(data: NDArray[np.uint8], values: Indices, copied: NDArray[np.uint8]) -> None:
    """Copy the bytes of the slots ``values``, one after the other."""
    at = 0
    for value in values:
        size = value & _SIZE
        copy_bytes(copied, at, data, value >> _SIZE_BITS, size)
        at += size


@helper
def bytes_slot(at: int, size: int) -> int:
    """The slot of bytes."""
    return (at << _SIZE_BITS) | size


@helper
def same_bytes(data: NDArray[np.uint8], slot: int, other: int) -> bool:
    """True if two slots are of the same bytes."""
    size = slot & _SIZE
    same = size == other & _SIZE
    at = 0
    while same and at < size:
        same = data[(slot >> _SIZE_BITS) + at] == data[(other >> _SIZE_BITS) + at]
        at += 1
    return same


@helper
def put(slots: Slots, at: int, value: int) -> None:
    """Set a slot that is valid."""
    slots.values[at] = value
    slots.valid[at] = 1


@helper
def put_nulls(slots: Slots, at: int, stride: int, count: int) -> None:
    """Make the slot at ``at`` null, and the slots of the other ``count`` - 1 columns within its column empty."""
    slots.values[at] = 0
    slots.valid[at] = 0
    for _ in range(count - 1):
        at += stride
        put(slots, at, 0)


def value_places(values: pa.Array[Any]) -> tuple[NDArray[np.uint8], Indices, Indices]:
    """The bytes of binary ``values``, and the start and end of each value."""
    starts, data = bounds(values)
    places = starts.astype(np.int64)
    return data, places[:-1], places[1:]


FEWEST: Final = 8
"""The fewest rows for which the loop is worth calling."""


class Group(NamedTuple):
    """Rows with values that one loop reads, and the number of bytes at the start of each that it skips."""

    reader: BlockReader
    rows: Indices
    skipped: int


def parse_in_blocks(
    values: pa.Array[Any],
    groups: Iterable[Group],
    read: Callable[[bytes], ParsedRecord],
    columns: pa.Schema,
    event_time: EventTime | None,
) -> Parsed:
    """Read binary ``values``: the readers of ``groups`` first, then ``read``, the library, all that is left."""
    data, starts, ends = value_places(values)
    left = valid_rows(values).copy()
    parts = []
    unknown: list[Mapping[str, int]] = []
    for group in groups:
        rows = group.rows[left[group.rows]]
        if len(rows) >= FEWEST:
            for done, batch, others in group.reader.read(data, starts[rows] + group.skipped, ends[rows]):
                parts.append((rows[done], batch))
                left[rows[done]] = False
                unknown.append(others)
    refused: dict[int, str] = {}
    if left.any():
        rows = np.flatnonzero(left)
        chosen = values if len(rows) == len(values) else values.take(array(pa.int64(), rows))
        batch, wrong, others = read_rows(chosen, read, columns)
        refused = {int(rows[row]): reason for row, reason in wrong.items()}
        parts.append((rows, batch))
        unknown.append(others)
    batch = joined(parts, len(values), columns)
    return Parsed(batch, refused, None, event_time_of(batch, event_time), summed(unknown))
