"""Reads a partition's newest batches from its local files as one range of a pack.

A range begins at the end of the partition's tail. It ends below the high watermark, and no later than its local file,
so that a seal of that file holds whole ranges. The bytes count only if the lineage is the same before and after the
read, and each batch is on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from tidemark.errors import TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.manifest import last_batch_of
from tidemark.formats.raw.pack import MOST_BYTES, MOST_LINE, RangeContent, RangePointer, line_bytes
from tidemark.kafka_log import (
    AbortedTransaction,
    BatchHeader,
    Lineage,
    OpenTransaction,
    SegmentScanner,
    TransactionTracker,
)
from tidemark.kafka_log.batch import header_bytes
from tidemark.kafka_log.indexes import is_abort
from uploader_agent.disk.segment_files import OpenFile, SegmentChanged, SegmentFiles, batch_headers, file_name
from uploader_agent.stored.histories import HistoryDiffers, local_difference
from uploader_agent.upload.local_run import LocalRun, begin, open_before

LARGEST_RANGE: Final = 8 << 20
"""Bytes after which a range ends; further batches are in the next range. A larger batch is a range by itself."""

_FEW: Final = 64
"""Epochs and transactions up to which a range's line is surely short enough, so that it need not be measured."""


class NotPackable(TidemarkError):
    """A batch that no pack may hold: its partition is sealed instead.

    It is too large, its line is too long, or no reader could see that it is on the log's lineage.
    """


class LogPosition(NamedTuple):
    """The end of a range: the byte ``position`` of the local segment with the base offset ``segment``."""

    segment: int
    position: int


class NextRange(NamedTuple):
    """The start of a partition's next range, and what is known there.

    ``previous`` is the line of the range before it, if they are of one chain, and ``place`` the end of that in the
    local log. ``opened`` are the transactions open at ``start``; if they are None, the line ``last`` has them.
    ``batch`` is the header of the last batch before it, as Kafka writes it.
    """

    start: int
    previous: RangePointer | None = None
    place: LogPosition | None = None
    opened: tuple[OpenTransaction, ...] | None = None
    last: RangePointer | None = None
    batch: bytes | None = None


@dataclass(frozen=True, slots=True)
class WantedRange:
    """The batches to read: the whole batches from ``beginning`` on, below ``end``, as many as one range takes.

    ``end`` is the high watermark that the broker answered under ``leader_epoch``. Only the local log has the
    transactions open at the start, if ``beginning`` does not tell them. ``before`` is the last stored batch, which the
    local log must have; None to take it on trust.
    """

    tp: TopicPartition
    topic_id: str
    leader_epoch: int
    beginning: NextRange
    end: int
    compacted: bool
    shipped_at: datetime
    marks_gaps: bool = False
    """True if an empty segment marks a gap; otherwise compaction has emptied it."""
    before: BatchHeader | None = None


class NewRange(NamedTuple):
    """A range that was read: its description, its bytes, its log's lineage, and the start of the range behind it."""

    content: RangeContent
    data: bytes
    lineage: Lineage
    following: NextRange


def read(files: SegmentFiles, wanted: WantedRange) -> NewRange | None:
    """Read the next range; None if the local log has no whole batch there, or no longer has the offset ``start``.

    None also if it would end below the first epoch that the log knows, since heads must state epochs.

    Raises:
        NotPackable: the first batch fits into no pack, or lies below the first epoch that the log knows.
        SegmentChanged: the disk no longer has the bytes that were read, or the log has not begun the leader's epoch.
        SegmentError: the bytes are damaged.
        HistoryDiffers: the log is not the one that is stored.
    """
    if wanted.before is not None and (other := local_difference(files, wanted.before)) is not None:
        raise HistoryDiffers(files.path(""), wanted.before, other)
    beginning = _find(files, wanted)
    if beginning is None:
        return None
    segment, place = beginning
    lineage = _lineage(files, wanted.leader_epoch)
    opened = wanted.beginning.opened
    if opened is None:
        opened = open_before(files, _nothing_at(segment, wanted.beginning.start, place), place.segment, None)
    size = _size(segment, place.position, wanted.end, LARGEST_RANGE)
    while size:
        new = _range(files, segment, place, size, lineage, opened, wanted)
        if new is None:
            return None
        content = new.content
        items = len(content.epochs) + len(opened) + len(content.open) + len(content.aborts)
        length = line_bytes(content) if items > _FEW else 0
        if length <= MOST_LINE:
            return new
        shorter = _size(segment, place.position, wanted.end, size // 2)
        if shorter == size:
            raise NotPackable(f"{content}: its line takes {length} bytes, and may have {MOST_LINE}: it is sealed")
        size = shorter
    return None


def _find(files: SegmentFiles, wanted: WantedRange) -> tuple[OpenFile, LogPosition] | None:
    """The local segment that has the first batch at or above ``start``, and the batch's place."""
    start = wanted.beginning.start
    base = files.previous_base(start + 1)
    while base is not None:
        segment = files.open(file_name(base, "log"))
        if segment is None:
            return None
        position = _position(files, segment, base, wanted)
        header = next(batch_headers(segment, position), None)
        if header is not None:
            inside = header.base_offset < start  # the batch was cut elsewhere: it is sealed, and not packed
            hole = header.base_offset > start and header.magic == 2 and not wanted.compacted
            return None if inside or hole else (segment, LogPosition(base, position))
        following = files.next_base(base)
        if following is None or not wanted.compacted or wanted.marks_gaps:
            return None  # only compaction empties the end of a broker's segment
        base = following
    return None


def _position(files: SegmentFiles, segment: OpenFile, base: int, wanted: WantedRange) -> int:
    """The byte of the first batch that ends above ``start``: the end of the last range, or from the broker's index."""
    place = wanted.beginning.place
    if place is not None and place.segment == base:
        header = next(batch_headers(segment, place.position), None)
        if header is not None and header.base_offset == wanted.beginning.start:
            return place.position
    return begin(files, segment, base, wanted.beginning.start)[1] if wanted.beginning.start > base else 0


def _lineage(files: SegmentFiles, leader_epoch: int) -> Lineage:
    lineage = files.lineage()
    if not lineage.entries or lineage.entries[-1][0] != leader_epoch:
        newest = lineage.entries[-1][0] if lineage.entries else None
        raise SegmentChanged(f"{files.path('')}: its newest leader epoch is {newest}, and not {leader_epoch}")
    return lineage


def _nothing_at(segment: OpenFile, offset: int, place: LogPosition) -> LocalRun:
    return LocalRun(offset, segment.part(segment.name, place.position, place.position), segment)


def _size(segment: OpenFile, position: int, end: int, most: int) -> int:
    """Bytes of the whole batches from ``position`` on that end below ``end``: at most ``most``, or a single batch."""
    stop = position
    for header in batch_headers(segment, position):
        if header.next_offset > end:
            break
        if header.end - position > most and stop > position:
            break
        if header.size > MOST_BYTES:
            rule = f"the batch at offset {header.base_offset} has {header.size} bytes, and a pack has {MOST_BYTES}"
            raise NotPackable(f"{segment.name}: {rule}: it is sealed")
        stop = header.end
    return stop - position


def _range(
    files: SegmentFiles,
    segment: OpenFile,
    place: LogPosition,
    size: int,
    lineage: Lineage,
    opened: tuple[OpenTransaction, ...],
    wanted: WantedRange,
) -> NewRange | None:
    """The range of ``size`` bytes; None if it would end below the first epoch of ``lineage``."""
    path, data = files.path(segment.name), segment.pread(place.position, size)
    scanner = SegmentScanner(path, wanted.beginning.start, open_before=opened)
    verdicts = _BatchVerdicts(opened)
    for header in scanner.batches(data):
        if header.leader_epoch >= 0 and lineage.epoch_at(header.base_offset) is None:  # below the log start offset
            rule = f"the batch at offset {header.base_offset} lies below the first epoch of {lineage.entries}"
            raise NotPackable(f"{path}: {rule}: it is sealed")
        if header.leader_epoch > wanted.leader_epoch or not lineage.is_live(header.base_offset, header.leader_epoch):
            rule = f"has a batch of leader epoch {header.leader_epoch} at offset {header.base_offset}"
            raise SegmentChanged(f"{path}: {rule}, which is not on {lineage.entries}")
        verdicts.add(header, data)
    summary = scanner.finish()
    assert summary.last is not None
    if files.lineage() != lineage:
        raise SegmentChanged(f"{path}: its leader epochs changed while it was read")
    if len(data) != size or segment.has_shrunk():
        raise SegmentChanged(f"{path}: was cut while it was read")
    if summary.next_offset <= lineage.entries[0][1]:
        return None
    content = RangeContent(
        topic=wanted.tp.topic,
        topic_id=wanted.topic_id,
        partition=wanted.tp.partition,
        first=wanted.beginning.start,
        next=summary.next_offset,
        epochs=tuple(verdicts.epochs),
        leader_epoch=wanted.leader_epoch,
        restores=lineage.restores,
        open=summary.open_transactions,
        open_before=None if wanted.beginning.previous else opened,
        aborts=tuple(verdicts.aborts),
        max_timestamp=summary.max_timestamp,
        compacted=wanted.compacted,
        shipped_at=wanted.shipped_at,
        previous=wanted.beginning.previous,
        last_batch=last_batch_of(summary.last),
    )
    following = NextRange(
        summary.next_offset,
        place=LogPosition(place.segment, place.position + size),
        opened=summary.open_transactions,
        batch=header_bytes(summary.last),
    )
    return NewRange(content, data, lineage, following)


class _BatchVerdicts:
    """The epochs of batches, -1 for formats before v2, and the transactions that their markers abort."""

    def __init__(self, opened: tuple[OpenTransaction, ...]) -> None:
        self.epochs: list[tuple[int, int]] = []
        self.aborts: list[AbortedTransaction] = []
        self._tracker = TransactionTracker(opened)

    def add(self, header: BatchHeader, data: bytes) -> None:
        if not self.epochs or self.epochs[-1][0] != header.leader_epoch:
            self.epochs.append((header.leader_epoch, header.base_offset))
        if not header.is_transactional:
            return
        if header.is_marker and is_abort(data[header.position : header.end]):
            self.aborts += self._aborted(header)
        self._tracker.observe(header)

    def _aborted(self, marker: BatchHeader) -> Iterator[AbortedTransaction]:
        for opened in self._tracker.open:
            if opened.producer_id == marker.producer_id:
                first, last = opened.first_offset, marker.base_offset
                yield AbortedTransaction(opened.producer_id, first, last)
