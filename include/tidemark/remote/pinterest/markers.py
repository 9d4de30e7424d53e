"""What a log's own batches say of transactions: for raw without ``.txnindex``.

Source: Kafka's ``ControlRecordType`` (a marker's key is version and type, 2 bytes each; type 0 aborts, 1 commits) and
``DefaultRecord``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

from tidemark.kafka_log import AbortedTransaction
from tidemark.kafka_log.batch import CONTROL, HEADER_SIZE, TRANSACTIONAL
from tidemark.raw.segments import Segment
from tidemark.remote.catalog.batch_scan import BatchWindow, windows
from tidemark.store import Store

_ABORT = 0
_COMMIT = 1


class Marker(NamedTuple):
    """The end of a transaction of ``producer``, at ``offset``."""

    producer: int
    offset: int
    aborts: bool


class Scanned(NamedTuple):
    """The transactions of a segment.

    ``aborted`` are those that a marker in it aborts, each from the first offset that may be its data in this segment;
    ``open`` has the first offset of each producer's data that no marker in it ends. Of the markers of each producer,
    ``ends`` has the offsets, and ``commits`` whether they commit, in a few bytes each.
    """

    aborted: tuple[AbortedTransaction, ...]
    open: dict[int, int]
    ends: dict[int, array[int]]
    commits: dict[int, bytearray]

    def end(self, producer: int, offset: int) -> Marker | None:
        """The marker that ends the transaction which ``producer`` has open at ``offset``; None if it is not here.

        Not simply its first one: the log of another leader may begin below ``offset``.
        """
        offsets = self.ends.get(producer)
        index = bisect_right(offsets, offset) if offsets else 0
        if not offsets or index == len(offsets):
            return None
        return Marker(producer, offsets[index], aborts=not self.commits[producer][index])


def scanned(store: Store, segment: Segment) -> Scanned:
    """Read a segment through for its markers. Raises as :func:`tidemark.remote.catalog.batch_scan.windows` does."""
    aborted: list[AbortedTransaction] = []
    opened: dict[int, int] = {}
    since: dict[int, int] = {}
    ends: dict[int, array[int]] = {}
    commits: dict[int, bytearray] = {}
    for window in windows(store, segment):
        chosen = window.headers[window.headers["attributes"] & TRANSACTIONAL != 0]
        for row in chosen:
            producer, offset = int(row["producer_id"]), int(row["base_offset"])
            if not row["attributes"] & CONTROL:
                opened.setdefault(producer, offset)
                continue
            kind = _kind(window, int(row["position"]))
            if kind not in {_ABORT, _COMMIT}:
                continue
            if kind == _ABORT:
                aborted.append(AbortedTransaction(producer, since.get(producer, segment.base), offset, offset))
            opened.pop(producer, None)
            since[producer] = offset + 1
            ends.setdefault(producer, array("q")).append(offset)
            commits.setdefault(producer, bytearray()).append(kind == _COMMIT)
    return Scanned(tuple(aborted), opened, ends, commits)


def _kind(window: BatchWindow, position: int) -> int:
    """The type of the control record of the batch at byte ``position`` of the log."""
    at = _after_varint(window.data, position - window.position + HEADER_SIZE[2])  # the record's length
    at += 1  # its attributes
    for _ in range(3):  # deltas of timestamp and offset, length of the key
        at = _after_varint(window.data, at)
    return int.from_bytes(window.data[at + 2 : at + 4], "big")


def _after_varint(data: bytes, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1
