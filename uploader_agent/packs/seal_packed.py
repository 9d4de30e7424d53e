"""Seals from packs: of runs that the local log no longer has, and of runs from which compaction has removed records."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from contextlib import ExitStack

import structlog
from typing_extensions import override

from tidemark.formats.raw.head import HeadEntry
from tidemark.formats.raw.pack import PackedRange
from tidemark.kafka_log import Lineage, OpenTransaction
from tidemark.raw.objects import StoredManifest
from uploader_agent.broker.admin import Cleanup, Offsets
from uploader_agent.disk.segment_files import OpenFile, SegmentChanged, SegmentFiles, batch_headers, file_name, opened
from uploader_agent.packs.packed_run import PackedRun, known_lineage, open_in_packs, read_fuller_run, read_run
from uploader_agent.stored.stored_log import StoredLog, transactions_open_at
from uploader_agent.upload.local_run import LocalRun, ScannedSegment, SealRun, open_before, open_run
from uploader_agent.upload.segment_upload import SegmentSealer, UploadRoute

logger = structlog.get_logger(__name__)


def seal_packed(
    route: UploadRoute,
    entries: Sequence[HeadEntry],
    ranges: Sequence[PackedRange],
    lineage: Lineage,
    start: int,
    end: int,
    offsets: Offsets,
    cleanup: Cleanup,
    stored: StoredLog,
) -> StoredManifest | None:
    """Seal the ``ranges`` of ``entries`` on ``lineage`` in ``[start, end)``; None if they have nothing at ``start``.

    ``stored`` is the partition's log in the store.

    The run ends at a hole in the ranges, or at the bound of memory. Raises as
    :func:`~uploader_agent.packs.packed_run.open_in_packs` and :meth:`SegmentSealer.seal`.
    """
    lineage = known_lineage(lineage, entries, ranges)

    def open_at(offset: int) -> tuple[OpenTransaction, ...] | None:
        known = stored.open_before(offset)  # an abandoned tail begins inside of a segment, if an election cut it there
        return transactions_open_at(route.partition, offset, lineage) if known is None else known

    run = read_run(route.partition.store, ranges, lineage, start, end)
    if run is None:
        return None
    compacted = any(packed.range.compacted for packed in ranges)
    sealer = SegmentSealer(
        route=route,
        offsets=offsets,
        cleanup=cleanup._replace(policy="compact") if compacted else cleanup,
        judge=_judge,
        watermark=stored.watermark,
        open_transactions=open_in_packs(route.partition.cluster, ranges, start, open_at),
        has_log=stored.has_log(start),
        packed=tuple(packed.range.part for packed in ranges),
        compare_packs=False,
    )
    return _seal(sealer, run)


def _judge(scanned: ScannedSegment, lineage: Lineage) -> Lineage:
    """Return ``lineage``; raise SegmentChanged for batches that are not on it, which were undamaged when packed."""
    if scanned.damage is not None:
        raise SegmentChanged(f"batches of packs do not agree with {lineage.entries}: {scanned.damage}")
    return lineage


def seal_fuller(
    sealer: SegmentSealer,
    work: SealRun,
    entries: Sequence[HeadEntry],
    ranges: Sequence[PackedRange],
    lineage: Lineage,
) -> StoredManifest | None:
    """Seal ``work`` with batches of ``ranges`` on ``lineage``, where compaction has changed or removed the log's.

    The run ends after the last of these ranges, or before the first if the local log has batches below it; the next run
    continues there. If the log has all batches of the ranges, all of ``work`` is sealed as it is. Raises as
    :func:`~uploader_agent.packs.packed_run.read_run` and :meth:`SegmentSealer.seal`.
    """
    sealer = dataclasses.replace(sealer, compare_packs=False)
    with sealer.route.files() as files:
        run = open_run(files, work)
        if run is None:
            return None
        known = files.lineage()  # held files extend it once they are open
        lineage = known_lineage(known.with_history(lineage), entries, ranges)
        fuller = read_fuller_run(sealer.route.partition.store, ranges, lineage, run, work)
        if fuller is None:
            return sealer.seal_run(files, work, run)
        if not fuller.data:
            return sealer.seal(files, work._replace(end=fuller.end))
        opened = open_before(files, run, work.segment, sealer.open_transactions)
        if files.lineage() != known or run.log.has_shrunk():
            raise SegmentChanged(f"{files.path(run.segment.name)}: changed while it was read")
    return _seal(dataclasses.replace(sealer, open_transactions=opened), fuller)


def _seal(sealer: SegmentSealer, run: PackedRun) -> StoredManifest:
    logger.info("sealed_from_packs", partition=str(sealer.route.tp), base_offset=run.start, next_offset=run.end)
    with RunFiles(run) as files:
        last = max((header.next_offset for header in batch_headers(files.log, 0)), default=run.start)
        segment_end = None if run.end == last else run.end + 1  # a tail ends with its last batch
        work = SealRun(run.start, run.end, run.start, segment_end)
        return sealer.seal_run(files, work, LocalRun(run.start, files.log, files.log))


class RunFiles(SegmentFiles):
    """A run as the local files from which a seal is made: one ``.log`` with its bytes, which is a file in memory."""

    def __init__(self, run: PackedRun) -> None:
        self._name = file_name(run.start, "log")
        self._lineage = run.lineage
        self._stack = ExitStack()
        self._descriptor = os.memfd_create(self._name)
        self._stack.callback(os.close, self._descriptor)
        rest = memoryview(run.data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    @property
    def log(self) -> OpenFile:
        """The file."""
        return opened(self._name, self._descriptor)

    @override
    def open(self, name: str) -> OpenFile | None:
        return self.log if name == self._name else None

    @override
    def lineage(self) -> Lineage:
        return self._lineage

    @override
    def next_base(self, base_offset: int) -> int | None:
        return None

    @override
    def previous_base(self, base_offset: int) -> int | None:
        return None

    @override
    def path(self, name: str) -> str:
        return f"{name} from packs"

    @override
    def close(self) -> None:
        self._stack.close()
