"""``TieredConsumer``: kafka-python's ``KafkaConsumer`` over two tiers, and the forms in which it returns records."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Collection, Generator, Iterable, Sequence
from functools import partial
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.consumer.fetcher import ConsumerRecord
from kafka.future import Future
from kafka.structs import OffsetAndMetadata
from kafka.util import Timer
from numpy.typing import NDArray
from typing_extensions import override

from tidemark.consumer.fetcher import TieredFetcher, Wakeup, Want
from tidemark.consumer.tier_metadata import Brokers, Scouts
from tidemark.consumer.tier_selection import Mode, Tier, TierRules
from tidemark.decode.schema import exact_milliseconds, octets
from tidemark.errors import GapError, TidemarkError, WakeupError
from tidemark.formats.keys import TopicPartition
from tidemark.remote.reader.blocks import MAGIC, Block
from tidemark.remote.reader.partition_reader import OnGap
from tidemark.remote.reader.tier import RemoteTier
from tidemark.storage import Storage

log = logging.getLogger(__name__)

METRICS_GROUP: Final = "tidemark-consumer"
_REMOTE_COUNTERS: Final = ("requests", "bytes", "records", "retries")


_JOIN_SLICE_MS: Final = 50
_PREPARE_SLICE_MS: Final = 1000
"""Longest single waits in kafka-python, while a group is joined and before, so that a wakeup is noticed soon.

Before a join it commits. It needs time for that, or records that were read come again after the rebalance.
"""

_MAKE_RECORD: Final = partial(tuple.__new__, ConsumerRecord)
"""Twice as fast as the class's own ``_make``."""

_CREATE_TIME: Final = 0
_APPEND_TIME: Final = 1

RecordHeaders = list[tuple[str, "bytes | None"]]


class _JoinResult:
    """The result of a group's join, as a future that never says that it is done.

    kafka-python drops a join that ended between two of its calls, and begins another one. Whoever polls with a short
    timeout, and works between the polls, would never become a member.
    """

    is_done: Final = False

    def __init__(self, join: Future) -> None:
        self._join = join
        self.add_callback = join.add_callback
        self.add_errback = join.add_errback

    def __await__(self) -> Generator[Future, None, Any]:
        return self._join.__await__()  # type: ignore[no-any-return]


class TieredConsumer(KafkaConsumer):  # type: ignore[misc]  # kafka-python has no types
    """Reads topics from Kafka and from the remote tier that Tidemark's agents write.

    >>> from itertools import islice
    >>> consumer = TieredConsumer(
    ...     "orders",
    ...     mode="REMOTE_PREFERRED",
    ...     storage="topics.yaml",
    ...     bootstrap_servers="broker:9092",
    ...     auto_offset_reset="earliest",
    ... )
    >>> [(record.offset, record.value) for record in islice(consumer, 2)]
    [(0, b'order 0'), (1, b'order 1')]
    >>> consumer.close()

    It has all methods and settings of ``KafkaConsumer``, and these settings:

    mode: the tiers to read, see :class:`Mode`.
    storage: the remote tier: a :class:`Storage`, or the path of a topics file. KAFKA_ONLY does not open it.
    on_gap: ``error`` raises :class:`tidemark.errors.GapError` at offsets that are recorded as missing in storage and
        that Kafka does not have; ``skip`` continues after them, with a warning and a count in the metrics.
    remote_refresh_ms: the interval of looking for new objects in storage.
    remote_prefetch_bytes: the bytes to read ahead from storage, over all partitions.
    remote_threads: the number of threads that read from storage.
    remote_wait_ms: the time to wait for an offset that neither tier has, if an upload may bring it; after that
        ``auto_offset_reset`` decides.

    Like ``KafkaConsumer`` it is not thread-safe, except for :meth:`wakeup`.
    """

    def __init__(
        self,
        *topics: str,
        mode: Mode | str | None = None,
        storage: Storage | str | Path | None = None,
        on_gap: OnGap = "error",
        remote_refresh_ms: int = 10_000,
        remote_prefetch_bytes: int = 32 << 20,
        remote_threads: int = 4,
        remote_wait_ms: int = 120_000,
        **configs: Any,
    ) -> None:
        self._mode = Mode(mode or "")  # no mode is refused with a list of the modes
        if on_gap not in {"error", "skip"}:
            raise ValueError(f"on_gap must be error or skip, not {on_gap!r}")
        self._opened = _opened(self._mode, storage)
        self._fetcher: Any
        self._wakeup = Wakeup()
        self._woken = threading.Event()
        self._gaps_skipped = 0
        try:
            super().__init__(**configs)
            # kafka-python does not pass this on: without it brokers create topics that are only queried.
            self._cluster.config["allow_auto_create_topics"] = self.config["allow_auto_create_topics"]
            self._take_over(
                on_gap, remote_refresh_ms / 1000, remote_prefetch_bytes, remote_threads, remote_wait_ms / 1000
            )
            if topics:
                self._subscription.subscribe(topics=topics)
                self._cluster.set_topics(topics)
        except BaseException as error:
            if isinstance(error, kafka_errors.KafkaError) and "bootstrap_servers" not in configs:
                error.add_note("bootstrap_servers is not set, so the brokers were looked for on localhost")
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Close the resources of a failed constructor: kafka-python leaves its thread, which connects to brokers."""
        if hasattr(self, "_closed"):
            super().close(autocommit=False)
        elif hasattr(self, "_net"):
            self._client.close()
            self._net.stop()

    def _take_over(self, on_gap: OnGap, refresh: float, prefetch: int, threads: int, wait: float) -> None:
        """Replace kafka-python's fetcher by Tidemark's."""
        committed = self.config["isolation_level"] == "read_committed"
        plain = self._fetcher
        self._remote: RemoteTier | None = None
        self._scouts: Scouts | None = None
        self._looked_for: set[str] = set()
        """Topics that were looked for in the remote tier."""
        brokers = Brokers(self._manager, self._net, plain, self.config["request_timeout_ms"])
        if self._opened is not None:
            self._remote = RemoteTier(
                self._opened,
                committed=committed,
                on_gap="error" if self._mode.reads_kafka else on_gap,
                prefetch_bytes=prefetch,
                threads=threads,
                refresh_seconds=refresh,
                check_crcs=self.config["check_crcs"],
                on_ready=self._wakeup.wake,
                kafka_too=self._mode.reads_kafka,
            )
            self._scouts = Scouts(self._remote, brokers, self._wakeup.wake)
        rules = TierRules(
            mode=self._mode,
            on_gap=on_gap,
            committed=committed,
            refresh_seconds=refresh,
            wait_seconds=wait,
            topic_id=brokers.topic_id_now,
            reset=self._out_of_range,
            skip=self._skip,
            truncated=self._truncated,
        )
        self._fetcher = TieredFetcher(
            self._client,
            self._subscription,
            rules=rules,
            remote=self._remote,
            brokers=brokers,
            scouts=self._scouts,
            wakeup=self._wakeup,
            **{**self.config, "metrics": None},
        )
        self._fetcher._sensors = plain._sensors  # registered once

    # The caller's methods

    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> dict[Any, Any]:
        """Poll like ``KafkaConsumer.poll``. Raises :class:`WakeupError` if :meth:`wakeup` was called.

        Iteration and ``poll`` may alternate: ``poll`` then returns, once, the records that an iterator has fetched and
        not given out yet.
        """
        if update_offsets:  # else the iterator polls
            self._iterator = None
        return self._undone_if_it_fails(super().poll, timeout_ms, max_records, update_offsets)

    def poll_arrow(self, timeout_ms: float = 0, max_bytes: int = 16 << 20) -> dict[Any, pa.RecordBatch]:
        """Poll like :meth:`poll`, but return each partition's records as an Arrow record batch, with no Python objects.

        The columns are those of :data:`tidemark.decode.SCHEMA`; keys and values are bytes, without deserializers.
        ``kafka_incarnation`` of Kafka's records is 0 until the catalogue of the remote tier has been read.
        All batches together have about ``max_bytes``, and at least a row. Positions and commits work as in ``poll``.

        Raises:
            ValueError: ``timeout_ms`` is negative or ``max_bytes`` not positive.
        """
        if timeout_ms < 0:
            raise ValueError("Timeout must not be negative")
        if max_bytes <= 0:
            raise ValueError("max_bytes must be positive")
        if self._closed:
            raise kafka_errors.IllegalStateError("KafkaConsumer is closed")
        self._iterator = None
        return self._undone_if_it_fails(self._poll_arrow, timeout_ms, max_bytes)

    def wakeup(self) -> None:
        """Make the running or next ``poll`` or iteration raise :class:`WakeupError`. Thread-safe."""
        self._woken.set()
        self._wakeup.wake()

    def tier(self, partition: TopicPartition) -> Tier | None:
        """The tier of the next record of a partition; None if it is not assigned, or the tier is not decided yet."""
        tier: Tier | None = self._fetcher.tier(partition)
        return tier

    def metrics(self, raw: bool = False) -> Any:
        """The metrics of ``KafkaConsumer.metrics``; unless ``raw``, with a group ``tidemark-consumer``.

        ``partitions``: by partition and tier, the delivered records, and for Kafka bytes and responses; ``remote``:
        requests to storage, bytes, records and retries; ``hand-overs``; ``fallbacks``: the number of times that a
        partition was left to Kafka because storage could not be read; ``waiting``: partitions that no tier can read at
        present; ``skipped``: offsets of gaps that were passed over.
        """
        metrics = super().metrics(raw)
        if metrics is not None and not raw:
            skipped = self._gaps_skipped + (self._remote.counters.skipped if self._remote is not None else 0)
            metrics[METRICS_GROUP] = self._fetcher.shown() | {"skipped": skipped}
            if self._remote is not None:
                counters = self._remote.counters
                metrics[METRICS_GROUP]["remote"] = {name: getattr(counters, name) for name in _REMOTE_COUNTERS}
        return metrics

    def partitions_for_topic(self, topic: str) -> set[int]:
        """Partitions as in ``KafkaConsumer``; the stored partitions if the brokers do not know the topic."""
        partitions: set[int] = super().partitions_for_topic(topic)
        if not partitions and self._remote is not None:
            partitions = self._remote.topics.partitions_for_topic(topic)
        return partitions

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:
        """Close like ``KafkaConsumer.close``, and then stop reading from storage."""
        if self._closed:
            return
        if self._scouts is not None:
            self._scouts.close()
        try:
            super().close(autocommit=autocommit, timeout_ms=timeout_ms)
        finally:
            if self._remote is not None:
                self._remote.close()
            self._fetcher.close()

    def __next__(self) -> Any:
        """The iterator of ``KafkaConsumer``. Raises :class:`WakeupError` if :meth:`wakeup` was called."""
        self._hear()
        return super().__next__()

    # The round that poll repeats

    def _poll_once(self, timer: Any, max_records: int, update_offsets: bool = True) -> dict[Any, Any]:
        key, value = self._fetcher.config["key_deserializer"], self._fetcher.config["value_deserializer"]
        return self._round(timer, PolledRecords(max_records, key, value), move=update_offsets)

    def _poll_arrow(self, timeout_ms: float, max_bytes: int) -> dict[Any, pa.RecordBatch]:
        timer = Timer(timeout_ms)
        while not self._closed:
            batches = self._round(timer, PolledArrow(max_bytes), move=True)
            if batches or timer.expired:
                return batches
        return {}

    def _round(self, timer: Any, want: Want, *, move: bool) -> dict[Any, Any]:
        """Poll once, as ``KafkaConsumer._poll_once``, with a wait that a wakeup ends."""
        heard = self._wakeup.count  # read before the fetch: any later wakeup ends the wait
        self._hear()
        if not self._join(timer):
            return {}
        self._refresh_committed_offsets(timeout_ms=timer.timeout_ms)
        self._fetcher.reset_offsets_if_needed()
        self._fetcher.maybe_validate_positions()
        self._fetcher.validate_offsets_if_needed()
        timeout_ms = timer.timeout_ms
        if self.config["group_id"] is not None:
            timeout_ms = min(timeout_ms, self._coordinator.time_to_next_poll() * 1000)
        records: dict[Any, Any] = self._fetcher.fetch(want, heard=heard, move=move, timeout_ms=timeout_ms)
        if not records:
            self._look_for(self.subscription() or {tp.topic for tp in self.assignment()})
            self._hear()
        return records

    def _look_for(self, topics: Collection[str]) -> None:
        """Without Kafka, warn soon, once for each topic, of ``topics`` that no agent has seen.

        An unknown topic is no error, as for ``KafkaConsumer``: it may be created later.
        """
        if self._scouts is None or self._mode.reads_kafka:
            return
        new = set(topics) - self._looked_for
        self._looked_for |= new
        for topic in new:
            self._scouts.run(partial(self._warn_if_unseen, topic))

    def _warn_if_unseen(self, topic: str) -> None:
        assert self._remote is not None
        try:
            if not self._remote.topics.partitions_for_topic(topic):
                log.warning("%s: %s; waiting for it", topic, self._remote.topics.unseen(topic))
        except TidemarkError:  # the poll that needs storage raises it; the next poll looks again
            self._looked_for.discard(topic)

    def _join(self, timer: Any) -> bool:
        """Let the coordinator do its part, in slices: kafka-python continues a join at the next call.

        Each slice requests the join again. In a join for new metadata, the coordinator takes the sending of the
        assignment for the end, and would otherwise wait for ever for a join that nobody continues.
        """
        while True:
            slice_ms = _PREPARE_SLICE_MS
            if self._coordinator.rejoining:
                slice_ms = _JOIN_SLICE_MS
                self._coordinator.request_rejoin()
                if isinstance(self._coordinator._join_task, Future):
                    self._coordinator._join_task = _JoinResult(self._coordinator._join_task)
            if self._coordinator.poll(timeout_ms=min(timer.timeout_ms, slice_ms)):
                return True
            self._hear()
            if timer.expired:
                return False

    def _refresh_committed_offsets(self, timeout_ms: float | None = None) -> bool:
        """Refresh as kafka-python does, but with the epochs that were committed with the offsets (KIP-320)."""
        if self._subscription.has_all_fetch_positions():
            return True
        missing = self._subscription.missing_fetch_positions()
        if missing and self.config["group_id"] is not None:
            try:
                offsets = self._coordinator.fetch_committed_offsets(missing, timeout_ms=timeout_ms)
            except kafka_errors.KafkaTimeoutError:
                return False
            for tp, committed in offsets.items():
                if tp in self._subscription.missing_fetch_positions():
                    self._subscription.seek(tp, OffsetAndMetadata(committed.offset, "", committed.leader_epoch))
        self._subscription.reset_missing_positions()
        return bool(self._subscription.has_all_fetch_positions())

    def _undone_if_it_fails(self, call: Any, *arguments: Any) -> dict[Any, Any]:
        """Call, and restore the positions if the call raises, Ctrl-C included: it then delivered nothing."""
        self._fetcher.begin()
        try:
            return call(*arguments)  # type: ignore[no-any-return]
        except BaseException:
            self._fetcher.take_back()
            raise

    def _hear(self) -> None:
        if self._woken.is_set():
            self._woken.clear()
            raise WakeupError("wakeup() was called; nothing was delivered, and the next call continues")

    # Callbacks of tier selection

    def _out_of_range(self, tp: TopicPartition, offset: int) -> None:
        if not self._subscription.has_default_offset_reset_policy():
            raise kafka_errors.OffsetOutOfRangeError({tp: offset})
        log.info("%s-%s: no tier has offset %s; resetting", *tp, offset)
        self._subscription.request_offset_reset(tp)

    def _skip(self, tp: TopicPartition, offset: int, gap: GapError) -> None:
        self._gaps_skipped += offset - max(gap.start, self._subscription.position(tp).offset)
        self._subscription.seek(tp, offset)

    def _truncated(self, tp: TopicPartition, position: int, at: int) -> None:
        if not self._subscription.has_default_offset_reset_policy():
            raise kafka_errors.LogTruncationError({tp: OffsetAndMetadata(at, "", -1)})
        log.warning("%s-%s: the log was truncated below %s; continuing from %s", *tp, position, at)
        self._subscription.seek(tp, at)


def _opened(mode: Mode, storage: Storage | str | Path | None) -> Storage | None:
    if not mode.reads_remote:
        return None
    if storage is None:
        raise ValueError(f"{mode} needs storage: a Storage, or the path of a topics file")
    return storage if isinstance(storage, Storage) else Storage.from_topics(storage)


class PolledRecords(Want):
    """The result of ``poll``: lists of kafka-python's ``ConsumerRecord``, of at most ``most`` records together."""

    def __init__(self, most: int, key: Any, value: Any) -> None:
        self._left = most
        self._key = key
        self._value = value
        self._made: dict[TopicPartition, list[Any]] = {}

    @override
    def rows(self, block: Block | None) -> int:
        return self._left

    @override
    def take(self, tp: TopicPartition, block: Block) -> int:
        made = consumer_records(block.rows, tp.topic, self._key, self._value)
        if tp in self._made:
            self._made[tp] += made
        else:
            self._made[tp] = made
        self._left -= len(made)
        return len(made)

    @override
    def result(self) -> dict[TopicPartition, list[Any]]:
        return self._made


class PolledArrow(Want):
    """The result of ``poll_arrow``: one Arrow record batch for each partition.

    They have about ``most`` bytes together, and at least one row.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._made: dict[TopicPartition, pa.RecordBatch] = {}

    @override
    def rows(self, block: Block | None) -> int:
        if self._left <= 0:
            return 0
        if block is None:
            return sys.maxsize
        size = block.rows.nbytes
        return block.rows.num_rows if size <= self._left else max(1, self._left * block.rows.num_rows // size)

    @override
    def take(self, tp: TopicPartition, block: Block) -> int:
        rows = block.rows.replace_schema_metadata(None)
        self._left -= rows.nbytes
        if tp in self._made:
            both = pa.concat_batches([self._made[tp], rows])  # type: ignore[attr-defined]  # not in the stubs
            self._made[tp] = both
        else:
            self._made[tp] = rows
        return rows.num_rows

    @override
    def result(self) -> dict[TopicPartition, pa.RecordBatch]:
        return self._made


def consumer_records(
    rows: pa.RecordBatch, topic: str, key_deserializer: Any = None, value_deserializer: Any = None
) -> list[ConsumerRecord]:
    """``rows``, which are a block's or a slice of them, as the records that a Kafka client hands out.

    Promises: each field is that of kafka-python for the same batches, except for the checksum of a v0 or v1 message,
    which is None here as in v2: KIP-32 deprecated it. Milliseconds are exact, even if they do not fit as microseconds.
    There are fewer records than rows if a deserializer refuses one: those before it; if it is the first, its error is
    raised.

    It works a column at a time: no function of ours is called per record, unless there is a deserializer.
    """
    if not len(rows):
        return []
    keys, key_sizes = _octet_column(rows.column("kafka_key"))
    values, value_sizes = _octet_column(rows.column("kafka_value"))
    headers, header_sizes = _headers(rows.column("kafka_headers"))
    timestamps, timestamp_types = _times(rows)
    failed: list[Exception] = []
    if key_deserializer is not None or value_deserializer is not None:
        keys, values = _deserialized(topic, headers, keys, values, key_deserializer, value_deserializer, failed)
        if failed and not keys:
            raise failed[0]
    fields = zip(
        repeat(topic),
        repeat(rows.column("kafka_partition")[0].as_py()),
        rows.column("kafka_leader_epoch").to_numpy().tolist(),
        rows.column("kafka_offset").to_numpy().tolist(),
        timestamps,
        timestamp_types,
        keys,
        values,
        headers,
        repeat(None),
        key_sizes,
        value_sizes,
        header_sizes,
        strict=False,
    )
    return list(map(_MAKE_RECORD, fields))


def _times(rows: pa.RecordBatch) -> tuple[Iterable[int | None], Iterable[int | None]]:
    """Milliseconds, and 0 or 1 for times of producers or brokers; None and None in v0, which knows no time."""
    if (rows.schema.metadata or {}).get(MAGIC) == b"0":
        return repeat(None), repeat(None)
    kinds = rows.column("kafka_timestamp_type")
    kind = _APPEND_TIME if kinds[0].as_py() == "append" else _CREATE_TIME  # the decoder never mixes them in one piece
    return exact_milliseconds(rows).tolist(), repeat(kind)


def _offsets(column: pa.Array[Any]) -> NDArray[np.int32]:
    """The starts of the values of a variable column, or of a list's entries; one more than there are rows."""
    starts: NDArray[np.int32] = octets(column.buffers()[1]).view(np.int32)
    return starts[column.offset : column.offset + len(column) + 1]


def _octet_column(column: pa.Array[Any]) -> tuple[list[bytes | None], list[int]]:
    """The values of a binary column, and their sizes, -1 for null."""
    values = _objects(column)
    return values, [-1 if value is None else len(value) for value in values]


def _objects(column: pa.Array[Any]) -> list[Any]:
    """The values of a binary or string column, None for null: made in one loop of Arrow's, without a prior copy."""
    return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]  # the stubs lack the type


def _headers(column: pa.Array[Any]) -> tuple[list[RecordHeaders], Iterable[int]]:
    """A list of (key, value) for each row, and its bytes, -1 for an empty list."""
    offsets = _offsets(column)
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return [[] for _ in range(len(column))], repeat(-1)
    entries: Any = column.values.slice(first, last - first)  # type: ignore[attr-defined]  # the stubs know no ListArray
    key_column, value_column = entries.field(0), entries.field(1)
    pairs = list(zip(_objects(key_column), _objects(value_column), strict=True))
    bounds = offsets - first
    ends = _offsets(key_column).astype(np.int64) + _offsets(value_column)
    sizes = ends[bounds[1:]] - ends[bounds[:-1]]
    sizes[bounds[1:] == bounds[:-1]] = -1
    return [pairs[start:end] for start, end in pairwise(bounds.tolist())], sizes.tolist()


def _deserialized(
    topic: str,
    headers: Sequence[RecordHeaders],
    keys: list[bytes | None],
    values: list[bytes | None],
    of_keys: Any,
    of_values: Any,
    failed: list[Exception],
) -> tuple[list[Any], list[Any]]:
    """Keys and values up to the first that its deserializer refuses; the error is added to ``failed``."""
    new_keys: list[Any] = []
    new_values: list[Any] = []
    try:
        for key, value, header in zip(keys, values, headers, strict=True):
            new_key = key if of_keys is None else _deserialize(of_keys, topic, header, key)
            new_values.append(value if of_values is None else _deserialize(of_values, topic, header, value))
            new_keys.append(new_key)
    except Exception as error:  # noqa: BLE001  # an error of an application's function is raised with its record
        failed.append(error)
    return new_keys, new_values


def _deserialize(deserializer: Any, topic: str, headers: RecordHeaders, data: bytes | None) -> Any:
    """Deserialize like kafka-python: a deserializer of its older releases takes no headers."""
    try:
        return deserializer.deserialize(topic, headers, data)
    except TypeError:
        return deserializer.deserialize(topic, data)
