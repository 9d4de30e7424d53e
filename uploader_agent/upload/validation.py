"""What a segment's bytes say: every batch and checksum verified, in one streamed pass, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from tidemark.errors import FormatError, SegmentError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.manifest import SegmentDamage
from tidemark.kafka_log import (
    SegmentScanner,
    SegmentSummary,
    UnfinishedTransaction,
    open_transactions,
    parse_offset_checkpoint,
    parse_producer_snapshot,
)
from uploader_agent.broker.admin import UNKNOWN_POLICY
from uploader_agent.disk.log_dirs import read_text
from uploader_agent.disk.segment_files import Bytes, OpenFile, SegmentFiles, checksum, file_name

logger = structlog.get_logger(__name__)

SNAPSHOT_PATIENCE = timedelta(seconds=1)
"""Kafka writes a segment's producer snapshot within milliseconds after it has made the next segment."""

_SNAPSHOT_POLL = 0.002
_CLEANED = "cleaner-offset-checkpoint"


@dataclass(frozen=True, slots=True)
class ScannedSegment:
    """A scan's result; ``damage`` names the first bad batch, and the summary then is of what comes before it."""

    summary: SegmentSummary
    crc32c: int
    damage: SegmentDamage | None


def scan(log: OpenFile, path: str, base_offset: int, open_before: Iterable[UnfinishedTransaction]) -> ScannedSegment:
    """Read all of ``log`` once."""
    scanner = SegmentScanner(path, base_offset, open_before=open_before)
    try:
        for chunk in log.chunks():
            scanner.feed(chunk)
        summary = scanner.finish()
    except SegmentError as error:
        damage = SegmentDamage(position=error.position, offset=error.offset, rule=error.detail)
        return ScannedSegment(scanner.summary(), checksum(log), damage)
    return ScannedSegment(summary, summary.crc32c, None)


def missing_end(summary: SegmentSummary, end: int, cleanup_policy: str) -> SegmentDamage | None:
    """A sound segment that stops short of the next one's base has lost its last batches, unless compaction took them.

    Kafka rolls at the log's end, so in a segment that was never compacted the two are equal.
    """
    if summary.next_offset == end or cleanup_policy == UNKNOWN_POLICY or "compact" in cleanup_policy.split(","):
        return None
    rule = f"ends at offset {summary.next_offset}, and the next segment starts at {end}: its last batches are lost"
    return SegmentDamage(position=summary.size, offset=summary.next_offset, rule=rule)


def policy_of(log_dir: Path, at: TopicPartition, base_offset: int, cleanup_policy: str) -> str:
    """The clean-up policy that a segment was under: its topic's ``cleanup_policy``, and ``compact`` if it once was.

    A topic's policy may change; what was compacted before stays so. The cleaner notes in each log directory up to
    where it has come (Kafka's ``LogCleanerManager``), and keeps that when the policy changes.
    """
    if cleanup_policy == UNKNOWN_POLICY or "compact" in cleanup_policy.split(","):
        return cleanup_policy
    path = log_dir / _CLEANED
    try:
        text = read_text(path)
        if (
            f"\n{at.topic} {at.partition} " not in text
        ):  # parsing takes long where thousands of partitions are compacted
            return cleanup_policy
        cleaned = parse_offset_checkpoint(text, str(path)).get((at.topic, at.partition), 0)
    except FileNotFoundError:
        return cleanup_policy
    except (OSError, FormatError) as error:
        logger.warning("cleaner_checkpoint_unreadable", error=str(error))
        return UNKNOWN_POLICY
    return f"compact,{cleanup_policy}" if base_offset < cleaned else cleanup_policy


def producer_snapshot(files: SegmentFiles, offset: int) -> Bytes | None:
    """``<offset>.snapshot``; None if there is none, or it is damaged or not whole yet."""
    name = file_name(offset, "snapshot")
    file = files.open(name)
    if file is None:
        return None
    snapshot = Bytes(name, file.read())
    return snapshot if _is_whole(snapshot, files) else None


def await_producer_snapshot(
    files: SegmentFiles, end: int, rotated_at: datetime, pause: Callable[[float], object], now: Callable[[], datetime]
) -> Bytes | None:
    """:func:`producer_snapshot` at a segment's end, waiting until a second after the rotation.

    ``pause`` takes seconds. Where there is none, open transactions follow from the log itself.
    """
    while True:
        snapshot = producer_snapshot(files, end)
        if snapshot is not None or now() - rotated_at > SNAPSHOT_PATIENCE:
            return snapshot
        pause(_SNAPSHOT_POLL)


def transactions_in(snapshot: Bytes) -> tuple[UnfinishedTransaction, ...]:
    """The transactions open where the snapshot was taken."""
    return open_transactions(parse_producer_snapshot(snapshot.content, snapshot.name))


def _is_whole(snapshot: Bytes, files: SegmentFiles) -> bool:
    try:
        parse_producer_snapshot(snapshot.content, files.path(snapshot.name))
    except FormatError:
        return False  # being written just now
    return True
