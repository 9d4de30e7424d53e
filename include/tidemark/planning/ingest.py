"""The plan of a run that lands new offsets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from tidemark.ledger import Ledger, PartitionState, new_attempt
from tidemark.planning.code import code_digest
from tidemark.planning.dates import closing, may_close
from tidemark.planning.partition import Decision, Known, changes_anything, decide
from tidemark.planning.ranges import TARGET_BYTES, ranges_of, tasks_of, within
from tidemark.planning.raw import RawPartition, RawTopic, in_parallel
from tidemark.records import Lineage
from tidemark.runs import PartitionPlan, RunPlan, Task
from tidemark.stored import utc_now
from tidemark.table import Lake, committed_ledger

LIMIT_BYTES: Final = 16 << 30
"""Bytes of raw that one run converts at most; what is left is the next run's."""

LIMIT_TASKS: Final = 1024


class Share(NamedTuple):
    """What one partition may take of a run: bytes and tasks."""

    size: int
    tasks: int


def plan_ingest(
    lake: Lake, *, attempt: int | None = None, limit_bytes: int = LIMIT_BYTES, limit_tasks: int = LIMIT_TASKS
) -> RunPlan:
    """What there is to land for the topic of ``lake`` now, and which dates close; see :attr:`RunPlan.empty`.

    ``attempt`` is drawn if None.

    The limits are shared evenly by the partitions that have something; each gets one task at least.

    Raises:
        ConfigError: the topic's raw store has no manifests (writer 'pinterest').
        FormatError: an object in the raw store does not parse.
        StoreError: a store did not answer.
    """
    ledger = committed_ledger(lake)
    raw = RawTopic(lake)
    parts = raw.partitions(ledger)
    count = max(1, len(parts))
    share = Share(max(TARGET_BYTES, limit_bytes // count), max(1, limit_tasks // count))
    states = ledger.by_partition
    planned = in_parallel(lambda part: _plan_partition(raw, part, states.get(part.key), share), parts)
    found = [one for one in planned if one is not None]
    created = utc_now()
    return RunPlan(
        attempt=new_attempt() if attempt is None else attempt,
        kind="ingest",
        cluster=lake.topic.cluster,
        topic=lake.topic.topic,
        table=lake.topic.table,
        generation=ledger.generation,
        ledger_n=ledger.n,
        ledger_attempt=ledger.attempt,
        configuration=lake.topic.digest,
        code=code_digest(),
        created_at=created,
        partitions=tuple(plan for plan, _ in found),
        tasks=tuple(task for _, tasks in found for task in tasks),
        closes=closing(ledger, raw.entries, lake.topic, created, bare=_bare(raw, ledger, parts)),
    )


def dates_to_close(lake: Lake, ledger: Ledger) -> list[str]:
    """The dates that a plan made now would close; raises like :func:`plan_ingest`."""
    now = utc_now()
    if not any(may_close(dt, state, lake.topic, now) for dt, state in ledger.dates.items()):
        return []
    raw = RawTopic(lake)
    return list(closing(ledger, raw.entries, lake.topic, now, bare=_bare(raw, ledger, raw.partitions(ledger))))


def _bare(raw: RawTopic, ledger: Ledger, parts: Iterable[RawPartition]) -> set[tuple[int, int]]:
    """The partitions that the ledger does not know and of which nothing was ever uploaded."""
    states = ledger.by_partition
    return {part.key for part in parts if part.key not in states and raw.watermark(part) is None}


def _plan_partition(
    raw: RawTopic, part: RawPartition, state: PartitionState | None, share: Share
) -> tuple[PartitionPlan, list[Task]] | None:
    decision = _decide(raw, part, state, share.size)
    if decision is None or not changes_anything(decision.plan, state):
        return None
    plan = decision.plan
    tasks = tasks_for(raw, plan, decision)
    kept = within(tasks, share.size, share.tasks)
    if len(kept) < len(tasks):
        end = kept[-1].to_offset
        acknowledged = tuple(one for one in plan.acknowledged if one[1] <= end)
        plan = plan.model_copy(update={"end": end, "held_by": (), "acknowledged": acknowledged})
    return plan, kept


def tasks_for(raw: RawTopic, plan: PartitionPlan, decision: Decision) -> list[Task]:
    """The decision's pieces as tasks."""
    ranges = [one for piece in decision.pieces for one in ranges_of(piece, raw.cuts(piece.segment))]
    return tasks_of(plan.incarnation, plan.topic_id, plan.partition, ranges)


def _decide(raw: RawTopic, part: RawPartition, state: PartitionState | None, limit: int) -> Decision | None:
    """The partition's decision; an open transaction longer than ``limit`` makes it look further."""
    watermark = raw.watermark(part)
    if watermark is None:
        return None
    lineage = Lineage(watermark.lineage)
    start = state.next_offset if state else watermark.start_offset
    acknowledged = raw.acknowledged(part) if state and state.gaps else None
    while True:
        window = raw.segments(part, start, watermark.next_offset, lineage, limit)
        known = Known(*part.key, watermark, state, window.segments, window.complete)
        if acknowledged is not None:
            known = replace(known, acknowledged=acknowledged)
        decision = decide(replace(known, aborted=tuple(raw.aborted(window.segments))))
        if window.complete or decision.plan.end > start:
            return decision
        limit *= 2
