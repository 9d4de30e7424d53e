"""Scans a whole segment, fed in chunks, batch header by batch header, and verifies every checksum.

Promises: for any bytes, and any cuts between chunks, the first broken rule is raised with its byte position and the
offset that was expected there; memory stays constant (a checksum continues across chunks). Records are not
decompressed. :func:`tidemark.decode.batch_headers.scan_headers` reaches the same verdicts on a buffer, faster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from zlib import crc32

from crc32c import crc32c

from tidemark.errors import SegmentError
from tidemark.kafka_log.batch import (
    CODEC_MASK,
    CODECS,
    CRC_START,
    HEADER_SIZE,
    MAX_BATCH_BYTES,
    PREFIX_SIZE,
    BatchHeader,
    Buffer,
    Codec,
    Rule,
    check_header,
    check_prefix,
    read_header,
)
from tidemark.kafka_log.transactions import OpenTransaction, TransactionTracker


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """The result of a scan. Timestamps are milliseconds since 1970. Batches that compaction emptied have none."""

    size: int
    """Bytes fed."""
    crc32c: int
    """CRC-32C of all bytes fed."""
    end: int
    """Byte after the last whole batch: ``size``, but for an accepted partial tail."""
    batch_count: int
    next_offset: int
    """Offset after the last batch; the segment's base when there is none."""
    first_timestamp: int | None
    """Base timestamp or append time of the first data batch that has it (a batch with a delete horizon has not).
    Compaction may have removed the record that had this time."""
    max_timestamp: int | None
    """Of all batches, markers of transactions included: a lookup by time finds those, too."""
    magics: tuple[int, ...]
    codecs: tuple[Codec, ...]
    """Of all batches, sorted by name."""
    epochs: tuple[tuple[int, int], ...]
    """(leader epoch, base offset) at the first batch and wherever the epoch changes, as found; v0 and v1 have none."""
    open_transactions: tuple[OpenTransaction, ...]
    """Open at the end, by first offset."""
    last: BatchHeader | None


class SegmentScanner:
    """Scans one segment incrementally.

    ``name`` is the file or object for messages, ``base_offset`` the segment's base, ``open_before`` the transactions
    open at its start, ``max_batch_bytes`` the largest batch believed. After a :class:`SegmentError` only
    :meth:`summary`, of the batches before the bad one, is of use.
    """

    def __init__(
        self,
        name: str,
        base_offset: int,
        *,
        open_before: Iterable[OpenTransaction] = (),
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        self._name = name
        self._base_offset = base_offset
        self._max_batch_bytes = max_batch_bytes
        self._transactions = TransactionTracker(open_before)
        self._size = 0
        self._crc32c = 0
        self._end = 0
        self._next_offset = base_offset
        self._batch_count = 0
        self._first_timestamp: int | None = None
        self._max_timestamp: int | None = None
        self._kinds: set[tuple[int, int]] = set()
        self._epochs: list[tuple[int, int]] = []
        self._last: BatchHeader | None = None
        # The batch being read: the bytes of a header cut by a chunk's end, then the header and the rest of its body.
        self._partial = bytearray()
        self._header: BatchHeader | None = None
        self._body_left = 0
        self._body_crc = 0
        self._in_zeros = False

    def feed(self, chunk: Buffer) -> None:
        """Take the next bytes of the segment. Raises :class:`SegmentError` at the first broken rule."""
        deque(self.batches(chunk), maxlen=0)

    def batches(self, chunk: Buffer) -> Iterator[BatchHeader]:
        """Take bytes like :meth:`feed`; yield the header of each batch that they complete and has the right checksum.

        The bytes count as taken when the iterator is exhausted; a caller that stops earlier is done with the scanner.
        """
        view = memoryview(chunk)
        at = 0
        while at < len(view):
            if self._in_zeros:
                self._expect_zeros(view[at:])
                break
            at = self._take_header(view, at) if self._header is None else self._take_body(view, at)
            if self._header is not None and not self._body_left:
                header, self._header = self._header, None
                self._accept(header)
                yield header
        self._size += len(view)
        self._crc32c = crc32c(view, self._crc32c)

    def finish(self, *, allow_partial_tail: bool = False) -> SegmentSummary:
        """The summary, once all bytes are fed.

        Raises :class:`SegmentError` if they end inside a batch, or in zeros. ``allow_partial_tail`` accepts such an
        end, as an active segment has it (being appended to, or preallocated): it starts at ``summary.end``.
        """
        if not allow_partial_tail:
            if self._in_zeros:
                raise self._error(Rule.ZEROED, 0)
            if self._header is not None or self._partial:
                raise self._error(Rule.TRUNCATED, 0)
        return self.summary()

    def summary(self) -> SegmentSummary:
        """The summary of the whole batches scanned so far."""
        return SegmentSummary(
            size=self._size,
            crc32c=self._crc32c,
            end=self._end,
            batch_count=self._batch_count,
            next_offset=self._next_offset,
            first_timestamp=self._first_timestamp,
            max_timestamp=self._max_timestamp,
            magics=tuple(sorted({magic for magic, _ in self._kinds})),
            codecs=tuple(sorted({CODECS[codec] for _, codec in self._kinds})),
            epochs=tuple(self._epochs),
            open_transactions=self._transactions.open,
            last=self._last,
        )

    def _take_header(self, view: memoryview, at: int) -> int:
        """Read a header, or the part of it in ``view[at:]``; return the index after the bytes used."""
        if not self._partial and len(view) - at >= HEADER_SIZE[2]:
            self._check(check_prefix(view, at, self._max_batch_bytes))
            return at if self._in_zeros else at + self._open_batch(view, at)
        needed = HEADER_SIZE[self._partial[PREFIX_SIZE - 1]] if len(self._partial) >= PREFIX_SIZE else PREFIX_SIZE
        piece = view[at : at + needed - len(self._partial)]
        self._partial += piece
        if len(self._partial) == PREFIX_SIZE:
            self._check(check_prefix(self._partial, 0, self._max_batch_bytes))
        elif len(self._partial) == needed:
            self._open_batch(self._partial, 0)
            self._partial.clear()
        return at + len(piece)

    def _open_batch(self, source: Buffer, at: int) -> int:
        """Start on the batch with the header at ``source[at:]``; return the header's length."""
        header = read_header(source, at, self._end)
        self._check(check_header(header, self._base_offset, self._next_offset))
        length = HEADER_SIZE[header.magic]
        checksum = crc32c if header.magic == 2 else crc32
        self._header = header
        self._body_left = header.size - length
        self._body_crc = checksum(memoryview(source)[at + CRC_START[header.magic] : at + length])
        return length

    def _take_body(self, view: memoryview, at: int) -> int:
        """Add the part of the batch's body in ``view[at:]`` to its checksum; return the index after that part."""
        assert self._header is not None
        piece = view[at : at + self._body_left]
        checksum = crc32c if self._header.magic == 2 else crc32
        self._body_crc = checksum(piece, self._body_crc)
        self._body_left -= len(piece)
        return at + len(piece)

    def _accept(self, header: BatchHeader) -> None:
        """Verify the checksum of a whole batch, and add the batch to the summary."""
        if self._body_crc != header.crc:
            self._check((Rule.CRC, header.crc))
        self._end = header.end
        self._next_offset = header.next_offset
        self._batch_count += 1
        self._last = header
        self._kinds.add((header.magic, header.attributes & CODEC_MASK))
        if header.leader_epoch >= 0 and (not self._epochs or self._epochs[-1][0] != header.leader_epoch):
            self._epochs.append((header.leader_epoch, header.base_offset))
        self._transactions.observe(header)
        if not header.record_count:
            return
        if self._max_timestamp is None or header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
        if self._first_timestamp is None and not header.is_control and not header.has_delete_horizon:
            append_time = header.timestamp_type == "append"
            self._first_timestamp = header.max_timestamp if append_time else header.base_timestamp

    def _expect_zeros(self, view: memoryview) -> None:
        """Check that only zeros follow zeros: anything else proves that bytes in between are lost."""
        if bytes(view) != bytes(len(view)):
            raise self._error(Rule.ZEROED, 0)

    def _check(self, broken: tuple[Rule, int] | None) -> None:
        if broken is None:
            return
        if broken[0] is Rule.ZEROED:
            self._in_zeros = True
        else:
            raise self._error(*broken)

    def _error(self, rule: Rule, value: int) -> SegmentError:
        return SegmentError(self._name, self._end, self._next_offset, rule.text(value))


def scan_batches(
    chunks: Iterable[Buffer], name: str, base_offset: int, *, allow_partial_tail: bool = False
) -> Iterator[BatchHeader]:
    """Verified headers of a segment's batches; raises the errors of :class:`SegmentScanner`."""
    scanner = SegmentScanner(name, base_offset)
    for chunk in chunks:
        yield from scanner.batches(chunk)
    scanner.finish(allow_partial_tail=allow_partial_tail)


def end_below(chunks: Iterable[Buffer], name: str, base_offset: int, offset: int) -> tuple[int, int]:
    """(byte, offset) after the last batch of an active segment below ``offset``, its high watermark.

    (0, base_offset) if no batch lies wholly below it. Reads no further than it must, and accepts a partial tail.
    """
    end, next_offset = 0, base_offset
    for header in scan_batches(chunks, name, base_offset, allow_partial_tail=True):
        if header.next_offset > offset:
            break
        end, next_offset = header.end, header.next_offset
    return end, next_offset
