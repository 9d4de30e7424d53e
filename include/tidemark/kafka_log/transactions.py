"""Transactions in a log: the open ones at an offset, and the aborted ones.

The open transactions follow from batch headers alone: a transactional data batch opens one for its producer id
if none is open, and a transactional control batch (an abort or commit marker; KIP-98 knows no other) ends it.

``.txnindex`` lists the aborted ones. An abort is recorded in the segment that holds its MARKER, which may come many
segments after the data: read the index files from the data's segment up to the end that is to be decided.

Source: Kafka's ``ProducerAppendInfo.append``, ``AbortedTxn`` and ``TransactionIndex``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final

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
