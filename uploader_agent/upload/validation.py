"""Verifies every batch and checksum of a segment in one streamed pass, before anything is sent.

The pass also finds the ranges of packs that the run holds byte for byte, since retention deletes packs that manifests
list like this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog

from tidemark.errors import FormatError, SegmentError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.manifest import PackedPart, SegmentDamage
from tidemark.kafka_log import (
    BatchHeader,
    OpenTransaction,
    SegmentScanner,
    SegmentSummary,
    open_transactions,
    parse_offset_checkpoint,
    parse_producer_snapshot,
)
from tidemark.kafka_log.indexes import DerivedIndexes
from uploader_agent.broker.admin import UNKNOWN_POLICY, Cleanup
from uploader_agent.disk.log_dirs import read_text
from uploader_agent.disk.segment_files import OpenFile, SegmentFiles, checksum, file_name

logger = structlog.get_logger(__name__)

_CLEANED = "cleaner-offset-checkpoint"


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
