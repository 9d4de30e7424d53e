"""The raw objects of one topic: its incarnations, watermarks, seals, packed ranges, aborts and index cuts.

A partition is read in the order of :mod:`tidemark.raw.heads`: :meth:`RawTopic.view` before :meth:`RawTopic.segments`.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice

from tidemark.concurrency import OnePerKey, in_parallel
from tidemark.errors import AbortsUnreadable, FormatError, NotFound, PreconditionFailed
from tidemark.formats import object_sizes
from tidemark.formats.keys import Endpoint, PartitionKeys
from tidemark.formats.raw.incarnations import Incarnation
from tidemark.formats.raw.masks import MaskIndex
from tidemark.formats.raw.watermark import Watermark
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex, rank
from tidemark.formats.table.ledger import Ledger, PartitionState
from tidemark.formats.table.plan import PartitionPlan, StoredMasks
from tidemark.intervals import Intervals
from tidemark.kafka_log import AbortedTransaction, BatchHeader, Lineage, confirms_cut, cut_points, parse_offset_index
from tidemark.kafka_log.batch import HEADER_SIZE, read_header
from tidemark.kafka_log.scan import scan_batches
from tidemark.raw import objects, tombstones
from tidemark.raw.byte_ranges import TARGET_BYTES, BatchCut
from tidemark.raw.heads import LiveEnd, Unread
from tidemark.raw.masks import mask_index_of
from tidemark.raw.objects import LOOK_BACK, pieces_between
from tidemark.raw.packs import TailRanges
from tidemark.raw.partition import RawPartition, StoredPartition
from tidemark.raw.segments import Segment, SegmentPiece, agrees, cover, live_until
from tidemark.storage import ClusterStore, PartitionStore, Storage, StoredWatermark
from tidemark.table.delta_table import TopicTable

_AT_ONCE = 32
"""Manifests that are read before the limit of bytes is checked again."""

_NEVER = datetime.fromtimestamp(0, UTC)

log = logging.getLogger(__name__)


class RawTopic:
    """Reads the raw objects of one topic; ``live_end`` has the objects of the live end, and may be shared.

    With ``outages``, packs and heads that the store fails to return are :class:`Unread`, and no error.
    """

    def __init__(self, table: TopicTable, live_end: LiveEnd | None = None, *, outages: bool = False) -> None:
        topic, deployment = table.topic, table.deployment
        self._topic = topic
        self._storage = Storage(topic.cluster, deployment.raw, deployment.store)
        self._masks: dict[str, MaskIndex] = {}
        self._reading_masks = threading.Lock()
        self._unread: set[str] = set()  # the watermark indexes that cannot be read
        self.unread = Unread(outages=outages)
        self._live_end = live_end or LiveEnd()
        self._tails = OnePerKey[PartitionKeys, TailRanges](
            lambda keys: TailRanges(self._storage.partition_store(keys), self._live_end.read_line)
        )

    def now(self) -> datetime:
        """The time by the clock of the store that has the watermark indexes."""
        return self._cluster.store.now()

    @cached_property
    def incarnations(self) -> tuple[Incarnation, ...]:
        """The topic's incarnations at the time of the first access; none if no agent has seen it."""
        return self._cluster.incarnations(self._topic.topic).incarnations

    @cached_property
    def entries(self) -> Mapping[tuple[int, int], IndexEntry]:
        """The valid entry of each (incarnation, partition), over all brokers, at the time of the first access.

        The latest epoch counts, even one that no leader ever had. It hides nothing, since ``offset.wm`` decides about a
        partition that may hold more. A caller that decides by entries alone uses those :meth:`vouched`.
        """
        return {key: entries[0] for key, entries in self._reported.items()}

    def vouched(self, ledger: Ledger) -> Mapping[tuple[int, int], IndexEntry]:
        """:attr:`entries`, without entries of a leader epoch above that of ``offset.wm``, if there is one.

        A leader's agent writes its epoch to ``offset.wm`` first, so its entry in the index counts a little later. Until
        then an earlier observation of the former leader counts as none: the claim may cut off what has landed. Nor does
        one from before a restore that the ledger has followed.
        """
        states = ledger.by_partition
        vouched: dict[tuple[int, int], IndexEntry] = {}
        for key, reported in self._reported.items():
            state, valid = states.get(key), reported
            if state is None or reported[0].leadership > state.leadership:
                watermark = self.watermark(self.partition(key))
                limit = (math.inf, 0) if watermark is None else watermark.leadership
                valid = [entry for entry in reported if entry.leadership <= limit]
                unclaimed = [entry for entry in reported if entry.leadership > limit]
                if valid and any(entry.observed_at >= valid[0].observed_at for entry in unclaimed):
                    valid = [valid[0].model_copy(update={"observed_at": _NEVER})]
            if valid and state is not None and valid[0].restored < len(state.restores):
                valid = [valid[0].model_copy(update={"observed_at": _NEVER})]
            if valid:
                vouched[key] = valid[0]
        return vouched

    @cached_property
    def _reported(self) -> Mapping[tuple[int, int], list[IndexEntry]]:
        """All entries of incarnations that the topic has had, the latest first."""
        topic_ids = [incarnation.topic_id for incarnation in self.incarnations]
        entries: dict[tuple[int, int], list[IndexEntry]] = {}
        for index in (
            index
            for place in {self._storage.default(), self._storage.endpoint(self._topic.topic, 0)}
            for index in self._indexes(place)
        ):
            for entry in (entry for entry in index.entries if entry.topic == self._topic.topic):
                if entry.incarnation < len(topic_ids) and topic_ids[entry.incarnation] == entry.topic_id:
                    entries.setdefault((entry.incarnation, entry.partition), []).append(entry)
        return {key: sorted(reported, key=rank, reverse=True) for key, reported in entries.items()}

    def partitions(self, ledger: Ledger) -> list[RawPartition]:
        """The partitions of all incarnations that may hold more than the ledger.

        No index names the partitions of a deleted topic, whose last offsets may not have landed yet, or those of a
        broker whose index cannot be read: partitions without an entry are judged by their own watermarks.
        """
        states = ledger.by_partition
        entries = self.entries
        behind = {key for key, entry in entries.items() if _may_add(entry, states.get(key))}
        newest = len(self.incarnations) - 1
        behind |= {key for key in states if key not in entries and key[0] == newest}
        width = 1 + max((partition for _, partition in (*states, *entries)), default=-1)
        # The indexes name the newest incarnation only: the watermarks of older ones are read one by one.
        older = {(number, partition) for number in range(newest) for partition in range(width)}
        return [self.partition(key) for key in sorted(behind | older)]

    def partition(self, key: tuple[int, int]) -> RawPartition:
        """The partition ``key``, an (incarnation, partition)."""
        known = self.incarnations[key[0]]
        return RawPartition(
            key[0], known.topic_id, self._storage.partition_keys(self._topic.topic, key[1], known.place)
        )

    def partition_of(self, state: PartitionState) -> RawPartition:
        """The partition of a ledger's ``state``, with the topic id that the ledger has followed."""
        return replace(self.partition(state.key), topic_id=state.topic_id)

    def partition_store(self, part: RawPartition) -> PartitionStore:
        """The objects of a partition."""
        return self._storage.partition_store(part.keys)

    def watermark(self, part: RawPartition) -> Watermark | None:
        """The partition's watermark; None while nothing contiguous is uploaded."""
        stored = self.stored_watermark(part)
        return stored.watermark if stored else None

    def stored_watermark(self, part: RawPartition) -> StoredWatermark | None:
        """The partition's ``offset.wm``; None while nothing contiguous is uploaded."""
        return objects.read_watermark(self.partition_store(part), part.topic_id)

    def view(self, part: RawPartition) -> StoredPartition | None:
        """The state of the partition: its ``offset.wm`` and its tails; None while there is no ``offset.wm``."""
        view = self._live_end.look(self.partition_store(part), lambda: self.stored_watermark(part))
        for error in view.errors if view is not None else ():
            self.unread.add(error)
        return view

    def first(self, part: RawPartition, start: int) -> int:
        """The start of raw: ``start``, unless retention has removed the segments there."""
        return objects.first_left(self.partition_store(part), start)

    def removal(self, part: RawPartition, offset: int) -> str | None:
        """The key of the tombstone of the retention that removed ``offset``, or None."""
        removals = tombstones.listed(self.partition_store(part))
        return next((removal.key for removal in removals if removal.start <= offset < removal.end), None)

    def segments(self, view: StoredPartition, start: int, end: int, limit_bytes: int) -> tuple[list[Segment], bool]:
        """The seals and ranges with offsets in ``[start, end)``, until the seals have ``limit_bytes``.

        The boolean is false if the limit left out later segments.

        If ranges hold all of these offsets, the seals are not listed: a run that continues from there does not need
        them. A listing only moves forward, so the search for the seal with ``start`` begins further and further below.
        """
        sealed, lineage = view.watermark.next_offset, view.lineage
        ranges = self._ranges(view, max(start, sealed)) if end > sealed else []
        if sealed <= start < end and cover(ranges, lineage, Intervals([(start, end)]))[1] is None:
            return ranges, True  # a listing would add no offset
        below: Sequence[int] = LOOK_BACK
        if start >= sealed and any(live_until(segment, lineage, start) > start for segment in ranges):
            below = (start - sealed,)  # only segments that were sealed since may hold it, too
        segments: list[Segment] = []
        complete = True
        for distance in below:
            first = max(0, start - distance)
            segments, complete = self._window(view.place, first, start, end, limit_bytes)
            if first == 0 or any(live_until(segment, lineage, start) > start for segment in segments):
                break
        return ([*segments, *ranges] if complete else segments), complete

    def cuts(self, segment: Segment) -> list[BatchCut]:
        """The positions at which a large segment is cut, from its index; the batch header there proves each cut.

        An index is only a hint. A segment with a missing or damaged one, or with another log than its manifest
        describes, is not cut: who reads it finds what is wrong with the log.
        """
        if not segment.has_index or segment.size <= TARGET_BYTES:
            return []
        try:
            return self._proved_cuts(segment)
        except (NotFound, PreconditionFailed, FormatError) as error:
            log.warning("%s is read whole, since it cannot be cut by its index: %s", segment.key, error)
            return []

    def _proved_cuts(self, segment: Segment) -> list[BatchCut]:
        store, beside = self._storage.store(segment.store), self._storage.store(segment.sibling_store)
        name = segment.sibling("index")
        entries = parse_offset_index(
            beside.get(name, limit=object_sizes.SEGMENT_INDEX).body, segment.base, segment.size, name
        )
        by_position = {entry.position: entry for entry in entries}
        cuts: list[BatchCut] = []
        for position in cut_points(entries, segment.size, TARGET_BYTES)[1:-1]:
            end = min(position + HEADER_SIZE[2], segment.size)
            head = store.get_range(segment.key, position, end, if_match=segment.etag)
            if not confirms_cut(head, by_position[position], segment.base, segment.size):
                continue
            header = read_header(head, 0, position)
            if header.record_count >= 0:  # a compressed v0 or v1 message does not state its first offset
                cuts.append(BatchCut(position, header.base_offset))
        return cuts

    def headers(self, pieces: Iterable[SegmentPiece]) -> Iterator[BatchHeader]:
        """The headers of the batches of ``pieces``; their bytes are read and verified.

        Raises:
            SegmentError: a batch is damaged.
            PreconditionFailed: the stored log is not the segment's.
        """
        for segment, start, end in pieces:
            position = max(
                (cut.position for cut in self.cuts(segment) if cut.offset <= start), default=segment.position
            )
            for header in scan_batches(
                self._bytes(segment, position), segment.key, segment.base, allow_partial_tail=True
            ):
                if header.base_offset >= end:
                    break
                if header.next_offset > start:
                    yield header

    def aborted(self, segments: Iterable[Segment], lineage: Lineage) -> list[AbortedTransaction]:
        """All transactions that ``segments`` or their ``.txnindex`` objects list, if the marker lies on ``lineage``.

        Damaged segments count, too: their markers beyond the damage cannot be read, but still decide transactions.

        Raises:
            AbortsUnreadable: a ``.txnindex`` is not there, or not as its manifest describes it.
        """
        aborting = [segment for segment in segments if segment.aborts is not None or segment.aborted]
        bodies = in_parallel(self._aborts, aborting)
        return [
            transaction
            for segment, body in zip(aborting, bodies, strict=True)
            for transaction in body
            if agrees(segment, lineage, transaction.last_offset)
        ]

    def _aborts(self, segment: Segment) -> list[AbortedTransaction]:
        try:
            return objects.aborts_of(self._storage.store(segment.sibling_store), segment)
        except (NotFound, PreconditionFailed, FormatError) as error:
            name = segment.sibling("txnindex")
            reason = str(error).removeprefix(f"{name}: ")
            rule = f"{reason}; the partition waits: upload it again with tidemark-agent reupload"
            raise AbortsUnreadable(name, rule) from error

    def masks(self, place: str) -> MaskIndex:
        """The masks of an incarnation's erased offsets, as the first call for it finds them.

        Raises:
            FormatError: the index does not parse. Then nothing may be planned, since it would bring records back.
        """
        with self._reading_masks:  # else partitions that are planned side by side may know different ones
            if place not in self._masks:
                self._masks[place] = mask_index_of(self._cluster, place)
            return self._masks[place]

    def mask_numbers(self) -> dict[str, int]:
        """The number of the last mask of each place of an incarnation that has masks."""
        places = [incarnation.place for incarnation in self.incarnations]
        return {place: self.masks(place).number for place in places if self.masks(place).number}

    def masks_of(self, ledger: Ledger, *, pending: bool) -> dict[tuple[int, int], StoredMasks]:
        """The masks of each (incarnation, partition) of ``ledger``; with ``pending``, those that its table lacks."""
        masks: dict[tuple[int, int], StoredMasks] = {}
        for number, incarnation in enumerate(self.incarnations):
            index = self.masks(incarnation.place)
            keys: dict[int, list[str]] = {}
            for mask in index.masks[ledger.masks.get(incarnation.place, 0) if pending else 0 :]:
                keys.setdefault(mask.partition, []).append(index.key_of(self._cluster.keys, mask))
            for partition, named in keys.items():
                if (number, partition) in ledger.by_partition:
                    masks[number, partition] = StoredMasks(store=self._storage.default().store, keys=tuple(named))
        return masks

    def masked(self, part: RawPartition, plan: PartitionPlan, spared: Intervals | None = None) -> PartitionPlan:
        """``plan`` with the masks of its offsets, apart from ``spared`` ones."""
        index = self.masks(part.keys.place)
        keys = [index.key_of(self._cluster.keys, mask) for mask in index.within(plan.partition, plan.start, plan.end)]
        if not keys:
            return plan
        clipped = (spared or Intervals()).clip(plan.start, plan.end)
        masks = StoredMasks(store=self._storage.default().store, keys=tuple(keys), spared=tuple(clipped))
        return plan.model_copy(update={"masks": masks})

    def acknowledged(self, part: RawPartition) -> Intervals:
        """The offsets that a person has acknowledged as lost."""
        return self._cluster.acknowledged(part.keys.place, part.keys.partition)

    def _ranges(self, view: StoredPartition, end_of_seals: int) -> list[Segment]:
        """The packed ranges beyond ``end_of_seals``. What cannot be read is noted in :attr:`unread`."""
        tail = self._tails.of(view.place.keys)
        ranges = tail.segments(view.entries, view.lineage, end_of_seals, self.unread.add)
        return [segment for segment in ranges if segment.end > end_of_seals]

    def _window(
        self, partition: PartitionStore, first: int, start: int, end: int, limit_bytes: int
    ) -> tuple[list[Segment], bool]:
        listed = partition.manifests(first, end)
        segments: list[Segment] = []
        size = 0
        while batch := list(islice(listed, _AT_ONCE)):
            stored = in_parallel(lambda entry: objects.read_segments(partition, entry.name), batch)
            present = {segment.key: segment for found in stored for segment in found if segment.end > start}
            fresh = [self._judged(segment) for segment in present.values()]
            segments += fresh
            size += sum(segment.size for segment in fresh)
            if size >= limit_bytes:
                return segments, next(listed, None) is None
        return segments, True

    def _judged(self, segment: Segment) -> Segment:
        """The segment, without its parts if no record of it can be ahead of the time when its part was shipped."""
        latest, parts = segment.max_timestamp, segment.parts
        if not parts or latest is None or self._topic.parser.event_time:
            return segment
        bound = min(part.shipped_at for part in parts) + self._topic.sane_timestamps.ahead
        return replace(segment, parts=()) if latest <= bound.timestamp() * 1000 else segment

    def _bytes(self, segment: Segment, position: int) -> Iterator[bytes]:
        """The bytes of the segment from ``position`` on."""
        return pieces_between(
            self._storage.store(segment.store), segment.key, position, segment.stop, segment.etag or None
        )

    def _indexes(self, place: Endpoint) -> Iterable[WatermarkIndex]:
        indexes = self._storage.cluster_store(place).indexes()
        for key, error in indexes.failures.items():
            log.warning(
                "%s cannot be read; partitions of its broker may land later, and no date becomes final by it", key
            )
            log.warning("%s", error)
        self._unread |= indexes.failures.keys()
        return indexes.kept.values()

    @property
    def _cluster(self) -> ClusterStore:
        return self._storage.cluster_store()


def _may_add(entry: IndexEntry, state: PartitionState | None) -> bool:
    """True if the partition's watermark must be read."""
    if state is None:
        return True
    # An epoch below the ledger's: the index lags, or the ledger followed an epoch that no leader had.
    moved = entry.least_stored_end > state.next_offset or entry.leadership != state.leadership
    return moved or bool(entry.gaps) or bool(state.gaps)
