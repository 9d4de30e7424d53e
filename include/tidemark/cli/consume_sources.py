"""Record batches for ``tidemark consume``, from the remote tier alone, or through brokers and both tiers.

Batches have the columns of :data:`tidemark.decode.SCHEMA`, and each partition's records in order. Requested offsets
that do not exist are an error or a message on standard error, never left out silently.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from typing_extensions import override

from tidemark.consumer.modes import Mode
from tidemark.errors import BrokerError, ConfigError
from tidemark.offset_bounds import Edges, OffsetBounds
from tidemark.remote.catalog.storage import Storage
from tidemark.remote.reader.tier import RemoteTier
from tidemark.remote.reader.topic_ranges import OffsetSpan, RemoteEdges, read_spans, remote_partitions, span_of

if TYPE_CHECKING:
    import pyarrow as pa
    from kafka import TopicPartition

    from tidemark.consumer.consumer import TieredConsumer

_POLL_MS: Final = 500
_FOLLOW_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Asked:
    """The requested range of records, at most ``limit``. ``to_given`` is true if the command line has ``--to``."""

    topic: str
    partitions: tuple[int, ...]
    first: OffsetBounds
    last: OffsetBounds
    committed: bool
    on_gap: Literal["error", "skip"]
    follow: bool
    to_given: bool
    limit: int | None = None


def batches_of_remote(asked: Asked, storage: Storage) -> Generator[pa.RecordBatch, None, None]:
    """Batches from the remote tier, without a request to a broker."""
    ready = threading.Event()
    options: dict[str, Any] = {"refresh_seconds": _FOLLOW_SECONDS} if asked.follow else {}
    with RemoteTier(storage, committed=asked.committed, on_gap=asked.on_gap, on_ready=ready.set, **options) as tier:
        spans = []
        for part in remote_partitions(tier.topics, asked.topic, asked.partitions):
            edges = RemoteEdges(part, committed=asked.committed)
            spans.append(_within(asked, span_of(part, asked.first, asked.last, edges), edges.end()))
        blocks = read_spans(tier, asked.topic, spans, ready)
        yield from _limited(asked.limit, (block.rows for _, block in blocks if len(block.rows)))


def batches_of_kafka(
    asked: Asked, mode: Mode, storage: Storage | None, group: str | None, settings: Mapping[str, Any]
) -> Generator[pa.RecordBatch, None, None]:
    """Batches from both tiers. A group commits a batch when the next one is requested, so after it was written."""
    from kafka.errors import KafkaError

    from tidemark.consumer.consumer import TieredConsumer

    reset = asked.first.default.kind
    if group and (reset not in {"beginning", "end"} or asked.first.partitions):
        raise ConfigError(
            "--from",
            [("", "must be beginning or end with --group: it applies where the group has no committed offset")],
        )
    try:
        with closing(
            TieredConsumer(
                mode=mode,
                storage=storage,
                on_gap=asked.on_gap,
                group_id=group,
                isolation_level="read_committed" if asked.committed else "read_uncommitted",
                enable_auto_commit=False,
                auto_offset_reset={"beginning": "earliest", "end": "latest"}[reset] if group else "none",
                **settings,
            )
        ) as consumer:
            yield from _of_group(asked, consumer) if group else _limited(asked.limit, _of_spans(asked, consumer))
    except KafkaError as error:
        place = f"{asked.topic} at {', '.join(settings['bootstrap_servers'])}"
        raise BrokerError(f"{place}: {error}; check --bootstrap, and that the brokers run") from error


def _limited(limit: int | None, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
    left = limit
    for rows in batches if left != 0 else ():
        yield rows if left is None else rows.slice(0, left)
        if left is not None and (left := max(0, left - len(rows))) == 0:
            return


def _of_spans(asked: Asked, consumer: TieredConsumer) -> Generator[pa.RecordBatch, None, None]:
    from kafka import TopicPartition

    numbers = _partitions(asked, consumer.partitions_for_topic(asked.topic))
    left: dict[TopicPartition, OffsetSpan] = {}
    consumer.assign([TopicPartition(asked.topic, number) for number in numbers])
    for number in numbers:
        tp = TopicPartition(asked.topic, number)
        edges = _KafkaEdges(consumer, tp)
        start = asked.first.of(number).resolve(edges)
        end = max(start, asked.last.of(number).resolve(edges))
        left[tp] = _within(asked, OffsetSpan(number, start, end), edges.end())
        consumer.seek(tp, start)
    while left := {tp: span for tp, span in left.items() if span.end is None or consumer.position(tp) < span.end}:
        consumer.pause(*(consumer.assignment() - set(left)))
        for tp, rows in consumer.poll_arrow(timeout_ms=_POLL_MS).items():
            wanted = _until(rows, left[tp].end)
            if len(wanted):
                yield wanted


def _of_group(asked: Asked, consumer: TieredConsumer) -> Generator[pa.RecordBatch, None, None]:
    from kafka.structs import OffsetAndMetadata

    consumer.subscribe([asked.topic])
    ends: dict[TopicPartition, int] = {}
    left = asked.limit
    while left != 0:
        written: dict[TopicPartition, OffsetAndMetadata] = {}
        for tp, rows in consumer.poll_arrow(timeout_ms=_POLL_MS).items():
            taken = rows if left is None else rows.slice(0, left)
            if not len(taken):
                continue
            yield taken
            written[tp] = OffsetAndMetadata(int(taken.column("kafka_offset")[-1].as_py()) + 1, "", -1)
            left = None if left is None else left - len(taken)
        if left == 0:
            consumer.commit(written)  # leaves out records beyond the limit
            return
        consumer.commit()
        assigned = consumer.assignment()
        if new := assigned - set(ends):
            ends |= consumer.end_offsets(list(new))
        if not asked.follow and assigned and all(consumer.position(tp) >= ends[tp] for tp in assigned):
            return


class _KafkaEdges(Edges):
    """The edges of a partition over both tiers, according to the consumer."""

    def __init__(self, consumer: TieredConsumer, tp: TopicPartition) -> None:
        self._consumer = consumer
        self._tp = tp

    @override
    def beginning(self) -> int:
        return int(self._consumer.beginning_offsets([self._tp])[self._tp])

    @override
    def end(self) -> int:
        return int(self._consumer.end_offsets([self._tp])[self._tp])

    @override
    def at_time(self, timestamp_ms: int) -> int | None:
        answer = self._consumer.offsets_for_times({self._tp: timestamp_ms})[self._tp]
        return None if answer is None else int(answer.offset)


def _within(asked: Asked, span: OffsetSpan, readable: int) -> OffsetSpan:
    """``span``, without an end if it is followed; otherwise up to the readable end, with a message if that is lower."""
    if asked.follow:
        return span._replace(end=None)
    wanted = span.end or 0
    if max(span.start, wanted) > readable:
        requested = f"{asked.topic}-{span.partition}: offsets {span.start} to {wanted} were requested"
        sys.stderr.write(f"{requested}, and the partition ends at {readable}\n")
    return span._replace(end=min(wanted, max(readable, span.start)))


def _until(rows: pa.RecordBatch, end: int | None) -> pa.RecordBatch:
    """The rows below ``end``, or all; rows are sorted by offset."""
    if end is None:
        return rows
    return rows.slice(0, int(rows.column("kafka_offset").to_numpy().searchsorted(end)))


def _partitions(asked: Asked, existing: Collection[int] | None) -> list[int]:
    if not existing:
        raise ConfigError(asked.topic, [("", "does not exist, neither in the remote tier nor on the brokers")])
    missing = sorted(set(asked.partitions) - set(existing))
    if missing:
        rule = f"there is no partition {missing[0]}; the topic has {', '.join(map(str, sorted(existing)))}"
        raise ConfigError(asked.topic, [("--partition", rule)])
    return sorted(set(asked.partitions) or existing)
