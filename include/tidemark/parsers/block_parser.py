"""Parsers with two readers: a compiled loop for whole blocks of values, and a library for each value that is left.

The loop reads a value only as the library would, and leaves all others to it; so it does not matter which rows share a
block, and the library alone says why a record is refused.
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
"""Rows for which the loop is worth calling."""


class Group(NamedTuple):
    """Rows whose values one loop reads, and how many bytes of each come before what it reads."""

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
    """Read binary ``values``: what no reader of ``groups`` has read, and is not null, by ``read_rows``."""
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
        found = read_rows(values if len(rows) == len(values) else values.take(array(pa.int64(), rows)))
        refused = {int(rows[row]): reason for row, reason in found.refused.items()}
        blocks.append((rows, found.columns))
        unknown.append(found.unknown)
    batch = joined(blocks, len(values), columns)
    return Parsed(batch, refused, None, event_time_of(batch, event_time), summed(unknown))
