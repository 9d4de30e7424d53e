"""Kafka's description of a topic.

A sample of a topic's records: the first and the last of each partition, bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from tidemark.brokersets.placement import Replicas
from tidemark.decode import SCHEMA

_SHOWN: Final = (
    *("cleanup.policy", "retention.ms", "retention.bytes", "segment.bytes", "segment.ms", "compression.type"),
    *("message.timestamp.type", "max.message.bytes", "min.insync.replicas"),
)
"""The configuration that matters to ingestion."""

COLUMNS: Final = pa.schema(
    [
        SCHEMA.field(name)
        for name in ("kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_key", "kafka_value", "kafka_headers")
    ]
)
"""The part of a record that is kept: all that parsers read."""

MOST_PARTITIONS: Final = 64
"""The most sampled partitions; of a topic with more, some at equal distances are sampled."""

MOST_BYTES: Final = 64 << 20
"""Bytes of keys and values at which a sample ends."""

Source = Literal["raw", "kafka"]


class TopicFacts(NamedTuple):
    """A topic of a cluster; ``replicas`` by partition, the preferred leader first."""

    topic: str
    replicas: tuple[Replicas, ...]
    internal: bool
    config: Mapping[str, str]

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self.replicas)

    @property
    def replication_factor(self) -> int:
        """The number of replicas of the first partition."""
        return len(self.replicas[0]) if self.replicas else 0

    @property
    def compacted(self) -> bool:
        """True if Kafka removes records that a later one of their key replaces."""
        return "compact" in self.config.get("cleanup.policy", "")

    @property
    def segment_bytes(self) -> int:
        """``segment.bytes``: the size at which a segment is rotated."""
        return int(self.config.get("segment.bytes", 1 << 30))

    @property
    def segment_time(self) -> timedelta:
        """``segment.ms``: the age at which a segment is rotated, at the next append."""
        return _milliseconds(self.config.get("segment.ms", "604800000"))

    @property
    def retention_time(self) -> timedelta | None:
        """``retention.ms``; None for ever."""
        setting = self.config.get("retention.ms", "-1")
        return None if setting == "-1" else _milliseconds(setting)

    def answer(self) -> dict[str, Any]:
        """The facts for programs."""
        return {
            "partitions": self.partitions,
            "replication_factor": self.replication_factor,
            "internal": self.internal,
            "config": {name: self.config[name] for name in _SHOWN if name in self.config},
        }


def _milliseconds(text: str) -> timedelta:
    return timedelta(milliseconds=min(int(text), 36_500 * 86_400_000))


class Span(NamedTuple):
    """Offsets ``[start, end)`` of a partition."""

    start: int
    end: int


class Sample(NamedTuple):
    """Records of :data:`COLUMNS`, the offsets of each sampled partition, and the number of all ``partitions``."""

    source: Source
    rows: pa.RecordBatch
    spans: Mapping[int, Span]
    partitions: int

    @property
    def values(self) -> list[bytes | None]:
        """The values, None for tombstones."""
        values: list[bytes | None] = self.rows.column("kafka_value").to_pylist()
        return values

    @property
    def size(self) -> int:
        """Bytes of the keys and values."""
        return sum(
            len(part or b"") for name in ("kafka_key", "kafka_value") for part in self.rows.column(name).to_pylist()
        )


def chosen(partitions: Iterable[int], most: int = MOST_PARTITIONS) -> list[int]:
    """The partitions to sample."""
    known = sorted(partitions)
    if len(known) <= most:
        return known
    return [known[number * len(known) // most] for number in range(most)]


def ends(span: Span, count: int) -> list[Span]:
    """The first and last offsets of ``span``, at most ``count`` in all."""
    if span.end - span.start <= count:
        return [span] if span.start < span.end else []
    first, last = (count + 1) // 2, count // 2
    both = [Span(span.start, span.start + first), Span(span.end - last, span.end)]
    return [end for end in both if end.start < end.end]


def rows_of(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of :data:`COLUMNS`; it ends with the batch that reaches MOST_BYTES of keys and values."""
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if size >= MOST_BYTES:
            break
        kept.append(batch.select(COLUMNS.names).cast(COLUMNS))
        size += batch.column("kafka_value").nbytes + batch.column("kafka_key").nbytes
    table = pa.Table.from_batches(kept, COLUMNS).combine_chunks()
    combined: list[Any] = table.to_batches()
    return combined[0] if combined else pa.RecordBatch.from_pylist([], schema=COLUMNS)
