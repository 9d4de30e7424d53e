"""The fetched blocks of one partition from a tier, in log order, handed out row by row or block by block.

``peek`` shows the next rows and hands out nothing, ``advance`` moves on once they are known to be delivered. An error
of the source is raised when its turn comes, never before the rows that precede it. The records of a broker's response
are decoded as records of the remote tier are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from kafka.errors import CorruptRecordError
from kafka.protocol.consumer import IsolationLevel

from tidemark.consumer.modes import Tier
from tidemark.decode import SCHEMA, DecodeLimits, Headers, aborted_mask, decode_batches, scan_headers
from tidemark.errors import SegmentError
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import AbortedTransaction
from tidemark.kafka_log.batch import CONTROL
from tidemark.kafka_log.names import MAX_OFFSET
from tidemark.remote.reader.blocks import MAGIC, NOTHING, Block

RESPONSE_LIMITS: Final = DecodeLimits(arena_bytes=4 << 20, rows=1 << 15)
_SCHEMAS: Final = {magic: SCHEMA.with_metadata({MAGIC: str(magic)}) for magic in (0, 1, 2)}
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
                schema = _SCHEMAS[int(run["magic"][0])]
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
