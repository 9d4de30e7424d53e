"""Damage in fields without a checksum, which only the neighbouring batches reveal.

Base offset and leader epoch of a v2 batch are outside its checksum, because brokers set them (``DefaultRecordBatch``).
A base offset that was damaged upwards runs into the next batch or beyond the segment's end; a damaged epoch differs
from the lineage's epoch at the offset.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from tidemark.formats.raw.manifest import SegmentDamage
from tidemark.kafka_log import BatchHeader, Lineage, UnfinishedTransaction, scan_batches
from uploader_agent.disk.segment_files import OpenFile
from uploader_agent.upload.eligibility import SealRun
from uploader_agent.upload.validation import ScannedSegment, scan

_OFFSET_BYTES = 8


def doubt(
    log: OpenFile,
    path: str,
    work: SealRun,
    open_before: Iterable[UnfinishedTransaction],
    lineage: Lineage,
    scanned: ScannedSegment,
) -> ScannedSegment:
    """``scanned``, unless its batches contradict each other: then with that damage, and cut before it.

    The file is read again only if there is damage to find.
    """
    damage = _foreign_epoch(log, path, work, lineage, scanned) or _overlap(log, path, work, scanned)
    if damage is None:
        return scanned
    before = scan(log.cut(damage.position), path, work.base_offset, open_before)
    return dataclasses.replace(before, crc32c=scanned.crc32c, damage=damage)


def _foreign_epoch(
    log: OpenFile, path: str, work: SealRun, lineage: Lineage, scanned: ScannedSegment
) -> SegmentDamage | None:
    """The first batch with an epoch off the lineage. Kafka records each epoch before its first batch."""
    if _agree(scanned.summary.epochs, lineage, scanned.summary.next_offset):
        return None
    for header in _sound(log, path, work, scanned):
        epoch = lineage.epoch_at(header.base_offset)
        if header.leader_epoch >= 0 and epoch not in {None, header.leader_epoch}:
            rule = f"leader epoch {header.leader_epoch} is not {epoch}, under which this offset was written"
            return SegmentDamage(position=header.position, offset=header.base_offset, rule=rule)
    return None


def _agree(epochs: tuple[tuple[int, int], ...], lineage: Lineage, end: int) -> bool:
    """True if the runs of ``epochs`` match the lineage, as far as it knows."""
    for index, (epoch, start) in enumerate(epochs):
        stop = epochs[index + 1][1] if index + 1 < len(epochs) else end
        starts = {start, *(other for _, other in lineage.entries if start < other < stop)}
        if any(lineage.epoch_at(at) not in {None, epoch} for at in starts):
            return False
    return True


def _overlap(log: OpenFile, path: str, work: SealRun, scanned: ScannedSegment) -> SegmentDamage | None:
    """The last sound batch, if it starts above its expected offset and reaches beyond the next batch's."""
    following = work.end if scanned.damage is None else _base_offset_at(log, scanned.damage.position)
    if following is None or scanned.summary.next_offset <= following:
        return None
    expected, last = work.base_offset, None
    for header in _sound(log, path, work, scanned):
        expected, last = (last.next_offset if last else expected), header
    if last is None or last.base_offset == expected:
        return None
    rule = f"base offset {last.base_offset} is higher than {expected} and runs into offset {following}, which follows"
    return SegmentDamage(position=last.position, offset=expected, rule=rule)


def _sound(log: OpenFile, path: str, work: SealRun, scanned: ScannedSegment) -> Iterator[BatchHeader]:
    """The headers of the batches before the damage."""
    part = log.cut(scanned.damage.position) if scanned.damage else log
    return scan_batches(part.chunks(), path, work.base_offset)


def _base_offset_at(log: OpenFile, position: int) -> int | None:
    """The value in the place of a batch's base offset; None at the end of the file."""
    window = log.cut(min(log.size, position + _OFFSET_BYTES)).body()
    with window:
        window.seek(position)
        field = window.read(_OFFSET_BYTES)
    return int.from_bytes(field, signed=True) if len(field) == _OFFSET_BYTES else None
