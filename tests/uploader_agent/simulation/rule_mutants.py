"""Faults that break one rule each of the protocol in docs/agent-design.md and docs/consumer-design.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tests.uploader_agent.simulation.mutant import Mutant, Patches
from tidemark.formats.keys import PartitionKeys, SegmentName
from tidemark.formats.raw.watermark import Watermark, render
from tidemark.kafka_log import Lineage
from tidemark.planning import ingest, partition_plan
from tidemark.planning.maintenance.pack_proof import SealsOfPartition
from tidemark.raw import segments
from tidemark.raw.heads import Heads
from tidemark.raw.objects import StoredWatermark
from tidemark.raw.segments import Segment
from tidemark.store import Store
from uploader_agent.packs import reading
from uploader_agent.packs.abandoned import Abandoned
from uploader_agent.stored import manifests, stored_log, watermark
from uploader_agent.stored.stored_log import StoredSegment
from uploader_agent.upload import segment_upload
from uploader_agent.upload.packed_parts import PartsOfRun


def _lineage_ends_at_the_next_offset() -> Patches:
    compute = watermark.compute

    def short(view: watermark.WatermarkState, previous: Watermark | None) -> Watermark:
        full = compute(view, previous)
        return full.model_copy(update={"lineage": Lineage(full.lineage).truncated(full.next_offset).entries})

    yield patch.object(watermark, "compute", short)


def _line_1_stays() -> Patches:
    """A claim that cuts below line 1 leaves it where it is."""
    yield patch.object(stored_log, "_last_base_below", lambda _store, _keys, _offset: 0)
    yield patch.object(watermark, "last_base", lambda bases, _next, fallback: max([*bases, fallback]))


def _replace_without_condition(store: Store, keys: PartitionKeys, base: int, new: Watermark, _etag: Any) -> Any:
    body = render(base, new)
    return StoredWatermark(base, new, store.put(keys.watermark, body))


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
    yield patch.object(manifests, "begins_on", lambda *_: True)


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
    look = Heads.look

    def named(self: Heads, store: Store, keys: PartitionKeys, read: Any) -> Any:
        found = look(self, store, keys, read)
        heads = [one.result() for one in self._read.values()]
        entries = [entry for head in heads if isinstance(head, dict) for of_id in head.values() for entry in of_id]
        mine = [one for one in entries if one.partition == keys.partition and keys.place.startswith(one.topic)]
        return found._replace(entries=mine) if found else None

    yield patch.object(Heads, "look", named)


def _packs_go_unproved() -> Patches:
    yield patch.object(SealsOfPartition, "why_needed", lambda *_, **__: None)


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
}
