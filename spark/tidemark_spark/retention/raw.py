"""Retention of raw: removes segments from each partition's start.

:mod:`tidemark.planning.maintenance.retention` releases them.
A partition's listing is streamed, with one manifest at a time, up to the first segment that stays: memory grows with
the segments of one tombstone and with three numbers for each row of evidence. ``offset.wm`` is never written.

First comes the tombstone, then each segment in order of its end, its manifest first. A run that dies in between leaves
a tombstone and objects without a manifest, which the next run recognizes. In a bucket that keeps versions the bytes are
only hidden, and its lifecycle frees them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidemark.concurrency import in_parallel
from tidemark.errors import FormatError, NotFound, PreconditionFailed
from tidemark.formats.keys import MANIFEST_EXTENSION
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.tombstones import RemovedSegment, Tombstone
from tidemark.formats.table.ledger import PartitionState
from tidemark.formats.table.plan import SegmentTask
from tidemark.planning import read_plan
from tidemark.planning.maintenance.fold import landed_attempts
from tidemark.planning.maintenance.retention import Classed, Keeping, PartitionGoes, RetentionReport, reviewed
from tidemark.planning.maintenance.vacuum import RUN_OVER
from tidemark.raw import objects, tombstones
from tidemark.raw.objects import SegmentObjects, delete_version, remove_segment
from tidemark.raw.partition import RawPartition
from tidemark.raw_topic import RawTopic
from tidemark.storage import PartitionStore
from tidemark.store import Store, put_once
from tidemark.store.base import ObjectInfo
from tidemark.store.identity import identity
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence_reader import by_partition
from tidemark.table.tampering import check_untampered
from tidemark.timestamps import stamp, utc_now

CHUNK: Final = 256
"""Segments of one tombstone; it has more only where segments overlap."""


def retain_raw(table: TopicTable, now: datetime, by: str, *, dry_run: bool) -> RetentionReport:
    """Remove segments that may go at ``now`` and that a report named a day ago; returns a report of all that may go.

    Raises:
        FormatError: the ledger or an object of the whole topic does not parse. A bad object of a partition only keeps
            that partition's segments.
        StoreError: a store did not answer; the next run removes the rest.
    """
    standing = EffectiveEvidence.of(table)
    check_untampered(table, standing.ledger, standing.files)
    before = None if dry_run else reviewed(table, "raw", now)
    raw = RawTopic(table)
    review, written_as = before[0] if before else "", identity(table.deployment.store, table.deployment.raw.url)
    run = _Run(table, standing, raw, _classed(standing), _busy(table, standing), now, by, written_as, review)
    reported = before[1].partitions if before else ()
    limits = {(goes.incarnation, goes.partition): goes.end for goes in reported}
    states = [(state, raw.partition_of(state)) for state in standing.ledger.partitions]
    done = in_parallel(lambda known: run.partition(*known, limits.get(known[0].key)), states)
    return RetentionReport(
        cluster=table.topic.cluster,
        topic=table.topic.topic,
        table=table.topic.table,
        subject="raw",
        at=now,
        by=by,
        window=table.topic.retention.raw,
        dry_run=dry_run,
        ledger_n=standing.ledger.n,
        reviewed=run.review,
        partitions=tuple(done),
    )


def _classed(standing: EffectiveEvidence) -> dict[tuple[int, int], Classed]:
    classed: dict[tuple[int, int], Classed] = {}
    for rows in standing.parts():
        ordered, places = by_partition(rows.select(["incarnation", "partition", "first", "next", "rows"]))
        numbers = [ordered[name].to_numpy() for name in ("first", "next", "rows")]
        for key, start, end in places:
            its = classed.setdefault(key, Classed())
            its.add(*(column[start:end].tobytes() for column in numbers))
    return classed


def _busy(table: TopicTable, standing: EffectiveEvidence) -> frozenset[str]:
    """The logs read by runs that have not landed and still may."""
    since = table.store.now() - RUN_OVER
    busy: set[str] = set()
    done = {table.keys.attempt(attempt) for attempt in landed_attempts(table, standing.ledger)}
    for key in [info.key for info in table.store.list(table.keys.attempts) if info.modified >= since]:
        if key not in done and (plan := read_plan(table, key)).created_at >= since:
            busy.update(part.key for task in plan.tasks if isinstance(task, SegmentTask) for part in task.ranges)
    return frozenset(busy)


@dataclass(frozen=True, slots=True)
class _Run:
    """A run over a topic's raw segments."""

    table: TopicTable
    standing: EffectiveEvidence
    raw: RawTopic
    classed: Mapping[tuple[int, int], Classed]
    busy: frozenset[str]
    now: datetime
    by: str
    written_as: str
    review: str

    def partition(self, state: PartitionState, part: RawPartition, limit: int | None) -> PartitionGoes:
        """Remove a partition's segments that may go below offset ``limit``; without a limit, remove nothing."""
        keeping = self._keeping(part, state)
        if isinstance(keeping, str):
            return PartitionGoes(incarnation=state.incarnation, partition=state.partition, stays=keeping)
        partition = _ExpiringPartition(self, part, keeping, limit)
        try:
            return partition.told(partition.go())
        except FormatError as error:  # of an object of this partition: the others continue
            return partition.told(str(error))

    def _keeping(self, part: RawPartition, state: PartitionState) -> Keeping | str:
        """The rules for the partition's segments, or the reason why all of them stay."""
        window, stored = self.table.topic.retention.raw, self.raw.stored_watermark(part)
        if window is None:
            return "it is kept for ever"
        if stored is None:
            return "it has no offset.wm"
        classed = self.classed[part.key].offsets() if part.key in self.classed else Classed().offsets()
        ahead = self.table.topic.sane_timestamps.ahead
        keeping = Keeping(state, stored.watermark, stored.base_offset, classed, self.busy, self.now - window, ahead)
        return keeping.partition_stays() or keeping


@dataclass
class _ExpiringPartition:
    """One partition, from its start to the first segment that stays. ``chunk`` has the next tombstone's segments."""

    run: _Run
    part: RawPartition
    keeping: Keeping
    limit: int | None
    chunk: list[RemovedSegment] = field(default_factory=list)
    found: dict[str, int] = field(default_factory=dict)

    def told(self, stays: str) -> PartitionGoes:
        """Report of the found and removed segments, and of the reason why the rest stays."""
        where = {"incarnation": self.part.incarnation, "partition": self.part.keys.partition}
        return PartitionGoes.model_validate({**where, "stays": stays, **self.found})

    def go(self) -> str:
        """Remove the segments that may go; returns the reason why the rest stays."""
        partition = self.run.raw.partition_store(self.part)
        buried = Tombstones(partition)
        stays = "offset.wm names a segment that is not there"
        for group in objects.grouped(partition):
            manifest = _manifest_of(partition, group)
            self._leftovers(partition.store, group, manifest, buried)
            if manifest is None and MANIFEST_EXTENSION not in group.objects:
                continue
            base = group.name.base
            if _reach(self.chunk) <= base and (len(self.chunk) >= CHUNK or base >= (self.limit or 0)):
                self._close(partition)
            why = self._why(group, manifest)
            if manifest is None or why:
                stays = f"segment {base} stays: {why}"
                self.chunk = _apart(self.chunk, base)
                self._close(partition)
                break
            self.chunk.append(_removed_segment(manifest, group))
            if manifest.refers is not None:
                self._count("others_logs", 1)
                self._count("others_bytes", manifest.refers.size)
        return stays

    def _why(self, group: SegmentObjects, manifest: SegmentManifest | None) -> str | None:
        if manifest is None:
            return "its manifest is being replaced"
        return self.keeping.segment_stays(
            manifest,
            {group.name.file(name): info.etag for name, info in group.objects.items() if name != MANIFEST_EXTENSION},
            self.part.keys.segment(group.name, "log") if manifest.refers is None else manifest.refers.key,
        )

    def _leftovers(
        self, store: Store, group: SegmentObjects, manifest: SegmentManifest | None, buried: Tombstones
    ) -> None:
        """Remove objects that a tombstone names and no manifest does: an earlier run died before it could."""
        for name, info in group.objects.items():
            named = manifest is not None and group.name.file(name) in manifest.objects
            if name != MANIFEST_EXTENSION and not named and buried.name(group.name.base, info):
                self._count("leftover", 1)
                if self.limit is not None:
                    delete_version(store, info.key, info.etag)

    def _close(self, partition: PartitionStore) -> None:
        """Count the chunk, and remove its segments if they were reviewed."""
        chunk, self.chunk = self.chunk, []
        if not chunk:
            return
        start, end = chunk[0].base_offset, _reach(chunk)
        self.found.setdefault("start", start)
        self.found["end"] = end
        self._count("segments", len(chunk))
        self._count("bytes", sum(segment.size for segment in chunk))
        if self.limit is None or end > self.limit:
            return
        if bury(partition, self._tombstone(chunk, start, end)):
            self.found["removed_to"] = end
        else:
            self.limit = 0  # a segment was replaced since it was judged: keep all above it

    def _count(self, name: str, more: int) -> None:
        self.found[name] = self.found.get(name, 0) + more

    def _tombstone(self, chunk: list[RemovedSegment], start: int, end: int) -> Tombstone:
        topic, ledger = self.run.table.topic, self.run.standing.ledger
        fields = {
            "cluster": topic.cluster,
            "topic": topic.topic,
            "topic_id": self.part.topic_id,
            "incarnation": self.part.incarnation,
            "partition": self.part.keys.partition,
            "from": start,
            "to": end,
            "by": self.run.by,
            "written_as": self.run.written_as,
            "at": utc_now(),
            "window": topic.retention.raw,
            "report": self.run.review,
            "ledger_n": ledger.n,
            "ledger_attempt": ledger.attempt,
            # In this order the remaining segments never have a hole, even where segments overlap.
            "segments": tuple(sorted(chunk, key=lambda segment: (segment.next_offset, segment.base_offset))),
        }
        return Tombstone.model_validate(fields)


def _reach(chunk: list[RemovedSegment]) -> int:
    """The end of the chunk's segments."""
    return max((segment.next_offset for segment in chunk), default=0)


def _apart(chunk: list[RemovedSegment], kept: int) -> list[RemovedSegment]:
    """The chunk without segments that reach across ``kept``, the first offset of a segment that stays."""
    left = list(chunk)
    while _reach(left) > kept:
        kept = left.pop().base_offset
    return left


def _manifest_of(partition: PartitionStore, group: SegmentObjects) -> SegmentManifest | None:
    """The listed manifest; None if it is gone or has been replaced."""
    if MANIFEST_EXTENSION not in group.objects:
        return None
    key = partition.keys.manifest(group.name)
    try:
        return SegmentManifest.load(partition.store, key, if_match=group.objects[MANIFEST_EXTENSION].etag)
    except (NotFound, PreconditionFailed):
        return None


def _removed_segment(manifest: SegmentManifest, group: SegmentObjects) -> RemovedSegment:
    return RemovedSegment(
        base_offset=manifest.base_offset,
        suffix=manifest.suffix,
        next_offset=manifest.next_offset,
        uploaded_at=manifest.uploaded_at,
        manifest_etag=group.objects[MANIFEST_EXTENSION].etag,
        objects=manifest.objects,
    )


def bury(partition: PartitionStore, tombstone: Tombstone) -> bool:
    """Write ``tombstone`` and delete its segments; False if a manifest was replaced, which stops the deletion."""
    control, at = partition.keys.control, stamp(tombstone.at)
    key = control.tombstone(partition.keys.place, partition.keys.partition, tombstone.start, tombstone.end, at)
    put_once(partition.store, key, tombstone.to_bytes())
    return all(
        remove_segment(
            partition,
            segment.name,
            segment.manifest_etag,
            {name: sums.etag for name, sums in segment.objects.items()},
        )
        for segment in tombstone.segments
    )


class Tombstones:
    """The tombstones of a partition, listed once and read on demand; the last one read is kept."""

    def __init__(self, partition: PartitionStore) -> None:
        self._partition = partition
        self._named: Sequence[tombstones.Removed] = list(tombstones.named(partition))
        self._read: tuple[str, Tombstone] | None = None

    def name(self, offset: int, info: ObjectInfo) -> bool:
        """True if a tombstone younger than the object ``info``, named by ``offset``, removes this very version."""
        file = info.key.removeprefix(self._partition.keys.folder)
        near = (self._tombstone(name.key) for name in self._named if name.start <= offset < name.end)
        return any(info.modified < tombstone.at and tombstone.names(file, info.etag) for tombstone in near)

    def _tombstone(self, key: str) -> Tombstone:
        if self._read is None or self._read[0] != key:
            self._read = key, tombstones.read(self._partition, key)
        return self._read[1]
