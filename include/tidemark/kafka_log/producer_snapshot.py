"""A broker's producer state at a segment's end: ``<next offset>.snapshot``.

Layout (version 1): version int16, CRC-32C uint32 of all that follows, entry count int32, then entries of 46 bytes.

Source: Kafka's ``ProducerStateManager`` and ``ProducerSnapshot.json``; 3.9.2 and 4.3.1 write the same layout.
"""

from __future__ import annotations

from collections.abc import Collection
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from tidemark.errors import FormatError
from tidemark.kafka_log.transactions import OpenTransaction

_HEAD = Struct(">hIi")
_ENTRY = Struct(">qhiqiqiq")
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
    if len(raw) < _HEAD.size:
        raise FormatError(name, f"{len(raw)} bytes are too few for a producer snapshot")
    version, crc, count = _HEAD.unpack_from(raw)
    if version != 1:
        raise FormatError(name, f"producer snapshot version {version} is not 1")
    if crc32c(memoryview(raw)[_CRC_START:]) != crc:
        raise FormatError(name, f"the checksum is not {crc:#010x} as the file says: damaged")
    if count < 0 or len(raw) != _HEAD.size + count * _ENTRY.size:
        raise FormatError(name, f"{len(raw)} bytes do not fit {count} entries of {_ENTRY.size}")
    return [ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(memoryview(raw)[_HEAD.size :])]


def producer_snapshot(opened: Collection[OpenTransaction]) -> bytes:
    """The snapshot of a partition that remembers the producers of the transactions ``opened`` alone."""
    entries = (
        ProducerEntry(one.producer_id, one.producer_epoch, -1, -1, 0, -1, -1, one.first_offset) for one in opened
    )
    body = len(opened).to_bytes(4, "big") + b"".join(_ENTRY.pack(*entry) for entry in entries)
    return _HEAD.pack(1, crc32c(body), len(opened)) + body[4:]


def open_transactions(entries: list[ProducerEntry]) -> tuple[OpenTransaction, ...]:
    """The transactions open where the snapshot was taken, by first offset."""
    opened = [
        OpenTransaction(entry.producer_id, entry.producer_epoch, entry.current_transaction_first_offset)
        for entry in entries
        if entry.current_transaction_first_offset >= 0
    ]
    return tuple(sorted(opened, key=lambda transaction: transaction.first_offset))
