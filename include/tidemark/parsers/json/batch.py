"""JSON: a block of values at once with Arrow's reader; a block with a bad row is halved until the row is found.

Arrow accepts only values that :mod:`tidemark.parsers.json.document` accepts, with the same result. Values that Arrow
refuses or might read differently are left to that module, which decides and gives the reason. So rows may share a block
with any others. Arrow reads neither the text of a part of a document nor that of a number: :class:`PartQuotes` first
quotes the parts for columns of type ``json`` and ``decimal``, so that Arrow reads them as strings.

The values of a block cannot run into one another, because each begins with ``{`` and ends with ``}``, none has a
control character, and there are as many documents as values. A ``}`` at a value's end is never within a string, which
could not continue over the line's end, and within an object or list no ``{`` may follow it. So each value starts a new
document, and none holds two.

A key is unknown if it stands in an object on a column's path, and no path continues with it; its value, null too, does
not matter. Arrow first reads a block so that such a key is an error. If it meets one it reads the block again and
passes over them, and pydantic's reader counts all keys of the block's rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import IO, Any, Final, Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray
from pydantic_core import from_json

from tidemark.decode.jit import BOOLEANS, READ_ONLY_BYTES, READ_ONLY_INT32, helper, kernel
from tidemark.decode.schema import array
from tidemark.parsers.base import Indices, Parsed, bisected, blocks, bounds, event_time_of, joined, nulled, valid_rows
from tidemark.parsers.confluent_framing import framed_values, unframed
from tidemark.parsers.json.document import MAX_DEPTH, Document, column_value, document, read
from tidemark.parsers.json.parts_kernel import DECIMAL, JSON_TEXT, KEY_WIDTH, quote_parts
from tidemark.parsers.row_parser import RefusedRecord
from tidemark.parsers.settings import JsonColumn, JsonParser
from tidemark.parsers.type_conversion import arrow_type, converted, raw_type
from tidemark.parsers.unknown_fields import field_name, summed

_SMALLEST: Final = 8
"""The most rows of a failing block that are not worth halving."""

_DOCUMENTS: Final = 512
"""The most documents that are Python objects at a time while their keys are counted."""

_UNEXPECTED: Final = "unexpected field"
"""Arrow's words for a key that is not in the schema. With other words, blocks would be read row by row."""

_SPACE: Final = 0x20
_BRACE: Final = ord("{")
_BRACE_BIT: Final = ord("{") ^ ord("[")
_N, _SMALL_A, _I, _SMALL_N = b"NaIn"
_QUOTE, _BACKSLASH = b'"\\'

_Keys = Mapping[str, "_Keys | None"]
"""The keys of an object on columns' paths; below each the keys there, or None if a column takes the whole value."""

LARGEST_QUOTED: Final = 1 << 20
"""The most bytes of a document: quoting it takes up to three times as much again. Larger ones are read row by row."""

_QuoteTree = dict[str, "int | _QuoteTree"]

_QUOTED_KINDS: Final[Mapping[str, int]] = {"json": JSON_TEXT, "decimal": DECIMAL}


class _Block(NamedTuple):
    """Columns of their raw types, a row for each value at ``rows``; and the rows that may have unknown keys."""

    rows: Indices
    columns: pa.RecordBatch
    surprising: Indices


class JsonColumns:
    """The parser of kind ``json``."""

    version: Final = "json/1"

    def __init__(self, settings: JsonParser) -> None:
        self._settings = settings
        self._types = [column.parsed_type for column in settings.columns]
        named = list(zip((column.name for column in settings.columns), self._types, strict=True))
        self.columns: pa.Schema = pa.schema([pa.field(name, arrow_type(kind)) for name, kind in named])
        self._raw: pa.Schema = pa.schema([pa.field(name, raw_type(kind)) for name, kind in named])
        self._quotes = PartQuotes(settings.columns)
        self._vectorised = not any(kind.element and kind.leaf.name == "json" for kind in self._types)
        tree = _tree(zip((column.keys for column in settings.columns), self._raw.types, strict=True))
        self._explicit = pa.schema(_fields(tree))
        self._keys = _keys(tree)
        self._lands = settings.misfits == "land"

    def parse(self, rows: pa.RecordBatch, *, vectorised: bool = True) -> Parsed:
        """Parse the values, in blocks if possible; one that does not match the settings is refused with the reason."""
        values = rows.column(f"kafka_{self._settings.columns_from}")
        refused: dict[int, str] = {}
        if self._settings.framing == "confluent":
            values, refused = unframed(framed_values(rows, self._settings.columns_from))
        misfits: dict[int, set[str]] = {}
        given = np.flatnonzero(valid_rows(values))
        odd = _odd(values)[given] if vectorised and self._vectorised else np.ones(len(given), np.bool_)
        if self._quotes.any:
            odd |= np.diff(bounds(values)[0])[given] > LARGEST_QUOTED
        blocks = []
        for wanted in _cut(values, given[~odd]):
            blocks += self._block(values, wanted, refused, misfits)
        blocks += [self._slow(values, wanted, refused, misfits) for wanted in _cut(values, given[odd])]
        raw = joined([(block.rows, block.columns) for block in blocks], len(values), self._raw)
        made = self._convert(raw, given, refused, misfits)
        unknown = self._unknown(values, (block.surprising for block in blocks), refused)
        if misfits:
            unknown = summed((unknown, Counter(name for row in misfits.keys() - refused for name in misfits[row])))
        return Parsed(made, refused, None, event_time_of(made, self._settings.event_time), unknown)

    def _block(
        self, values: pa.Array[Any], wanted: Indices, refused: dict[int, str], misfits: dict[int, set[str]]
    ) -> list[_Block]:
        chosen = values if len(wanted) == len(values) else values.take(array(pa.int64(), wanted))
        left: list[_Block] = []
        if self._quotes.any:
            chosen, odd = self._quotes.quoted(chosen)
            if odd.any():
                left = [self._slow(values, wanted[odd], refused, misfits)]
                wanted, chosen = wanted[~odd], chosen.take(array(pa.int64(), np.flatnonzero(~odd)))
        pieces = bisected(
            len(wanted),
            lambda start, end: self._read(wanted[start:end], chosen.slice(start, end - start)),
            lambda row: self._slow(values, wanted[row : row + 1], refused, misfits),
            smallest=_SMALLEST,
        )
        return [*left, *(made for _, _, made in pieces)]

    def _read(self, rows: Indices, values: pa.Array[Any]) -> _Block:
        """Read ``values``, which lie at ``rows``, as one block. Raises ValueError if any of them is bad."""
        lines = _lines(values)
        surprising = rows[:0]
        try:
            table = self._table(lines, "error")
        except ValueError as error:
            if _UNEXPECTED not in str(error):
                raise
            table = self._table(lines, "ignore")
            surprising = rows
        if table.num_rows != len(values):
            raise ValueError(f"{len(values)} values hold {table.num_rows} documents")
        columns = [self._column(table, column) for column in self._settings.columns]
        return _Block(rows, pa.RecordBatch.from_arrays(columns, schema=self._raw), surprising)

    def _table(self, lines: pa.Buffer, unexpected: Literal["error", "ignore"]) -> pa.Table:
        try:
            return pj.read_json(
                cast("IO[bytes]", pa.BufferReader(lines)),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(lines) + 1),
                parse_options=pj.ParseOptions(explicit_schema=self._explicit, unexpected_field_behavior=unexpected),
            )
        except pa.ArrowMemoryError:
            raise
        except pa.ArrowException as error:
            raise ValueError(str(error)) from error

    @staticmethod
    def _column(table: pa.Table, column: JsonColumn) -> pa.Array[Any]:
        name, *inner = column.keys
        part: Any = table.column(name).combine_chunks()
        for key in inner:
            part = pc.struct_field(part, [part.type.get_field_index(key)])
        return part.combine_chunks() if isinstance(part, pa.ChunkedArray) else part

    def _slow(
        self, values: pa.Array[Any], wanted: Indices, refused: dict[int, str], misfits: dict[int, set[str]]
    ) -> _Block:
        columns: list[list[Any]] = [[] for _ in self._types]
        kept: list[int] = []
        surprising: list[int] = []
        for row in wanted.tolist():
            try:
                parsed = read(values[row].as_py())
                made = self._row(parsed, misfits.setdefault(row, set()) if self._lands else None)
            except RefusedRecord as error:
                refused[row] = str(error)
                continue
            kept.append(row)
            if not _all_known(parsed.root, self._keys):
                surprising.append(row)
            for column, value in zip(columns, made, strict=True):
                column.append(value)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._raw, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._raw)
        return _Block(np.array(kept, np.int64), batch, np.array(surprising, np.int64))

    def _row(self, parsed: Document, misfits: set[str] | None) -> list[Any]:
        """The values of all columns. A value of another type refuses the row, or is null and in ``misfits``."""
        made: list[Any] = []
        for column, kind in zip(self._settings.columns, self._types, strict=True):
            try:
                made.append(column_value(parsed, column.keys, kind, column.name))
            except RefusedRecord:
                if misfits is None:
                    raise
                misfits.add(field_name(*column.keys))
                made.append(None)
        return made

    def _convert(
        self, raw: pa.RecordBatch, given: Indices, refused: dict[int, str], misfits: dict[int, set[str]]
    ) -> pa.RecordBatch:
        """The declared types; a value that does not fit, or is missing, refuses its row, unless misfits land."""
        columns = []
        judged = np.zeros(len(raw), np.bool_)
        judged[given] = True
        judged[list(refused)] = False
        for raw_column, kind, column in zip(raw.columns, self._types, self._settings.columns, strict=True):
            fitted, bad = converted(raw_column, kind)
            columns.append(fitted)
            for row in bad.tolist():
                if self._lands:
                    misfits.setdefault(row, set()).add(field_name(*column.keys))
                else:
                    refused.setdefault(row, f"{column.name}: a value that is not a {column.type}")
            if column.required:
                for row in np.flatnonzero(judged & ~valid_rows(fitted if self._lands else raw_column)).tolist():
                    refused.setdefault(row, f"{column.name}: is required, and missing or null")
        made = pa.RecordBatch.from_arrays(columns, schema=self.columns)
        landing = np.ones(len(made), np.bool_)
        landing[list(refused)] = False
        return nulled(made, landing) if refused else made

    def _unknown(self, values: pa.Array[Any], blocks: Iterable[Indices], refused: dict[int, str]) -> dict[str, int]:
        """The unknown keys of the readable rows in ``blocks``, except for rows that are refused."""
        kept = np.ones(len(values), np.bool_)
        kept[list(refused)] = False
        pieces: Iterable[Any] = (
            values.take(array(pa.int64(), rows[first : first + _DOCUMENTS]))
            for rows in (rows[kept[rows]] for rows in blocks)
            for first in range(0, len(rows), _DOCUMENTS)
        )
        return summed(_unknown_keys([_document(block) for block in piece.to_pylist()], self._keys) for piece in pieces)


def _document(value: bytes) -> dict[str, Any]:
    """The document in a valid ``value``; its numbers may be rounded."""
    try:
        parsed: dict[str, Any] = from_json(value, cache_strings="keys")
    except ValueError:
        return document(value)  # it reads half a surrogate pair, numbers of any length, and a byte-order mark
    return parsed


def _all_known(value: Any, known: _Keys) -> bool:
    """True if ``value`` is no object, or if it and the objects within it have no unknown key."""
    if not isinstance(value, dict):
        return True
    inner = ((key, below) for key, below in known.items() if below is not None)
    return value.keys() <= known.keys() and all(_all_known(value.get(key), below) for key, below in inner)


def _unknown_keys(documents: Sequence[dict[str, Any]], known: _Keys, *path: str) -> dict[str, int]:
    """The number of ``documents``, all under ``path``, that have each key that is not ``known``, by its name."""
    counts = Counter(chain.from_iterable(documents))
    unknown: Counter[str] = Counter()
    for key in counts.keys() - known.keys():
        unknown[field_name(*path, key)] += counts[key]
    for key, inner in known.items():
        if inner is not None and key in counts:
            within = [part[key] for part in documents if isinstance(part.get(key), dict)]
            unknown.update(_unknown_keys(within, inner, *path, key))
    return unknown


def _tree(ends: Iterable[tuple[tuple[str, ...], Any]]) -> dict[str, Any]:
    """The keys of nested objects from their paths, and what is at the end of each."""
    tree: dict[str, Any] = {}
    for (*outer, last), end in ends:
        at = tree
        for key in outer:
            at = at.setdefault(key, {})
        at[last] = end
    return tree


def _keys(tree: Mapping[str, Any]) -> _Keys:
    return {key: _keys(below) if isinstance(below, dict) else None for key, below in tree.items()}


def _fields(tree: dict[str, Any]) -> list[pa.Field[Any]]:
    return [
        pa.field(key, pa.struct(_fields(below)) if isinstance(below, dict) else below) for key, below in tree.items()
    ]


def _odd(values: pa.Array[Any]) -> NDArray[np.bool_]:
    """Values better read alone: no ``{...}``, with control characters, with NaN or Infinity, maybe very deep."""
    starts, data = bounds(values)
    sizes = np.diff(starts)
    odd = sizes < 2
    plain = ~odd
    odd[plain] = (data[starts[:-1][plain]] != ord("{")) | (data[starts[1:][plain] - 1] != ord("}"))
    _mark(starts, data, odd)
    return odd


@kernel(READ_ONLY_INT32, READ_ONLY_BYTES, BOOLEANS)
def _mark(starts: NDArray[np.int32], data: NDArray[np.uint8], odd: NDArray[np.bool_]) -> None:
    """Mark the values with a control character, a constant, or more than MAX_DEPTH opening brackets."""
    for row in range(len(odd)):
        opened = 0
        control = constant = False
        before = np.uint8(0)
        for at in range(starts[row], starts[row + 1]):
            byte = data[at]
            control |= byte < _SPACE
            opened += (byte | _BRACE_BIT) == _BRACE
            constant |= (before == _N and byte == _SMALL_A) or (before == _I and byte == _SMALL_N)
            before = byte
        odd[row] |= control or opened > MAX_DEPTH or (constant and _has_constant(data, starts[row], starts[row + 1]))


@helper
def _has_constant(data: NDArray[np.uint8], at: int, end: int) -> bool:
    """True if an ``N`` or ``I`` stands outside of strings, as in NaN and Infinity.

    A string ends with the first quote that no backslash escapes; this holds for every string that Arrow accepts.
    """
    quoted = False
    while at < end:
        byte = data[at]
        if byte == _QUOTE:
            quoted = not quoted
        elif quoted and byte == _BACKSLASH:
            at += 1
        elif not quoted and byte in (_N, _I):
            return True
        at += 1
    return False


def _cut(values: pa.Array[Any], wanted: Indices) -> list[Indices]:
    """The rows ``wanted``, in blocks."""
    starts, _ = bounds(values)
    return [wanted[first:end] for first, end in blocks(starts[wanted + 1] - starts[wanted])]


def _lines(values: pa.Array[Any]) -> pa.Buffer:
    """The values, a line each. Raises ValueError if they are not UTF-8."""
    texts = values.cast(pa.string())
    joined: Any = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), "\n")
    data: pa.Buffer = joined[0].as_buffer()
    return data


class PartQuotes:
    """Quotes the parts for the columns of type ``json`` and ``decimal``."""

    def __init__(self, columns: tuple[JsonColumn, ...]) -> None:
        kinds = ((column.keys, _QUOTED_KINDS.get(column.parsed_type.leaf.name)) for column in columns)
        tree: _QuoteTree = _tree((keys, kind) for keys, kind in kinds if kind is not None)
        self.any = bool(tree)
        names = bytearray()
        nodes: list[list[tuple[int, int, int]]] = []
        _number_trees(tree, names, nodes)
        self._names = np.frombuffer(bytes(names), np.uint8)
        self._first = np.cumsum([0, *map(len, nodes)], dtype=np.int64)
        self._keys = np.array([key for node in nodes for key in node], np.int64).reshape(-1, KEY_WIDTH)

    def quoted(self, values: pa.Array[Any]) -> tuple[pa.Array[Any], NDArray[np.bool_]]:
        """Quote the parts in ``values``, documents without control characters and of at most MAX_DEPTH levels.

        The mask is of odd ones, which are empty in the answer, and must be read in another way.
        """
        starts, data = bounds(values)
        odd = np.zeros(len(values), np.bool_)
        made = np.empty(2 * (int(starts[-1]) - int(starts[0])), np.uint8)
        made_starts = np.empty(len(values) + 1, np.int64)
        quote_parts(starts, data, self._names, self._first, self._keys, made, made_starts, odd)
        offsets = pa.py_buffer(made_starts.astype(np.int32).data)
        return pa.Array.from_buffers(pa.binary(), len(values), [None, offsets, pa.py_buffer(made.data)]), odd


def _number_trees(tree: _QuoteTree, names: bytearray, nodes: list[list[tuple[int, int, int]]]) -> int:
    """Give ``tree`` and the trees below it their numbers in ``nodes``; return its own."""
    node: list[tuple[int, int, int]] = []
    nodes.append(node)
    number = len(nodes) - 1
    for key, below in tree.items():
        start = len(names)
        names += key.encode()
        end = len(names)
        node.append((start, end, below if isinstance(below, int) else _number_trees(below, names, nodes)))
    return number
