"""The seals of a topic after its table has lost the masked rows: those that hold masked records are rewritten, and go.

A seal goes once its rewriting is there with all its objects: first a record of what is deleted, then its manifest, then
each object in just that version, then the former versions that the bucket keeps of them. Whatever dies when, a later
pass finds either the seal, which it rewrites or deletes, or objects and versions that a record names. A run that was
planned before and reads the old seal stops as ``moved``, and is planned again. What cannot be rewritten, and what may
hold records of the requests unseen, is named with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from tidemark.concurrency import in_parallel
from tidemark.decode.offset_mask import OffsetMask
from tidemark.erasure.reports import RawReport, Remaining
from tidemark.erasure.requests import ErasureFolder
from tidemark.errors import NotFound
from tidemark.formats.keys import MANIFEST_EXTENSION, PartitionKeys
from tidemark.formats.raw.manifest import OWNERS, SegmentManifest
from tidemark.formats.raw.masks import MaskIndex, MaskName
from tidemark.formats.raw.pack import PackedRange, Range, lines_of
from tidemark.formats.raw.tombstones import Buried, BuriedObject, BuriedSegment, LeftLog
from tidemark.formats.table.ledger import PartitionState
from tidemark.formats.table.plan import StoredMasks
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.planning.common import Key
from tidemark.planning.maintenance.pack_proof import COMPARED
from tidemark.planning.maintenance.vacuum import RUN_OVER
from tidemark.raw import objects, tombstones
from tidemark.raw.masks import mask_of
from tidemark.raw.objects import SegmentObjects, StoredManifest, delete_version, remove_segment
from tidemark.raw.packs import live_part, read_footer
from tidemark.raw.segments import Segment, live_end, segment_of, whole_lineage
from tidemark.raw.tombstones import read_buried
from tidemark.raw_topic import RawTopic
from tidemark.retry import Retry
from tidemark.storage import ClusterStore, PartitionStore
from tidemark.store import ObjectInfo, Store, put_once, put_over
from tidemark.store.versions import ObjectVersion, VersionedStore, delete_all_versions, delete_versions, versioned
from tidemark.table.delta_table import TopicTable, committed_ledger
from tidemark_spark.erasing.lake import NOTHING, Unseen
from tidemark_spark.erasing.rewriting import SealOutcome, SealTask, rewrite
from tidemark_spark.model import Executor

CHUNK: Final = 256
"""Most seals of one record of what is deleted."""

_VERSIONS: Final = (
    "stores of this kind do not tell what they keep of the deleted segments in this list (versions, soft deletion): "
    "delete the list once they keep nothing"
)
_UNSEEN: Final = (
    "names segments that retention deleted, of which the bucket keeps versions, and nothing has searched these: the "
    "lifecycle removes them, or a person as undo"
)
_BARE: Final = "has no manifest, and is not searched"


def erase_seals(
    table: TopicTable, attempt: int, executor: Executor, *, asked: bool = False, unseen: Unseen = NOTHING
) -> RawReport:
    """Rewrite the seals that hold masked records, delete the old ones, and report what remains.

    A topic without masks has nothing to report, unless it was ``asked`` for records and none was found.

    Raises:
        FormatError: an object does not parse.
        StoreError: a store did not answer; the next pass goes on.
    """
    raw = RawTopic(table)
    if not asked and not raw.mask_numbers():
        return RawReport()
    ledger = committed_ledger(table)
    folder = ErasureFolder.of(table.deployment, table.topic.cluster)
    place = _Place(folder.cluster, attempt, unseen)
    known = in_parallel(lambda state: _Partition.of(raw, place, state), ledger.partitions)
    tasks = [task for partition in known for task in partition.tasks()]
    outcomes = executor.on_each(rewrite, table.deployment.store, tasks)
    by_folder: dict[str, list[SealOutcome]] = {}
    for outcome in outcomes:
        by_folder.setdefault(outcome.task.keys.folder, []).append(outcome)
    deleted = sum(partition.finish(by_folder.get(partition.stored.keys.folder, ())) for partition in known)
    _name_packs({(partition.topic_id, partition.stored.keys.partition): partition for partition in known})
    return RawReport(
        searched=len(tasks),
        rewritten=sum(outcome.new is not None for outcome in outcomes),
        records=sum(outcome.erased for outcome in outcomes),
        bytes=sum(outcome.size for outcome in outcomes),
        deleted=deleted,
        remaining=tuple(sorted({item for partition in known for item in partition.remaining}, key=str)),
    )


class _Place(NamedTuple):
    """The objects with masks and with records of deletions, the number of the pass, and what it has not seen."""

    cluster: ClusterStore
    attempt: int
    unseen: Unseen


class _KnownMask(NamedTuple):
    name: MaskName
    key: str
    offsets: OffsetMask
    approvals: tuple[str, ...]
    restores: tuple[int, ...]


class _Seal(NamedTuple):
    """A seal: its listing, its manifest, and the masks of records that it may hold."""

    listed: SegmentObjects
    stored: StoredManifest
    hidden: tuple[_KnownMask, ...]

    @property
    def manifest(self) -> SegmentManifest:
        """The manifest."""
        return self.stored.manifest

    @property
    def buried(self) -> BuriedSegment:
        """The seal in the list of what is deleted."""
        return BuriedSegment(
            base_offset=self.manifest.base_offset,
            suffix=self.manifest.suffix,
            next_offset=self.manifest.next_offset,
            manifest_etag=self.stored.etag,
            objects={
                file: BuriedObject(size=described.size, etag=described.etag)
                for file, described in self.manifest.objects.items()
            },
            left=LeftLog(**self.manifest.refers.model_dump(include={"store", "key", "owner"}))
            if self.manifest.refers is not None
            else None,
        )


@dataclass
class _Partition:
    """The seals of one partition, and what remains of them. ``end`` is that of the landed offsets."""

    stored: PartitionStore
    topic_id: str | None
    key: Key
    place: _Place
    end: int
    line_1: int
    masks: tuple[_KnownMask, ...]
    seals: list[_Seal] = field(default_factory=list)
    bare: list[SegmentObjects] = field(default_factory=list)
    remaining: list[Remaining] = field(default_factory=list)
    lineage: Lineage = field(default_factory=Lineage)

    @classmethod
    def of(cls, raw: RawTopic, place: _Place, state: PartitionState) -> _Partition:
        """Read what the store has of a partition of the ledger."""
        part = raw.partition(state.key)
        stored = raw.stored_watermark(part)
        masks = _masks(raw.masks(part.keys.place), place, state.partition)
        line_1 = stored.base_offset if stored else 0
        partition = cls(raw.partition_store(part), part.topic_id, state.key, place, state.next_offset, line_1, masks)
        partition._look()
        partition._name_unsearched(stored.lineage if stored else Lineage(), state.history)
        return partition

    def _look(self) -> None:
        def read(group: SegmentObjects) -> StoredManifest | None:
            return objects.read_manifest(self.stored, group.name) if MANIFEST_EXTENSION in group.objects else None

        groups = list(objects.grouped(self.stored, self.end))
        for group, stored in zip(groups, in_parallel(read, groups), strict=True):
            if stored is None:
                self.bare.append(group)
            else:
                self.seals.append(_Seal(group, stored, tuple(self._hidden(stored.manifest))))

    def _hidden(self, manifest: SegmentManifest) -> Iterator[_KnownMask]:
        """The masks with offsets of the seal's own branch that it was not rewritten without."""
        done = {*manifest.erased.masks} if manifest.erased else set()
        near = self._near(manifest.lineage, manifest.restores, manifest.base_offset, manifest.next_offset)
        return (mask for mask in near if mask.name.digest not in done)

    def _near(
        self, lineage: Iterable[tuple[int, int]], restores: tuple[int, ...], start: int, end: int
    ) -> Iterator[_KnownMask]:
        """The masks with offsets of ``[start, end)`` in an epoch of ``lineage``, or of message formats without one.

        They are of a log with ``restores``.
        """
        epochs = {-1, *(epoch for epoch, _ in lineage)}
        for mask in self.masks:
            parted = Lineage(restores=restores).parted_at(mask.restores)
            until = end if parted is None else min(end, parted)
            near = mask.name.start < until and mask.name.end > start
            if near and any(len(mask.offsets.of_epoch(epoch, start, until)) for epoch in epochs):
                yield mask

    def _name_unsearched(self, newest: Lineage, older: Lineage) -> None:
        """Name the seals that the search does not read as a whole."""
        whole = [(seal, self._segment(seal)) for seal in self.seals if not seal.manifest.damage]
        self.lineage = whole_lineage(newest, older, [segment for _, segment in whole])
        for seal, segment in whole:
            at = live_end(segment, self.lineage)
            if at < min(segment.end, self.end):
                self._remains(
                    seal, f"is of a dead branch from offset {max(at, segment.base)} on, which is not searched"
                )
        for seal in self.seals:
            if seal.manifest.damage:
                self._remains(seal, f"is damaged from offset {seal.manifest.damage.offset} on, and not searched there")

    def _segment(self, seal: _Seal) -> Segment:
        return segment_of(seal.manifest, self.stored.keys.manifest(seal.listed.name), self.stored.store.url)

    def tasks(self) -> list[SealTask]:
        """The seals to rewrite. Those that cannot be are named."""
        tasks: list[SealTask] = []
        for seal in self.seals:
            if not seal.hidden or seal.manifest.damage or self._successor(seal) is not None:
                continue
            if seal.manifest.next_offset > self.line_1:
                self._remains(
                    seal, f"agents continue from segment {self.line_1}: a later pass rewrites it", seal.hidden
                )
                continue
            names = [each.listed.name for each in self.seals]
            tasks.append(
                SealTask(
                    self.stored.keys,
                    seal.stored,
                    StoredMasks(store=self.place.cluster.store.url, keys=tuple(mask.key for mask in seal.hidden)),
                    1 + max(name.erasure for name in names if name.base == seal.listed.name.base),
                )
            )
        return tasks

    def _successor(self, seal: _Seal) -> SegmentManifest | None:
        """The manifest of the rewriting of just this seal, None if there is none."""
        replaced = seal.manifest.log_name, seal.manifest.sums[seal.manifest.log_name].etag
        for other in (other.manifest for other in self.seals):
            erased = other.erased
            if erased and (erased.replaces, erased.etag) == replaced and _same_span(other, seal.manifest):
                return other
        return None

    def finish(self, outcomes: Sequence[SealOutcome]) -> int:
        """Delete what has a rewriting; returns the number of deleted seals."""
        done = {outcome.task.stored.manifest.name: outcome for outcome in outcomes}
        going: list[_Seal] = []
        successors: dict[str, str] = {}
        for seal in self.seals:
            outcome = done.get(seal.manifest.name)
            successor = outcome.new if outcome else self._successor(seal)
            if outcome and outcome.remains:
                self._remains(seal, outcome.remains, seal.hidden)
            if successor is None or seal.manifest.next_offset > self.line_1:
                continue
            if self._is_there(successor):
                going.append(seal)
                successors[self.stored.keys.file(seal.manifest.log_name)] = self.stored.keys.file(successor.log_name)
            else:
                self._remains(
                    seal, f"{successor.log_name}, which replaces it, is not as its manifest says", seal.hidden
                )
        # What is not searched in a seal is not searched in its rewriting either.
        self.remaining = [
            item.model_copy(update={"key": successors.get(item.key, item.key)}) for item in self.remaining
        ]
        completed = {outcome.new.name for outcome in outcomes if outcome.new}
        bare = [group for group in self.bare if group.name not in completed]
        records = list(read_buried(self.place.cluster, self.stored.keys.place, self.stored.keys.partition))
        segments = [*(seal.buried for seal in going), *self._leftovers(records, bare), *self._of_retention(records)]
        segments.sort(key=lambda segment: segment.base_offset)
        chunks = (segments[start : start + CHUNK] for start in range(0, len(segments), CHUNK))
        records += [self._record(chunk) for chunk in chunks]
        self._name_left(records)
        for seal, segment in ((seal, seal.buried) for seal in going):
            if not remove_segment(self.stored, segment.name, segment.manifest_etag, segment.etags):
                self._remains(seal, "was uploaded again meanwhile: a later pass rewrites it", seal.hidden)
        named = _named(records, self.stored.keys)
        for info in (info for group in bare for info in group.objects.values()):
            if info.etag in named.get(info.key, ()):
                delete_version(self.stored.store, info.key, info.etag)
        self._delete_versions([record for record in records if record.gone is None])
        self._name_unseen()
        return len(going)

    def _name_left(self, records: Sequence[Buried]) -> None:
        """Name the logs of rewritten seals that are another system's, as long as they are there."""
        left = [segment.left for record in records for segment in record.segments if segment.left is not None]
        for log in left:
            try:
                self.stored.store_at(log.store).head(log.key)
            except NotFound:
                continue
            owner = OWNERS.get(log.owner, log.owner)
            why = f"belongs to {owner} in {log.store}, and Tidemark never deletes it: have its owner delete it"
            self.remaining.append(Remaining(key=log.key, why=why))

    def _is_there(self, manifest: SegmentManifest) -> bool:
        """True if all objects of a seal are stored as its manifest says, and so is the manifest."""
        stored = objects.read_manifest(self.stored, manifest.name)
        return stored is not None and stored.manifest == manifest and self.stored.is_intact(manifest)

    def _leftovers(self, records: Sequence[Buried], bare: Sequence[SegmentObjects]) -> Iterator[BuriedSegment]:
        """The objects without a manifest that go and that no list has yet. The logs that stay are named.

        A killed pass has left them, or a seal has come back in part.
        """
        named = _named(records, self.stored.keys)
        listed = _named([record for record in records if record.gone is None], self.stored.keys)
        before = self.stored.store.now() - RUN_OVER
        for group in bare:
            going: dict[str, BuriedObject] = {}
            for extension, info in group.objects.items():
                abandoned = group.name.erasure and info.modified < before
                if abandoned or info.etag in named.get(info.key, ()):
                    if info.etag not in listed.get(info.key, ()):
                        going[group.name.file(extension)] = BuriedObject(size=info.size, etag=info.etag)
                elif extension in {"log", "corrupt"} and group.name.base < self.line_1:
                    why = f"a pass that died left it, and it goes {RUN_OVER} later" if group.name.erasure else _BARE
                    self.remaining.append(Remaining(key=info.key, why=why))
            if going:
                base, suffix = group.name
                yield BuriedSegment(base_offset=base, suffix=suffix, next_offset=base, manifest_etag="", objects=going)

    def _of_retention(self, records: Sequence[Buried]) -> Iterator[BuriedSegment]:
        """The segments around masked offsets that retention has deleted, and that no list has: they may have versions.

        A tombstone does not tell the leader epochs of a segment.
        """
        if not self.masks or versioned(self.stored.store) is None:
            return
        named = _named(records, self.stored.keys)
        for removed in tombstones.named(self.stored):
            if not self._has_masked(removed.start, removed.end):
                continue
            for segment in tombstones.read(self.stored, removed.key).segments:
                known = segment.manifest_etag in named.get(self.stored.keys.manifest(segment.name), ())
                if not known and self._has_masked(segment.base_offset, segment.next_offset):
                    yield BuriedSegment(
                        base_offset=segment.base_offset,
                        suffix=segment.suffix,
                        next_offset=segment.next_offset,
                        manifest_etag=segment.manifest_etag,
                        objects={
                            name: BuriedObject(size=stored.size, etag=stored.etag)
                            for name, stored in segment.objects.items()
                        },
                    )

    def _name_unseen(self) -> None:
        """Name the tombstones of segments of which the bucket has versions that no search has seen."""
        store, unseen = versioned(self.stored.store), self.place.unseen
        if store is None or not any(unseen):
            return
        offsets, stones = (
            unseen.offsets.get(self.key, Intervals()),
            tombstones.named(self.stored),
        )
        chosen = [stone.key for stone in stones if stone.key in unseen.named or offsets.clip(stone.start, stone.end)]
        if not chosen:
            return
        former = Retry().call(lambda: store.deleted(self.stored.keys.folder))
        kept = {(key, version.etag) for key, versions in former.items() for version in versions if version.etag}
        for key in chosen:
            segments = tombstones.read(self.stored, key).segments
            segments = tuple(each for each in segments if not self._has_masked(each.base_offset, each.next_offset))
            files = {
                (self.stored.keys.file(name), file.etag) for each in segments for name, file in each.objects.items()
            }
            if not files.isdisjoint(kept):
                self.remaining.append(Remaining(key=key, why=_UNSEEN))

    def _has_masked(self, start: int, end: int) -> bool:
        """True if a masked offset lies in ``[start, end)``, whatever its epoch."""
        near = (mask for mask in self.masks if mask.name.start < end and mask.name.end > start)
        return any(len(mask.offsets.between(start, end)[0]) for mask in near)

    def _record(self, segments: Sequence[BuriedSegment]) -> Buried:
        """Write the list of ``segments`` that go."""
        place = self.place
        buried = Buried(
            cluster=self.stored.keys.cluster,
            place=self.stored.keys.place,
            partition=self.stored.keys.partition,
            attempt=place.attempt,
            at=place.cluster.store.now(),
            segments=tuple(segments),
        )
        put_once(place.cluster.store, buried.key(place.cluster.keys), buried.to_bytes())
        return buried

    def _delete_versions(self, records: Sequence[Buried]) -> None:
        """Delete the former versions of all that ``records`` list, name those that stay, and note what is gone."""
        control = self.place.cluster.keys
        store = versioned(self.stored.store)
        if store is None:
            self.remaining += [Remaining(key=record.key(control), why=_VERSIONS) for record in records]
            return
        kept = delete_versions(store, _named(records, self.stored.keys))
        self.remaining += [Remaining(**version._asdict()) for version in kept]
        held = {version.key for version in kept}
        for record in records:
            if held.isdisjoint(key for key, _ in record.versions(self.stored.keys)):
                gone = record.model_copy(update={"gone": self.place.cluster.store.now()})
                put_over(self.place.cluster.store, record.key(control), gone.to_bytes())

    def _remains(self, seal: _Seal, why: str, masks: Iterable[_KnownMask] = ()) -> None:
        key = self.stored.keys.file(seal.manifest.log_name)
        self.remaining.append(Remaining(key=key, why=why, approvals=_approvals(masks)))

    def masks_of(self, range_: Range) -> list[_KnownMask]:
        """The masks of records that a range of a pack holds."""
        return [*self._near(range_.epochs, range_.restores, range_.first, range_.next)]

    def remains_packed(self, key: str, range_: Range) -> None:
        """Name the pack ``key`` if ``range_`` of it holds records that are to be erased, or may."""
        if masks := self.masks_of(range_):
            why = f"{range_} has masked records: retention of packs removes it once seals replace it"
            self.remaining.append(Remaining(key=key, why=why, approvals=_approvals(masks)))
            return
        within = Intervals([(range_.first, min(range_.next, self.end))]) if range_.first < self.end else Intervals()
        if within - live_part(range_, self.lineage):
            self.remaining.append(Remaining(key=key, why=f"{range_} is of a dead branch, which is not searched"))


def _name_packs(partitions: Mapping[tuple[str | None, int], _Partition]) -> None:
    """Name the packs that hold records of masks, or may."""
    clusters = {partition.stored.keys.endpoint.root: partition.stored.cluster for partition in partitions.values()}
    for store, keys in ((cluster.store, cluster.keys) for cluster in clusters.values()):
        packs = [info for info in store.list(keys.tails) if info.key.endswith(".pack")]
        for info, ranges in zip(packs, in_parallel(partial(_footer, store), packs), strict=True):
            for packed in ranges:
                partition = partitions.get((packed.range.topic_id, packed.range.partition))
                if partition is not None:
                    partition.remains_packed(info.key, packed.range)
        _erase_former_packs(store, keys.tails, partitions)


def _erase_former_packs(store: Store, tails: str, partitions: Mapping[tuple[str | None, int], _Partition]) -> None:
    """Delete the versions of deleted packs that hold records of masks, and name those that stay.

    A pack whose ranges are all older than a week stays for the agents no more: see :data:`COMPARED`.
    """
    inner = versioned(store)
    if inner is None:
        return
    former = Retry().call(lambda: inner.deleted(tails))
    packs = [(key, each) for key, all_ in former.items() if key.endswith(".pack") for each in all_ if each.etag]
    doomed: dict[str, Sequence[ObjectVersion]] = {}
    holders: dict[str, _Partition] = {}
    for (key, version), ranges in zip(
        packs, in_parallel(lambda pack: _former_footer(inner, *pack), packs), strict=True
    ):
        for range_ in (packed.range for packed in ranges):
            partition = partitions.get((range_.topic_id, range_.partition))
            masks = partition.masks_of(range_) if partition is not None else []
            if partition is None or not masks:
                continue
            until = max(packed.range.shipped_at for packed in ranges) + COMPARED
            if store.now() >= until:
                doomed[key], holders[key] = former[key], partition
                continue
            why = f"is deleted, but the bucket keeps it, and agents may need it: {range_} has masked records"
            item = Remaining(key=key, version=version.id, why=why, until=until, approvals=_approvals(masks))
            partition.remaining.append(item)
    for kept in delete_all_versions(inner, doomed):
        holders[kept.key].remaining.append(Remaining(**kept._asdict()))


def _former_footer(store: VersionedStore, key: str, version: ObjectVersion) -> list[PackedRange]:
    def read(start: int, end: int) -> bytes:
        return Retry().call(lambda: store.get_version(key, version.id, start, end))

    try:
        return [*lines_of(read, key, version.size).values()]
    except NotFound:
        return []  # the bucket's lifecycle was faster


def _footer(store: Store, info: ObjectInfo) -> list[PackedRange]:
    try:
        return read_footer(store, info.key, info.size)
    except NotFound:
        return []  # retention was faster


def _masks(index: MaskIndex, place: _Place, partition: int) -> tuple[_KnownMask, ...]:
    keys = [(name, index.key_of(place.cluster.keys, name)) for name in index.masks if name.partition == partition]
    masks = [(name, key, mask_of(place.cluster.store, key)) for name, key in keys]
    return tuple(_KnownMask(name, key, OffsetMask([mask]), mask.approvals, mask.restores) for name, key, mask in masks)


def _approvals(masks: Iterable[_KnownMask]) -> tuple[str, ...]:
    return tuple(sorted({approval for mask in masks for approval in mask.approvals}))


def _named(records: Iterable[Buried], keys: PartitionKeys) -> dict[str, set[str]]:
    """The ETags in ``records`` by key."""
    named: dict[str, set[str]] = {}
    for key, etag in (pair for record in records for pair in record.versions(keys)):
        named.setdefault(key, set()).add(etag)
    return named


def _same_span(one: SegmentManifest, other: SegmentManifest) -> bool:
    return (one.base_offset, one.next_offset, one.lineage) == (other.base_offset, other.next_offset, other.lineage)
