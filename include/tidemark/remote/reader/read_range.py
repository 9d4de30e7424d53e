"""Records of the remote tier as Arrow, in one call: for notebooks and scripts that know offsets or times.

>>> from datetime import UTC, datetime
>>> from tidemark import Storage, read_range, read_time
>>> storage = Storage.from_topics("topics.yaml")
>>> day = read_time("orders", datetime(2026, 11, 20, tzinfo=UTC), datetime(2026, 11, 21, tzinfo=UTC), storage=storage)
>>> day.select(["kafka_partition", "kafka_offset", "kafka_value"]).slice(0, 1).to_pylist()
[{'kafka_partition': 0, 'kafka_offset': 0, 'kafka_value': b'order 0'}]

No broker is asked. A table holds all of its records in memory. For more records than fit there, use :func:`iter_range`
and :func:`iter_time`: they yield record batches of about a MiB, and hold some 32 MiB. The columns are those of
:data:`tidemark.decode.SCHEMA`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, Self

import numpy as np
import pyarrow as pa
from typing_extensions import override

from tidemark.decode import SCHEMA
from tidemark.decode.schema import copied, exact_milliseconds
from tidemark.errors import ConfigError, NotFound, OutOfRange
from tidemark.formats.keys import TopicPartition
from tidemark.intervals import Interval
from tidemark.kafka_log.indexes import MAX_OFFSET
from tidemark.offset_bounds import Edges, OffsetBounds
from tidemark.remote.partition import RemotePartition
from tidemark.remote.reader.blocks import Block
from tidemark.remote.reader.partition_reader import OnGap
from tidemark.remote.reader.tier import RemoteTier
from tidemark.remote.topics import RemoteTopics
from tidemark.storage import Storage

IsolationLevel = Literal["read_committed", "read_uncommitted"]
Moment = datetime | int
"""A time with its zone, or milliseconds since 1970."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOOK_AGAIN_SECONDS: Final = 1.0


def read_range(
    topic: str,
    partition: int,
    start: int | None = None,
    end: int | None = None,
    *,
    storage: Storage | str | Path,
    isolation_level: IsolationLevel = "read_committed",
    on_gap: OnGap = "error",
) -> pa.Table:
    """The records of ``partition`` with offsets in ``[start, end)``, in their order.

    ``start`` and ``end`` default to the stored offsets; ``storage`` may be the path of a topics file.
    ``read_committed`` leaves out aborted transactions, and ends at the first open one. There are fewer rows than
    offsets if transactions' markers lie there, or records were compacted or erased.

    >>> read_range("orders", 0, 42, 44, storage="topics.yaml")["kafka_value"].to_pylist()
    [b'order 42', b'order 43']

    Raises:
        NotFound: the remote tier has never seen the partition.
        OutOfRange: it does not have all these offsets: retention removed them, or they are not stored yet.
        GapError: some are lost; ``on_gap="skip"`` passes over them with a warning.
        SegmentError: bytes are damaged.
        StoreError: the store does not answer, or refuses.
    """
    return pa.Table.from_batches(
        iter_range(topic, partition, start, end, storage=storage, isolation_level=isolation_level, on_gap=on_gap),
        schema=SCHEMA,
    )


def iter_range(
    topic: str,
    partition: int,
    start: int | None = None,
    end: int | None = None,
    *,
    storage: Storage | str | Path,
    isolation_level: IsolationLevel = "read_committed",
    on_gap: OnGap = "error",
) -> Iterator[pa.RecordBatch]:
    """Yield the records of :func:`read_range`, a record batch at a time.

    >>> sum(rows.num_rows for rows in iter_range("orders", 0, storage="topics.yaml"))
    100
    """
    with _SingleThreadTier(storage, isolation_level, on_gap) as reader:
        known = reader.partition(topic, partition)
        start = known.start if start is None else start
        readable = known.end(committed=reader.committed)
        end = readable if end is None else end
        if start < end and not known.start <= start <= end <= readable:
            outside = start if start < known.start else end - 1
            raise OutOfRange(topic, partition, outside, known.start, readable)
        yield from reader.rows(topic, [(partition, Interval(start, end))])


def read_time(
    topic: str,
    start: Moment,
    end: Moment,
    *,
    storage: Storage | str | Path,
    partitions: Iterable[int] | None = None,
    lateness: timedelta | None = None,
    isolation_level: IsolationLevel = "read_committed",
    on_gap: OnGap = "error",
) -> pa.Table:
    """The records of ``topic`` with timestamps in ``[start, end)``, by partition and offset.

    Timestamps may be in any order, so each partition is read from its first record with a timestamp of ``start`` or
    later to its end. With ``lateness``, reading stops at the first record with a timestamp of ``end`` plus ``lateness``
    or later. The result is then exact if no record's timestamp is older by more than ``lateness`` than that of a record
    before it in its partition. ``partitions`` defaults to all; times are with a zone, or milliseconds.

    >>> noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    >>> rows = read_time("orders", noon, noon + timedelta(minutes=2), storage="topics.yaml", partitions=[0])
    >>> rows["kafka_timestamp"].to_pylist()[0].isoformat()
    '2026-11-20T12:00:00+00:00'

    Raises the errors of :func:`read_range`, and ValueError for a time without a zone or a negative ``lateness``.
    """
    batches = iter_time(
        topic,
        start,
        end,
        storage=storage,
        partitions=partitions,
        lateness=lateness,
        isolation_level=isolation_level,
        on_gap=on_gap,
    )
    return pa.Table.from_batches(batches, schema=SCHEMA)


def iter_time(
    topic: str,
    start: Moment,
    end: Moment,
    *,
    storage: Storage | str | Path,
    partitions: Iterable[int] | None = None,
    lateness: timedelta | None = None,
    isolation_level: IsolationLevel = "read_committed",
    on_gap: OnGap = "error",
) -> Iterator[pa.RecordBatch]:
    """Yield the records of :func:`read_time`, a record batch at a time."""
    wanted = Interval(_milliseconds(start), _milliseconds(end))
    if lateness is not None and lateness < timedelta(0):
        raise ValueError(f"lateness {lateness} is negative: give how much older than one before it a record may be")
    with _SingleThreadTier(storage, isolation_level, on_gap) as reader:
        numbers = reader.tier.topics.partitions_for_topic(topic) if partitions is None else set(partitions)
        if not numbers:
            raise NotFound(topic, reader.tier.topics.unseen(topic))
        yield from reader.rows(topic, reader.times(topic, sorted(numbers), wanted, lateness), wanted)


class _SingleThreadTier:
    """A tier that this thread alone reads from."""

    def __init__(self, storage: Storage | str | Path, isolation_level: IsolationLevel, on_gap: OnGap) -> None:
        if isolation_level not in ("read_committed", "read_uncommitted"):
            raise ValueError(f"isolation_level {isolation_level!r}: read_committed or read_uncommitted")
        opened = storage if isinstance(storage, Storage) else Storage.from_topics(storage)
        self.committed = isolation_level == "read_committed"
        self._ready = threading.Event()
        self.tier = RemoteTier(opened, committed=self.committed, on_gap=on_gap, on_ready=self._ready.set)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tier.close()

    def partition(self, topic: str, partition: int) -> RemotePartition:
        known = self.tier.partition(topic, partition)
        if known is None:
            seen = sorted(self.tier.topics.partitions_for_topic(topic))
            rule = f"no agent has ever seen this partition; there are {', '.join(map(str, seen))}"
            raise NotFound(f"{topic}-{partition}", rule if seen else self.tier.topics.unseen(topic))
        return known

    def times(
        self, topic: str, partitions: Iterable[int], wanted: Interval, lateness: timedelta | None
    ) -> Iterator[tuple[int, Interval]]:
        """The partitions, and their offsets with the records of the times ``wanted``."""
        for number in partitions:
            known = self.partition(topic, number)
            if wanted.start >= wanted.end:
                continue
            start = known.offset_for_time(wanted.start, committed=self.committed, markers=False)
            if start is None:
                continue
            until = known.end(committed=self.committed)
            if lateness is not None:
                latest = wanted.end + _whole_milliseconds(lateness)
                beyond = known.offset_for_time(latest, committed=self.committed, markers=False)
                until = until if beyond is None else beyond.offset
            yield number, Interval(start.offset, until)

    def rows(
        self, topic: str, spans: Iterable[tuple[int, Interval]], times: Interval | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of all partitions' ``spans``, one after the other; the next is read ahead.

        With ``times``, in milliseconds since 1970, only those with timestamps in it.
        """
        left = ((partition, span) for partition, span in spans if span.start < span.end)
        present = self._begun(topic, left)
        while present is not None:
            following = self._begun(topic, left)
            for _, block in read_spans(self.tier, topic, dict([present]), self._ready):
                rows = block.rows if times is None else _within(block.rows, times)
                if len(rows):
                    yield rows.replace_schema_metadata(None)
            present = following

    def _begun(self, topic: str, left: Iterator[tuple[int, Interval]]) -> tuple[int, Interval] | None:
        first = next(left, None)
        if first is not None:
            self.tier.read(TopicPartition(topic, first[0]), first[1].start)
        return first


def _within(rows: pa.RecordBatch, times: Interval) -> pa.RecordBatch:
    """The rows with timestamps in ``times``."""
    timestamps = exact_milliseconds(rows)
    wanted = (timestamps >= times.start) & (timestamps < times.end)
    if wanted.all():
        return rows
    return copied(rows, np.flatnonzero(wanted))


def _milliseconds(moment: Moment) -> int:
    if isinstance(moment, int):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone: give one, such as tzinfo=UTC, or milliseconds since 1970")
    return _whole_milliseconds(moment - _EPOCH)


def _whole_milliseconds(time: timedelta) -> int:
    """``time`` in milliseconds, rounded up."""
    return -(-time // timedelta(milliseconds=1))


# Commands resolve the bounds of several partitions against the remote tier, and read them side by side: the records of
# each partition come in order, those of different partitions as they are ready.


class RemoteEdges(Edges):
    """The offsets of a stored partition for bounds: see :class:`tidemark.offset_bounds.Edges`."""

    def __init__(self, part: RemotePartition, *, committed: bool) -> None:
        self._part = part
        self._committed = committed

    @override
    def beginning(self) -> int:
        return self._part.start

    def end(self) -> int:
        """The end, see ``offset_bounds.Edges``. If a recorded gap follows, the gap's end, so that a reader meets it.

        This concerns a gap with nothing after it: offsets after a gap can be read, and count.
        """
        at = self._part.end(committed=self._committed)
        gap = self._part.gap_at(at)
        return at if gap is None else gap.end

    @override
    def at_time(self, timestamp_ms: int) -> int | None:
        record = self._part.offset_for_time(timestamp_ms, committed=self._committed, markers=False)
        return None if record is None else record.offset


def remote_partitions(topics: RemoteTopics, topic: str, chosen: Collection[int]) -> list[RemotePartition]:
    """The ``chosen`` partitions of a topic, all if none is. Raises ConfigError for a partition that nobody has seen."""
    known = topics.partitions_for_topic(topic)
    if not known:
        raise ConfigError(topic, [("", topics.unseen(topic))])
    missing = sorted(set(chosen) - known)
    if missing:
        rule = f"there is no partition {missing[0]}; the remote tier has {', '.join(map(str, sorted(known)))}"
        raise ConfigError(topic, [("--partition", rule)])
    partitions = [topics.partition(topic, number) for number in sorted(set(chosen) or known)]
    return [partition for partition in partitions if partition is not None]


def span_of(part: RemotePartition, first: OffsetBounds, last: OffsetBounds, edges: RemoteEdges) -> Interval:
    """The offsets of a partition between two bounds; an empty range if the last lies below the first.

    Raises:
        OutOfRange: a range that is not empty begins below the first stored offset; nothing is left out silently.
    """
    start = first.of(part.partition).resolve(edges)
    end = max(start, last.of(part.partition).resolve(edges))
    if start < edges.beginning() and start < end:
        raise OutOfRange(part.topic, part.partition, start, edges.beginning(), edges.end())
    return Interval(start, end)


def read_spans(
    tier: RemoteTier, topic: str, spans: Mapping[int, Interval], ready: threading.Event
) -> Iterator[tuple[int, Block]]:
    """(partition, block) of all ``spans`` by partition, each block cut to its span; a span up to MAX_OFFSET never ends.

    ``ready`` is set by the tier's ``on_ready``. Raises the errors of reading, see :meth:`RemoteTier.take`, and
    OutOfRange if a span's end is not there (any more).
    """
    left = {TopicPartition(topic, number): span for number, span in spans.items() if span.start < span.end}
    for at, span in left.items():
        tier.read(at, span.start)
    while left:
        ready.clear()
        idle = True
        for at, span in list(left.items()):
            block = tier.take(at)
            if block is None:
                _check_end(tier, at, span)
                continue
            idle = False
            if block.next_offset >= span.end:
                del left[at]
                tier.stop(at)
                block = block.before(span.end)
            yield at.partition, block
        if idle:
            ready.wait(_LOOK_AGAIN_SECONDS)


def _check_end(tier: RemoteTier, at: TopicPartition, span: Interval) -> None:
    """Raise OutOfRange if a span ended before its end: most likely an election cut off the log."""
    if span.end == MAX_OFFSET or not tier.at_end(at):
        return
    part = tier.partition(*at)
    if part is not None:
        raise OutOfRange(*at, span.end - 1, part.start, RemoteEdges(part, committed=True).end())
