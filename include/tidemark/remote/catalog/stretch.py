"""Answers of the catalogue: the stretch to read at an offset, and the offset of a time."""

from __future__ import annotations

from typing import NamedTuple

from tidemark.decode.offset_mask import OffsetMask
from tidemark.kafka_log import AbortedTransaction
from tidemark.raw.segments import Segment


class Stretch(NamedTuple):
    """Offsets ``[start, end)`` of a partition, to be read from one stored segment or range of a pack.

    Read the segment's object ``key`` in the store ``segment.store`` (:meth:`Storage.store`) under
    ``If-Match: segment.etag``, if it has one, from byte ``position`` (a batch starts there, at or below ``start``) to
    at most ``segment.stop``. ``aborted`` are the transactions to leave out, none for read_uncommitted.
    ``mask`` has the erased records to leave out.
    """

    segment: Segment
    start: int
    end: int
    position: int
    aborted: tuple[AbortedTransaction, ...]
    mask: OffsetMask


class OffsetForTime(NamedTuple):
    """A record's offset, its timestamp (milliseconds since 1970), and its leader epoch (-1: unknown)."""

    offset: int
    timestamp: int
    leader_epoch: int
