"""Faults that break one rule each of the protocol in docs/agent-design.md and docs/consumer-design.md."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from tests.uploader_agent.simulation import schedule
from tests.uploader_agent.simulation.actions import ClusterActions
from tests.uploader_agent.simulation.broker import Cluster, Partition
from tests.uploader_agent.simulation.mutant import Mutant, Patches
from tests.uploader_agent.simulation.process import AgentProcess
from tests.uploader_agent.simulation.store import SimulatedStore
from tests.uploader_agent.simulation.world import World
from tidemark import raw_topic
from tidemark.errors import StoreError
from tidemark.formats.keys import SegmentName, TopicPartition
from tidemark.formats.raw.head import HeadEntry
from tidemark.formats.raw.manifest import ObjectSum
from tidemark.formats.raw.watermark import Watermark, render
from tidemark.kafka_log import Lineage
from tidemark.planning import ingest, partition_plan
from tidemark.planning.maintenance.pack_proof import SealsOfPartition
from tidemark.raw import segments
from tidemark.raw.heads import LiveEnd
from tidemark.raw.packs import live_end
from tidemark.raw.partition import RawPartition, StoredPartition
from tidemark.raw.segments import Segment
from tidemark.storage import ListedObject, PartitionStore, StoredWatermark
from tidemark.store import ObjectInfo, Store
from uploader_agent.packs import reading, tail
from uploader_agent.packs.broker_head import BrokerHead, EntryLines
from uploader_agent.packs.recovery import Abandoned
from uploader_agent.repair import replica_upload
from uploader_agent.stored import watermark
from uploader_agent.stored.objects import Summed, create
from uploader_agent.stored.stored_log import StoredSegment
from uploader_agent.upload import local_run, segment_upload
from uploader_agent.upload.local_run import PartsOfRun


def _lineage_ends_at_the_next_offset() -> Patches:
    compute = watermark.compute

    def short(previous: Watermark | None, **state: Any) -> Watermark:
        full = compute(previous, **state)
        return full.model_copy(update={"lineage": Lineage(full.lineage).truncated(full.next_offset).entries})

    yield patch.object(watermark, "compute", short)


def _line_1_stays() -> Patches:
    """A claim that cuts below line 1 leaves it where it is."""
    write = watermark.write

    def staying(partition: PartitionStore, base: int, new: Watermark, before: Any) -> StoredWatermark:
        return write(partition, max(base, getattr(before, "base_offset", 0)), new, before)

    yield patch.object(watermark, "write", staying)


def _replace_without_condition(partition: PartitionStore, base: int, new: Watermark, _etag: Any) -> Any:
    body = render(base, new)
    return StoredWatermark(base, new, partition.store.put(partition.keys.watermark, body))


def _watermark_replaced_without_if_match() -> Patches:
    yield patch.object(watermark, "put", _replace_without_condition)


def _dead_seals_count() -> Patches:
    of = StoredSegment.of

    def live(manifest: Any, lineage: Lineage) -> StoredSegment:
        found = of(manifest, lineage)
        return replace(found, readable_end=found.next_offset)

    yield patch.object(StoredSegment, "of", live)


def _nothing_is_open_at_the_start() -> Patches:
    yield patch.object(segment_upload, "open_before", lambda *_: ())


def _manifests_are_taken_over_of_any_branch() -> Patches:
    """A name that another branch has counts as this branch's."""
    yield patch.object(segment_upload, "begins_on", lambda *_: True)
    yield patch.object(replica_upload, "begins_on", lambda *_: True)


def _names_are_never_second() -> Patches:
    """A seal whose name another branch has is never stored."""
    names = segment_upload._names

    def first(*of: Any) -> Iterable[SegmentName]:
        return [*names(*of)][:1]

    yield patch.object(segment_upload, "_names", first)


def _entries_are_dropped_at_once() -> Patches:
    """An entry of another leadership goes although ``offset.wm`` lists it."""
    yield patch.object(Abandoned, "is_sealed", lambda *_: True)


def _packs_are_not_compared() -> Patches:
    """A seal has what compaction has left."""
    yield patch.object(PartsOfRun, "differing", lambda *_: [])


def _ranges_tell_no_aborts() -> Patches:
    yield patch.object(reading._BatchVerdicts, "_aborted", lambda _self, _marker: iter(()))


def _cuts_are_not_followed() -> Patches:
    """Landed rows stay that an election has cut off."""
    yield patch.object(ingest, "left_at", lambda *_: None)
    yield patch.object(partition_plan, "left_at", lambda *_: None)


def _open_transactions_of_a_dead_branch_count() -> Patches:
    yield patch.object(partition_plan, "is_whole", lambda *_: True)


def _ranges_count_on_any_lineage() -> Patches:
    live_end = segments.live_end

    def anywhere(segment: Segment, lineage: Lineage) -> int:
        return segment.end if segment.packed else live_end(segment, lineage)

    yield patch.object(segments, "live_end", anywhere)


def _entries_are_of_a_name() -> Patches:
    """Whatever the topic id: the entries of a deleted topic count for the one of its name."""
    look = LiveEnd.look

    def named(self: LiveEnd, partition: PartitionStore, read: Any) -> Any:
        found = look(self, partition, read)
        heads = [one.result()[1] for one in self._read.values()]
        entries = [entry for head in heads if isinstance(head, dict) for of_id in head.values() for entry in of_id]
        mine = [
            one
            for one in entries
            if one.partition == partition.keys.partition and partition.keys.place.startswith(one.topic)
        ]
        return replace(found, entries=mine) if found else None

    yield patch.object(LiveEnd, "look", named)


def _packs_go_unproved() -> Patches:
    yield patch.object(SealsOfPartition, "why_needed", lambda *_, **__: None)


def _markers_of_any_branch_count() -> Patches:
    yield patch.object(raw_topic, "agrees", lambda *_: True)


def _names_of_packs_begin_anew() -> Patches:
    """With each start of an agent, and packs replace each other."""
    put, start, names = SimulatedStore.put, AgentProcess.start, itertools.count()

    def replacing(self: SimulatedStore, key: str, body: Any, *, if_none_match: bool = False, **options: Any) -> str:
        return put(self, key, body, if_none_match=if_none_match and not key.endswith(".pack"), **options)

    def starting(self: AgentProcess) -> None:
        nonlocal names
        names = itertools.count()
        start(self)

    yield patch.object(SimulatedStore, "put", replacing)
    yield patch.object(AgentProcess, "start", starting)
    yield patch.object(World, "_name", lambda _self: f"{next(names):032x}")


def _heads_begin_anew() -> Patches:
    """With each start of an agent."""
    know = BrokerHead._know
    yield patch.object(BrokerHead, "_know", lambda self, _entries, etag: know(self, EntryLines(), etag))


def _dead_tails_are_dropped() -> Patches:
    """As soon as ``offset.wm`` does not list them."""
    is_sealed = Abandoned.is_sealed

    def dropped(self: Abandoned, head: BrokerHead, entry: HeadEntry) -> bool:
        _, partition = self._resolve(TopicPartition(entry.topic, entry.partition), entry.topic_id)
        stored = watermark.read(partition)
        listed = stored is not None and (entry.epoch, self._broker) in stored.watermark.tails
        return is_sealed(self, head, entry) if listed else True

    yield patch.object(Abandoned, "is_sealed", dropped)


def _manifests_are_listed_before_heads() -> Patches:
    listed, view = PartitionStore.objects, raw_topic.RawTopic.view
    early: dict[PartitionStore, list[ListedObject]] = {}

    def looked(self: raw_topic.RawTopic, part: RawPartition) -> StoredPartition | None:
        partition = self.partition_store(part)
        early[partition] = [*listed(partition)]
        return view(self, part)

    def known(self: PartitionStore, first: int = 0, end: int | None = None) -> Any:
        if self not in early:
            return listed(self, first, end)
        return (one for one in early[self] if first <= one.name.base and (end is None or one.name.base < end))

    yield patch.object(raw_topic.RawTopic, "view", looked)
    yield patch.object(PartitionStore, "objects", known)


def _a_tail_reaches_to_its_own_lineage() -> Patches:
    """Where the seals had ended when it was packed; and elections are often taken back."""
    diverge = ClusterActions.diverge

    def back(self: ClusterActions, which: float, number: float, broker: int) -> None:
        for partition in self._some(which):
            again = partial(self.elect_unclean, which, number, partition.leader)
            self._scheduler.call_later(self._faults.felt(7 + 8 * number), again)
        diverge(self, which, number, broker)

    yield patch.object(tail, "packed_end", live_end)
    yield patch.object(ClusterActions, "diverge", back)
    yield patch.dict(schedule._UNCLEAN, {"diverge": 60})


def _epochs_stay_after_a_loss_of_power() -> Patches:
    """Kafka's part: a broker that leads again goes on under its epoch, without the end of its log."""
    lead = Cluster._lead

    def stay(self: Cluster, partition: Partition, leader: int) -> None:
        if leader == partition.leader:
            self._learn_soon(partition, leader)
        else:
            lead(self, partition, leader)

    yield patch.object(Cluster, "_lead", stay)


def _rotated_segments_are_sealed_above_the_high_watermark() -> Patches:
    runs = local_run.rotated_runs
    yield patch.object(local_run, "rotated_runs", lambda segments, final, _: runs(segments, final, 1 << 62))


def _a_log_that_failed_counts_as_stored() -> Patches:
    """Its manifest is written without it."""

    def careless(store: Store, key: str, ours: Summed, **options: Any) -> ObjectSum | ObjectInfo:
        try:
            return create(store, key, ours, **options)
        except StoreError:
            return _sum_of(ours, '"0"')

    yield patch.object(segment_upload, "create", careless)


def _logs_are_replaced() -> Patches:
    """Whatever is stored under their names."""

    def replacing(store: Store, key: str, ours: Summed, **_: Any) -> ObjectSum:
        return _sum_of(ours, store.put(key, ours.content.body(), size=ours.content.size, crc32c=ours.crc32c))

    yield patch.object(segment_upload, "create", replacing)


def _other_stored_bytes_count_as_ours() -> Patches:
    """The manifest describes other bytes than those that are stored."""

    def taken(store: Store, key: str, ours: Summed, **options: Any) -> ObjectSum:
        return _sum_of(ours, create(store, key, ours, **options).etag)

    yield patch.object(segment_upload, "create", taken)


def _sum_of(ours: Summed, etag: str) -> ObjectSum:
    return ObjectSum(size=ours.content.size, crc32c=f"{ours.crc32c:08x}", etag=etag)


def _other_entries_stay_in_heads() -> Patches:
    """Those of former leaderships and of deleted topics, although all of them is sealed."""
    is_sealed = Abandoned.is_sealed

    def never(self: Abandoned, head: BrokerHead, entry: HeadEntry) -> bool:
        return is_sealed(self, head, entry) and False

    yield patch.object(Abandoned, "is_sealed", never)


def _sealed_packs_stay() -> Patches:
    yield patch.object(SealsOfPartition, "why_needed", lambda *_, **__: "somebody might like it")


RULES = {
    "lineage ends at the next offset": Mutant(_lineage_ends_at_the_next_offset, replicated=True, unclean=True),
    "line 1 stays": Mutant(_line_1_stays, replicated=True, unclean=True),
    "offset.wm replaced without If-Match": Mutant(_watermark_replaced_without_if_match, replicated=True),
    "dead seals count": Mutant(_dead_seals_count, replicated=True, unclean=True),
    "nothing is open at the start": Mutant(_nothing_is_open_at_the_start),
    "manifests are taken over of any branch": Mutant(_manifests_are_taken_over_of_any_branch, unclean=True),
    "names are never second": Mutant(_names_are_never_second, unclean=True),
    "entries are dropped at once": Mutant(_entries_are_dropped_at_once, replicated=True),
    "packs are not compared": Mutant(_packs_are_not_compared, compacted=True),
    "ranges tell no aborts": Mutant(_ranges_tell_no_aborts),
    "cuts are not followed": Mutant(_cuts_are_not_followed, replicated=True, unclean=True),
    "open transactions of a dead branch count": Mutant(
        _open_transactions_of_a_dead_branch_count, replicated=True, unclean=True
    ),
    "ranges count on any lineage": Mutant(_ranges_count_on_any_lineage, replicated=True, unclean=True),
    "entries are of a name": Mutant(_entries_are_of_a_name),
    "packs go unproved": Mutant(_packs_go_unproved),
    "markers of any branch count": Mutant(_markers_of_any_branch_count, replicated=True, unclean=True),
    "names of packs begin anew": Mutant(_names_of_packs_begin_anew),
    "heads begin anew": Mutant(_heads_begin_anew),
    "dead tails are dropped": Mutant(_dead_tails_are_dropped, replicated=False, unclean=True),
    "a tail reaches to its own lineage": Mutant(_a_tail_reaches_to_its_own_lineage, replicated=True, unclean=True),
    "manifests are listed before heads": Mutant(_manifests_are_listed_before_heads),
    "epochs stay after a loss of power": Mutant(_epochs_stay_after_a_loss_of_power, replicated=False, unclean=True),
    "rotated segments are sealed above the high watermark": Mutant(
        _rotated_segments_are_sealed_above_the_high_watermark, replicated=True
    ),
    "a log that failed counts as stored": Mutant(_a_log_that_failed_counts_as_stored),
    "logs are replaced": Mutant(_logs_are_replaced),
    "other stored bytes count as ours": Mutant(_other_stored_bytes_count_as_ours),
    "other entries stay in heads": Mutant(_other_entries_stay_in_heads, replicated=True),
    "sealed packs stay": Mutant(_sealed_packs_stay),
}
