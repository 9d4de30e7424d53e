"""What must be true of the store: at every write of a watermark index, and when all has become quiet."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from tests.uploader_agent.simulation.broker import BROKERS, Cluster, Moment, Partition, Replica, split
from tests.uploader_agent.simulation.clock import START, Scheduler
from tests.uploader_agent.simulation.store import ONCE, SimulatedStore
from tidemark.errors import FormatError, NotFound
from tidemark.formats.keys import ControlKeys, Endpoint, PartitionKeys, TopicPartition
from tidemark.formats.raw.cluster import FIRST_SLOT
from tidemark.formats.raw.head import EntryKey, Head, HeadEntry, PartitionOfId
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.pack import PackedRange, Range
from tidemark.formats.raw.watermark import Watermark, parse
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.raw.packs import chain, live_end, live_part, read_footer, read_range_bytes
from tidemark.storage import ClusterStore

CLUSTER = "simulated"
CONTROL = ControlKeys("", CLUSTER)
SLOTS = (FIRST_SLOT, FIRST_SLOT + 1)
AGENTS = (*BROKERS, *SLOTS)
INDEXES = {CONTROL.index(agent): agent for agent in AGENTS}
HEADS = {CONTROL.head(agent): agent for agent in AGENTS}

_INSTANT = 1e-5
"""Seconds before a moment within which nothing counts for it: what happens at once has no order."""


class Oracle:
    """Knows the cluster as it is, and compares."""

    def __init__(self, cluster: Cluster, scheduler: Scheduler, lied: Callable[[], None]) -> None:
        """``lied`` is called when an index is written that says what is not true."""
        self.entries: dict[int, dict[tuple[str, int], IndexEntry]] = {agent: {} for agent in AGENTS}
        """What the index of each agent last said."""
        self.statements = 0
        self.gaps = 0
        """Offsets that stand in a recorded gap at the end."""
        self.heads = self.ranges = 0
        """Heads that were written, and ranges that were compared with the log."""
        self.tails: dict[int, Mapping[EntryKey, HeadEntry]] = {agent: {} for agent in AGENTS}
        """What the head of each broker last said."""
        self.agent_of: Callable[[Partition], int] = lambda partition: partition.leader
        """The number of the agent that a partition's leadership is for: the leader's own, or that of its slot."""
        self.packs: Any = None
        self.store: SimulatedStore | None = None
        """The store; ``packs`` reads of it at once and without faults."""
        self._chains: dict[HeadEntry, list[PackedRange]] = {}
        self._put_at: dict[HeadEntry, float] = {}
        """When a head first had an entry."""
        self.was_damaged = False
        """Whether any head was ever damaged."""
        self._damaged: set[int] = set()
        self._joined_damage: set[EntryKey] = set()
        """The leaderships that may have read a head while it was damaged, and so do not know what it names."""
        self._named: dict[PartitionOfId, dict[tuple[str, int], Range]] = {}
        """The ranges that heads have ever named of a partition."""
        self._largest: dict[tuple[str, int, int, int], bytes] = {}
        """The batches that heads have named, by topic id, partition, offset and epoch: they may have landed."""
        self._cluster = cluster
        self._scheduler = scheduler
        self.silent = False
        """Whether brokers were restored: an offset and an epoch no longer name one batch."""
        self.lies: list[str] = []
        """What indexes have said that was not true."""
        self._lied = lied

    def written(self, key: str, body: bytes) -> None:
        """An object is written: neither an index nor a head must say what is not true."""
        if self.silent:
            return
        if key in HEADS:
            self._read_head(HEADS[key], Head.from_bytes(body, key))
        if key.endswith("/offset.wm"):
            self._read_watermark(key, body)
        if self.store is not None and key in self.store.objects and any(kind in key for kind in ONCE):
            self.lie(f"{key} is written twice")
        if key not in INDEXES:
            return
        broker, index = INDEXES[key], WatermarkIndex.from_bytes(body, key)
        self.entries[broker] = {(one.topic, one.partition): one for one in index.entries}
        for entry in index.entries:
            self.statements += 1
            for wrong in self._lies(broker, entry):
                self.lie(f"{wrong}: {entry}")

    def _read_watermark(self, key: str, body: bytes) -> None:
        """Compare ``offset.wm`` with the one before: neither its epoch nor its end goes back, and line 1 lies below."""
        assert self.store is not None
        base, new = parse(body, key)
        if new is not None and base >= new.next_offset > new.start_offset:
            self.lie(f"{key}: line 1 is {base}, and the next offset {new.next_offset}")
        if new is not None and new.gaps and not self.was_damaged:  # packs of a damaged head count once it is made again
            [life] = [one for one in self._cluster.lives if (keys := _keys(one, self.store)) and keys.watermark == key]
            wrong = Intervals.of(new.gaps) - Intervals(life.retired)
            if wrong:
                self.lie(f"{key}: the gaps {wrong} are more than retention took: {life.retired}")
        found = self.store.objects.get(key)
        old = parse(found.body, key)[1] if found else None
        if old is not None and new is not None:
            before, after = ((one.leader_epoch, one.next_offset) for one in (old, new))
            if after < before:
                self.lie(f"{key} goes back from (epoch, next offset) {before} to {after}")

    def lie(self, wrong: str) -> None:
        """Note what is wrong at this moment."""
        self.lies.append(wrong)
        self._lied()

    def spoiled(self, broker: int) -> None:
        """A head is damaged: nobody reads anything from it, and what indexes say of packs cannot be judged."""
        self.tails[broker] = {}
        self.was_damaged = True
        self._damaged.add(broker)

    def packed(self, partition: Partition) -> int:
        """The end of what is packed of a partition under its current leadership, by its head; 0 if nothing is."""
        tails = self.tails[self.agent_of(partition)]
        entry = tails.get(EntryKey(partition.kafka_id, partition.at.partition, partition.leader_epoch))
        return entry.tail_end if entry is not None else 0

    def kept(self, *, sealed: bool) -> Iterator[str]:
        """Entries of heads that stay although all of them is sealed; ``sealed`` says that all is that was packed."""
        for tails in [] if self.was_damaged else self.tails.values():  # what is made again is looked at later
            for tail in tails.values():
                [life] = [one for one in self._cluster.lives if _is_of(one, tail)]
                former = tail.epoch != life.leader_epoch
                if life.gone or (sealed and former and not self._ends_in_gap(life, tail.epoch)):
                    yield f"{life.at}: a head keeps what {'is deleted' if life.gone else 'was sealed'}: {tail}"
        for partition in self._partitions():
            entry = self.entries[self.agent_of(partition)].get(partition.at)
            end = self.packed(partition)
            if end and entry is not None and end <= entry.next_offset:
                yield f"{partition.at}: the head has a tail up to {end}, and it is sealed up to {entry.next_offset}"

    def _ends_in_gap(self, partition: Partition, epoch: int) -> bool:
        """Whether an epoch ends in a gap, or above it: ``offset.wm`` lists it until the gap is filled or acknowledged.

        A late head of that leadership may name what lies in the gap.
        """
        watermark = self.watermark(partition)
        if watermark is None or watermark.next_offset not in {gap.start for gap in watermark.gaps}:
            return False
        later = (start for other, start in watermark.lineage if other > epoch)
        return min(later, default=0) > watermark.next_offset

    def deleted(self, key: str) -> None:
        """A pack is about to be deleted: seals must hold each of its batches."""
        assert self.store is not None
        for packed in read_footer(self.packs, key, len(self.store.objects[key].body)):
            [partition] = [life for life in self._cluster.lives if _is_of(life, packed.range)]
            held = {batch for log in self.logs(partition) for batch in split(log).values()}
            for id_, batch in split(read_range_bytes(self.packs, packed)).items():
                if batch not in held:
                    self.lie(f"{partition.at}: the only copy of the batch at {id_} (offset, epoch) goes with {key}")

    def packs_left(self) -> Iterator[str]:
        """Packs that stay although seals have all of their ranges, after retention has looked at all of them."""
        assert self.store is not None
        for key in [key for key in self.store.objects if key.endswith(".pack")]:
            ranges = [packed.range for packed in read_footer(self.packs, key, len(self.store.objects[key].body))]
            lives = [next(life for life in self._cluster.lives if _is_of(life, range_)) for range_ in ranges]
            if all(self._is_sealed(life, range_) for life, range_ in zip(lives, ranges, strict=True)):
                yield f"{key} stays, although all is sealed of {', '.join(map(str, ranges))}"

    def _is_sealed(self, life: Partition, range_: Range) -> bool:
        """True if a range is as a whole on the lineage of ``offset.wm``, and below its end."""
        watermark = self.watermark(life)
        if watermark is None or range_.next > watermark.next_offset:
            return False
        return live_part(range_, Lineage(watermark.lineage)).covers(range_.first, range_.next)

    def watermark(self, partition: Partition) -> Watermark | None:
        """A partition's ``offset.wm``."""
        assert self.store is not None
        return _watermark(partition, self.store)

    def logs(self, partition: Partition) -> Iterator[bytes]:
        """The sealed logs of a partition that have a manifest."""
        assert self.store is not None
        keys = _keys(partition, self.store)
        for manifest in _manifests(partition, self.store):
            assert keys is not None
            yield self.store.objects[keys.file(manifest.log_name)].body

    def sealed_at(self, partition: Partition, offset: int) -> float | None:
        """The time at which a seal that has the offset was first stored, of whichever branch; None if there is none."""
        assert self.store is not None
        keys, stored = _keys(partition, self.store), self.store.objects
        found = (one for one in _manifests(partition, self.store) if one.base_offset <= offset < one.next_offset)
        return min((stored[keys.manifest(one.name)].modified - START for one in found if keys), default=None)

    def promised(self, partition: Partition) -> int:
        """How far heads and ``offset.wm`` ever went, on the last lineage of ``offset.wm``."""
        watermark = self.watermark(partition)
        if watermark is None:
            return 0
        lineage = Lineage(watermark.lineage)
        told = (live_end(entry, lineage) for entry in self._put_at if _is_of(partition, entry))
        return max([watermark.next_offset, *told])

    def stored_until(self, partition: Partition, replica: Replica) -> int:
        """Up to where everything is stored of a replica's log, sealed or in a chain."""
        assert self.store is not None
        watermark, end = _watermark(partition, self.store), 0
        if watermark is not None:
            end = _shared(Lineage(watermark.lineage), replica, watermark.next_offset)
        for tails in self.tails.values():
            for entry in tails.values():
                if (entry.topic_id, entry.partition) == (partition.kafka_id, partition.at.partition):
                    end = max(end, _shared(Lineage(entry.lineage), replica, entry.tail_end))
        return end

    def _read_head(self, broker: int, head: Head) -> None:
        """Compare what is new in a head with the logs: its packs must be stored, with batches that were committed."""
        self.heads += 1
        before, self.tails[broker] = self.tails[broker], head.by_key
        if broker in self._damaged:
            self._damaged.discard(broker)
            self._joined_damage |= {_leadership(partition) for partition in self._partitions()}
        for key, entry in head.by_key.items():
            if before.get(key) == entry:
                continue
            self._put_at.setdefault(entry, self._scheduler.now)
            [partition] = [one for one in self._cluster.lives if _is_of(one, entry)]
            try:
                wrong = self._wrong_tail(entry, partition)
            except (NotFound, FormatError) as error:
                wrong = str(error)
            if wrong is not None:
                self.lie(f"{wrong}: {entry}")

    def _wrong_tail(self, entry: HeadEntry, partition: Partition) -> str | None:
        """What is wrong with a chain of ranges; each one of them ends where the next one begins."""
        assert self.store is not None
        ranges = chain(ClusterStore(self.packs, CONTROL), entry, 0)
        before = ranges[0].range.previous if ranges else entry.last
        if before is not None and CONTROL.pack(before.name) not in self.store.deleted:
            return "a pack of the tail is not stored"
        named = self._named.setdefault(PartitionOfId(partition.kafka_id, partition.at.partition), {})
        for packed in ranges:
            if (packed.key, packed.range.position) in named:
                continue
            self.ranges += 1
            named[packed.key, packed.range.position] = packed.range
            span = packed.range
            data = read_range_bytes(self.packs, packed)
            wrong = partition.wrong_bytes(span.first, span.next, data, compacted=self._cluster.compacted)
            if wrong is not None:
                return f"{span}: {wrong}"
            sealed = _sealed(partition, self.store)  # readers take seals before ranges that a head names later
            for id_, batch in split(data).items():
                if id_[0] in sealed:
                    continue
                at = (*PartitionOfId(partition.kafka_id, partition.at.partition), *id_)
                self._largest[at] = max(batch, self._largest.get(at, b""), key=len)
        return None

    def missing(self, store: SimulatedStore, since: float) -> list[str]:
        """What of "everything stored, everything told" is missing; observations must be from ``since`` or later."""
        return [wrong for one in self._partitions() for wrong in self._missing(one, store, since)]

    def unstored(self, store: SimulatedStore, agent: int) -> set[TopicPartition]:
        """The partitions of an agent of which something is neither sealed nor packed."""
        mine = [one for one in self._partitions() if self.agent_of(one) == agent]
        return {one.at for one in mine if self._unstored(one, store)}

    def unsealed(self, store: SimulatedStore) -> Iterator[str]:
        """What is packed and not sealed."""
        for partition in self._partitions():
            packed = self._packed(partition, store) - _sealed(partition, store) - self._gaps(partition, store)
            if packed:
                yield f"{partition.at}: {packed} is packed, and was to be sealed by now"

    def differing(self, store: SimulatedStore) -> Iterator[str]:
        """Stored bytes that are not those of the log, and offsets that are neither stored nor in a gap."""
        for partition in self._partitions():
            yield from self._differing(partition, store)

    def _partitions(self) -> list[Partition]:
        return [one for _, one in sorted(self._cluster.partitions.items())]

    def _lies(self, broker: int, entry: IndexEntry) -> Iterator[str]:
        [partition] = [one for one in self._cluster.lives if _is_of(one, entry)]
        if partition.gone and broker in SLOTS:
            return  # nobody can tell any more: a leader is asked by name, and then the log ends where the spool does
        history = [one for replica in partition.replicas.values() for one in replica.history]
        moments = [one for one in history if one.leader_epoch == entry.leader_epoch]  # of the one leader under it
        at = entry.observed_at.timestamp() - START
        then = _as_of(moments, at)
        if then is not None and entry.high_watermark < then.high_watermark:
            yield f"the high watermark was {then.high_watermark} at {at:.3f}"
        if then is not None and entry.log_end_offset < then.log_end:
            yield f"the log end was {then.log_end} at {at:.3f}"
        if entry.high_watermark > partition.highest:  # whoever leads: checkpoints tell of that, too
            yield f"the high watermark was never above {partition.highest}"
        if entry.log_end_offset > partition.longest:
            yield f"the log end was never above {partition.longest}"
        led = (partition.leader_epoch, partition.gone) == (entry.leader_epoch, False)
        if led and partition.led.leads and not self._damaged:
            yield from self._false_ends(entry, partition)

    def _false_ends(self, entry: IndexEntry, partition: Partition) -> Iterator[str]:
        """What is said to be stored and is not, and what former leaders had packed and is not said to be stored.

        What a deposed leader packs before it notices, its successor may not know; nor what a head names that was
        damaged when the successor read it. It knows once it has sealed it.
        """
        assert self.store is not None
        missing = Intervals([(0, entry.least_stored_end)]) - self._done(partition, self.store)
        if missing:  # a manifest may be there before offset.wm tells of it
            missing = missing - _sealed(partition, self.store) - self._packed(partition, self.store)
        if missing:
            yield f"{missing} is neither sealed nor packed nor in a gap"
        if _leadership(partition) in self._joined_damage:
            return
        began = next(moment.since for moment in partition.led.history if moment.leader_epoch == entry.leader_epoch)
        former = self._packed(partition, self.store, before=entry.leader_epoch, until=began)
        end = former.contiguous_from(entry.next_offset)
        if entry.stored_end is not None and entry.stored_end < min(end, entry.high_watermark):
            yield f"former leaders have packed up to {end}"

    def _missing(self, partition: Partition, store: SimulatedStore, since: float) -> Iterator[str]:
        at, watermark = partition.at, _watermark(partition, store)
        entry = self.entries[self.agent_of(partition)].get(at)
        missing = self._unstored(partition, store)
        if missing:
            yield f"{at}: {missing} is neither stored nor in a gap; offset.wm: {watermark}"
        lost = self._named_live(partition) & self._gaps(partition, store)
        if lost - self._packed(partition, store):
            yield f"{at}: {lost} was packed, and is in a gap; offset.wm: {watermark}"
        led = partition.kafka_id, partition.leader_epoch
        if entry is not None and not entry.gaps and not missing and entry.least_stored_end < partition.high_watermark:
            yield f"{at}: all below {partition.high_watermark} is stored, and the index says {entry.least_stored_end}"
        if entry is None or (entry.topic_id, entry.leader_epoch) != led:
            yield f"{at}: the index does not have it under topic id and leader epoch {led}, but: {entry}"
            return
        said = entry.next_offset, entry.high_watermark, entry.log_end_offset
        stored = watermark.next_offset if watermark else min(entry.next_offset, partition.led.log_start)
        true = stored, partition.high_watermark, partition.log_end
        if said != true:
            yield f"{at}: the index says (next, high watermark, log end) {said}, and they are {true}"
        if entry.observed_at.timestamp() - START < since:
            yield f"{at}: the index's observation is from {entry.observed_at.timestamp() - START:.3f}"

    def _unstored(self, partition: Partition, store: SimulatedStore) -> Intervals:
        """What is committed, and neither sealed nor packed nor in a gap, by ``offset.wm`` and the heads.

        There is none while the first offset that the agent has seen is in a gap, or before it has seen any: the index
        has the gaps then, and only manifests tell what is stored.
        """
        unsealed = Intervals([(0, partition.high_watermark)]) - self._done(partition, store)
        unstored = unsealed - self._packed(partition, store) if unsealed else unsealed
        # A pack may be gone that is proved by a seal of which offset.wm does not tell yet; readers list the seals.
        return unstored - _sealed(partition, store) if unstored else unstored

    def _done(self, partition: Partition, store: SimulatedStore) -> Intervals:
        """What is sealed, or in a gap; of the log as it is."""
        watermark, gaps = _watermark(partition, store), self._gaps(partition, store)
        if watermark is not None:
            end = _shared(Lineage(watermark.lineage), partition.led, watermark.next_offset)
            return Intervals([(0, end), *watermark.ranges_above]) | gaps
        known = _sealed(partition, store) if gaps else Intervals()
        return Intervals([(0, partition.led.log_start)]) | known | gaps

    def _gaps(self, partition: Partition, store: SimulatedStore) -> Intervals:
        """What ``offset.wm`` records as lost, or the index while there is none."""
        watermark, entry = _watermark(partition, store), self.entries[self.agent_of(partition)].get(partition.at)
        if watermark is not None:
            return Intervals.of(watermark.gaps)
        return Intervals.of(entry.gaps if entry is not None and entry.topic_id == partition.kafka_id else ())

    def _packed(
        self,
        partition: Partition,
        store: SimulatedStore,
        before: float = float("inf"),
        until: float = float("inf"),
    ) -> Intervals:
        """What a reader finds in packs beyond ``next_offset``: of leaderships that ``offset.wm`` lists.

        Only of those with an epoch ``before`` that one, and what heads have named ``until`` that moment.
        """
        watermark, found = _watermark(partition, store), Intervals()
        if watermark is None:
            return found
        lineage = partition.led.epochs
        for epoch, broker in [one for one in watermark.tails if one[0] < before]:
            entry = self.tails[broker].get(EntryKey(partition.kafka_id, partition.at.partition, epoch))
            if entry is None or entry.tail_end <= watermark.next_offset or self._put_at[entry] > until:
                continue
            if entry not in self._chains:
                self._chains[entry] = chain(ClusterStore(self.packs, CONTROL), entry, 0)
            for packed in self._chains[entry]:
                found |= live_part(packed.range, lineage)
        return found - Intervals([(0, _shared(Lineage(watermark.lineage), partition.led, watermark.next_offset))])

    def _named_live(self, partition: Partition) -> Intervals:
        """What heads have ever named of the log as it is."""
        found = Intervals()
        for range_ in self._named.get(PartitionOfId(partition.kafka_id, partition.at.partition), {}).values():
            found |= live_part(range_, partition.led.epochs)
        return found

    def _differing(self, partition: Partition, store: SimulatedStore) -> Iterator[str]:
        watermark, keys = _watermark(partition, store), _keys(partition, store)
        sealed: dict[tuple[int, int], bytes] = {}
        for manifest in _manifests(partition, store):
            start, end = manifest.base_offset, manifest.next_offset
            assert keys is not None
            there = store.objects[keys.file(manifest.log_name)].body
            wrong = partition.wrong_bytes(start, end, there, compacted=self._cluster.compacted)
            if manifest.state == "corrupt" or wrong is not None:
                yield f"{partition.at}: {start} to {end} is stored as {manifest.state}: {wrong}"
            for id_, batch in split(there).items():
                sealed[id_] = max(batch, sealed.get(id_, b""), key=len)
        present = _sealed(partition, store)
        if len(partition.replicas) == 1:  # the head of a deposed leader may come after the seal; then the seal lands
            yield from self._lacking(partition, sealed, present)
        entry, legal = self.entries[self.agent_of(partition)].get(partition.at), Intervals(partition.retired)
        gaps = Intervals.of(watermark.gaps if watermark else entry.gaps if entry else ())
        self.gaps += sum(gap.end - gap.start for gap in gaps)
        lost = Intervals([(0, partition.high_watermark)]) - present - gaps - self._packed(partition, store)
        if lost - legal:
            yield f"{partition.at}: {lost} is neither stored nor in a gap; retention took {legal}"
        if gaps - legal:
            yield f"{partition.at}: the gaps {gaps} are more than retention took: {legal}"

    def _lacking(
        self, partition: Partition, sealed: Mapping[tuple[int, int], bytes], present: Intervals
    ) -> Iterator[str]:
        """Batches that were packed with more records than their seal has."""
        for (topic_id, number, base, epoch), batch in self._largest.items():
            is_sealed = (topic_id, number) == (partition.kafka_id, partition.at.partition) and base in present
            if is_sealed and len(sealed.get((base, epoch), b"")) < len(batch):
                yield f"{partition.at}: the batch at {base} was packed, and its seal lacks records of it"


def _is_of(partition: Partition, named: IndexEntry | HeadEntry | Range) -> bool:
    return (partition.kafka_id, *partition.at) == (named.topic_id, named.topic, named.partition)


def _shared(lineage: Lineage, replica: Replica, end: int) -> int:
    """How much below ``end`` of what has that lineage is of a replica's log."""
    at = lineage.divergence(replica.epochs, end)
    return end if at is None else at


def _leadership(partition: Partition) -> EntryKey:
    return EntryKey(partition.kafka_id, partition.at.partition, partition.leader_epoch)


def _sealed(partition: Partition, store: SimulatedStore) -> Intervals:
    """What seals have of the log as it is."""
    spans = (
        (manifest.base_offset, _shared(Lineage(manifest.lineage), partition.led, manifest.next_offset))
        for manifest in _manifests(partition, store)
    )
    return Intervals((start, end) for start, end in spans if start < end)


def _manifests(partition: Partition, store: SimulatedStore) -> Iterator[SegmentManifest]:
    keys = _keys(partition, store)
    for key in [key for key in store.objects if keys and key.startswith(keys.folder)]:
        if ".manifest.json" in key:
            yield _manifest(store.objects[key].body, key)


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


@lru_cache(maxsize=256)
def _manifest(body: bytes, key: str) -> SegmentManifest:
    return SegmentManifest.from_bytes(body, key)
