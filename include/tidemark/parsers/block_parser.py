"""Parsers with two readers: a compiled loop for whole blocks of values, and a library for each value that is left.

The loop reads a value only as the library would, and leaves all others to it. So rows may share a block with any
others, and the library alone gives the reason for a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidemark.decode.schema import array
from tidemark.parsers.base import Indices, Parsed, event_time_of, joined
from tidemark.parsers.row_parser import RowsRead
from tidemark.parsers.settings import EventTime
from tidemark.parsers.slots import BlockReader, value_places
from tidemark.parsers.unknown_fields import summed

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
    read_rows: Callable[[pa.Array[Any]], RowsRead],
    columns: pa.Schema,
    event_time: EventTime | None,
) -> Parsed:
    """Read binary ``values``: the readers of ``groups`` first, then ``read_rows`` all that is left and not null."""
    data, starts, ends = value_places(values)
    left = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_).copy()
    blocks = []
    unknown: list[Mapping[str, int]] = []
    for group in groups:
        rows = group.rows[left[group.rows]]
        if len(rows) >= FEWEST:
            for block in group.reader.read(data, starts[rows] + group.skipped, ends[rows]):
                blocks.append((rows[block.rows], block.columns))
                left[rows[block.rows]] = False
                unknown.append(block.unknown)
    refused: dict[int, str] = {}
    if left.any():
        rows = np.flatnonzero(left)
        read = read_rows(values if len(rows) == len(values) else values.take(array(pa.int64(), rows)))
        refused = {int(rows[row]): reason for row, reason in read.refused.items()}
        blocks.append((rows, read.columns))
        unknown.append(read.unknown)
    batch = joined(blocks, len(values), columns)
    return Parsed(batch, refused, None, event_time_of(batch, event_time), summed(unknown))
