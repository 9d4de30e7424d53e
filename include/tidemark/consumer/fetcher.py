"""The fetcher of both tiers, which replaces kafka-python's ``Fetcher`` in a ``TieredConsumer``.

Promises: each record once, in order, from whichever tier; a position moves only with delivered records, and back if the
call that moved it fails; fetched records that do not begin at the position are dropped. Nothing here waits for storage
except on the :class:`Wakeup`, which every thread with news sets.

A delivery has the fetched blocks of one partition from a tier, in log order. ``peek`` shows the next rows and hands out
nothing, ``advance`` moves on once they are known to be delivered. An error of the source is raised when its turn comes,
never before the rows that precede it. The records of a broker's response are decoded as records of the remote tier are.

Relies on private names of kafka-python, which ``tests/consumer/test_kafka_private.py`` lists.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from threading import TIMEOUT_MAX, Condition
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from kafka import errors as kafka_errors
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.future import Future
from kafka.protocol.consumer import IsolationLevel, OffsetSpec
from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp

from tidemark.concurrency import in_parallel
from tidemark.consumer.tier_metadata import Brokers, Found, Scouts, Times
from tidemark.consumer.tier_selection import TIERS, Tier, TierRules, TierSelector
from tidemark.decode import DecodeLimits, Headers, aborted_mask, decode_batches, scan_headers
from tidemark.errors import FormatError, GapError, OutOfRange, SegmentError, StoreError
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import AbortedTransaction
from tidemark.kafka_log.batch import CONTROL
from tidemark.kafka_log.indexes import MAX_OFFSET
from tidemark.remote.reader.blocks import NOTHING, SCHEMAS, Block
from tidemark.remote.reader.tier import RemoteTier

RESPONSE_LIMITS: Final = DecodeLimits(arena_bytes=4 << 20, rows=1 << 15)
_OFFSET_BYTES: Final = 8


class BlockDelivery:
    """Blocks from ``position`` on; ``epoch`` is the leader epoch of the last passed rows, -1 if unknown."""

    def __init__(self, tier: Tier, position: int, blocks: Iterable[Block]) -> None:
        self.tier = tier
        self.position = position
        self.epoch = -1
        self.delivered = 0
        self._blocks: Iterator[Block] = iter(blocks)
        self._next: Block | None = None
        self._error: Exception | None = None
        self._exhausted = False

    @property
    def exhausted(self) -> bool:
        """True if nothing is left, not even an error."""
        return self._exhausted and self._next is None and self._error is None

    def peek(self, rows: int) -> Block | None:
        """At most ``rows`` rows, at least one; None if nothing is left.

        Blocks without rows are passed, which moves ``position``. Raises the error of the source if that is next, and
        again until the delivery is dropped.
        """
        self._load()
        if self._next is None:
            if self._error is not None:
                raise self._error
            return None
        return self._next if self._next.rows.num_rows <= rows else self._next.cut(rows)[0]

    def advance(self, rows: int) -> None:
        """Mark the first ``rows`` rows of the shown block as delivered."""
        block = self._next
        assert block is not None
        self.delivered += rows
        if rows < block.rows.num_rows:
            taken, self._next = block.cut(rows)
        else:
            taken, self._next = block, None
        self.position = taken.next_offset
        self.epoch = taken.leader_epoch
        self._load()

    def _load(self) -> None:
        """Load the next block with rows, so that ``position`` is past all blocks without rows."""
        while self._next is None and not self._exhausted:
            try:
                block = next(self._blocks, None)
            except Exception as error:  # noqa: BLE001  # any error is raised at its place
                self._error, self._exhausted = error, True
                return
            if block is None:
                self._exhausted = True
            elif block.rows.num_rows:
                self._next = block
            else:
                self.position = block.next_offset
                self.epoch = block.leader_epoch if block.leader_epoch >= 0 else self.epoch


class KafkaRows(BlockDelivery):
    """The records of one partition in a broker's response, from the requested offset on.

    It replaces kafka-python's ``Fetcher.PartitionRecords``. It finds the records that ``read_committed`` leaves out as
    Kafka's ``CompletedFetch`` does: the response names the aborted transactions by producer and first offset; each ends
    at its producer's next marker.
    """

    def __init__(  # the signature of PartitionRecords
        self,
        fetch_offset: int,
        tp: TopicPartition,
        records: Any,
        *,
        check_crcs: bool = True,
        isolation_level: int = IsolationLevel.READ_UNCOMMITTED,
        aborted_transactions: Iterable[Any] | None = None,
        metric_aggregator: Any = None,
        on_drain: Callable[[KafkaRows], None] = lambda _: None,
        **_: object,
    ) -> None:
        committed = isolation_level == IsolationLevel.READ_COMMITTED
        aborted = (
            [(transaction.producer_id, transaction.first_offset) for transaction in aborted_transactions or ()]
            if committed
            else []
        )
        data = records._buffer  # kafka-python keeps the bytes there
        super().__init__("kafka", fetch_offset, self._decoded(data, aborted, verify=check_crcs))
        self.topic_partition = tp
        self.incarnation = 0
        self.bytes_read = len(data)
        self._metrics = metric_aggregator
        self._on_drain = on_drain
        self._drained = False

    def drain(self) -> None:
        """Finish: report to kafka-python's metrics, once."""
        if not self._drained:
            self._drained = True
            if self._metrics:
                self._metrics.record(self.topic_partition, self.bytes_read, self.delivered)
            self._on_drain(self)

    def _decoded(self, data: bytes, aborted: list[tuple[int, int]], *, verify: bool) -> Iterator[Block]:
        tp = self.topic_partition
        name = f"{tp.topic}-{tp.partition}, as the broker sent it"
        headers, damage = _scan(data, name, verify=verify)
        try:
            yield from self._rows(data, headers, aborted, name)
        except SegmentError as error:
            damage = error
        if damage is not None:
            message = f"{tp.topic}-{tp.partition}: a record batch at offset {damage.offset} is corrupt: {damage.detail}"
            raise CorruptRecordError(message) from damage

    def _rows(self, data: bytes, headers: Headers, aborted: list[tuple[int, int]], name: str) -> Iterator[Block]:
        start = self.position
        for run in np.split(headers, np.flatnonzero(np.diff(headers["magic"])) + 1):
            for rows in decode_batches(
                data,
                run,
                name=name,
                partition=self.topic_partition.partition,
                incarnation=self.incarnation,
                select=~aborted_mask(run, _with_ends(aborted, headers)) if aborted else None,
                from_offset=start,
                limits=RESPONSE_LIMITS,
            ):
                start = int(rows.column("kafka_offset")[-1].as_py()) + 1
                epoch = int(rows.column("kafka_leader_epoch")[-1].as_py())
                schema = SCHEMAS[int(run["magic"][0])]
                yield Block(pa.RecordBatch.from_arrays(rows.columns, schema=schema), start, start, epoch)
        if len(headers):
            # A v2 batch keeps its last offset even if compaction removed the records there.
            end = int(headers["base_offset"][-1] + headers["last_offset_delta"][-1]) + 1
            yield Block(NOTHING, start, max(start, end), int(headers["leader_epoch"][-1]))


def _scan(data: bytes, name: str, *, verify: bool) -> tuple[Headers, SegmentError | None]:
    """The headers of all whole batches before the first damaged batch, and the damage."""
    base = int.from_bytes(data[:_OFFSET_BYTES], "big") if len(data) >= _OFFSET_BYTES else 0

    def scan(part: bytes | memoryview) -> Headers:
        return scan_headers(part, name, base, expected=0, allow_partial_tail=True, verify=verify)

    try:
        return scan(data), None
    except SegmentError as error:
        return scan(memoryview(data)[: error.position]), error


def _with_ends(aborted: list[tuple[int, int]], headers: Headers) -> list[AbortedTransaction]:
    markers = headers[headers["attributes"] & CONTROL != 0]
    transactions = []
    for producer, first in aborted:
        own = markers["base_offset"][(markers["producer_id"] == producer) & (markers["base_offset"] >= first)]
        last = int(own[0]) if len(own) else MAX_OFFSET
        transactions.append(AbortedTransaction(producer, first, last))
    return transactions


log = logging.getLogger(__name__)


class Want(Protocol):
    """A caller's demand for records, and the form of its result."""

    def rows(self, block: Block | None) -> int:
        """The number of rows that the call still takes, of ``block`` if there is one; 0 ends the call."""
        ...

    def take(self, tp: TopicPartition, block: Block) -> int:
        """Add rows of ``block`` to the result; returns their number. Raises an error that stops at the first row."""
        ...

    def result(self) -> dict[TopicPartition, Any]:
        """The result by partition; no entry without a row."""
        ...


@dataclass
class Count:
    """Delivered records; for Kafka also received bytes (compressed) and responses."""

    records: int = 0
    bytes: int = 0
    requests: int = 0


class TieredOffsets(Fetcher):  # type: ignore[misc]  # kafka-python has no types
    """The part of the fetcher that finds positions: resets, offset queries over the tiers, and validation (KIP-320).

    ``scouts`` are None for KAFKA_ONLY, where kafka-python does all itself.
    """

    _reset_task: Any

    def __init__(
        self,
        client: Any,
        subscriptions: Any,
        *,
        rules: TierRules,
        brokers: Brokers,
        scouts: Scouts | None,
        wakeup: Wakeup,
        **configs: Any,
    ) -> None:
        super().__init__(client, subscriptions, **configs)
        self._placements = TierSelector(rules, scouts)
        self._rules = rules
        self._brokers = brokers
        self._scouts = scouts
        self._wakeup = wakeup
        self._reset_error: Exception | None = None
        self._reset_lock = threading.Lock()
        self._resetting = False

    def reset_offsets_if_needed(self, timeout_ms: float | None = None) -> Any:
        """Reset as kafka-python does, over the tiers of the mode."""
        if self._scouts is None:
            task = super().reset_offsets_if_needed(timeout_ms)
            if task is not None:
                task.add_both(self._wakeup.wake)
            return task
        error, self._reset_error = self._reset_error, None
        if error is not None:
            raise error
        with self._reset_lock:
            if not self._resetting and self._subscriptions.partitions_needing_reset():
                self._resetting, self._reset_task = True, Future()
                limit = self.config["request_timeout_ms"] if timeout_ms is None else timeout_ms
                self._scouts.run(partial(self._reset, self._reset_task, limit))
        return None if self._reset_task is None or self._reset_task.is_done else self._reset_task

    def _reset(self, task: Any, timeout_ms: float) -> None:
        """Reset in a scout's thread, until no partition needs it: the caller may request more meanwhile."""
        try:
            while wanted := self._to_reset():
                self._reset_these(wanted, timeout_ms)
        except kafka_errors.RetriableError as error:
            log.info("the start or end of partitions is not known yet; asking again: %s", error)
        except Exception as error:  # noqa: BLE001  # raised by the caller's next call
            self._reset_error = error
        finally:
            with self._reset_lock:
                self._resetting = False
            # Only kafka-python's own thread may wake its tasks that wait for this one.
            self._net.call_soon_threadsafe(lambda: task.success(None))

    def _to_reset(self) -> dict[TopicPartition, int]:
        with self._reset_lock:
            wanted = {}
            for tp in self._subscriptions.partitions_needing_reset():
                state = self._subscriptions.assignment.get(tp)
                if state is not None and state.reset_strategy is not None:
                    wanted[tp] = state.reset_strategy
            self._resetting = bool(wanted)
            return wanted

    def _reset_these(self, wanted: dict[TopicPartition, int], timeout_ms: float) -> None:
        answers = self._offsets_at(wanted, timeout_ms)
        missing = set(wanted) - set(answers)
        if missing:
            raise kafka_errors.KafkaTimeoutError(f"no tier says where {missing} begin or end")
        for tp, answer in answers.items():
            self._reset_offset_if_needed(tp, wanted[tp], answer.offset)

    def offsets_by_times(
        self, timestamps: dict[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[Any, Any]:
        """Offsets as in kafka-python, over the tiers of the mode."""
        if self._scouts is None:
            return super().offsets_by_times(timestamps, timeout_ms)  # type: ignore[no-any-return]
        return dict.fromkeys(timestamps) | self._offsets_at(timestamps, timeout_ms)

    def beginning_or_end_offset(
        self, partitions: Any, timestamp: int, timeout_ms: float | None = None
    ) -> dict[Any, int]:
        """Offsets as in kafka-python, over the tiers of the mode."""
        if self._scouts is None:
            return super().beginning_or_end_offset(partitions, timestamp, timeout_ms)  # type: ignore[no-any-return]
        wanted = dict.fromkeys(partitions, timestamp)
        offsets = self._offsets_at(wanted, timeout_ms)
        return {tp: offsets[tp].offset for tp in wanted}

    def _offsets_at(self, times: Times, timeout_ms: float | None) -> Found:
        """The offset of the first record at or after a time, or a log's start or end, over the tiers. Waits."""
        offsets: Found = {}
        reads_kafka = self._rules.mode.reads_kafka
        if times and reads_kafka:
            offsets = self._brokers.offsets(times, timeout_ms)
        stored = [(tp, when) for tp, when in times.items() if not (when == OffsetSpec.LATEST and reads_kafka)]
        answers = in_parallel(lambda query: self._stored_offset(*query), stored)
        for (tp, _), answer in zip(stored, answers, strict=True):
            if answer is not None and (tp not in offsets or answer.offset < offsets[tp].offset):
                offsets[tp] = answer
        return offsets

    def _stored_offset(self, tp: TopicPartition, when: int) -> Any:
        """The answer for the stored records. Without any: 0, or None if Kafka answers."""
        assert self._scouts is not None
        partition, committed = self._scouts.read(tp), self._rules.committed
        if when in {OffsetSpec.EARLIEST, OffsetSpec.LATEST}:
            if partition is None or partition.start >= partition.end(committed=False):
                if self._rules.mode.reads_kafka:
                    return None
                return OffsetAndTimestamp(partition.end(committed=False) if partition else 0, -1, -1)
            offset = partition.start if when == OffsetSpec.EARLIEST else partition.end(committed=committed)
            return OffsetAndTimestamp(offset, -1, -1)
        answer = partition.offset_for_time(when, committed=committed) if partition else None
        return OffsetAndTimestamp(*answer) if answer else None

    def maybe_validate_positions(self) -> None:
        """Validate Kafka's positions as kafka-python does. Remote positions are compared with the remote lineage."""
        for tp in self._subscriptions.assigned_partitions():
            if self._placements.of(tp).tier == "kafka":
                epoch = self._manager.cluster.leader_epoch_for_partition(tp)
                self._subscriptions.maybe_validate_position_for_current_leader(tp, epoch)

    def validate_offsets_if_needed(self, timeout_ms: float | None = None) -> Any:
        """Validate as kafka-python does, and wake the caller at the end."""
        before = self._validation_task
        task = super().validate_offsets_if_needed(timeout_ms)
        if task is not None and task is not before:
            task.add_both(self._wakeup.wake)
        return task


class TieredFetcher(TieredOffsets):
    """A fetcher from Kafka and from ``remote`` (None for KAFKA_ONLY), according to ``rules``."""

    PartitionRecords = KafkaRows

    def __init__(self, client: Any, subscriptions: Any, *, remote: RemoteTier | None, **options: Any) -> None:
        """``options`` are those of :class:`TieredOffsets`."""
        super().__init__(client, subscriptions, **options)
        self._counts: dict[tuple[TopicPartition, Tier], Count] = {}
        """Counts since the consumer was made. A partition's counts continue when it is assigned again."""
        self._remote = remote
        self._in_hand: OrderedDict[TopicPartition, Any] = OrderedDict()  # a response, or the rest of a delivery
        self._turn: Tier = "kafka"
        self._remote_turns: list[TopicPartition] = []
        self._passed: dict[TopicPartition, tuple[int, Any]] = {}
        self._deferred: tuple[TopicPartition, int, Exception] | None = None
        """An error that a later call raises, if its partition is still at this position then."""
        self._moved: dict[TopicPartition, tuple[Any, Any]] = {}

    def fetch(self, want: Want, *, heard: int, move: bool, timeout_ms: float) -> dict[TopicPartition, Any]:
        """Records for ``want``. Without any, waits at most ``timeout_ms`` for news and looks again.

        News means more than ``heard`` wake-ups. ``move`` is False for the iterator, which moves positions itself,
        record by record.
        """
        self._raise_deferred()
        self._place()
        records = self._collect(want, move=move)
        self._send()
        if not records:
            self._raise_deferred()
            if timeout_ms > 0:
                self._wakeup.wait(heard, min(timeout_ms / 1000, self._patience()))
                self._place()
                records = self._collect(want, move=move)
            if not records:
                self._raise_deferred()
        return records

    def begin(self) -> None:
        """Begin a call: all earlier deliveries are final."""
        self._moved = {}

    def take_back(self) -> None:
        """Restore the positions from before the last call, which delivered nothing after all."""
        for tp, (before, after) in self._moved.items():
            if self._subscriptions.is_assigned(tp):
                state = self._subscriptions.assignment[tp]
                if state.position == after:
                    state.position = before
        self._moved = {}

    def tier(self, tp: TopicPartition) -> Tier | None:
        """The tier that reads ``tp``, or None."""
        return self._placements.of(tp).tier if self._subscriptions.is_assigned(tp) else None

    def close(self) -> None:
        """Drop all fetched records."""
        for tp in list(self._in_hand):
            self._drop(tp)
        super().close()

    # Placing

    def _place(self) -> None:
        """Decide each partition's tier at its position, and set the remote readers to work."""
        assigned = self._subscriptions.assigned_partitions()
        for tp in self._placements.known():
            if tp not in assigned:
                self._leave(tp)
        turns = []
        for tp in self._subscriptions.fetchable_partitions():
            try:
                if self._decide(tp) == "remote":
                    turns.append(tp)
            except Exception as error:  # noqa: BLE001  # raised after the other partitions' records are delivered
                self._defer(tp, error)
        if set(turns) != set(self._remote_turns):
            self._remote_turns = turns

    def _decide(self, tp: TopicPartition) -> Tier | None:
        position = self._position(tp)
        if tp in self._in_hand and self._stands(tp, self._in_hand[tp]):
            return self._in_hand[tp].tier  # type: ignore[no-any-return]
        before = self._placements.of(tp).tier
        place = self._placements.decide(tp, position.offset, position.leader_epoch)
        if not self._subscriptions.is_fetchable(tp):
            return None  # a reset was requested
        if self._remote is not None:
            if place.tier == "remote":
                self._remote.read(tp, self._position(tp).offset)
            elif before == "remote":
                self._remote.stop(tp)
        return place.tier

    def _position(self, tp: TopicPartition) -> Any:
        """The position of ``tp``, advanced over offsets without a record after the iterator's last record."""
        state = self._subscriptions.assignment[tp]
        passed = self._passed.pop(tp, None)
        if passed is not None and state.position.offset == passed[0]:
            state.position = passed[1]
        return state.position

    def _leave(self, tp: TopicPartition) -> None:
        """Forget ``tp``, which is no longer assigned, and stop its remote reader."""
        self._placements.forget(tp)
        self._passed.pop(tp, None)
        self._drop(tp)

    # Collecting

    def _collect(self, want: Want, *, move: bool) -> dict[TopicPartition, Any]:
        """Collect records from both tiers, which take turns to be first."""
        self._admit()
        for tier in (self._turn, "remote" if self._turn == "kafka" else "kafka"):
            for tp in list(self._in_hand) if tier == "kafka" else list(self._remote_turns):
                if not want.rows(None):
                    break
                try:
                    self._collect_one(tp, want, move=move)
                except Exception as error:  # noqa: BLE001  # raised after the other partitions' records
                    self._defer(tp, error)
                    self._drop(tp)
        self._turn = "remote" if self._turn == "kafka" else "kafka"
        self._remote_turns = self._remote_turns[1:] + self._remote_turns[:1]
        return want.result()

    def _admit(self) -> None:
        """Take over the brokers' responses."""
        while self._completed_fetches:
            response = self._completed_fetches.popleft()
            tp = response.topic_partition
            self._drop(tp)
            self._in_hand[tp] = response
            self._count(tp, "kafka").requests += 1

    def _collect_one(self, tp: TopicPartition, want: Want, *, move: bool) -> None:
        if self._subscriptions.is_paused(tp):
            return  # kept until the partition is resumed (KAFKA-7548)
        while self._subscriptions.is_fetchable(tp):
            delivery = self._delivery(tp, want)
            if delivery is None:
                return
            if not self._deliver(tp, delivery, want, move=move):
                return

    def _delivery(self, tp: TopicPartition, want: Want) -> BlockDelivery | None:
        """The fetched and parsed records of ``tp`` at its position, or the records of its remote reader."""
        held = self._in_hand.get(tp)
        if held is not None and not isinstance(held, BlockDelivery):
            del self._in_hand[tp]  # parsing updates the metrics, however it ends
            held = self._parsed(tp, held)
            if held is not None:
                self._in_hand[tp] = held
        if held is None or not (self._stands(tp, held) and self._placements.of(tp).tier == held.tier):
            self._drop(tp)
            if self._remote is None or self._placements.of(tp).tier != "remote":
                return None
            held = self._from_remote(tp, want)
            if held is None:
                return None
        self._in_hand[tp] = held
        return held

    def _stands(self, tp: TopicPartition, held: Any) -> bool:
        """True if ``held`` has records or an error left, and begins at the position."""
        return isinstance(held, BlockDelivery) and not held.exhausted and held.position == self._position(tp).offset

    def _parsed(self, tp: TopicPartition, response: Any) -> KafkaRows | None:
        """Parse as kafka-python does, but judge an offset out of range over both tiers."""
        state = self._subscriptions.assignment[tp]
        if (
            self._remote is not None
            and kafka_errors.for_code(response.partition_data.error_code) is kafka_errors.OffsetOutOfRangeError
        ):
            if response.metric_aggregator:
                response.metric_aggregator.record(tp, 0, 0)
            at_position = state.position is not None and state.position.offset == response.fetched_offset
            if at_position and state.clear_preferred_read_replica() is None and self._placements.of(tp).tier == "kafka":
                self._placements.out_of_range(tp)
                self._wakeup.wake()
            return None
        rows: KafkaRows | None = self._parse_fetched_data(response)
        if rows is not None:
            self._placements.given(tp)
            rows.incarnation = self._placements.incarnation(tp)
            self._count(tp, "kafka").bytes += rows.bytes_read
        return rows

    def _from_remote(self, tp: TopicPartition, want: Want) -> BlockDelivery | None:
        assert self._remote is not None
        position = self._position(tp).offset
        try:
            block = self._remote.take(tp, want.rows(None))
        except GapError as gap:
            if not self._placements.not_there(tp, gap):
                raise
        except OutOfRange:
            self._placements.look_again(tp)
        except (StoreError, FormatError) as error:
            if not self._placements.unreadable(tp, position, error):
                raise
        else:
            if block is None or block.start != position or not self._placements.compared(tp):
                return None
            self._placements.readable(tp)
            return BlockDelivery("remote", position, [block])
        self._wakeup.wake()  # its tier must be decided again
        return None

    def _deliver(self, tp: TopicPartition, delivery: BlockDelivery, want: Want, *, move: bool) -> bool:
        """Give ``want`` as many rows of ``delivery`` as it takes. Returns True if it may take more."""
        count = 0
        block = delivery.peek(want.rows(None))
        if block is not None and (rows := want.rows(block)):
            block = block if rows >= block.rows.num_rows else block.cut(rows)[0]
            count = want.take(tp, block)
            delivery.advance(count)
            self._count(tp, delivery.tier).records += count
        self._move(tp, delivery, count, block, move=move)
        if delivery.exhausted:
            self._drop(tp)
        return move and delivery.exhausted and delivery.tier == "remote" and bool(want.rows(None))

    def _move(
        self, tp: TopicPartition, delivery: BlockDelivery, count: int, block: Block | None, *, move: bool
    ) -> None:
        state = self._subscriptions.assignment[tp]
        epoch = delivery.epoch if delivery.epoch >= 0 else state.position.leader_epoch
        after = OffsetAndMetadata(delivery.position, "", epoch)
        if self._sensors and state.highwater is not None:
            self._sensors.records_fetch_lag.record(max(0, state.highwater - delivery.position))
        if move or not count:
            before = self._moved[tp][0] if tp in self._moved else state.position
            self._moved[tp] = before, after
            state.position = after
        elif block is not None:
            last = int(block.rows.column("kafka_offset")[count - 1].as_py())
            self._passed[tp] = last + 1, after

    def _drop(self, tp: TopicPartition) -> None:
        held = self._in_hand.pop(tp, None)
        if isinstance(held, KafkaRows):
            held.drain()
        elif held is not None and not isinstance(held, BlockDelivery) and held.metric_aggregator:
            held.metric_aggregator.record(tp, 0, 0)

    # Kafka's side

    def _send(self) -> None:
        """Request more records from the brokers, if a partition needs any."""
        if self._fetchable_partitions():
            for future in self.send_fetches():
                future.add_both(self._wakeup.wake)

    def _fetchable_partitions(self) -> list[TopicPartition]:
        return [
            tp
            for tp in super()._fetchable_partitions()
            if tp not in self._in_hand and self._placements.of(tp).tier == "kafka"
        ]

    def _patience(self) -> float:
        """Seconds until another attempt may succeed without news."""
        backoff: float = self.config["retry_backoff_ms"] / 1000
        if self._subscriptions.partitions_needing_reset() or not self._subscriptions.has_all_fetch_positions():
            return backoff
        fetchable = self._subscriptions.fetchable_partitions()
        if not self.in_flight_fetches() and any(self._placements.of(tp).tier == "kafka" for tp in fetchable):
            return backoff
        return min((self._placements.next_look(tp) for tp in fetchable), default=backoff)

    def shown(self) -> dict[str, Any]:
        """The counts in the consumer's metrics; ``partitions`` are by name, such as ``orders-0``, and tier."""
        assigned = self._subscriptions.assigned_partitions()
        places = [self._placements.of(tp) for tp in assigned]
        counted = dict.fromkeys(tp for tp, _ in self._counts)
        return {
            "partitions": {
                f"{tp.topic}-{tp.partition}": {tier: asdict(self._count(tp, tier)) for tier in TIERS} for tp in counted
            },
            "hand-overs": self._placements.hand_overs,
            "fallbacks": self._placements.fallbacks,
            "waiting": sum(place.tier is None for place in places),
        }

    def _count(self, tp: TopicPartition, tier: Tier) -> Count:
        return self._counts.setdefault((tp, tier), Count())

    # Errors

    def _defer(self, tp: TopicPartition, error: Exception) -> None:
        if self._deferred is None and self._subscriptions.is_assigned(tp):
            position = self._subscriptions.assignment[tp].position
            self._deferred = tp, position.offset if position is not None else -1, error

    def _raise_deferred(self) -> None:
        deferred, self._deferred = self._deferred, None
        if deferred is None:
            return
        tp, offset, error = deferred
        if not self._subscriptions.is_assigned(tp):
            return
        position = self._subscriptions.assignment[tp].position
        if offset == (position.offset if position is not None else -1):
            raise error


class Wakeup:
    """The event on which the caller's thread waits while no tier has a record. Thread-safe.

    It counts the calls of :meth:`wake`, so that no call between a look and the wait is lost.
    """

    def __init__(self) -> None:
        self._condition = Condition()
        self._count = 0

    def wake(self, *_: object) -> None:
        """Wake the waiting thread; takes any arguments, to serve as a callback."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    @property
    def count(self) -> int:
        """Number of calls of :meth:`wake`."""
        with self._condition:
            return self._count

    def wait(self, heard: int, seconds: float) -> None:
        """Return once :meth:`wake` was called more than ``heard`` times, or after ``seconds``."""
        with self._condition:
            self._condition.wait_for(lambda: self._count != heard, min(max(seconds, 0.0), TIMEOUT_MAX))
