"""What must be true of the store: at every write of a watermark index, and when all has become quiet."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from tests.uploader_agent.simulation.broker import US, Cluster, Moment, Partition, split
from tests.uploader_agent.simulation.clock import START
from tests.uploader_agent.simulation.store import SimulatedStore
from tidemark.errors import FormatError, NotFound
from tidemark.formats.keys import ControlKeys, Endpoint, PartitionKeys, TopicPartition
from tidemark.formats.raw.head import EntryKey, Head, HeadEntry, PartitionOfId
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.pack import PackedRange, read_range_bytes
from tidemark.formats.raw.watermark import Watermark, parse
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from tidemark.intervals import Intervals
from tidemark.raw.packs import chain

CLUSTER = "simulated"
CONTROL = ControlKeys("", CLUSTER)
INDEX = CONTROL.index(US)
HEAD = CONTROL.head(US)


_INSTANT = 1e-5
"""Seconds before a moment within which nothing counts for it: what happens at once has no order."""


class Oracle:
    """Knows the cluster as it is, and compares."""

    def __init__(self, cluster: Cluster, lied: Callable[[], None]) -> None:
        """``lied`` is called when an index is written that says what is not true."""
        self.entries: dict[tuple[str, int], IndexEntry] = {}
        """What the index last said."""
        self.statements = 0
        self.gaps = 0
        """Offsets that stand in a recorded gap at the end."""
        self.heads = self.ranges = 0
        """Heads that were written, and ranges that were compared with the log."""
        self.tails: Mapping[EntryKey, HeadEntry] = {}
        """What the head last said."""
        self.packs: Any = None
        self.store: SimulatedStore | None = None
        """The store; ``packs`` reads of it at once and without faults."""
        self._chains: dict[HeadEntry, list[PackedRange]] = {}
        self._damaged = False
        self._named: dict[PartitionOfId, Intervals] = {}
        """What heads have ever named of the log of a partition."""
        self._cluster = cluster
        self.lies: list[str] = []
        """What indexes have said that was not true."""
        self._lied = lied

    def written(self, key: str, body: bytes) -> None:
        """An object is written: neither an index nor a head must say what is not true."""
        if key == HEAD:
            self._read_head(Head.from_bytes(body, key))
        if key != INDEX:
            return
        index = WatermarkIndex.from_bytes(body, key)
        self.entries = {(one.topic, one.partition): one for one in index.entries}
        for entry in index.entries:
            self.statements += 1
            for wrong in self._lies(entry):
                self.lies.append(f"{wrong}: {entry}")
                self._lied()

    def spoiled(self) -> None:
        """The head is damaged: nobody reads anything from it, and what the index says of packs cannot be judged."""
        self.tails = {}
        self._damaged = True

    def packed(self, at: TopicPartition) -> int:
        """The end of what the head says that is packed of a partition under its current leadership; 0 if nothing is."""
        partition = self._cluster.partitions[at]
        entry = self.tails.get(EntryKey(partition.kafka_id, at.partition, partition.leader_epoch))
        return entry.tail_end if entry is not None else 0

    def kept(self) -> Iterator[str]:
        """Entries of the head that stay although all of them is sealed."""
        for partition in self._led():
            entry = self.entries.get(partition.at)
            end = self.packed(partition.at)
            if end and entry is not None and end <= entry.next_offset:
                yield f"{partition.at}: the head has a tail up to {end}, and it is sealed up to {entry.next_offset}"

    def _read_head(self, head: Head) -> None:
        """Compare what is new in the head with the logs: its packs must be stored, with the leader's own batches."""
        self.heads += 1
        before, self.tails, self._damaged = self.tails, head.by_key, False
        for key, entry in self.tails.items():
            if before.get(key) == entry:
                continue
            [partition] = [one for one in self._cluster.lives if one.at == (entry.topic, entry.partition)][-1:]
            led = (partition.kafka_id, partition.leader, partition.leader_epoch) == (entry.topic_id, US, entry.epoch)
            try:
                wrong = self._wrong_tail(entry, partition) if led else None
            except (NotFound, FormatError) as error:
                wrong = str(error)
            if wrong is not None:
                self.lies.append(f"{wrong}: {entry}")
                self._lied()

    def _wrong_tail(self, entry: HeadEntry, partition: Partition) -> str | None:
        """What is wrong with a chain of ranges; each one of them ends where the next one begins."""
        ranges = chain(self.packs, CONTROL, entry, 0)
        if not ranges or ranges[0].range.previous is not None:
            return "a pack of the tail is not stored"
        if ranges[-1].range.next != entry.tail_end or entry.tail_end > partition.high_watermark:
            return f"the tail ends at {entry.tail_end}, and the high watermark is {partition.high_watermark}"
        spans: list[tuple[int, int]] = []
        for one in ranges:
            self.ranges += 1
            spans.append((one.range.first, one.range.next))
            data = read_range_bytes(self.packs, one)
            if not partition.is_log(*spans[-1], data):
                return f"{one.range} has other bytes than the log"
            batches = split(data)
            sealed = self._sealed(partition) if batches.keys() - partition.packed.keys() else Intervals()
            for base, batch in batches.items():
                if base not in sealed and len(batch) >= len(partition.packed.get(base, b"")):
                    partition.packed[base] = batch
        name = PartitionOfId(partition.kafka_id, partition.at.partition)
        self._named[name] = self._named.get(name, Intervals()) | Intervals(spans)
        return None

    def _sealed(self, partition: Partition) -> Intervals:
        """The offsets of seals. Readers take them before ranges that a head names later: they read heads first."""
        assert self.store is not None
        return Intervals((seal.base_offset, seal.next_offset) for seal in _manifests(partition, self.store))

    def missing(self, store: SimulatedStore, since: float) -> list[str]:
        """What of "everything stored, everything told" is missing; observations must be from ``since`` or later."""
        return [wrong for one in self._led() for wrong in self._missing(one, store, since)]

    def unstored(self, store: SimulatedStore) -> set[TopicPartition]:
        """The partitions led of which something is neither sealed nor packed."""
        return {one.at for one in self._led() if self._unstored(one, store)}

    def unsealed(self, store: SimulatedStore) -> Iterator[str]:
        """What is packed and not sealed of partitions that are led."""
        for partition in self._led():
            packed = self._packed(partition, store)
            if packed:
                yield f"{partition.at}: {packed} is packed, and was to be sealed by now"

    def differing(self, store: SimulatedStore) -> Iterator[str]:
        """Stored bytes that are not those of the log, and offsets that are neither stored nor in a gap."""
        for partition in self._led():
            yield from self._differing(partition, store)

    def _led(self) -> list[Partition]:
        return [one for _, one in sorted(self._cluster.partitions.items()) if one.leader == US]

    def _lies(self, entry: IndexEntry) -> Iterator[str]:
        lives = [one for one in self._cluster.lives if one.at == (entry.topic, entry.partition)]
        [partition] = [one for one in lives if one.kafka_id == entry.topic_id]
        moments = [one for one in partition.history if one.leader_epoch == entry.leader_epoch]
        at = entry.observed_at.timestamp() - START
        then = _as_of(moments, at)
        if then is not None and entry.high_watermark < then.high_watermark:
            yield f"the high watermark was {then.high_watermark} at {at:.3f}"
        if then is not None and entry.log_end_offset < then.log_end:
            yield f"the log end was {then.log_end} at {at:.3f}"
        if entry.high_watermark > partition.high_watermark:  # whoever leads: checkpoints tell of that, too
            yield f"the high watermark was never above {partition.high_watermark}"
        if entry.log_end_offset > partition.longest:
            yield f"the log end was never above {partition.longest}"
        led = (partition.leader, partition.leader_epoch, partition.gone) == (US, entry.leader_epoch, False)
        if led and not self._damaged:
            yield from self._false_ends(entry, partition)

    def _false_ends(self, entry: IndexEntry, partition: Partition) -> Iterator[str]:
        """What is said to be stored and is not, and what former leaders have packed and is not said to be stored."""
        assert self.store is not None
        missing = Intervals([(0, entry.least_stored_end)]) - self._done(partition, self.store)
        if missing:  # a manifest may be there before offset.wm tells of it
            missing = missing - self._sealed(partition) - self._packed(partition, self.store)
        if missing:
            yield f"{missing} is neither sealed nor packed nor in a gap"
        former = self._packed(partition, self.store, before=entry.leader_epoch)
        end = former.contiguous_from(entry.next_offset)
        if entry.stored_end is not None and entry.stored_end < end:
            yield f"former leaders have packed up to {end}"

    def _missing(self, partition: Partition, store: SimulatedStore, since: float) -> Iterator[str]:
        at, entry, watermark = partition.at, self.entries.get(partition.at), _watermark(partition, store)
        missing = self._unstored(partition, store)
        if missing:
            yield f"{at}: {missing} is neither stored nor in a gap; offset.wm: {watermark}"
        lost = self._named.get(PartitionOfId(partition.kafka_id, at.partition), Intervals()) & self._gaps(
            partition, store
        )
        if lost - self._packed(partition, store):
            yield f"{at}: {lost} was packed, and is in a gap; offset.wm: {watermark}"
        led = partition.kafka_id, partition.leader_epoch
        if entry is not None and not entry.gaps and not missing and entry.least_stored_end < partition.high_watermark:
            yield f"{at}: all below {partition.high_watermark} is stored, and the index says {entry.least_stored_end}"
        if entry is None or (entry.topic_id, entry.leader_epoch) != led:
            yield f"{at}: the index does not have it under topic id and leader epoch {led}, but: {entry}"
            return
        said = entry.next_offset, entry.high_watermark, entry.log_end_offset
        stored = watermark.next_offset if watermark else min(entry.next_offset, partition.log_start)
        true = stored, partition.high_watermark, partition.log_end
        if said != true:
            yield f"{at}: the index says (next, high watermark, log end) {said}, and they are {true}"
        if entry.observed_at.timestamp() - START < since:
            yield f"{at}: the index's observation is from {entry.observed_at.timestamp() - START:.3f}"

    def _unstored(self, partition: Partition, store: SimulatedStore) -> Intervals:
        """What is committed, and neither sealed nor packed nor in a gap, by ``offset.wm`` and the head.

        There is none while the first offset that the agent has seen is in a gap, or before it has seen any: the index
        has the gaps then, and only manifests tell what is stored.
        """
        unsealed = Intervals([(0, partition.high_watermark)]) - self._done(partition, store)
        return unsealed - self._packed(partition, store) if unsealed else unsealed

    def _done(self, partition: Partition, store: SimulatedStore) -> Intervals:
        """What is sealed, or in a gap."""
        watermark, gaps = _watermark(partition, store), self._gaps(partition, store)
        if watermark is not None:
            return Intervals([(0, watermark.next_offset), *watermark.ranges_above]) | gaps
        known = _manifests(partition, store) if gaps else ()
        return Intervals([(0, partition.log_start), *((one.base_offset, one.next_offset) for one in known)]) | gaps

    def _gaps(self, partition: Partition, store: SimulatedStore) -> Intervals:
        """What ``offset.wm`` records as lost, or the index while there is none."""
        watermark, entry = _watermark(partition, store), self.entries.get(partition.at)
        if watermark is not None:
            return Intervals.of(watermark.gaps)
        return Intervals.of(entry.gaps if entry is not None and entry.topic_id == partition.kafka_id else ())

    def _packed(self, partition: Partition, store: SimulatedStore, before: float = float("inf")) -> Intervals:
        """What a reader finds in packs beyond ``next_offset``: of leaderships that ``offset.wm`` lists.

        Only of those with an epoch ``before`` that one.
        """
        watermark, found = _watermark(partition, store), Intervals()
        for epoch, _ in [one for one in watermark.tails if one[0] < before] if watermark else ():
            entry = self.tails.get(EntryKey(partition.kafka_id, partition.at.partition, epoch))
            if entry is None or watermark is None or entry.tail_end <= watermark.next_offset:
                continue
            if entry not in self._chains:
                self._chains[entry] = chain(self.packs, CONTROL, entry, 0)
            for one in self._chains[entry]:
                if partition.is_log(one.range.first, one.range.next, read_range_bytes(self.packs, one)):
                    found |= Intervals([(one.range.first, one.range.next)])
        return found - Intervals([(0, watermark.next_offset)]) if watermark else found

    def _differing(self, partition: Partition, store: SimulatedStore) -> Iterator[str]:
        watermark, present, keys = _watermark(partition, store), Intervals(), _keys(partition, store)
        sealed: dict[int, bytes] = {}
        for key in store.replaced:
            if keys is not None and key.startswith(keys.folder):
                yield f"{partition.at}: {key} was written twice"
        for manifest in _manifests(partition, store):
            start, end = manifest.base_offset, manifest.next_offset
            keys = _keys(partition, store)
            assert keys is not None
            there = store.objects[keys.file(manifest.log_name)].body
            if manifest.state == "corrupt" or not partition.is_log(start, end, there):
                yield f"{partition.at}: {start} to {end} is stored as {manifest.state}, and its bytes are not the log's"
            sealed |= split(there)
            present |= Intervals([(start, end)])
        for base, batch in partition.packed.items():
            if base in present and len(sealed.get(base, b"")) < len(batch):
                yield f"{partition.at}: the batch at {base} was packed, and its seal lacks records of it"
        entry, legal = self.entries.get(partition.at), Intervals(partition.retired)
        gaps = Intervals.of(watermark.gaps if watermark else entry.gaps if entry else ())
        self.gaps += sum(gap.end - gap.start for gap in gaps)
        lost = Intervals([(0, partition.high_watermark)]) - present - gaps - self._packed(partition, store)
        if lost - legal:
            yield f"{partition.at}: {lost} is neither stored nor in a gap; retention took {legal}"
        if gaps - legal:
            yield f"{partition.at}: the gaps {gaps} are more than retention took: {legal}"


def _manifests(partition: Partition, store: SimulatedStore) -> Iterator[SegmentManifest]:
    keys = _keys(partition, store)
    for key in [key for key in store.objects if keys and key.startswith(keys.folder)]:
        if ".manifest.json" in key:
            yield SegmentManifest.from_bytes(store.objects[key].body, key)


def _as_of(moments: list[Moment], at: float) -> Moment | None:
    """What the broker knew at that moment; None if it did not lead under that epoch yet."""
    found = bisect_left(moments, at - _INSTANT, key=lambda one: one.since)
    return moments[found - 1] if found else None


def _keys(partition: Partition, store: SimulatedStore) -> PartitionKeys | None:
    key = CONTROL.incarnations(partition.at.topic)
    if key not in store.objects:
        return None
    return _keys_by(store.objects[key].body, key, partition.kafka_id, store.url, partition.at.partition)


def _watermark(partition: Partition, store: SimulatedStore) -> Watermark | None:
    keys = _keys(partition, store)
    key = _watermark_key(keys) if keys else ""
    found = store.objects.get(key)
    return _parsed(found.body, key) if found else None


# The same objects are looked at over and over while a schedule comes to its end: each is parsed once.


@lru_cache(maxsize=256)
def _keys_by(body: bytes, key: str, kafka_id: str, url: str, number: int) -> PartitionKeys | None:
    found = TopicIncarnations.from_bytes(body, key).find(kafka_id)
    return PartitionKeys(Endpoint(url), CLUSTER, found[1].place, number) if found else None


@lru_cache(maxsize=256)
def _watermark_key(keys: PartitionKeys) -> str:
    return keys.watermark


@lru_cache(maxsize=256)
def _parsed(body: bytes, key: str) -> Watermark | None:
    return parse(body, key)[1]
