"""Uploads segments of a replica that does not lead, or no longer leads, for offsets that the store lacks.

The rules are stricter than a leader's: a run is uploaded only if it is sound, its batches are on its own lineage, and
that lineage contradicts neither ``offset.wm`` nor the stored manifests around it. ``offset.wm`` is never written, and
objects are only created; a repair also replaces manifests and indexes. Damaged bytes in the store are left as they are,
and reported.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog

from tidemark.errors import PreconditionFailed, TidemarkError
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import BatchHeader, Lineage
from tidemark.kafka_log.indexes import MAX_OFFSET
from tidemark.raw.objects import REACH, StoredManifest, read_manifest
from tidemark.storage import PartitionStore, StoredWatermark
from uploader_agent.broker.admin import Cleanup, Offsets
from uploader_agent.disk.log_dirs import LocalSegment, find_segments
from uploader_agent.disk.segment_files import SegmentChanged, file_name
from uploader_agent.stored import watermark
from uploader_agent.stored.histories import local_difference
from uploader_agent.stored.lineage import KnownLineages, OffLineage, lineage_of
from uploader_agent.stored.objects import begins_on, put_derived, says_the_same, write_manifest, write_manifest_over
from uploader_agent.stored.stored_log import StoredSegment
from uploader_agent.upload.local_run import ScannedSegment, SealRun, rotated_runs
from uploader_agent.upload.segment_upload import Diverged, SegmentSealer, UploadRoute

logger = structlog.get_logger(__name__)

ALL_OFFSETS = Intervals([(0, MAX_OFFSET)])

_TRIES = 20
"""Tries of a segment while other agents write it."""

_PAUSE = 0.1
"""The most seconds until the next try."""


class ReplicaRefused(TidemarkError):
    """A replica's segment must not be stored; the message states the reason."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The state of the store around some offsets. ``lineages`` are pairs of a lineage and its end.

    ``lasts`` are the last batches of the nearest segments, which a replica's log has as well.
    """

    stored: StoredWatermark | None
    lineages: tuple[tuple[Lineage, int], ...]
    cleanup: Cleanup
    lasts: tuple[BatchHeader, ...] = ()

    @property
    def lineage(self) -> Lineage:
        """The lineage in ``offset.wm``; empty without one."""
        return _lineage(self.stored)

    def known_lineages(self, own: Lineage) -> KnownLineages:
        """The lineage of ``offset.wm``, and ``own``, the lineage of a replica's log."""
        return KnownLineages.of(self.stored.watermark if self.stored else None, own)

    def check(self, lineage: Lineage, end: int, path: str) -> None:
        """Raise :class:`ReplicaRefused` if ``lineage`` contradicts a stored one below ``end``."""
        for other, known_end in self.lineages:
            at = other.divergence(lineage, min(end, known_end))
            if at is not None:
                raise ReplicaRefused(f"{path}: is of another branch of the log: lineages differ from offset {at} on")


def around(partition: PartitionStore, wanted: Interval) -> Surroundings:
    """Read ``offset.wm`` and the nearest manifests of its lineage beside ``wanted``, below and above."""
    stored = watermark.read(partition)
    listed = [*partition.manifests(max(0, wanted.start - REACH))]
    below = [entry.name for entry in reversed(listed) if entry.name.base < wanted.start]
    above = [entry.name for entry in listed if entry.name.base >= wanted.end]
    near = [live for names in (below, above) if (live := _nearest(partition, names, _lineage(stored))) is not None]
    segments = [StoredSegment.of(manifest, _lineage(stored)) for manifest in near]
    lineages = [(segment.lineage, segment.readable_end) for segment in segments]
    if stored is not None:
        lineages.append((stored.lineage, stored.watermark.next_offset))
    cleanups = {Cleanup(manifest.cleanup_policy) for manifest in near}
    lasts = tuple(segment.last for segment in segments if segment.last)
    return Surroundings(stored, tuple(lineages), cleanups.pop() if len(cleanups) == 1 else Cleanup(), lasts)


def _lineage(stored: StoredWatermark | None) -> Lineage:
    return stored.lineage if stored else Lineage()


def _nearest(partition: PartitionStore, names: Iterable[SegmentName], lineage: Lineage) -> SegmentManifest | None:
    """The manifest of the first segment in ``names`` that does not begin on a dead branch."""
    for name in names:
        stored = read_manifest(partition, name)
        if stored is not None and begins_on(stored.manifest, lineage):
            return stored.manifest
    return None


def overlapping(segments: Sequence[LocalSegment], wanted: Intervals, high_watermark: int) -> list[SealRun]:
    """The runs of rotated segments with offsets of ``wanted``; the segments end at or below ``high_watermark``."""
    return [*rotated_runs(segments, ALL_OFFSETS - wanted, high_watermark)]


@dataclass(frozen=True, slots=True)
class Replica:
    """One partition's directory and its route. With ``again``, a repair, runs that have a manifest are sent again."""

    route: UploadRoute
    sleep: Callable[[float], object]
    again: bool = False

    def segments(self) -> list[LocalSegment]:
        """The segments on the disk, preceded by segments that are only held."""
        route, live = self.route, find_segments(self.route.folder)
        held = route.hold.segments(route.tp, route.topic_id) if route.hold else []
        return [*(segment for segment in held if not live or segment.base_offset < live[0].base_offset), *live]

    def bring(self, work: SealRun, surroundings: Surroundings, high_watermark: int) -> StoredManifest | None:
        """Upload one segment; None if the store has it.

        Raises:
            Refused, Diverged, OffLineage: the segment must not be uploaded.
            SegmentChanged: the disk has changed in the meantime.
            StoreError: the store failed; PreconditionFailed: other agents keep writing there.
        """
        for _ in range(_TRIES - 1):
            try:
                return self._bring(work, surroundings, high_watermark)
            except PreconditionFailed:
                self.sleep(random.uniform(0, _PAUSE))  # noqa: S311 - two agents that met must not meet again
        return self._bring(work, surroundings, high_watermark)

    def _bring(self, work: SealRun, surroundings: Surroundings, high_watermark: int) -> StoredManifest | None:
        restores = surroundings.lineage.restores  # the disk's log has them if its batches are those stored beside it
        route, judge = replace(self.route, restores=restores), partial(self._judge, work, surroundings)
        stored = read_manifest(route.partition, SegmentName.of_history(work.base_offset, len(restores)))
        if stored is not None and not self.again and _has(stored.manifest, work.end, surroundings.lineage):
            return None
        sealer = SegmentSealer(
            route=route,
            offsets=Offsets(high_watermark),
            cleanup=surroundings.cleanup,
            judge=judge,
            has_log=stored is not None,
        )
        if self.again:
            sealer = replace(sealer, publish=partial(self._publish_again, stored), put=put_derived)
        with route.files() as files:
            return sealer.seal(files, work)

    def _judge(self, work: SealRun, surroundings: Surroundings, scanned: ScannedSegment, lineage: Lineage) -> Lineage:
        path = str(self.route.folder / file_name(work.segment, "log"))
        if scanned.damage is not None:
            raise ReplicaRefused(
                f"{path}: is damaged here, too: at byte {scanned.damage.position}, {scanned.damage.rule}"
            )
        whole = lineage_of(path, scanned.summary, surroundings.known_lineages(lineage))
        surroundings.check(whole, work.end, path)
        with self.route.files() as files:
            for last in surroundings.lasts:
                if whole.is_live(last.base_offset, last.leader_epoch) and local_difference(files, last) is not None:
                    raise ReplicaRefused(f"{path}: is another history than what is stored beside it: see `verify`")
        return whole

    @staticmethod
    def _publish_again(
        stored: StoredManifest | None, partition: PartitionStore, manifest: SegmentManifest
    ) -> StoredManifest:
        if stored is None or stored.manifest.name != manifest.name:
            return write_manifest(partition, manifest)
        if says_the_same(stored.manifest, manifest):
            return stored
        return write_manifest_over(partition, manifest, stored)


def bring_all(
    replica: Replica, works: Iterable[SealRun], surroundings: Surroundings, high_watermark: int
) -> Iterator[tuple[SealRun, StoredManifest | TidemarkError | None]]:
    """Upload one segment after the other; yield each with its manifest, None if the store has it, or the error.

    Raises StoreError: the store failed; later segments are not tried.
    """
    for work in works:
        try:
            yield work, replica.bring(work, surroundings, high_watermark)
        except (ReplicaRefused, Diverged, OffLineage, SegmentChanged) as error:
            yield work, error


def _has(stored: SegmentManifest, end: int, lineage: Lineage) -> bool:
    """True if the segment has all offsets from its base up to ``end``, on ``lineage``."""
    return stored.next_offset >= end and stored.history.divergence(lineage, end) is None
