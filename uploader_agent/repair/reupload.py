"""Uploads a range again from this broker's replica, after its objects were lost or damaged in the store.

A stored segment is intact if its manifest names exactly the objects that are stored. For other segments, the indexes
are made again from the stored ``.log`` if that is intact. The rest of the range is uploaded from the disk, in runs of
the local segments. The leader's agent may run at the same time, and only it writes ``offset.wm``. The rules are those
of a replica (:mod:`uploader_agent.repair.replica_upload`), so diverging bytes are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import structlog

from tidemark.errors import FormatError, TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import Lineage, OpenTransaction
from tidemark.kafka_log.indexes import MAX_OFFSET
from tidemark.raw.objects import StoredManifest, read_manifest
from tidemark.storage import ListedObject
from uploader_agent.broker.admin import Offsets, checkpointed_offsets
from uploader_agent.disk.log_dirs import find_partitions, topic_id_of
from uploader_agent.repair.replica_upload import ALL_OFFSETS, Replica, Surroundings, around, bring_all, overlapping
from uploader_agent.stored import stored_log, watermark
from uploader_agent.stored.histories import HistoriesPart, Shared, find_parting
from uploader_agent.stored.incarnations import Incarnations
from uploader_agent.stored.lineage import OffLineage
from uploader_agent.stored.objects import put_derived, write_manifest_over
from uploader_agent.stored.stored_log import StoredLog
from uploader_agent.upload.local_run import SealRun
from uploader_agent.upload.segment_upload import NotRebuilt, UploadRoute, rebuild

logger = structlog.get_logger(__name__)

Outcome = Literal[
    "would bring",
    "brought",
    "rebuilt",
    "would adopt",
    "would refer",
    "adopted",
    "referred",
    "passed over",
    "as it was",
    "left",
]

_NEAREST = 8
"""Stored segments below the range that are read: the last one reaches into it, unless branches overlap."""


class RepairRow(NamedTuple):
    """The outcome for a segment or run, and the reason if it was left or passed over.

    ``bytes`` are those of its log. ``next_offset`` is None if it was not read. From Kafka's remote tier a row may also
    be about a partition or a topic as a whole: then both offsets are None.
    """

    partition: str
    base_offset: int | None
    next_offset: int | None
    bytes: int
    outcome: Outcome
    detail: str | None


class Reupload:
    """One partition's replica on this broker's disks."""

    def __init__(
        self,
        incarnations: Incarnations,
        broker: int,
        log_dirs: tuple[Path, ...],
        tp: TopicPartition,
        sleep: Callable[[float], object],
    ) -> None:
        """Find the replica. Raises FormatError: no disk has a replica, or its files are damaged."""
        folder = find_partitions(log_dirs).partitions.get(tp)
        if folder is None:
            where = ", ".join(map(str, log_dirs))
            raise FormatError(str(tp), f"has no directory in {where}: run this on a broker that has a replica")
        topic_id = topic_id_of(folder)
        _, self._partition = incarnations.resolve(tp, topic_id)
        route = UploadRoute(tp, topic_id, folder, self._partition, broker)
        self._replica = Replica(route, sleep, again=True)
        self._high_watermark = _high_watermark(log_dirs, tp, folder)
        self._sizes = {segment.base_offset: segment.size for segment in self._replica.segments()}

    def run(self, start: int = 0, end: int = MAX_OFFSET, *, dry_run: bool = False) -> Iterator[RepairRow]:
        """Upload the offsets that the store lacks of the local segments that overlap ``[start, end)``.

        The segments must be rotated, and end at or below the high watermark.

        Raises StoreError: the store failed; earlier rows are done. HistoriesPart: the log is not the stored one.
        """
        self._check_history()
        touched = {work.segment for work in self._works(Intervals([(start, end)]))}
        wanted = Intervals((work.base_offset, work.end) for work in self._works(ALL_OFFSETS) if work.segment in touched)
        if not wanted:
            return
        surroundings = around(self._partition, Interval(wanted.parts[0].start, wanted.parts[-1].end))
        intact = Intervals()
        for row in self._stored(wanted, surroundings, dry_run=dry_run):
            assert row.base_offset is not None, "a row is about a segment here"
            assert row.next_offset is not None
            intact |= Intervals([(row.base_offset, row.next_offset)])
            yield row
        works = self._works(wanted - intact)
        if dry_run:
            yield from (self._row(work, "would bring") for work in works)
            return
        for work, outcome in bring_all(self._replica, works, surroundings, self._high_watermark):
            if isinstance(outcome, TidemarkError):
                yield self._row(work, "left", str(outcome))
            else:
                yield self._row(work, "brought")

    def _check_history(self) -> None:
        route = self._route
        stored = watermark.read(self._partition)
        if stored is None:
            return
        route = replace(route, restores=stored.watermark.restores)
        self._replica = replace(self._replica, route=route)
        with route.files() as files:
            lineage = files.lineage().with_history(stored.lineage)
            end = stored.watermark.next_offset
            cut = stored.lineage.divergence(lineage, end)
            shared = [Shared(stored.lineage, end if cut is None else cut)]
            parting = find_parting(self._partition, files, lineage, end=end, shared=shared)
        if parting is not None and parting.local is not None:  # a replica may be behind
            go_on = f"tidemark-agent branch {route.tp.topic} {route.tp.partition}"
            raise HistoriesPart(f"{route.folder}: {parting}: nothing of it is uploaded again: see `{go_on}`")

    @property
    def _route(self) -> UploadRoute:
        return self._replica.route

    def _works(self, wanted: Intervals) -> list[SealRun]:
        return overlapping(self._replica.segments(), wanted, self._high_watermark)

    def _stored(self, wanted: Intervals, surroundings: Surroundings, *, dry_run: bool) -> Iterator[RepairRow]:
        """The stored segments of ``wanted`` that are intact, or got a new manifest and new indexes."""
        with self._route.files() as files:
            lineage = files.lineage()
        manifests, found = stored_log.list_reaching(self._partition, wanted)
        logs = {log.name: log for log in found}
        names = sorted({*logs, *(entry.name for entry in manifests)})
        known = StoredLog(self._route.broker)
        below = [name for name in names if name.base <= wanted.parts[0].start][-_NEAREST:]
        for name in [*below, *(name for name in names if name.base > wanted.parts[0].start)]:
            base, stored, outcome = name.base, read_manifest(self._partition, name), _AS_IT_WAS
            if stored is None or not self._partition.is_intact(stored.manifest):
                outcome, opened = _REBUILT, known.open_before(base) or ()
                unknown = name.erasure and stored is None  # only its manifest says what was erased
                rebuilds = name in logs and not unknown and not dry_run
                stored = self._rebuild(logs[name], stored, opened, surroundings, lineage) if rebuilds else None
            if stored is None:
                continue
            known = known.with_segment(stored, lineage)
            end = known.segments[name].readable_end
            if wanted.clip(base, end):
                yield RepairRow(str(self._route.tp), base, end, 0, outcome, None)

    def _rebuild(
        self,
        log: ListedObject,
        stored: StoredManifest | None,
        open_before: tuple[OpenTransaction, ...],
        surroundings: Surroundings,
        lineage: Lineage,
    ) -> StoredManifest | None:
        """Make manifest and indexes of a stored ``.log`` again; None if its bytes are not whole."""
        route, lineages = self._route, surroundings.known_lineages(lineage)
        offsets, cleanup = Offsets(self._high_watermark), surroundings.cleanup
        try:
            manifest = rebuild(route, log.name, log.info, lineages, open_before, offsets, cleanup, put=put_derived)
        except (NotRebuilt, OffLineage) as error:
            logger.warning("stored_segment_not_rebuilt", partition=str(route.tp), error=str(error))
            return None
        described = stored.manifest.objects.get(log.name.file("log")) if stored else None
        stored_log = manifest.objects[log.name.file("log")]
        other = described is not None and (described.size, described.crc32c) != (stored_log.size, stored_log.crc32c)
        if other or manifest.next_offset > self._high_watermark:
            return None
        if stored is not None:
            manifest = manifest.model_copy(update={"erased": stored.manifest.erased})
        return write_manifest_over(route.partition, manifest, stored)

    def _row(self, work: SealRun, outcome: Outcome, detail: str | None = None) -> RepairRow:
        size = self._sizes.get(work.segment, 0)
        return RepairRow(str(self._route.tp), work.base_offset, work.end, size, outcome, detail)


_AS_IT_WAS: Outcome = "as it was"
_REBUILT: Outcome = "rebuilt"


def _high_watermark(log_dirs: tuple[Path, ...], tp: TopicPartition, folder: Path) -> int:
    """The high watermark in the broker's checkpoint: the segments are old, and the broker need not run."""
    offsets = checkpointed_offsets(log_dirs, {tp: folder}).get(tp)
    return offsets.high_watermark if offsets else 0
