"""Transactions in a log: the open ones at an offset, the aborted ones, and a broker's state of its producers.

The open transactions follow from batch headers alone: a transactional data batch opens one for its producer id
if none is open, and a transactional control batch (an abort or commit marker; KIP-98 knows no other) ends it.

``.txnindex`` lists the aborted ones. An abort is recorded in the segment that holds its MARKER, which may come many
segments after the data: read the index files from the data's segment up to the end that is to be decided.

``<next offset>.snapshot`` is the producers' state at a segment's end (version 1): version int16, CRC-32C uint32 of all
that follows, entry count int32, then entries of 46 bytes.

Source: Kafka's ``ProducerAppendInfo.append``, ``AbortedTxn``, ``TransactionIndex``, ``ProducerStateManager`` and
``ProducerSnapshot.json``; 3.9.2 and 4.3.1 write the same layout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from tidemark.errors import FormatError
from tidemark.kafka_log.batch import BatchHeader

TXN_INDEX_ENTRY_SIZE: Final = 34
"""Bytes of an entry: version (2), producer id (8), first, last and last stable offset (8 each)."""

_ENTRY = Struct(">hqqqq")


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction without its marker; ``first_offset`` is that of its first batch in this partition."""

    producer_id: int
    producer_epoch: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An aborted transaction: its producer's transactional data from ``first_offset`` to ``last_offset`` is void.

    ``last_offset`` is the marker's.
    """

    producer_id: int
    first_offset: int
    last_offset: int


class TransactionTracker:
    """Follows the open transactions of one partition from batch to batch; memory grows with open transactions only."""

    def __init__(self, open_before: Iterable[OpenTransaction] = ()) -> None:
        self._open = {transaction.producer_id: transaction for transaction in open_before}

    def observe(self, header: BatchHeader) -> None:
        """Take account of the next batch of the log."""
        if not header.is_transactional:
            return
        if header.is_control:
            self._open.pop(header.producer_id, None)
        elif header.producer_id not in self._open:
            opened = OpenTransaction(header.producer_id, header.producer_epoch, header.base_offset)
            self._open[header.producer_id] = opened

    @property
    def open(self) -> tuple[OpenTransaction, ...]:
        """The open transactions, by first offset."""
        return tuple(sorted(self._open.values(), key=lambda transaction: transaction.first_offset))


def carry_forward(
    open_before: Iterable[OpenTransaction], headers: Iterable[BatchHeader]
) -> tuple[OpenTransaction, ...]:
    """The transactions open after ``headers``, by first offset; ``open_before`` were open before them."""
    tracker = TransactionTracker(open_before)
    for header in headers:
        tracker.observe(header)
    return tracker.open


def parse_txn_index(raw: bytes, name: str) -> list[AbortedTransaction]:
    """Read a ``.txnindex``; its entries lie in the order of their markers.

    Raises :class:`FormatError` for a partial entry, an unknown version, or offsets that no abort can have.
    """
    if len(raw) % TXN_INDEX_ENTRY_SIZE:
        raise FormatError(name, f"{len(raw)} bytes are not a whole number of {TXN_INDEX_ENTRY_SIZE}-byte entries")
    aborted: list[AbortedTransaction] = []
    for number, (version, *fields, _last_stable_offset) in enumerate(_ENTRY.iter_unpack(raw)):
        if version != 0:
            raise FormatError(name, f"entry {number}: version {version} is not 0")
        transaction = AbortedTransaction(*fields)
        if not 0 <= transaction.first_offset <= transaction.last_offset:
            raise FormatError(name, f"entry {number}: {transaction} ends before it starts")
        if aborted and transaction.last_offset <= aborted[-1].last_offset:
            raise FormatError(name, f"entry {number}: last offset {transaction.last_offset} does not increase")
        aborted.append(transaction)
    return aborted


_SNAPSHOT_HEAD = Struct(">hIi")
_PRODUCER = Struct(">qhiqiqiq")
_CRC_START: Final = 6


class ProducerEntry(NamedTuple):
    """A producer that the partition remembers. In every field but the first two, -1 means none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    """Records of the last batch, less one."""
    timestamp: int
    """Milliseconds since 1970 of the producer's last batch."""
    coordinator_epoch: int
    current_transaction_first_offset: int


def parse_producer_snapshot(raw: bytes, name: str) -> list[ProducerEntry]:
    """Read a ``.snapshot``. Raises :class:`FormatError` for an unknown version, a wrong size or a wrong checksum."""
    if len(raw) < _SNAPSHOT_HEAD.size:
        raise FormatError(name, f"{len(raw)} bytes are too few for a producer snapshot")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(raw)
    if version != 1:
        raise FormatError(name, f"producer snapshot version {version} is not 1")
    if crc32c(memoryview(raw)[_CRC_START:]) != crc:
        raise FormatError(name, f"the checksum is not {crc:#010x} as the file says: damaged")
    if count < 0 or len(raw) != _SNAPSHOT_HEAD.size + count * _PRODUCER.size:
        raise FormatError(name, f"{len(raw)} bytes do not fit {count} entries of {_PRODUCER.size}")
    return [ProducerEntry(*fields) for fields in _PRODUCER.iter_unpack(memoryview(raw)[_SNAPSHOT_HEAD.size :])]


def producer_snapshot(opened: Collection[OpenTransaction]) -> bytes:
    """The snapshot of a partition that remembers the producers of the transactions ``opened`` alone."""
    entries = (
        ProducerEntry(one.producer_id, one.producer_epoch, -1, -1, 0, -1, -1, one.first_offset) for one in opened
    )
    body = len(opened).to_bytes(4, "big") + b"".join(_PRODUCER.pack(*entry) for entry in entries)
    return _SNAPSHOT_HEAD.pack(1, crc32c(body), len(opened)) + body[4:]


def open_transactions(entries: list[ProducerEntry]) -> tuple[OpenTransaction, ...]:
    """The transactions open where the snapshot was taken, by first offset."""
    opened = [
        OpenTransaction(entry.producer_id, entry.producer_epoch, entry.current_transaction_first_offset)
        for entry in entries
        if entry.current_transaction_first_offset >= 0
    ]
    return tuple(sorted(opened, key=lambda transaction: transaction.first_offset))
