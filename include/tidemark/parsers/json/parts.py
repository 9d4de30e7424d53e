"""Quotes the parts of a document that become text columns, so that Arrow reads them as strings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.parsers.base import bounds
from tidemark.parsers.json.parts_kernel import DECIMAL, JSON_TEXT, KEY_WIDTH, quote_parts
from tidemark.parsers.settings import JsonColumn

LARGEST: Final = 1 << 20
"""The most bytes of a document: quoting it takes up to three times as much again. Larger ones are read row by row."""

_Tree = dict[str, "int | _Tree"]


class Quoted(NamedTuple):
    """The documents with their parts quoted; an ``odd`` one is empty, and must be read in another way."""

    values: pa.Array[Any]
    odd: NDArray[np.bool_]


class PartQuotes:
    """Quotes the parts for the columns of type ``json`` and ``decimal``."""

    def __init__(self, columns: tuple[JsonColumn, ...]) -> None:
        tree: _Tree = {}
        for column in columns:
            kind = _KINDS.get(column.parsed_type.leaf.name)
            if kind is not None:
                _put(tree, column.keys, kind)
        self.any = bool(tree)
        names = bytearray()
        nodes: list[list[tuple[int, int, int]]] = []
        _number(tree, names, nodes)
        self._names = np.frombuffer(bytes(names), np.uint8)
        self._first = np.cumsum([0, *map(len, nodes)], dtype=np.int64)
        self._keys = np.array([key for node in nodes for key in node], np.int64).reshape(-1, KEY_WIDTH)

    def quoted(self, values: pa.Array[Any]) -> Quoted:
        """Quote the parts in ``values``, documents without control characters and of at most MAX_DEPTH levels."""
        starts, data = bounds(values)
        odd = np.zeros(len(values), np.bool_)
        made = np.empty(2 * (int(starts[-1]) - int(starts[0])), np.uint8)
        made_starts = np.empty(len(values) + 1, np.int64)
        quote_parts(starts, data, self._names, self._first, self._keys, made, made_starts, odd)
        offsets = pa.py_buffer(made_starts.astype(np.int32).data)
        return Quoted(pa.Array.from_buffers(pa.binary(), len(values), [None, offsets, pa.py_buffer(made.data)]), odd)


_KINDS: Final[Mapping[str, int]] = {"json": JSON_TEXT, "decimal": DECIMAL}


def _put(tree: _Tree, keys: tuple[str, ...], kind: int) -> None:
    *outer, last = keys
    for key in outer:
        inner = tree.setdefault(key, {})
        assert isinstance(inner, dict)
        tree = inner
    tree[last] = kind


def _number(tree: _Tree, names: bytearray, nodes: list[list[tuple[int, int, int]]]) -> int:
    """Give ``tree`` and the trees below it their numbers in ``nodes``; return its own."""
    node: list[tuple[int, int, int]] = []
    nodes.append(node)
    number = len(nodes) - 1
    for key, below in tree.items():
        start = len(names)
        names += key.encode()
        end = len(names)
        node.append((start, end, below if isinstance(below, int) else _number(below, names, nodes)))
    return number
