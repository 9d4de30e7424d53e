"""What the catalogue answers: the same for every writer of raw."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple, Protocol

from tidemark.formats.gaps import Gap
from tidemark.kafka_log import AbortedTransaction
from tidemark.raw.segments import Segment


class Stretch(NamedTuple):
    """Offsets ``[start, end)`` of a partition, to be read from one stored segment.

    Read the segment's object ``key`` in the store ``segment.store`` (:meth:`Storage.store`) under
    ``If-Match: segment.etag``, from byte ``position`` (a batch starts there, at or below ``start``) to at most
    ``segment.size``. ``aborted`` are the transactions to leave out; none for read_uncommitted.
    """

    segment: Segment
    start: int
    end: int
    position: int
    aborted: tuple[AbortedTransaction, ...]


class OffsetForTime(NamedTuple):
    """A record's offset, its timestamp (milliseconds since 1970), and its leader epoch (-1: unknown)."""

    offset: int
    timestamp: int
    leader_epoch: int


class RemotePartition(Protocol):
    """A partition of one incarnation, as the remote tier has it.

    Thread-safe. What is known changes by :meth:`refresh` alone. Methods that read the store raise
    :class:`tidemark.errors.StoreError` or one of its kinds, and :class:`tidemark.errors.FormatError` for an object
    that does not parse; none retries.
    """

    topic: str
    partition: int
    incarnation: int
    topic_id: str | None

    def refresh(self) -> None:
        """Look again: the watermark, what retention removed, and what is new, by a few small requests."""
        ...

    @property
    def start(self) -> int:
        """The first offset that can be read now; retention of raw moves it."""
        ...

    @property
    def branch(self) -> int:
        """Grows when the lineage has changed below what could have been read before."""
        ...

    def end(self, *, committed: bool) -> int:
        """The offset after the last that can be read; ``committed``: the remote last stable offset. No request."""
        ...

    def next_stretch(self, offset: int, *, committed: bool) -> Stretch | Gap | None:
        """What to read at ``offset``.

        A gap if ``offset`` lies in one that is recorded and that nobody acknowledged, or if the store lacks it without
        a record (reason ``unknown``). What is acknowledged is passed over: the stretch starts later then. None if there
        is nothing at or after ``offset`` yet.

        Raises:
            OutOfRange: ``offset`` lies below :attr:`start`.
        """
        ...

    def invalidate(self, segment: Segment) -> None:
        """Forget what is known of ``segment``: reading it under its ETag found another version, or nothing.

        If it was so before, and its manifest still says the same, what is stored is proved to begin with the segment:
        it is read under that version's ETag from then on.

        Raises:
            PreconditionFailed: it does not, or was replaced meanwhile.
        """
        ...

    def gap_at(self, offset: int) -> Gap | None:
        """The recorded, unacknowledged gap that ``offset`` lies in. No request."""
        ...

    def diverged(self, offset: int, leader_epoch: int) -> int | None:
        """Where, below ``offset``, the log left the branch of a reader that last saw ``leader_epoch``; None: nowhere.

        As Kafka's OffsetsForLeaderEpoch (KIP-320), and by the truncations that the watermark records. No request.
        """
        ...

    def observed_log_end(self) -> tuple[int, datetime] | None:
        """The log end offset that the leader's agent saw last, and when; None if no agent tells."""
        ...

    def offset_for_time(
        self, timestamp_ms: int, *, committed: bool = False, markers: bool = True
    ) -> OffsetForTime | None:
        """The first record with at least this timestamp, as Kafka's ListOffsets finds it (KIP-79); None if none has.

        To Kafka a transaction's marker is a record, with the broker's time: without ``markers`` only data counts.
        """
        ...
