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
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, Self

import numpy as np
import pyarrow as pa

from tidemark.decode import SCHEMA
from tidemark.decode.schema import copied
from tidemark.errors import NotFound, OutOfRange
from tidemark.formats.keys import TopicPartition
from tidemark.intervals import Interval
from tidemark.remote.partition import RemotePartition
from tidemark.remote.reader.consumer_records import milliseconds
from tidemark.remote.reader.partition_reader import OnGap
from tidemark.remote.reader.tier import RemoteTier
from tidemark.storage import Storage

IsolationLevel = Literal["read_committed", "read_uncommitted"]
Moment = datetime | int
"""A time with its zone, or milliseconds since 1970."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


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
        yield from reader.rows([(TopicPartition(topic, partition), Interval(start, end))])


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
        yield from reader.rows(reader.ranges(topic, sorted(numbers), wanted, lateness), wanted)


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

    def ranges(
        self, topic: str, partitions: Iterable[int], wanted: Interval, lateness: timedelta | None
    ) -> Iterator[tuple[TopicPartition, Interval]]:
        """The offsets with the records of the times ``wanted``."""
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
            yield TopicPartition(topic, number), Interval(start.offset, until)

    def rows(
        self, ranges: Iterable[tuple[TopicPartition, Interval]], times: Interval | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of all ranges of offsets, one after the other; the next is read ahead.

        With ``times``, in milliseconds since 1970, only those with timestamps in it.
        """
        left = iter(ranges)
        present = self._begun(left)
        while present is not None:
            following = self._begun(left)
            yield from self._rows(*present, times)
            self.tier.stop(present[0])
            present = following

    def _begun(self, left: Iterator[tuple[TopicPartition, Interval]]) -> tuple[TopicPartition, Interval] | None:
        for tp, offsets in left:
            if offsets.start < offsets.end:
                self.tier.read(tp, offsets.start)
                return tp, offsets
        return None

    def _rows(self, tp: TopicPartition, offsets: Interval, times: Interval | None) -> Iterator[pa.RecordBatch]:
        at = offsets.start
        while at < offsets.end:
            self._ready.clear()
            block = self.tier.take(tp)
            if block is None:
                if self.tier.at_end(tp):
                    raise OutOfRange(*tp, at, offsets.start, at)
                self._ready.wait()
                continue
            at = block.next_offset
            rows = block.before(offsets.end).rows
            if times is not None:
                rows = _within(rows, times)
            if len(rows):
                yield rows.replace_schema_metadata(None)


def _within(rows: pa.RecordBatch, times: Interval) -> pa.RecordBatch:
    """The rows with timestamps in ``times``."""
    timestamps = milliseconds(rows)
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
