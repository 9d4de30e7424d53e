"""The records of ``tidemark consume``: how they are read, from one tier or both, and the forms of its output.

They are read from the remote tier alone, or through brokers and both tiers. Batches have the columns of
:data:`tidemark.decode.SCHEMA`, and each partition's records in order. Requested offsets that do not exist are an error
or a message on standard error, never left out silently. Each form of the output has a function, which describes it.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal

import pyarrow as pa
from typing_extensions import override

from tidemark.consumer.tier_selection import Mode
from tidemark.decode import SCHEMA, exact_milliseconds
from tidemark.errors import BrokerError, ConfigError
from tidemark.intervals import Interval
from tidemark.kafka_log.indexes import MAX_OFFSET
from tidemark.offset_bounds import Edges, OffsetBounds
from tidemark.remote.reader.read_range import RemoteEdges, read_spans, remote_partitions, span_of
from tidemark.remote.reader.tier import RemoteTier
from tidemark.storage import Storage
from tidemark.words import start_of, utc_time

if TYPE_CHECKING:
    from kafka import TopicPartition

    from tidemark.consumer.consumer import TieredConsumer

_POLL_MS: Final = 500
_FOLLOW_SECONDS: Final = 2.0

_ESCAPES: Final = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\0": "\0", "\\\\": "\\"}
_LONGEST_TEXT: Final = 400
_LENGTH_PREFIX: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Asked:
    """The requested range of records, at most ``limit``."""

    topic: str
    partitions: tuple[int, ...]
    first: OffsetBounds
    last: OffsetBounds
    committed: bool
    on_gap: Literal["error", "skip"]
    follow: bool
    limit: int | None = None


def batches_of_remote(asked: Asked, storage: Storage) -> Generator[pa.RecordBatch, None, None]:
    """Batches from the remote tier, without a request to a broker."""
    ready = threading.Event()
    options: dict[str, Any] = {"refresh_seconds": _FOLLOW_SECONDS} if asked.follow else {}
    with RemoteTier(storage, committed=asked.committed, on_gap=asked.on_gap, on_ready=ready.set, **options) as tier:
        spans: dict[int, Interval] = {}
        for part in remote_partitions(tier.topics, asked.topic, asked.partitions):
            edges = RemoteEdges(part, committed=asked.committed)
            span = span_of(part, asked.first, asked.last, edges)
            spans[part.partition] = _within(asked, part.partition, span, edges.end())
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
    left: dict[TopicPartition, Interval] = {}
    consumer.assign([TopicPartition(asked.topic, number) for number in numbers])
    for number in numbers:
        tp = TopicPartition(asked.topic, number)
        edges = _KafkaEdges(consumer, tp)
        start = asked.first.of(number).resolve(edges)
        end = max(start, asked.last.of(number).resolve(edges))
        left[tp] = _within(asked, number, Interval(start, end), edges.end())
        consumer.seek(tp, start)
    while left := {tp: span for tp, span in left.items() if consumer.position(tp) < span.end}:
        consumer.pause(*(consumer.assignment() - set(left)))
        for tp, rows in consumer.poll_arrow(timeout_ms=_POLL_MS).items():
            offsets = rows.column("kafka_offset").to_numpy()  # they are sorted
            wanted = rows.slice(0, int(offsets.searchsorted(left[tp].end)))
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


def _within(asked: Asked, partition: int, span: Interval, readable: int) -> Interval:
    """``span``, without an end if it is followed; otherwise up to the readable end, with a message if that is lower."""
    start, wanted = span
    if asked.follow:
        return Interval(start, MAX_OFFSET)
    if max(start, wanted) > readable:
        requested = f"{asked.topic}-{partition}: offsets {start} to {wanted} were requested"
        sys.stderr.write(f"{requested}, and the partition ends at {readable}\n")
    return Interval(start, min(wanted, max(readable, start)))


def _partitions(asked: Asked, existing: Collection[int] | None) -> list[int]:
    if not existing:
        raise ConfigError(asked.topic, [("", "does not exist, neither in the remote tier nor on the brokers")])
    missing = sorted(set(asked.partitions) - set(existing))
    if missing:
        rule = f"there is no partition {missing[0]}; the topic has {', '.join(map(str, sorted(existing)))}"
        raise ConfigError(asked.topic, [("--partition", rule)])
    return sorted(set(asked.partitions) or existing)


def writer_of(
    form: str, sink: BinaryIO, topic: str, *, stream: bool, delimiter: str, prefixed: bool
) -> tuple[Callable[[pa.RecordBatch], None], Callable[[], None]]:
    """Two functions for the form ``json``, ``text``, ``raw`` or ``arrow``: writes all rows, and ends the format.

    The former raises OSError; BrokenPipeError means that nobody reads any more. The output stays open.

    Form ``arrow`` has the columns of the tables (docs/reading.md), in an Arrow IPC file, or as a stream on standard
    output. A file is valid once it is ended. No Python object is made for a record.

    Raises:
        ConfigError: the delimiter is not valid.
    """
    if form == "arrow":
        opened = pa.PythonFile(sink, "w")  # type: ignore[arg-type]  # the stubs know the class io.IOBase alone
        arrow = pa.ipc.new_stream(opened, SCHEMA) if stream else pa.ipc.new_file(opened, SCHEMA)

        def write_batch(rows: pa.RecordBatch) -> None:
            arrow.write_batch(rows.replace_schema_metadata(None))
            sink.flush()

        return write_batch, arrow.close
    if form == "raw":
        encoded = partial(_raw, None if prefixed else _unescaped(delimiter))
    else:
        encoded = partial(_lines, partial(_text_lines if form == "text" else _json_lines, topic))

    def write(rows: pa.RecordBatch) -> None:
        sink.write(encoded(rows))
        sink.flush()

    return write, lambda: None


def _lines(lines: Callable[[pa.RecordBatch], Iterator[str]], rows: pa.RecordBatch) -> bytes:
    return "".join(f"{line}\n" for line in lines(rows)).encode()


def _json_lines(topic: str, rows: pa.RecordBatch) -> Iterator[str]:
    """``json``: a line of JSON per record.

    It has ``topic``, ``partition``, ``offset``, ``timestamp`` (milliseconds; -1: none), ``timestamp_type`` (``create``
    or ``append``), ``leader_epoch`` (-1: unknown), ``headers``, ``key``, ``key_encoding``, ``value`` and
    ``value_encoding``; ``headers`` is a list of objects with ``key``, ``value`` and ``encoding``. Bytes that are UTF-8
    are text, and their encoding is ``utf-8``; others are ``base64``; null has a null encoding. Nothing is lost.
    """
    names = ("partition", "offset", "timestamp_type", "leader_epoch", "key", "value", "headers")
    columns = [rows.column(f"kafka_{name}").to_pylist() for name in names]
    times = exact_milliseconds(rows).tolist()
    for partition, offset, kind, epoch, key, value, headers, at in zip(*columns, times, strict=True):
        record: dict[str, Any] = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": at,
            "timestamp_type": kind,
            "leader_epoch": epoch,
            "headers": [_header(header["key"], header["value"]) for header in headers],
        }
        record["key"], record["key_encoding"] = _text(key)
        record["value"], record["value_encoding"] = _text(value)
        yield json.dumps(record, ensure_ascii=False)


def _text_lines(topic: str, rows: pa.RecordBatch) -> Iterator[str]:
    """``text``: a line per record for people, with its place, its time in UTC, key and value, cut after 400 characters.

    Other characters than a terminal prints are escaped.
    """
    columns = [rows.column(f"kafka_{name}").to_pylist() for name in ("partition", "offset", "key", "value")]
    for partition, offset, key, value, at in zip(*columns, exact_milliseconds(rows).tolist(), strict=True):
        told = f"{start_of(key, _LONGEST_TEXT)}  {start_of(value, _LONGEST_TEXT)}"
        yield f"{topic}-{partition}-{offset}  {'no time' if at == -1 else utc_time(at)}  {told}"


def _raw(delimiter: bytes | None, rows: pa.RecordBatch) -> bytes:
    """``raw``: values alone, each followed by ``delimiter``, or after its length if that is None.

    With a delimiter, null is written as an empty value. A length has 4 bytes, big end first, and is -1 for null, which
    preserves every value.
    """
    values = rows.column("kafka_value").to_pylist()
    if delimiter is not None:
        return b"".join((value or b"") + delimiter for value in values)
    sizes = (_LENGTH_PREFIX.pack(-1 if value is None else len(value)) for value in values)
    return b"".join(size + (value or b"") for size, value in zip(sizes, values, strict=True))


def _text(value: bytes | None) -> tuple[str | None, str | None]:
    """(the value as text, its encoding)."""
    if value is None:
        return None, None
    try:
        return value.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(value).decode(), "base64"


def _header(key: str, value: bytes | None) -> dict[str, str | None]:
    text, encoding = _text(value)
    return {"key": key, "value": text, "encoding": encoding}


def _unescaped(delimiter: str) -> bytes:
    text, position = "", 0
    while position < len(delimiter):
        pair = delimiter[position : position + 2]
        if delimiter[position] == "\\" and pair not in _ESCAPES:
            rule = f"{delimiter!r}: a backslash must be followed by n, r, t, 0 or another backslash"
            raise ConfigError("--delimiter", [("", rule)])
        text += _ESCAPES.get(pair, delimiter[position])
        position += 2 if pair in _ESCAPES else 1
    return text.encode()
