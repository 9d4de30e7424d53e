"""What the raw store holds of one topic: its incarnations, watermarks, manifests, aborts and index cuts.

Relies on the agent's order of writing: a segment's manifest comes after its other objects, the watermark after the
manifests it speaks of. So the watermark is read first, and everything below it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from tidemark import tombstones
from tidemark.endpoints import resolver_of
from tidemark.errors import ConfigError, FormatError, NotFound
from tidemark.gaps import Acknowledgement
from tidemark.incarnations import TopicIncarnations
from tidemark.intervals import Intervals
from tidemark.layout import ControlKeys, Endpoint, PartitionKeys
from tidemark.ledger import Ledger, PartitionState
from tidemark.manifest import SegmentManifest
from tidemark.planning.ranges import TARGET_BYTES, Cut
from tidemark.planning.segments import Segment, live_until, segment_of
from tidemark.records import (
    AbortedTransaction,
    Lineage,
    confirms_cut,
    cut_points,
    parse_offset_index,
    parse_txn_index,
)
from tidemark.records.batch import HEADER_SIZE, read_header
from tidemark.store import Store, open_store
from tidemark.table import Lake
from tidemark.watermark import Watermark, parse
from tidemark.watermark_index import IndexEntry, WatermarkIndex

# How far below an offset to look for the segment that holds it; a segment spans less than 2^31 offsets.
_LOOK_BACK: Final = (1 << 12, 1 << 18, 1 << 24, 1 << 31)
_THREADS: Final = 8

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """``function`` of each item, in order; requests to the store wait, so a few at a time."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(_THREADS, len(items))) as pool:
        return list(pool.map(function, items))


@dataclass(frozen=True, slots=True)
class RawPartition:
    """A partition of one incarnation, and where its objects lie."""

    incarnation: int
    topic_id: str | None
    keys: PartitionKeys

    @property
    def key(self) -> tuple[int, int]:
        """(incarnation, partition)."""
        return self.incarnation, self.keys.partition


class Window(NamedTuple):
    """Segments of a partition from an offset on; ``complete`` unless the limit of bytes left later ones out."""

    segments: list[Segment]
    complete: bool


class RawTopic:
    """Reads the raw objects of one topic.

    Raises:
        ConfigError: the topic is written by Pinterest's uploader, which is not ingested yet.
    """

    def __init__(self, lake: Lake) -> None:
        topic, deployment = lake.topic, lake.deployment
        self._topic = topic
        self._options = deployment.store
        self._resolver = resolver_of(deployment.raw)
        self._default = self._resolver.default()
        self._control = ControlKeys(self._default.prefix, topic.cluster)
        self._stores: dict[str, Store] = {}
        if self._endpoint(0).writer != "tidemark":
            rule = "segments of writer 'pinterest' have no manifests and cannot be ingested yet; use writer 'tidemark'"
            raise ConfigError(f"topic {topic.cluster}/{topic.topic}", [("raw.writer", rule)])

    def incarnations(self) -> TopicIncarnations:
        """The topic's lives; none if no agent has seen it."""
        key = self._control.incarnations(self._topic.topic)
        try:
            return TopicIncarnations.from_bytes(self._store(self._default.store).get(key).body, key)
        except NotFound:
            return TopicIncarnations(topic=self._topic.topic)

    @cached_property
    def entries(self) -> Mapping[tuple[int, int], IndexEntry]:
        """The entry of each (incarnation, partition) that counts, over all brokers, when it was first asked for."""
        places = {self._default, self._endpoint(0)}
        newest: dict[tuple[int, int], IndexEntry] = {}
        for index in (index for place in places for index in self._indexes(place)):
            for entry in index.entries:
                key = entry.incarnation, entry.partition
                known = newest.get(key)
                if entry.topic == self._topic.topic and (known is None or _rank(entry) > _rank(known)):
                    newest[key] = entry
        return newest

    def partitions(self, ledger: Ledger) -> list[RawPartition]:
        """The partitions of all incarnations that may hold more than the ledger does."""
        known = ledger.by_partition
        entries = self.entries
        behind = {key for key, entry in entries.items() if _may_add(entry, known.get(key))}
        lives = self.incarnations().incarnations
        width = 1 + max((partition for _, partition in (*known, *entries)), default=-1)
        # The indexes tell of the newest life only: ask for each watermark of the older ones.
        older = {(number, partition) for number in range(len(lives) - 1) for partition in range(width)}
        return [self.partition(lives[key[0]].topic_id, lives[key[0]].place, *key) for key in sorted(behind | older)]

    def partition(self, topic_id: str | None, place: str, incarnation: int, partition: int) -> RawPartition:
        """The partition at ``place``."""
        keys = PartitionKeys(self._endpoint(partition), self._topic.cluster, place, partition)
        return RawPartition(incarnation, topic_id, keys)

    def watermark(self, part: RawPartition) -> Watermark | None:
        """The partition's watermark; None while nothing contiguous is uploaded."""
        marks = self.marks(part)
        return marks[1] if marks else None

    def marks(self, part: RawPartition) -> tuple[int, Watermark] | None:
        """Both lines of ``offset.wm``: the base of the last segment below the first hole, and the watermark."""
        key = part.keys.watermark
        try:
            line_1, found = parse(self._store(part.keys.endpoint.store).get(key).body, key)
        except NotFound:
            return None
        if found is None:
            raise FormatError(key, "has no second line: Pinterest's uploader wrote it; say writer 'pinterest'")
        if found.topic_id != part.topic_id:
            raise FormatError(key, f"topic id is {found.topic_id}, and that of this incarnation {part.topic_id}")
        return line_1, found

    def first(self, part: RawPartition, start: int) -> int:
        """Where raw begins: at ``start``, unless retention has removed what lies there."""
        gone = tombstones.removed(self._store(part.keys.endpoint.store), part.keys)
        end = gone.contiguous_from(start)
        if end == start:
            return start
        buried = next(one for one in gone if one.end == end)
        left = next(self._manifest_keys(part, buried.start, end), None)
        at = part.keys.base_offset(left) if left else None
        return max(start, at[0]) if at else end

    def removal(self, part: RawPartition, offset: int) -> str | None:
        """The key of the tombstone by which retention removed ``offset``."""
        found = tombstones.listed(self._store(part.keys.endpoint.store), part.keys)
        return next((one.key for one in found if one.start <= offset < one.end), None)

    def segments(self, part: RawPartition, start: int, end: int, lineage: Lineage, limit_bytes: int) -> Window:
        """The segments with offsets in ``[start, end)``, by base, until they have ``limit_bytes``.

        A listing goes forward only, so the segment that holds ``start`` is sought from further and further below.
        """
        window = Window([], complete=True)
        for distance in _LOOK_BACK:
            first = max(0, start - distance)
            window = self._window(part, first, start, end, limit_bytes)
            if first == 0 or any(live_until(one, lineage, start) > start for one in window.segments):
                break
        return window

    def cuts(self, segment: Segment) -> list[Cut]:
        """Where to cut a large segment, by its index; each cut is proved by the batch header that lies there."""
        if not segment.has_index or segment.size <= TARGET_BYTES:
            return []
        store = self._store(segment.store)
        name = segment.sibling("index")
        entries = parse_offset_index(store.get(name).body, segment.base, segment.size, name)
        by_position = {entry.position: entry for entry in entries}
        found: list[Cut] = []
        for position in cut_points(entries, segment.size, TARGET_BYTES)[1:-1]:
            end = min(position + HEADER_SIZE[2], segment.size)
            head = store.get_range(segment.key, position, end, if_match=segment.etag)
            if not confirms_cut(head, by_position[position], segment.base, segment.size):
                continue
            header = read_header(head, 0, position)
            if header.record_count >= 0:  # a compressed v0 or v1 message does not tell its first offset
                found.append(Cut(position, header.base_offset))
        return found

    def aborted(self, segments: Iterable[Segment], lineage: Lineage) -> list[AbortedTransaction]:
        """All that the ``.txnindex`` objects of ``segments`` list, where the marker lies on ``lineage``."""
        listing = [one for one in segments if one.has_aborts]
        bodies = in_parallel(self._txn_index, listing)
        return [
            one
            for segment, body in zip(listing, bodies, strict=True)
            for one in body
            if live_until(segment, lineage, one.last_offset) > one.last_offset
        ]

    def acknowledged(self, part: RawPartition) -> Intervals:
        """The offsets that a person has given up."""
        store = self._store(self._default.store)
        keys = [one.key for one in store.list(self._control.acknowledgements(part.keys.place, part.keys.partition))]
        said = [Acknowledgement.from_bytes(store.get(key).body, key) for key in keys]
        return Intervals((one.start, one.end) for one in said)

    def _txn_index(self, segment: Segment) -> list[AbortedTransaction]:
        key = segment.sibling("txnindex")
        return list(parse_txn_index(self._store(segment.store).get(key).body, key))

    def _window(self, part: RawPartition, first: int, start: int, end: int, limit_bytes: int) -> Window:
        keys = self._manifest_keys(part, first, end)
        segments: list[Segment] = []
        size = 0
        while batch := list(islice(keys, _THREADS * 4)):
            found = in_parallel(lambda key: self._segment(part, key), batch)
            fresh = [one for one in found if one is not None and one.end > start]
            segments += fresh
            size += sum(one.size for one in fresh)
            if size >= limit_bytes:
                return Window(segments, complete=next(keys, None) is None)
        return Window(segments, complete=True)

    def _manifest_keys(self, part: RawPartition, first: int, end: int) -> Iterator[str]:
        # The keys of base offset `first` sort after its bare digits.
        after = part.keys.segment(first, "").rstrip(".")
        for found in self._store(part.keys.endpoint.store).list(part.keys.folder, start_after=after):
            parsed = part.keys.base_offset(found.key)
            if parsed is None:
                continue
            if parsed[0] >= end:
                return
            if parsed[1] == "manifest.json":
                yield found.key

    def _segment(self, part: RawPartition, key: str) -> Segment | None:
        store = part.keys.endpoint.store
        try:
            body = self._store(store).get(key).body
        except NotFound:
            return None  # removed since it was listed: no segment, as if it had not been listed
        return segment_of(SegmentManifest.from_bytes(body, key), key, store)

    def _indexes(self, place: Endpoint) -> list[WatermarkIndex]:
        store = self._store(place.store)
        keys = [one.key for one in store.list(ControlKeys(place.prefix, self._topic.cluster).indexes)]
        return in_parallel(lambda key: WatermarkIndex.from_bytes(store.get(key).body, key), keys)

    def _endpoint(self, partition: int) -> Endpoint:
        return self._resolver.resolve(self._topic.cluster, self._topic.topic, partition)

    def _store(self, url: str) -> Store:
        if url not in self._stores:
            self._stores[url] = open_store(url, self._options)
        return self._stores[url]


def _rank(entry: IndexEntry) -> tuple[int, int]:
    return entry.leader_epoch, entry.next_offset


def _may_add(entry: IndexEntry, state: PartitionState | None) -> bool:
    """Whether the partition's watermark is worth reading."""
    if state is None:
        return True
    moved = entry.next_offset > state.next_offset or entry.leader_epoch > state.leader_epoch
    return moved or bool(entry.gaps) or bool(state.gaps)
