"""Seals one run, end to end: open, scan, send ``.log``, indexes, and the manifest last.

Promises: an object is created, or found equal, and never replaced. The manifest is true of the very bytes that are
stored. Any failure leaves the run without a manifest for these bytes, and a repetition finishes it.

An agent that dies between a ``.log`` and its manifest leaves bytes without a manifest. They are a sealed run like any
other, which may end elsewhere than the next agent's, or leave the live log at an election's cut. :func:`rebuild` makes
their manifest from the bytes alone: it reads them in pieces, and compares each batch with the known lineages. A batch
of the right leader epoch at an offset is the right batch: that is the purpose of Kafka's epochs (KIP-101).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from tidemark.errors import FormatError, SegmentError, TidemarkError
from tidemark.formats.keys import SegmentName, TopicPartition
from tidemark.formats.raw.manifest import ObjectSum, Origin, PackedPart, SegmentDamage, SegmentManifest, last_batch_of
from tidemark.formats.raw.watermark import Watermark
from tidemark.kafka_log import BatchHeader, Lineage, OpenTransaction, SegmentScanner, SegmentSummary, scan_batches
from tidemark.kafka_log.indexes import DerivedIndexes
from tidemark.raw.objects import StoredManifest, pieces, read_manifest
from tidemark.storage import PartitionStore
from tidemark.store import ObjectInfo, Store
from uploader_agent import __version__
from uploader_agent.broker.admin import Cleanup, Offsets
from uploader_agent.disk.segment_files import (
    Bytes,
    OpenFile,
    PartitionFiles,
    SegmentChanged,
    SegmentFiles,
    batch_headers,
    checksum,
    file_name,
)
from uploader_agent.hold import Hold
from uploader_agent.runtime import utc_now
from uploader_agent.stored.lineage import BatchLineage, KnownLineages, OffLineage, lineage_of
from uploader_agent.stored.objects import PutDerived, Summed, begins_on, create, create_derived, write_manifest
from uploader_agent.upload.local_run import (
    LocalRun,
    PartsOfRun,
    ScannedSegment,
    SealRun,
    cleanup_of,
    missing_end,
    open_before,
    open_run,
    scan,
)

logger = structlog.get_logger(__name__)

_OFFSET_BYTES = 8

_Placed = tuple[SegmentName, dict[str, ObjectSum]]
"""The name of a run in the store, and the sum of its ``.log`` or ``.corrupt``."""


class PacksDiffer(TidemarkError):
    """Packs have other bytes than the run: compaction may have removed records from it, or it is of another history."""


class Diverged(TidemarkError):
    """The store has other bytes under the names of this run; they are left as they are."""


@dataclass(frozen=True, slots=True)
class UploadRoute:
    """The source and the destination of a partition's segments.

    ``origin`` says how the agent gets the log, and ``restores`` are those of ``offset.wm``.
    """

    tp: TopicPartition
    topic_id: str | None
    folder: Path
    partition: PartitionStore
    broker: int
    hold: Hold | None = None
    origin: Origin = "disk"
    restores: tuple[int, ...] = ()

    def files(self) -> SegmentFiles:
        """The partition's files, including held ones. Raises SegmentChanged if there are none."""
        if self.hold is None:
            return PartitionFiles(self.folder, self.topic_id, self.restores)
        return self.hold.files(self.tp, self.topic_id, self.folder, self.restores)

    def manifest(
        self,
        name: SegmentName,
        summary: SegmentSummary,
        lineage: Lineage,
        objects: Mapping[str, ObjectSum],
        offsets: Offsets,
        cleanup: Cleanup,
        *,
        next_offset: int | None = None,
        damage: SegmentDamage | None = None,
        rotated_at: datetime | None = None,
        parts: tuple[PackedPart, ...] = (),
    ) -> SegmentManifest:
        """The manifest of the segment ``name``, whose batches the ``summary`` describes.

        ``objects`` are what the store has of it. ``offsets`` and ``cleanup`` are the broker's statements at that time.
        The segment accounts for the offsets up to ``next_offset``, by default the end of its last batch, and holds the
        ``parts`` of packs byte for byte.
        """
        end = summary.next_offset if next_offset is None else next_offset
        return SegmentManifest(
            cluster=self.partition.keys.cluster,
            topic=self.tp.topic,
            topic_id=self.topic_id,
            partition=self.tp.partition,
            base_offset=name.base,
            suffix=name.suffix,
            last_batch_end=summary.next_offset,
            next_offset=end,
            lineage=lineage.truncated(end).entries,
            restores=lineage.restores,
            first_timestamp=summary.first_timestamp,
            max_timestamp=summary.max_timestamp,
            batch_count=summary.batch_count,
            magics=summary.magics,
            codecs=summary.codecs,
            open_transactions=summary.open_transactions,
            log_start_offset=offsets.log_start_offset or 0,
            high_watermark=offsets.high_watermark,
            last_stable_offset=offsets.last_stable_offset,
            offsets_from=offsets.source,
            cleanup_policy=cleanup.policy,
            delete_retention_ms=cleanup.delete_retention_ms,
            rotated_at=rotated_at,
            uploaded_at=utc_now(),
            broker=self.broker,
            origin=self.origin,
            agent_version=__version__,
            state="corrupt" if damage else "whole",
            damage=damage,
            objects=dict(objects),
            parts=parts,
            last_batch=last_batch_of(summary.last),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSealer:
    """Seals runs of a partition. What differs between a leader, a replica and a repair are its fields.

    ``offsets`` and ``cleanup`` are the broker's statements. ``judge`` compares a run's bytes with the log's lineage: it
    raises if the run must not be sealed, and otherwise returns the lineage for the manifest.

    What is known of the store: ``watermark`` is ``offset.wm``. ``open_transactions`` are those open at the end of the
    stored segment before the run; None if they are unknown. ``has_log`` states that the store probably has a ``.log``
    under the run's base offset, so that it is looked for before bytes are sent. ``packed`` are the ranges of packs that
    may lie in the run; if it has other bytes, it is refused, unless ``compare_packs`` is false.

    ``publish`` writes the manifest, ``put`` the indexes. ``adopted`` is called before a segment is returned that
    another agent has stored: its batches were not compared with those of the disk.
    """

    route: UploadRoute
    offsets: Offsets
    cleanup: Cleanup
    judge: Callable[[ScannedSegment, Lineage], Lineage]
    watermark: Watermark | None = None
    open_transactions: tuple[OpenTransaction, ...] | None = None
    has_log: bool = False
    packed: tuple[PackedPart, ...] = ()
    compare_packs: bool = True
    publish: Callable[[PartitionStore, SegmentManifest], StoredManifest] = write_manifest
    put: PutDerived = create_derived
    adopted: Callable[[], None] = lambda: None

    def seal(self, files: SegmentFiles, work: SealRun) -> StoredManifest | None:
        """Seal ``work`` of the partition's ``files``; return the manifest of the stored segment that begins there.

        None if there is no batch yet. That segment may end elsewhere, or leave the live log: then another agent has
        sealed it.

        Raises:
            SegmentChanged: the disk no longer has the run's bytes.
            SegmentError: an active segment is damaged (a rotated one is kept as ``.corrupt``).
            PacksDiffer: nothing is sealed.
            Diverged: the store has other bytes under the run's names, which are damaged or were replaced.
            StoreError: the store failed; it is safe to repeat all of it.
        """
        run = open_run(files, work)
        return self.seal_run(files, work, run) if run else None

    def seal_run(self, files: SegmentFiles, work: SealRun, run: LocalRun) -> StoredManifest:
        """Seal the ``run`` of ``files`` that was opened for ``work``. Raises as :meth:`seal`."""
        return _Seal(self, files, work, run).run()


class _Seal:
    """The steps of sealing one run, and their common state."""

    def __init__(self, sealer: SegmentSealer, files: SegmentFiles, work: SealRun, run: LocalRun) -> None:
        self._sealer = sealer
        self._route = route = sealer.route
        self._cleanup = cleanup_of(route.folder.parent, route.tp, run.base_offset, sealer.cleanup)
        self._work = work
        self._files = files
        self._run = run
        self._base = run.base_offset
        self._path = files.path(run.segment.name)
        self._opened = open_before(files, run, work.segment, sealer.open_transactions)

    def run(self) -> StoredManifest:
        """Carry out all steps, the manifest last."""
        rotated_at = self._rotated_at()
        known = self._files.lineage() if self._work.is_tail else None
        parts = PartsOfRun(self._sealer.packed, self._base)
        scanned = scan(self._run.log, self._path, self._base, self._opened, parts)
        lineage = self._files.lineage()
        scanned = self._examine(scanned, lineage)
        self._check_unchanged()
        if known is not None and lineage != known:
            raise SegmentChanged(f"{self._path}: its leader epochs changed while it was read")
        lineage = self._sealer.judge(scanned, lineage)
        next_offset = scanned.summary.next_offset if self._work.is_tail else self._work.end
        # Packs may hold records that compaction has removed from this log since. Of a log that is not compacted, a pack
        # with other batches is of another branch or history, or damaged.
        if self._sealer.compare_packs and not scanned.damage:
            compacted, log = self._cleanup.may_compact, self._run.log
            for part in parts.differing(log, next_offset) if compacted else parts.contradicting(log):
                raise PacksDiffer(f"{self._path}: a pack has other batches from {part.first} to {part.next}")
        placed = self._keep_damaged(scanned, lineage) if scanned.damage else self._place(scanned, lineage)
        if isinstance(placed, StoredManifest):
            self._sealer.adopted()
            return placed
        name, sent = placed
        manifest = self._route.manifest(
            name,
            scanned.summary,
            lineage.with_batches(scanned.summary.epochs),
            dict(self._send_derived(scanned, name)) | sent,
            self._sealer.offsets,
            self._cleanup,
            next_offset=next_offset,
            damage=scanned.damage,
            rotated_at=rotated_at,
            parts=parts.equal(self._run.log),
        )
        self._check_unchanged()  # once more: to be sent, the files were read again
        return self._sealer.publish(self._route.partition, manifest)

    def _rotated_at(self) -> datetime | None:
        """The time at which the segment that ends with this run was rotated; None if the run ends before it.

        Kafka trims the time index when it rolls a segment (``LogSegment.onBecomeInactiveSegment``).
        """
        if self._work.end != self._work.segment_end:
            return None
        index = self._files.open(file_name(self._work.segment, "timeindex"))
        moment = max(self._run.segment.stat.st_mtime, index.stat.st_mtime if index else 0.0)
        return datetime.fromtimestamp(moment, UTC)

    def _examine(self, scanned: ScannedSegment, lineage: Lineage) -> ScannedSegment:
        """``scanned`` with all damage. Raises SegmentError for damage in an active segment."""
        log, work = self._run.log, self._work._replace(base_offset=self._base)
        scanned = _cut_at_contradiction(log, self._path, work, self._opened, lineage, scanned)
        if work.is_tail and scanned.damage:
            damage = scanned.damage
            raise SegmentError(self._path, log.start + damage.position, damage.offset, damage.rule)
        if scanned.damage or work.is_tail:
            return scanned
        missing = missing_end(scanned.summary, work.end, self._cleanup)
        return dataclasses.replace(scanned, damage=missing)

    def _check_unchanged(self) -> None:
        """Raise SegmentChanged if the file has changed. Appends behind the run of an active segment are allowed."""
        log = self._run.log
        if log.has_shrunk() if self._work.is_tail else log.has_changed():
            raise SegmentChanged(f"{self._path}: changed while it was read")

    def _place(self, scanned: ScannedSegment, lineage: Lineage) -> _Placed | StoredManifest:
        """Store the ``.log`` under its first name that no other branch has, or adopt the segment stored there."""
        store, ours = self._route.partition.store, Summed(self._run.log, scanned.crc32c)
        key = ""
        for name in _names(self._base, scanned, lineage):
            key = self._route.partition.keys.segment(name, "log")
            created = create(store, key, ours, look_first=self._sealer.has_log)
            if isinstance(created, ObjectSum):
                return name, {name.file("log"): created}
            adopted = self._adopt(name, created, lineage)
            if adopted is not None:
                return adopted
        raise Diverged(
            f"{key}: is damaged, or its record batches have no leader epoch: it stays, and hides {self._path}"
        )

    def _adopt(self, name: SegmentName, log: ObjectInfo, lineage: Lineage) -> StoredManifest | None:
        """The manifest of another agent's run that is stored as ``log``; a missing manifest is made.

        None if the run is of another branch; without a manifest also if it is damaged, or lacks packed records.
        """
        route = self._route
        stored = read_manifest(route.partition, name)
        if stored is not None:
            if not begins_on(stored.manifest, lineage):
                return None
            if stored.manifest.log is None or stored.manifest.log.etag != log.etag:
                raise Diverged(f"{log.key}: is not what its manifest describes, and differs from {self._path}")
            return stored
        sealer, lineages = self._sealer, KnownLineages.of(self._sealer.watermark, lineage)
        try:
            manifest = rebuild(route, name, log, lineages, self._opened, sealer.offsets, self._cleanup, put=sealer.put)
        except (NotRebuilt, OffLineage) as error:
            logger.warning("stored_segment_not_adopted", partition=str(route.tp), error=str(error))
            return None
        if self._lacks_packed(log, manifest.next_offset):
            logger.info("stored_segment_lacks_packed", partition=str(route.tp), key=log.key)
            return None
        logger.info("stored_segment_adopted", partition=str(route.tp), key=log.key, next_offset=manifest.next_offset)
        return sealer.publish(route.partition, manifest)

    def _lacks_packed(self, log: ObjectInfo, end: int) -> bool:
        """True if the stored ``log`` has other batches below ``end`` than this run, where packs reach into it.

        Its agent may not have known these packs when compaction had removed records from its log.
        """
        packed = [part for part in self._sealer.packed if part.next > self._base and part.first < end]
        if not packed or not self._cleanup.may_compact:
            return False
        stored = {
            header.base_offset: header.crc
            for header in scan_batches(pieces(self._route.partition.store, log), log.key, self._base)
        }
        ours = (header for header in batch_headers(self._run.log, 0) if header.next_offset <= end)
        return any(stored.get(header.base_offset) != header.crc for header in ours)

    def _keep_damaged(self, scanned: ScannedSegment, lineage: Lineage) -> _Placed | StoredManifest:
        """Keep all bytes of a damaged run, unless the store has a sound copy already."""
        partition = self._route.partition
        logger.error("segment_corrupt", file=self._path, **(scanned.damage.model_dump() if scanned.damage else {}))
        for sound in _names(self._base, scanned, lineage):
            stored = read_manifest(partition, sound)
            if stored is not None and begins_on(stored.manifest, lineage):
                return stored
        name = SegmentName.of_damage(self._base, scanned.crc32c)
        created = create(
            partition.store, partition.keys.segment(name, "corrupt"), Summed(self._run.log, scanned.crc32c)
        )
        if isinstance(created, ObjectInfo):
            raise Diverged(f"{created.key}: has other bytes than {self._path}, of the same CRC32C")
        return name, {name.file("corrupt"): created}

    def _send_derived(self, scanned: ScannedSegment, name: SegmentName) -> Iterator[tuple[str, ObjectSum]]:
        """Send the indexes of the ``.log``; none beside damaged bytes."""
        if scanned.damage:
            return
        for extension, data in scanned.indexes.files():
            content = Bytes(name.file(extension), data)
            partition = self._route.partition
            key, summed = partition.keys.file(content.name), Summed(content, checksum(content))
            yield content.name, self._sealer.put(partition.store, key, summed)


def _names(base: int, scanned: ScannedSegment, lineage: Lineage) -> Iterator[SegmentName]:
    """The names of a run, in the order in which they are tried. Record batches before v2 have no leader epoch.

    After a restore an offset and an epoch no longer tell a batch, so the names have the number of the last restore.
    """
    restored = len(lineage.restores)
    yield SegmentName.of_history(base, restored)
    epoch = next((epoch for epoch, _ in scanned.summary.epochs), None)
    if epoch is None and not scanned.summary.batch_count:  # compaction has left no batch
        epoch = lineage.epoch_at(base)
    if epoch is not None:
        yield SegmentName.of_branch(base, epoch, restored)


def _cut_at_contradiction(
    log: OpenFile,
    path: str,
    work: SealRun,
    open_before: Iterable[OpenTransaction],
    lineage: Lineage,
    scanned: ScannedSegment,
) -> ScannedSegment:
    """``scanned``, unless its batches contradict each other: then with that damage, and cut before it.

    This is damage in fields without a checksum, which only the neighbouring batches reveal. Base offset and leader
    epoch of a v2 batch are outside its checksum, because brokers set them (``DefaultRecordBatch``). A base offset that
    was damaged upwards runs into the next batch or beyond the segment's end; a damaged epoch differs from the lineage's
    epoch at the offset.

    The file is read again only if there is damage to find.
    """
    damage = _foreign_epoch(log, path, work, lineage, scanned) or _raised_base_offset(log, path, work, scanned)
    if damage is None:
        return scanned
    before = scan(log.cut(damage.position), path, work.base_offset, open_before)
    return dataclasses.replace(before, crc32c=scanned.crc32c, damage=damage)


def _foreign_epoch(
    log: OpenFile, path: str, work: SealRun, lineage: Lineage, scanned: ScannedSegment
) -> SegmentDamage | None:
    """The first batch with an epoch off the lineage. Kafka records each epoch before its first batch."""
    if _epochs_agree(scanned.summary.epochs, lineage, scanned.summary.next_offset):
        return None
    for header in _sound_headers(log, path, work, scanned):
        epoch = lineage.epoch_at(header.base_offset)
        if header.leader_epoch >= 0 and epoch not in {None, header.leader_epoch}:
            rule = f"leader epoch {header.leader_epoch} is not {epoch}, under which this offset was written"
            return SegmentDamage(position=header.position, offset=header.base_offset, rule=rule)
    return None


def _epochs_agree(epochs: tuple[tuple[int, int], ...], lineage: Lineage, end: int) -> bool:
    """True if the runs of ``epochs`` match the lineage, as far as it knows."""
    for index, (epoch, start) in enumerate(epochs):
        stop = epochs[index + 1][1] if index + 1 < len(epochs) else end
        starts = {start, *(other for _, other in lineage.entries if start < other < stop)}
        if any(lineage.epoch_at(at) not in {None, epoch} for at in starts):
            return False
    return True


def _raised_base_offset(log: OpenFile, path: str, work: SealRun, scanned: ScannedSegment) -> SegmentDamage | None:
    """The last sound batch, if it starts above its expected offset and reaches beyond the next batch's."""
    following = work.end if scanned.damage is None else _base_offset_at(log, scanned.damage.position)
    if following is None or scanned.summary.next_offset <= following:
        return None
    expected, last = work.base_offset, None
    for header in _sound_headers(log, path, work, scanned):
        expected, last = (last.next_offset if last else expected), header
    if last is None or last.base_offset == expected:
        return None
    rule = f"base offset {last.base_offset} is higher than {expected} and runs into offset {following}, which follows"
    return SegmentDamage(position=last.position, offset=expected, rule=rule)


def _sound_headers(log: OpenFile, path: str, work: SealRun, scanned: ScannedSegment) -> Iterator[BatchHeader]:
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


class NotRebuilt(FormatError):
    """The stored bytes are damaged: they are left as they are."""


def rebuild(
    route: UploadRoute,
    name: SegmentName,
    log: ObjectInfo,
    lineages: KnownLineages,
    open_before: Iterable[OpenTransaction],
    offsets: Offsets,
    cleanup: Cleanup,
    *,
    next_base: int | None = None,
    put: PutDerived = create_derived,
) -> SegmentManifest:
    """The manifest of the stored ``.log`` of the segment ``name``; its indexes are made again, see :func:`reindex`.

    ``offsets`` and ``cleanup`` are the broker's statements. With ``next_base`` the segment accounts for the offsets up
    to there: the cleaner has removed the records in between.
    """
    summary, lineage, objects = reindex(route.partition, name, log, lineages, open_before, put)
    end = max(summary.next_offset, next_base or 0)
    return route.manifest(name, summary, lineage, objects, offsets, cleanup, next_offset=end)


def reindex(
    partition: PartitionStore,
    name: SegmentName,
    log: ObjectInfo,
    lineages: KnownLineages,
    open_before: Iterable[OpenTransaction],
    put: PutDerived = create_derived,
) -> tuple[SegmentSummary, Lineage, dict[str, ObjectSum]]:
    """Read the stored ``.log`` of the segment ``name``, and store its indexes with ``put``.

    Return the summary of its batches, its lineage, and the sums of all its objects. ``open_before`` are the
    transactions open at its start. The lineage is that of the bytes, even where they leave the known lineages.

    Raises:
        NotRebuilt: the bytes are damaged, or there are none.
        OffLineage: their first batch is of another branch.
        PreconditionFailed: the object has been replaced in the meantime: look again.
        StoreError: the store failed.
    """
    opened = tuple(open_before)
    scanner = SegmentScanner(log.key, name.base, open_before=opened)
    indexes = DerivedIndexes(name.base, log.size, opened)
    branch = BatchLineage(log.key, lineages)
    summary = _scan(partition.store, log, scanner, indexes, branch)
    if not summary.batch_count:
        raise NotRebuilt(log.key, "has no record batch")
    lineage = lineage_of(log.key, summary, lineages, branch.left_at)
    objects = {name.file("log"): ObjectSum(size=log.size, crc32c=f"{summary.crc32c:08x}", etag=log.etag)}
    for extension, data in indexes.files():
        content = Bytes(name.file(extension), data)
        objects[content.name] = put(
            partition.store, partition.keys.file(content.name), Summed(content, checksum(content))
        )
    return summary, lineage, objects


def _scan(
    store: Store, log: ObjectInfo, scanner: SegmentScanner, indexes: DerivedIndexes, lineage: BatchLineage
) -> SegmentSummary:
    before, start = b"", 0
    try:
        for piece in pieces(store, log):
            window, window_start = before + piece, start - len(before)
            for header in scanner.batches(piece):
                lineage.follow(header)
                begin = header.position - window_start  # a marker is small: it begins in the former piece or this one
                indexes.add(header, window[begin : begin + header.size] if header.is_marker else b"")
            before, start = piece, start + len(piece)
        return scanner.finish()
    except SegmentError as error:
        raise NotRebuilt(error.name, error.rule) from error
