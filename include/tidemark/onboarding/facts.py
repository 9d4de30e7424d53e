"""What onboarding knows of a topic: Kafka's description of it, and a sample of its records.

The sample has the first and the last records of each partition, and is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from tidemark.brokersets.placement import Replicas
from tidemark.decode import SCHEMA
from tidemark.intervals import Interval

_SHOWN: Final = (
    *("cleanup.policy", "retention.ms", "retention.bytes", "segment.bytes", "segment.ms", "compression.type"),
    *("message.timestamp.type", "max.message.bytes", "min.insync.replicas"),
)
"""The configuration that matters to ingestion."""

SAMPLE_COLUMNS: Final = pa.schema(
    [
        SCHEMA.field(name)
        for name in ("kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_key", "kafka_value", "kafka_headers")
    ]
)
"""The part of a record that is kept: all that parsers read."""

MOST_SAMPLED_PARTITIONS: Final = 64
"""The most sampled partitions; of a topic with more, some at equal distances are sampled."""

MOST_SAMPLE_BYTES: Final = 64 << 20
"""Bytes of keys and values at which a sample ends."""

SampledFrom = Literal["raw", "kafka"]


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


class Sample(NamedTuple):
    """Records of :data:`SAMPLE_COLUMNS` from the sampled offsets of partitions; ``partitions`` is the number of all."""

    source: SampledFrom
    rows: pa.RecordBatch
    spans: Mapping[int, Interval]
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


def sampled_partitions(partitions: Iterable[int], most: int = MOST_SAMPLED_PARTITIONS) -> list[int]:
    """The partitions to sample."""
    known = sorted(partitions)
    if len(known) <= most:
        return known
    return [known[number * len(known) // most] for number in range(most)]


def first_and_last(span: Interval, count: int) -> list[Interval]:
    """The first and last offsets of ``span``, at most ``count`` in all."""
    if span.end - span.start <= count:
        return [span] if span.start < span.end else []
    first, last = (count + 1) // 2, count // 2
    both = [Interval(span.start, span.start + first), Interval(span.end - last, span.end)]
    return [end for end in both if end.start < end.end]


def sample_rows(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of :data:`SAMPLE_COLUMNS`; it ends with the batch that reaches MOST_SAMPLE_BYTES of keys and values."""
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if size >= MOST_SAMPLE_BYTES:
            break
        kept.append(batch.select(SAMPLE_COLUMNS.names).cast(SAMPLE_COLUMNS))
        size += batch.column("kafka_value").nbytes + batch.column("kafka_key").nbytes
    table = pa.Table.from_batches(kept, SAMPLE_COLUMNS).combine_chunks()
    combined: list[Any] = table.to_batches()
    return combined[0] if combined else pa.RecordBatch.from_pylist([], schema=SAMPLE_COLUMNS)
