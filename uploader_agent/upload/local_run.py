"""The runs of a log that may be sealed, their bytes in a local segment, and what one pass over these finds out.

A run may be sealed if it lies below the high watermark. Retention on the broker follows the high watermark too, so
waiting for the last stable offset would lose data behind a transaction that hangs. Offsets of a rotated segment that
the store lacks are sealed at once. The tail of a partition without appends is sealed up to the high watermark, since
Kafka rolls a segment only on an append. Bytes of an active segment may also be packed:
:mod:`uploader_agent.packing.thread` decides when, and :mod:`uploader_agent.packing.packer` up to which offset, the high
watermark as well.

A run begins at the end of the stored offsets, which may be inside a local segment: another replica's agent may have
sealed up to there, or this agent a quiet tail. The broker's index gives a position to start from, and the batch headers
give the exact byte.

:func:`scan` verifies every batch and checksum in one streamed pass, before anything is sent. The pass also finds the
ranges of packs that the run holds byte for byte, since retention deletes packs that manifests list like this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple

import structlog

from tidemark.errors import FormatError, SegmentError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.manifest import PackedPart, SegmentDamage
from tidemark.intervals import Intervals
from tidemark.kafka_log import (
    BatchHeader,
    OpenTransaction,
    SegmentScanner,
    SegmentSummary,
    carry_forward,
    end_below,
    open_transactions,
    parse_offset_checkpoint,
    parse_producer_snapshot,
)
from tidemark.kafka_log.indexes import DerivedIndexes
from uploader_agent.broker.admin import UNKNOWN_POLICY, Cleanup
from uploader_agent.disk.log_dirs import LocalSegment, read_text
from uploader_agent.disk.segment_files import (
    OpenFile,
    SegmentChanged,
    SegmentFiles,
    batch_headers,
    checksum,
    entry_up_to,
    file_name,
)

logger = structlog.get_logger(__name__)

_CLEANED = "cleaner-offset-checkpoint"


class SealRun(NamedTuple):
    """A run of one local segment to seal: the offsets ``[base_offset, end)``.

    ``segment`` is the base offset of the local segment, and ``segment_end`` that of the next one; None while it is
    active. Then the run ends with the last batch that lies below ``end``, the high watermark.
    """

    base_offset: int
    end: int
    segment: int
    segment_end: int | None

    @property
    def is_tail(self) -> bool:
        """True if the run is of an active segment."""
        return self.segment_end is None


def rotated_runs(segments: Sequence[LocalSegment], final: Intervals, high_watermark: int) -> Iterator[SealRun]:
    """The runs of rotated segments that may be sealed, without the ``final`` offsets, which need no upload."""
    for segment in segments:
        if segment.next_offset is not None and segment.next_offset <= high_watermark:
            for start, end in final.missing(segment.base_offset, segment.next_offset):
                yield SealRun(start, end, segment.base_offset, segment.next_offset)


def quiet_tail(
    segments: Sequence[LocalSegment], final: Intervals, high_watermark: int, quiet_before: float
) -> Iterator[SealRun]:
    """The run of the active segment, if its last append was before ``quiet_before`` and it has news.

    ``quiet_before`` is the current time less ``tail_after`` of the settings, in seconds since 1970.
    """
    for segment in segments[-1:]:
        if segment.size and segment.modified <= quiet_before and segment.base_offset < high_watermark:
            for start, end in final.missing(segment.base_offset, high_watermark):
                yield SealRun(start, end, segment.base_offset, None)


def tail_up_to(segments: Sequence[LocalSegment], final: Intervals, end: int) -> Iterator[SealRun]:
    """The run of the active segment up to ``end``, below the high watermark, since much of it is packed."""
    for segment in segments[-1:]:
        for start, stop in final.missing(segment.base_offset, end) if segment.base_offset < end else ():
            yield SealRun(start, stop, segment.base_offset, None)


def waiting_for(segments: Sequence[LocalSegment], final: Intervals, high_watermark: int) -> bool:
    """True if a rotated segment waits for the high watermark to pass its end, as far as is known."""
    return any(
        segment.next_offset is not None
        and segment.next_offset > high_watermark
        and final.missing(segment.base_offset, segment.next_offset)
        for segment in segments
    )


class LocalRun(NamedTuple):
    """``log`` has the run's bytes under their name in the store; ``segment`` is the whole local segment."""

    base_offset: int
    log: OpenFile
    segment: OpenFile


def open_run(files: SegmentFiles, work: SealRun) -> LocalRun | None:
    """Open the bytes of ``work``; None if an active segment has no whole batch below the high watermark there.

    Raises:
        SegmentChanged: the disk no longer has the segment, or it ends elsewhere.
        SegmentError: an active segment is damaged.
    """
    segment, path = _segment(files, work)
    base, start = begin(files, segment, work.segment, work.base_offset)
    end = segment.size
    if work.segment_end is None:
        size, _ = end_below(segment.part(segment.name, start, segment.size).chunks(), path, base, work.end)
        end = start + size
    elif work.end < work.segment_end:
        end = _position(segment, start, work.end)
    if work.is_tail and end == start:
        return None
    return LocalRun(base, segment.part(file_name(base, "log"), start, end), segment)


def open_before(
    files: SegmentFiles, run: LocalRun, segment_base: int, stored: Iterable[OpenTransaction] | None
) -> tuple[OpenTransaction, ...]:
    """The transactions open at the start of ``run``: from the broker's snapshot, the ``stored`` ones, or the log.

    ``segment_base`` is the base offset of its local segment. ``stored`` are the transactions open at the end of the
    stored segment before it; None if they are unknown. Without snapshot and ``stored``, the local log is read from its
    last snapshot before the run. If it has none, it is read from its start, where no transaction was open.
    """
    known = transactions_at(files, run.base_offset)
    if known is None and stored is not None:
        known = tuple(stored)
    if known is not None:
        return known
    first = segment_base
    opened, earlier = transactions_at(files, first), list[OpenFile]()
    while opened is None and (before := files.previous_base(first)) is not None:
        first, log = before, files.open(file_name(before, "log"))
        if log is None:
            raise SegmentChanged(f"{files.path(file_name(before, 'log'))}: is gone")
        opened = transactions_at(files, first)
        earlier.insert(0, log)
    batches = chain.from_iterable(batch_headers(log, 0) for log in earlier)
    return carry_forward(opened or (), chain(batches, _below(run.segment, run.log.start)))


def transactions_at(files: SegmentFiles, offset: int) -> tuple[OpenTransaction, ...] | None:
    """The transactions open at ``offset`` in the broker's producer snapshot; None without a sound snapshot."""
    name = file_name(offset, "snapshot")
    file = files.open(name)
    if file is None:
        return None
    try:
        return open_transactions(parse_producer_snapshot(file.read(), files.path(name)))
    except FormatError:
        return None  # damaged, or being written just now


def _segment(files: SegmentFiles, work: SealRun) -> tuple[OpenFile, str]:
    name = file_name(work.segment, "log")
    path, segment = files.path(name), files.open(name)
    if segment is None:
        raise SegmentChanged(f"{path}: is gone")
    # A listing that ran while segments were added may have missed one; a second listing proves the end.
    if work.segment_end is not None and files.next_base(work.segment) != work.segment_end:
        raise SegmentChanged(f"{path}: does not end at {work.segment_end} any more")
    return segment, path


def begin(files: SegmentFiles, segment: OpenFile, segment_base: int, offset: int) -> tuple[int, int]:
    """The base offset and the byte of the first batch of the segment at ``segment_base`` that ends above ``offset``.

    If the headers end before it, the run begins at their end, and its scan finds the damage.
    """
    if offset == segment_base:
        return segment_base, 0
    entry = entry_up_to(files, segment, segment_base, offset - 1)
    position = entry.position if entry else 0
    for header in batch_headers(segment, position):
        if header.next_offset > offset:
            return min(offset, header.base_offset), header.position
        position = header.end
    return offset, position


def _position(segment: OpenFile, start: int, end: int) -> int:
    """The byte after the last batch that ends at or below ``end``; the file's end without a later batch."""
    for header in batch_headers(segment, start):
        if header.next_offset > end:
            return header.position
    return segment.size


def _below(segment: OpenFile, position: int) -> Iterator[BatchHeader]:
    return takewhile(lambda header: header.position < position, batch_headers(segment, 0))


@dataclass(frozen=True, slots=True)
class ScannedSegment:
    """A scan's result; ``damage`` names the first bad batch, and the rest then describes the bytes before it."""

    summary: SegmentSummary
    crc32c: int
    damage: SegmentDamage | None
    indexes: DerivedIndexes


def scan(
    log: OpenFile,
    path: str,
    base_offset: int,
    open_before: Iterable[OpenTransaction],
    parts: PartsOfRun | None = None,
) -> ScannedSegment:
    """Read all of ``log`` once; each batch is added to ``parts``."""
    opened = tuple(open_before)
    scanner = SegmentScanner(path, base_offset, open_before=opened)
    indexes = DerivedIndexes(base_offset, log.size, opened)
    try:
        for chunk in log.chunks():
            for header in scanner.batches(chunk):
                if parts is not None:
                    parts.add(header)
                indexes.add(header, log.pread(header.position, header.size) if header.is_marker else b"")
        summary = scanner.finish()
    except SegmentError as error:
        damage = SegmentDamage(position=error.position, offset=error.offset, rule=error.detail)
        return ScannedSegment(scanner.summary(), checksum(log), damage, indexes)
    return ScannedSegment(summary, summary.crc32c, None, indexes)


def missing_end(summary: SegmentSummary, end: int, cleanup: Cleanup) -> SegmentDamage | None:
    """The damage of a sound segment that has lost its last batches; None if it has not, or was compacted.

    Kafka rolls at the log's end, so a segment that was never compacted ends at the next one's base, ``end``.
    """
    if summary.next_offset == end or cleanup.may_compact:
        return None
    rule = f"ends at offset {summary.next_offset}, and the next segment starts at {end}: its last batches are lost"
    return SegmentDamage(position=summary.size, offset=summary.next_offset, rule=rule)


def cleanup_of(log_dir: Path, tp: TopicPartition, base_offset: int, cleanup: Cleanup) -> Cleanup:
    """The clean-up that a segment was under: its topic's ``cleanup``, and ``compact`` if it once was.

    A topic's policy may change; a compacted segment stays compacted. The cleaner records its position in each log
    directory (Kafka's ``LogCleanerManager``), and keeps it when the policy changes.
    """
    if cleanup.may_compact:
        return cleanup
    path = log_dir / _CLEANED
    try:
        text = read_text(path)
        if f"\n{tp.topic} {tp.partition} " not in text:  # parsing takes long with thousands of compacted partitions
            return cleanup
        cleaned = parse_offset_checkpoint(text, str(path)).get((tp.topic, tp.partition), 0)
    except FileNotFoundError:
        return cleanup
    except (OSError, FormatError) as error:
        logger.warning("cleaner_checkpoint_unreadable", error=str(error))
        return cleanup._replace(policy=UNKNOWN_POLICY)
    return cleanup._replace(policy=f"compact,{cleanup.policy}") if base_offset < cleaned else cleanup


class PartsOfRun:
    """The packed ranges that reach into a run from ``base_offset`` on. It takes the run's batches in order."""

    def __init__(self, packed: Iterable[PackedPart], base_offset: int) -> None:
        near = {part for part in packed if part.next > base_offset}
        self._near = sorted(near, key=lambda part: (part.first, part.next))
        self._offsets = {offset for part in near for offset in (part.first, part.next)}
        self._starts = {base_offset: 0}
        self._ends: dict[int, int] = {}
        self._checksums: dict[PackedPart, str | None] = {}

    def add(self, header: BatchHeader) -> None:
        """Take the next batch."""
        if header.base_offset in self._offsets:
            self._starts[header.base_offset] = header.position
        if header.next_offset in self._offsets:  # the next range begins here, even if compaction has left no batch
            self._starts[header.next_offset] = self._ends[header.next_offset] = header.end

    def equal(self, log: OpenFile) -> tuple[PackedPart, ...]:
        """The ranges that the run, which is ``log``, holds at their offsets with the same bytes."""
        return tuple(part for part in self._near if self._is_equal(part, log))

    def differing(self, log: OpenFile, end: int) -> list[PackedPart]:
        """The ranges that overlap the run, which accounts for all offsets below ``end``, with other bytes.

        Compaction may have removed their records since, down to the last batch of the run. A range that only reaches
        into the run is one of them, since it was never compared.
        """
        return [part for part in self._near if part.first < end and not self._is_equal(part, log)]

    def contradicting(self, log: OpenFile) -> list[PackedPart]:
        """The ranges that begin and end with batches of the run, which have other bytes."""
        inside = [part for part in self._near if part.first in self._starts and part.next in self._ends]
        return [part for part in inside if not self._is_equal(part, log)]

    def _is_equal(self, part: PackedPart, log: OpenFile) -> bool:
        if part not in self._checksums:
            self._checksums[part] = self._checksum(part, log)
        return self._checksums[part] == part.crc32c

    def _checksum(self, part: PackedPart, log: OpenFile) -> str | None:
        start, end = self._starts.get(part.first), self._ends.get(part.next)
        if start is None or end is None or end <= start:
            return None
        return f"{checksum(log.part(log.name, start, end)):08x}"
