"""Adds records from packs to segments that lack them, since compaction had removed them before the segment was sealed.

A person starts it, and it needs no disk of a broker. Each segment that claims a packed batch is made whole, in the
order of offsets: its ``.log`` is replaced by If-Match with the same batches and those of the packs, then its indexes,
and its manifest last (docs/agent-design.md, "Segments that lack records"). ``offset.wm`` is left alone.

Batches are only added, or replaced by copies with at least as many records. So a program that replaces the stored bytes
by these, however late, removes nothing.

The added batches may be of transactions that later segments end. Indexes and manifests of those are made again before
the data is put.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from tempfile import TemporaryFile
from typing import NamedTuple

import structlog

from tidemark.concurrency import in_parallel
from tidemark.errors import FormatError, NotFound, TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.manifest import ObjectSum, PackedPart, SegmentManifest, last_batch_of
from tidemark.formats.raw.pack import PackedRange
from tidemark.kafka_log import BatchHeader, Lineage, OpenTransaction, scan_batches
from tidemark.kafka_log.batch import described, is_same
from tidemark.kafka_log.indexes import MAX_OFFSET
from tidemark.raw.objects import REACH, StoredManifest, pieces, pieces_between, read_manifest
from tidemark.raw.packs import read_footer, read_range_bytes
from tidemark.raw.sealed_packs import BatchId, bounds, claims, id_of
from tidemark.storage import PartitionStore
from tidemark.store import ObjectInfo, Store
from uploader_agent import __version__
from uploader_agent.broker.admin import Cleanup
from uploader_agent.disk.segment_files import Bytes, OpenFile, checksum, opened
from uploader_agent.repair.reupload import Outcome, RepairRow
from uploader_agent.stored import watermark
from uploader_agent.stored.incarnations import Incarnations
from uploader_agent.stored.lineage import KnownLineages
from uploader_agent.stored.objects import PutDerived, Summed, begins_on, find, put_derived, replace, write_manifest_over
from uploader_agent.stored.stored_log import transactions_open_at
from uploader_agent.upload.local_run import PartsOfRun, ScannedSegment, scan
from uploader_agent.upload.segment_upload import reindex

logger = structlog.get_logger(__name__)

_AT_A_TIME = 64
"""Packs that are listed before their footers are read."""


class NotMadeWhole(TidemarkError):
    """A segment stays as it is; the message states the reason."""


class Completion:
    """Makes segments whole, in one partition of a topic's newest incarnation."""

    def __init__(self, incarnations: Incarnations, tp: TopicPartition) -> None:
        """Find the partition in the store.

        Raises:
            FormatError: no agent has seen the topic.
            StoreError: the store failed.
        """
        cluster = incarnations.storage.cluster_store()
        known = cluster.incarnations(tp.topic).incarnations
        if not known:
            key = cluster.keys.incarnations(tp.topic)
            raise FormatError(key, f"there is none, so no agent has seen the topic {tp.topic}: correct its name")
        self._tp = tp
        self._topic_id = known[-1].topic_id
        _, self._partition = incarnations.resolve(tp, self._topic_id)
        stored = watermark.read(self._partition)
        self._lineage = stored.lineage if stored else Lineage()

    def run(self, start: int = 0, end: int = MAX_OFFSET, *, dry_run: bool = False) -> Iterator[RepairRow]:
        """Make the segments whole that hold offsets of ``[start, end)``, from all existing packs; the last first.

        So a segment that gets a transaction's batches is followed by segments that have its marker. There is a row for
        each segment that lacks records, with the number of bytes that it gets.

        Raises StoreError: the store failed; earlier rows are done.
        """
        ranges = self._ranges()
        if not ranges:
            return
        first, after = bounds(packed.range for packed in ranges)
        first, after = max(first, start), min(after, end)
        listed = [*self._partition.manifests(max(0, first - REACH), after)]
        for entry in reversed(listed):
            stored = read_manifest(self._partition, entry.name)
            if stored is None or stored.manifest.state != "whole" or stored.manifest.next_offset <= first:
                continue
            base, following = stored.manifest.base_offset, stored.manifest.next_offset
            near = [packed for packed in ranges if packed.range.first < following and packed.range.next > base]
            row = self._segment(stored, near, ranges, dry_run=dry_run) if near else None
            if row is not None:
                yield row

    def _ranges(self) -> list[PackedRange]:
        """The partition's ranges in all packs of the cluster, even if no head leads to them."""
        packs, all_ranges = self._partition.cluster.packs(), list[PackedRange]()
        while chunk := list(islice(packs, _AT_A_TIME)):
            for ranges in in_parallel(self._ranges_of, chunk):
                all_ranges += ranges
        return all_ranges

    def _ranges_of(self, pack: ObjectInfo) -> list[PackedRange]:
        try:
            footer = read_footer(self._partition.store, pack.key, pack.size)
        except NotFound:
            return []
        except FormatError as error:
            logger.warning("pack_not_read", partition=str(self._tp), error=str(error))
            return []
        name = self._topic_id, self._tp.partition
        return [packed for packed in footer if (packed.range.topic_id, packed.range.partition) == name]

    def _segment(
        self, stored: StoredManifest, near: list[PackedRange], ranges: list[PackedRange], *, dry_run: bool
    ) -> RepairRow | None:
        """Make one segment whole from the ranges ``near`` it; None if it lacks no record."""
        manifest = stored.manifest
        try:
            log = find(self._partition.store, self._partition.keys.file(manifest.log_name))
            wanted = batches_of(self._partition.store, near, manifest, self._lineage)
            changes = edits(self._partition.store, log, manifest.base_offset, wanted, manifest.gone) if log else []
            if log is None or not wanted or not _is_to_change(manifest, log, changes):
                return None
            _check_compacted(manifest, near)
            if any(change.batch.header.base_offset in manifest.gone for change in changes):
                manifest = manifest.model_copy(update={"erased": None})  # it gets back what the next pass must erase
            transactional = any(batch.header.is_transactional for batch in wanted)
            opened = (
                transactions_open_at_start(self._partition, manifest, self._lineage, ranges) if transactional else ()
            )
            with spliced(self._partition.store, log, manifest.log_name, changes) as file:
                near_parts = {packed.range.part for packed in near}
                parts = PartsOfRun({*near_parts, *manifest.parts}, manifest.base_offset)
                scanned = scan(file, log.key, manifest.base_offset, opened, parts)
                indexes = [
                    Bytes(manifest.name.file(extension), data)
                    for extension, data in scanned.indexes.files()
                    if transactional or extension != "txnindex"
                ]
                whole = _described(manifest, scanned, parts.equal(file), transactional=transactional)
                if not dry_run:
                    ours = Summed(file, scanned.crc32c)
                    self._put(stored, whole, ours, indexes, log if changes else None, log.etag)
                size = file.size - manifest.objects[manifest.log_name].size
            return self._row(manifest, size, "would bring" if dry_run else "brought")
        except (FormatError, NotMadeWhole) as error:
            return self._row(manifest, 0, "left", str(error))

    def _put(
        self,
        stored: StoredManifest,
        whole: SegmentManifest,
        ours: Summed,
        indexes: list[Bytes],
        replaced: ObjectInfo | None,
        etag: str,
    ) -> None:
        """Put the segment, the manifest last. Later segments get its transactions first.

        ``whole`` describes the new bytes, ``ours``, and still names the former objects. Without ``replaced`` the store
        has the ``.log`` already, under ``etag``: an earlier run put it.
        """
        store, keys, before = self._partition.store, self._partition.keys, stored.manifest
        opened = whole.open_transactions
        new = {*opened} - {*before.open_transactions}
        if new:
            tell_following(self._partition, before, opened, new, self._lineage)
        log = ObjectSum(size=ours.content.size, crc32c=f"{ours.crc32c:08x}", etag=etag)
        if replaced is not None:
            log = replace(store, replaced.key, ours, replaced)
        sums = {before.log_name: log}
        for content in indexes:
            sums[content.name] = put_derived(store, keys.file(content.name), Summed(content, checksum(content)))
        final = whole.model_copy(update={"objects": before.objects | sums})
        write_manifest_over(self._partition, final, stored)

    def _row(self, manifest: SegmentManifest, size: int, outcome: Outcome, detail: str | None = None) -> RepairRow:
        return RepairRow(str(self._tp), manifest.base_offset, manifest.next_offset, size, outcome, detail)


def _is_to_change(manifest: SegmentManifest, log: ObjectInfo, changes: list[Edit]) -> bool:
    """True if the segment lacks records, or an earlier run died after it had put the ``.log``.

    Raises:
        NotMadeWhole: another program has put the ``.log``.
    """
    as_described = manifest.objects[manifest.log_name].etag == log.etag
    if changes and not as_described:
        raise NotMadeWhole(f"{log.key}: is not what its manifest describes: see `tidemark-agent verify --deep`")
    return bool(changes) or not as_described


def _check_compacted(manifest: SegmentManifest, near: list[PackedRange]) -> None:
    """Raise NotMadeWhole if compaction cannot have removed what the segment lacks."""
    if not Cleanup(manifest.cleanup_policy).may_compact and not any(packed.range.compacted for packed in near):
        rule = "lacks batches of packs, and its topic was not compacted: see why before anything is replaced"
        raise NotMadeWhole(f"{manifest.log_name}: {rule}")


def _described(
    before: SegmentManifest, scanned: ScannedSegment, parts: tuple[PackedPart, ...], *, transactional: bool
) -> SegmentManifest:
    """The manifest ``before`` for the bytes that were ``scanned``, of the same offsets.

    Batches that are not ``transactional`` change nothing about transactions. ``uploaded_at`` stays: the records' times
    were judged from it, and from the times at which the parts were shipped.

    Raises:
        NotMadeWhole: the bytes are no segment, or have fewer batches than the manifest says.
    """
    summary = scanned.summary
    if scanned.damage is not None:
        rule = f"with the packs' batches, at byte {scanned.damage.position}: {scanned.damage.rule}"
        raise NotMadeWhole(f"{before.log_name}: {rule}")
    if summary.batch_count < before.batch_count:
        rule = f"has {summary.batch_count} batches, and its manifest says {before.batch_count}"
        raise NotMadeWhole(f"{before.log_name}: {rule}: see `tidemark-agent verify --deep`")
    starts = dict(before.lineage)
    for epoch, start in summary.epochs:
        starts[epoch] = min(start, starts.get(epoch, start))
    opened = summary.open_transactions
    return before.model_copy(
        update={
            "last_batch_end": summary.next_offset,
            "lineage": Lineage.of(sorted(starts.items()), before.log_name).entries,
            "first_timestamp": summary.first_timestamp,
            "max_timestamp": summary.max_timestamp,
            "batch_count": summary.batch_count,
            "last_batch": last_batch_of(summary.last),
            "magics": summary.magics,
            "codecs": summary.codecs,
            "open_transactions": opened if transactional else before.open_transactions,
            "agent_version": __version__,
            "parts": tuple(sorted({*before.parts, *parts}, key=lambda part: (part.first, part.next))),
        }
    )


class WantedBatch(NamedTuple):
    """A batch in the pack ``key``: its header, and the byte of the pack at which it begins."""

    header: BatchHeader
    key: str
    position: int


def batches_of(
    store: Store, ranges: Iterable[PackedRange], manifest: SegmentManifest, lineage: Lineage
) -> list[WantedBatch]:
    """The batches of ``ranges`` that the segment claims on ``lineage``, by offset; of several copies the fullest.

    Raises:
        FormatError: a range is damaged.
        StoreError: the store failed.
    """
    batches: dict[BatchId, WantedBatch] = {}
    for packed in ranges:
        for header in scan_batches([read_range_bytes(store, packed)], packed.key, packed.range.first):
            batch = id_of(header, packed.range.restores)
            if not claims(manifest, lineage, batch, header.next_offset):
                continue
            known = batches.get(batch)
            if known is None or header.record_count > known.header.record_count:
                batches[batch] = WantedBatch(header, packed.key, packed.range.position + header.position)
    return [batches[batch_id] for batch_id in sorted(batches)]


class Edit(NamedTuple):
    """A batch that replaces the stored bytes ``[position, end)``."""

    position: int
    end: int
    batch: WantedBatch


def edits(
    store: Store, log: ObjectInfo, base: int, wanted: Iterable[WantedBatch], gone: Mapping[int, int]
) -> list[Edit]:
    """The edits with which the stored ``log`` holds all ``wanted`` batches, which are in the order of offsets.

    A batch that lacks no more than the records which are ``gone``, since they were erased, stays as it is.

    Raises:
        NotMadeWhole: a wanted batch is another one than the log has at its offsets.
        SegmentError: the log is damaged.
        StoreError: the store failed.
    """
    changes: list[Edit] = []
    left = deque(wanted)
    for stored in scan_batches(pieces(store, log), log.key, base):
        if left and _differs(left[0].header, stored):
            rule = f"has {described(stored)}, and {left[0].key} {described(left[0].header)}"
            raise NotMadeWhole(f"{log.key}: {rule}: of another history, which must not replace it")
        while left and left[0].header.base_offset < stored.base_offset:
            changes.append(Edit(stored.position, stored.position, left.popleft()))
        if left and _is_copy(left[0].header, stored):
            ours = left.popleft()
            same = (ours.header.size, ours.header.crc) == (stored.size, stored.crc)
            erased = gone.get(stored.base_offset, 0)
            same = same or (erased > 0 and ours.header.record_count <= stored.record_count + erased)
            if not same and ours.header.record_count >= stored.record_count:
                changes.append(Edit(stored.position, stored.end, ours))
    return [*changes, *(Edit(log.size, log.size, batch) for batch in left)]


def _is_copy(one: BatchHeader, other: BatchHeader) -> bool:
    """True if both are copies of one batch: the segment claims the first, so that they are of one log."""
    return (one.base_offset, one.leader_epoch) == (other.base_offset, other.leader_epoch)


def _differs(packed: BatchHeader, stored: BatchHeader) -> bool:
    overlaps = packed.base_offset <= stored.last_offset and stored.base_offset <= packed.last_offset
    return overlaps and is_same(packed, stored) is False


@contextmanager
def spliced(store: Store, log: ObjectInfo, name: str, changes: Iterable[Edit]) -> Iterator[OpenFile]:
    """The bytes of ``log`` with ``changes``, in order, in a temporary file under ``name``. Raises StoreError."""
    with TemporaryFile() as file:
        at = 0
        for change in changes:
            file.writelines(pieces_between(store, log.key, at, change.position, log.etag))
            batch = change.batch
            file.write(store.get_range(batch.key, batch.position, batch.position + batch.header.size))
            at = change.end
        file.writelines(pieces_between(store, log.key, at, log.size, log.etag))
        file.flush()
        yield opened(name, file.fileno())


def transactions_open_at_start(
    partition: PartitionStore, manifest: SegmentManifest, lineage: Lineage, ranges: Iterable[PackedRange]
) -> tuple[OpenTransaction, ...]:
    """The transactions open at the start of the segment, from the segments below it, or the range that ends there.

    Raises:
        NotMadeWhole: they are unknown. It is never assumed that there are none.
        StoreError: the store failed.
    """
    base, own = manifest.base_offset, manifest.history.with_history(lineage)
    known = transactions_open_at(partition, base, own)
    if known is not None:
        return known
    for _, range_ in ranges:
        if range_.next == base and Lineage(range_.epochs, range_.restores).divergence(own, base) is None:
            return range_.open
    rule = f"the transactions open at offset {base} are unknown"
    raise NotMadeWhole(
        f"{partition.keys.manifest(manifest.name)}: {rule}: the segment before it is gone, and so are its packs"
    )


def tell_following(
    partition: PartitionStore,
    after: SegmentManifest,
    opened: tuple[OpenTransaction, ...],
    new: Collection[OpenTransaction],
    lineage: Lineage,
) -> None:
    """Make indexes and manifests of the segments behind ``after`` again, up to the segment that decides all ``new``.

    ``opened`` are the transactions open at the end of ``after``, and ``new`` are the formerly unknown ones. An index
    that lists an aborted transaction without data is not wrong, so this comes before the data.

    Raises:
        NotMadeWhole: no segment decides them yet. Nothing is written.
        FormatError: a segment is damaged.
        StoreError: the store failed.
    """
    for put in (_only_sum, put_derived):
        left, now = {*new}, opened
        for stored in _behind(partition, after, lineage):
            if not left:
                break
            rebuilt = _rebuilt(partition, stored.manifest, now, lineage, put)
            now = rebuilt.open_transactions
            left &= {*now}
            if put is put_derived and rebuilt != stored.manifest:
                write_manifest_over(partition, rebuilt, stored)
        if left:
            producer = min(transaction.producer_id for transaction in left)
            rule = f"no later segment decides the transaction of producer {producer}"
            raise NotMadeWhole(
                f"{partition.keys.manifest(after.name)}: {rule}: try again once more of the log is sealed"
            )


def _behind(partition: PartitionStore, after: SegmentManifest, lineage: Lineage) -> Iterator[StoredManifest]:
    """The segments behind ``after`` on ``lineage``, each beginning at the end of the one before."""
    at = after.next_offset
    while True:
        read = (read_manifest(partition, entry.name) for entry in partition.manifests(at, at + 1))
        sound = (stored for stored in read if stored is not None and stored.manifest.state == "whole")
        following = next((stored for stored in sound if begins_on(stored.manifest, lineage)), None)
        if following is None:
            return
        yield following
        at = following.manifest.next_offset


def _rebuilt(
    partition: PartitionStore,
    manifest: SegmentManifest,
    opened: tuple[OpenTransaction, ...],
    lineage: Lineage,
    put: PutDerived,
) -> SegmentManifest:
    """The manifest of the stored bytes if the transactions ``opened`` are open at their start."""
    log = find(partition.store, partition.keys.file(manifest.log_name))
    if log is None or log.etag != manifest.objects[manifest.log_name].etag:
        raise NotMadeWhole(
            f"{partition.keys.file(manifest.log_name)}: is not what its manifest describes: `reupload` it first"
        )
    if not log.size:
        return manifest.model_copy(update={"open_transactions": opened})
    own = manifest.history.with_history(lineage)
    summary, _, sums = reindex(partition, manifest.name, log, KnownLineages.of(None, own), opened, put)
    return manifest.model_copy(update={"objects": sums, "open_transactions": summary.open_transactions})


def _only_sum(_store: Store, _key: str, ours: Summed) -> ObjectSum:
    return ObjectSum(size=ours.content.size, crc32c=f"{ours.crc32c:08x}", etag="")
