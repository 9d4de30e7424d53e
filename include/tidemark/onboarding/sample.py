"""A sample of a topic's records: the first and the last of each partition, bounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from tidemark.decode import SCHEMA

COLUMNS: Final = pa.schema(
    [
        SCHEMA.field(name)
        for name in ("kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_key", "kafka_value", "kafka_headers")
    ]
)
"""What is kept of a record: all that parsers read."""

MOST_PARTITIONS: Final = 64
"""That are sampled; of a topic with more, some at equal distances."""

MOST_BYTES: Final = 64 << 20
"""Of keys and values; a sample ends where it has more."""

Source = Literal["raw", "kafka"]


class Span(NamedTuple):
    """Offsets ``[start, end)`` that a partition has."""

    start: int
    end: int


class Sample(NamedTuple):
    """Records of :data:`COLUMNS`, and the offsets that each sampled partition has, of so many ``partitions``."""

    source: Source
    rows: pa.RecordBatch
    spans: Mapping[int, Span]
    partitions: int

    @property
    def values(self) -> list[bytes | None]:
        """The values, None for tombstones."""
        found: list[bytes | None] = self.rows.column("kafka_value").to_pylist()
        return found

    @property
    def size(self) -> int:
        """Bytes of the keys and values."""
        return sum(
            len(one or b"") for name in ("kafka_key", "kafka_value") for one in self.rows.column(name).to_pylist()
        )


def chosen(partitions: Iterable[int], most: int = MOST_PARTITIONS) -> list[int]:
    """The partitions to sample."""
    known = sorted(partitions)
    if len(known) <= most:
        return known
    return [known[number * len(known) // most] for number in range(most)]


def ends(span: Span, count: int) -> list[Span]:
    """Where the first and last records of ``span`` lie, at most ``count`` offsets in all."""
    if span.end - span.start <= count:
        return [span] if span.start < span.end else []
    first, last = (count + 1) // 2, count // 2
    found = [Span(span.start, span.start + first), Span(span.end - last, span.end)]
    return [one for one in found if one.start < one.end]


def rows_of(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of :data:`COLUMNS`; of what comes after MOST_BYTES of keys and values nothing."""
    kept: list[pa.RecordBatch] = []
    size = 0
    for one in batches:
        if size >= MOST_BYTES:
            break
        kept.append(one.select(COLUMNS.names).cast(COLUMNS))
        size += one.column("kafka_value").nbytes + one.column("kafka_key").nbytes
    table = pa.Table.from_batches(kept, COLUMNS).combine_chunks()
    found: list[Any] = table.to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], schema=COLUMNS)
