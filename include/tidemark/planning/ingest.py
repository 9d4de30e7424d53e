"""The plan of a run that lands new offsets, and the gaps at which it stops though agents did not find them.

Runs find such a gap where an object was removed, or does not hold the data that its manifest lists.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final

from tidemark.concurrency import in_parallel
from tidemark.errors import AbortsUnreadable, FormatError
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.table.ledger import Closing, Ledger
from tidemark.formats.table.plan import PartitionPlan, RunPlan, SegmentTask, merged
from tidemark.intervals import Intervals
from tidemark.kafka_log import OpenTransaction
from tidemark.planning.common import following
from tidemark.planning.date_finality import closing, may_close
from tidemark.planning.partition_plan import CutOff, Decision, KnownPartition, changes_anything, decide, left_at, rewind
from tidemark.raw.byte_ranges import TARGET_BYTES, ranges_of, tasks_of, within
from tidemark.raw.partition import RawPartition
from tidemark.raw.segments import opened_after
from tidemark.raw_topic import RawTopic
from tidemark.table.delta_table import TopicTable, committed_ledger, ledger_of, live_files, open_delta
from tidemark.table.tampering import check_untampered

log = logging.getLogger(__name__)

LIMIT_BYTES: Final = 16 << 30
"""Most bytes of raw that one run converts; the next run takes the rest."""

LIMIT_TASKS: Final = 1024


def plan_ingest(
    table: TopicTable,
    *,
    attempt: int | None = None,
    limit_bytes: int = LIMIT_BYTES,
    limit_tasks: int = LIMIT_TASKS,
    raw: RawTopic | None = None,
    close_dates: bool = True,
) -> RunPlan:
    """The plan to land the new offsets of the topic of ``table`` and to close dates; see :attr:`RunPlan.empty`.

    ``attempt`` is drawn if None, and ``raw`` reads all watermark indexes if None. The partitions that have new offsets
    share the limits evenly; each gets at least one task. No date closes without ``close_dates``, for a ``raw`` that
    knows no log ends.

    An unreadable part of the live end or ``.txnindex`` keeps back no partition but its own, and is named in
    :attr:`RunPlan.unread`.

    Raises:
        FormatError: another object in the raw store does not parse.
        StoreError: a store did not answer.
        TableTampered: another program changed the table.
    """
    delta = open_delta(table)
    ledger = ledger_of(table, delta)
    if delta is not None:
        check_untampered(table, ledger, live_files(delta))
    raw = raw or RawTopic(table, outages=True)
    parts = raw.partitions(ledger)
    count = max(1, len(parts))
    size, number = max(TARGET_BYTES, limit_bytes // count), max(1, limit_tasks // count)
    planned = in_parallel(lambda part: _plan_partition(table, raw, part, ledger, size, number), parts)
    changed = [part for part in planned if part is not None]
    created = table.store.now()
    cuts = [plan.cut for plan, _ in changed if plan.cut]
    return RunPlan(
        **(following(table, ledger, attempt, created_at=created) | {"masks": raw.mask_numbers()}),
        kind="ingest",
        partitions=tuple(plan for plan, _ in changed),
        tasks=tuple(task for _, tasks in changed for task in tasks),
        closes=_closes(table, raw, ledger, raw.now(), parts) if close_dates else {},
        removes=tuple(file for cut in cuts for file in cut.removes),
        supersedes=merged(cut.supersedes for cut in cuts),
        unread=raw.unread.messages,
    )


def dates_to_close(table: TopicTable, ledger: Ledger) -> list[str]:
    """The dates that a plan made now would close; raises errors of :func:`plan_ingest`."""
    raw = RawTopic(table)
    now = raw.now()
    if not any(may_close(dt, state, table.topic, now) for dt, state in ledger.dates.items()):
        return []
    return list(_closes(table, raw, ledger, now, raw.partitions(ledger)))


def _closes(
    table: TopicTable, raw: RawTopic, ledger: Ledger, now: datetime, parts: Iterable[RawPartition]
) -> dict[str, Closing]:
    """The dates that close. The agents' observations are read again only if some date may close."""
    if not any(may_close(dt, state, table.topic, now) for dt, state in ledger.dates.items()):
        return {}
    return closing(ledger, raw.vouched(ledger), table.topic, now, bare=_bare(raw, ledger, parts))


def _bare(raw: RawTopic, ledger: Ledger, parts: Iterable[RawPartition]) -> set[tuple[int, int]]:
    """The partitions that are not in the ledger and have no upload at all."""
    states = ledger.by_partition
    return {part.key for part in parts if part.key not in states and raw.watermark(part) is None}


def _first(raw: RawTopic, part: RawPartition, start: int) -> int:
    """The start of raw. An invalid tombstone removed nothing: the offsets that it names are a gap."""
    try:
        return raw.first(part, start)
    except FormatError:
        log.exception("partition %s: its missing offsets count as lost, not as removed", part.key)
        return start


def _acknowledged(raw: RawTopic, part: RawPartition) -> Intervals:
    """The acknowledged offsets; none if an acknowledgement is invalid, so that the partition stays at its gap."""
    try:
        return raw.acknowledged(part)
    except FormatError:
        log.exception("partition %s: the acknowledgements of its gaps are ignored", part.key)
        return Intervals()


def _plan_partition(
    table: TopicTable, raw: RawTopic, part: RawPartition, ledger: Ledger, most_bytes: int, most_tasks: int
) -> tuple[PartitionPlan, list[SegmentTask]] | None:
    try:
        decision = decision_of(table, raw, part, ledger, most_bytes)
    except AbortsUnreadable as error:
        raw.unread.add(error)
        return None
    if decision is None or not changes_anything(decision.plan, ledger.by_partition.get(part.key)):
        return None
    plan = decision.plan
    tasks = tasks_for(raw, plan, decision)
    # The tasks that replace rows below a cut are never left to a later run.
    below = [task for task in tasks if plan.cut and task.to_offset <= plan.cut.at]
    kept = below + within(tasks[len(below) :], most_bytes, most_tasks)
    if len(kept) < len(tasks):
        end = kept[-1].to_offset
        acknowledged = tuple(offsets for offsets in plan.acknowledged if offsets[1] <= end)
        plan = plan.model_copy(update={"end": end, "held_by": (), "acknowledged": acknowledged, "as_of": None})
    return raw.masked(part, plan), kept


def tasks_for(raw: RawTopic, plan: PartitionPlan, decision: Decision) -> list[SegmentTask]:
    """The decision's pieces as tasks. No task lies across the offset at which a branch is left."""
    divide = plan.cut.at if plan.cut else plan.start
    below = [piece._replace(end=min(piece.end, divide)) for piece in decision.pieces if piece.start < divide]
    above = [piece._replace(start=max(piece.start, divide)) for piece in decision.pieces if divide < piece.end]
    tasks: list[SegmentTask] = []
    for pieces in (below, above):
        ranges = [range_ for piece in pieces for range_ in ranges_of(piece, raw.cuts(piece.segment))]
        tasks += tasks_of(plan.incarnation, plan.topic_id, plan.partition, ranges)
    return tasks


def decision_of(table: TopicTable, raw: RawTopic, part: RawPartition, ledger: Ledger, limit: int) -> Decision | None:
    """The decision how far the partition may land now; None if nothing of it was ever uploaded.

    Looks further than ``limit`` bytes past a longer open transaction. Raises errors of :func:`plan_ingest`.
    """
    state = ledger.by_partition.get(part.key)
    view = raw.view(part)
    if view is None:
        return None
    watermark = view.watermark
    left = left_at(watermark, state)
    back = None if state is None or left is None else rewind(table, raw, view, state, left)
    observed = tuple(
        (end, entry.observed_at)
        for end, entry in view.tail_ends
        if end == entry.high_watermark and entry.epoch == watermark.leader_epoch  # not a former leader's, which is old
    )
    known = KnownPartition(*part.key, watermark, state, [], end=view.end, observed=observed)
    if back:
        cut, from_offset = back
        known = replace(known, cut=cut, from_offset=from_offset)
    if state is None or known.begins <= state.start_offset:  # nothing below has landed
        known = replace(known, first=_first(raw, part, watermark.start_offset))
    asked = False
    while True:
        segments, complete = raw.segments(view, known.start, known.end, limit)
        known = replace(known, segments=segments, complete=complete, opened=None)
        known = replace(known, aborted=tuple(raw.aborted(segments, view.lineage)))
        decision = decide(known)
        if decision.plan.gaps and not asked:  # the agent's watermark may not know yet what a person has given up
            known, asked = replace(known, acknowledged=_acknowledged(raw, part)), True
            decision = decide(known)
        if decision.cut_off and complete:
            decision = decide(replace(known, opened=_opened(raw, part, decision.cut_off)))
        if complete or decision.plan.cut or decision.plan.end > known.landed_next:
            return decision
        limit *= 2


def _opened(raw: RawTopic, part: RawPartition, cut_off: CutOff) -> tuple[OpenTransaction, ...] | None:
    """The transactions that are open behind ``cut_off``; None if a batch there is damaged, which a task will find."""
    try:
        return opened_after(cut_off.before, raw.headers(cut_off.pieces))
    except FormatError:
        log.exception("partition %s: the transactions open where its log left a branch are not known", part.key)
        return None


def lost_gaps(table: TopicTable, incarnation: int, partition: int) -> tuple[Gap, ...]:
    """The gaps that hold the partition in the committed ledger, if a plan made now would find them, too.

    Landed offsets that an unclean election cut off are not gaps: they are replaced, not given up.

    Raises FormatError and StoreError.
    """
    ledger = committed_ledger(table)
    state = ledger.by_partition.get((incarnation, partition))
    if state is None or not state.gaps:
        return ()
    raw = RawTopic(table)
    part = next((candidate for candidate in raw.partitions(ledger) if candidate.key == state.key), None)
    decision = decision_of(table, raw, part, ledger, TARGET_BYTES) if part else None
    if decision is None:
        return ()
    still_lost = Intervals.of(decision.plan.gaps)
    return tuple(
        gap.model_copy(update={"start": start, "end": end})
        for gap in state.gaps
        for start, end in still_lost & Intervals([(max(gap.start, state.next_offset), gap.end)])
    )
