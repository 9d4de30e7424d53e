"""What a rebuild or a replay would read and replace: its dry run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidemark.backfill.estimate import rate_of
from tidemark.backfill.preview import DatePreview, PartitionPreview, Preview
from tidemark.formats.plan import ConversionTask, PartitionPlan, RunPlan, SegmentRange
from tidemark.planning import waiting_offsets
from tidemark.table.delta_table import TopicTable, open_delta
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark_spark.convert.segment_reader import WINDOW_BYTES
from tidemark_spark.rebuild.affected_dates import AffectedDates
from tidemark_spark.run.delta_log import check_columns, schema_change

_COMMIT_WRITES: Final = 4
"""Evidence, ledger, Delta commit, result."""


def preview(
    table: TopicTable,
    plan: RunPlan,
    moves: AffectedDates | None = None,
    lost: Mapping[str, tuple[str, ...]] | None = None,
) -> Preview:
    """What ``plan`` would do, given its ``moves`` and its ``lost`` files by date.

    Raises:
        ConfigError: the topic's columns do not fit those of the table.
    """
    delta = open_delta(table)
    columns: tuple[str, ...] = ()
    if delta is not None:
        check_columns(table, delta, whole=plan.whole)
        columns = tuple(schema_change(table, delta))
    partitions = tuple(_partition(plan, one) for one in plan.partitions if one.end > one.start)
    standing = EffectiveEvidence.of(table)
    dates = tuple(_dates(standing, plan, moves, lost or {}))
    return Preview(
        cluster=plan.cluster,
        topic=plan.topic,
        table=plan.table,
        kind="rebuild" if plan.kind not in {"replay", "repair"} else plan.kind,
        ledger_n=plan.ledger_n,
        configuration=plan.configuration,
        whole=plan.whole,
        dates=dates,
        added=tuple(one for one in plan.dates if moves and one not in moves.asked),
        partitions=partitions,
        tasks=len(plan.tasks),
        segments=sum(one.segments for one in partitions),
        bytes=sum(one.size for one in plan.tasks),
        removes=plan.removes,
        columns=columns,
        waiting=waiting_offsets(table, standing.ledger) if plan.kind != "replay" else 0,  # a replay needs no raw
        reads=sum(_reads(one) for one in plan.tasks),
        writes=max(len(plan.tasks), sum(one.files for one in dates)) + len(dates) + _COMMIT_WRITES,
        rate=rate_of(table, standing.ledger),
    )


def _reads(task: ConversionTask) -> int:
    """Requests for the bytes of a task: a window each, or a file of quarantine."""
    files = {one.quarantined for one in task.ranges} - {""}
    return len(files) or sum(-(-(one.end - one.start) // WINDOW_BYTES) for one in task.ranges)


class _Counted(NamedTuple):
    """Records by date."""

    landed: Counter[str]
    quarantined: Counter[str]
    filtered: Counter[str]
    others: Counter[str]


def _dates(
    standing: EffectiveEvidence, plan: RunPlan, moves: AffectedDates | None, lost: Mapping[str, tuple[str, ...]]
) -> list[DatePreview]:
    replaced = frozenset(plan.replaced)
    counted = _Counted(Counter(), Counter(), Counter(), Counter())
    for row in standing.evidence():
        if row.file not in replaced:
            continue
        by_class = {"landed": counted.landed, "quarantined": counted.quarantined, "filtered": counted.filtered}
        by_class[row.offset_class][row.day] += row.rows
        counted.others[row.day] += row.rows if row.configuration != plan.configuration else 0
    live = [one for one in standing.live.values() if one.path in replaced]
    dates = plan.dates or tuple(sorted({*plan.supersedes, *(one.dt for one in live)}))
    states = standing.ledger.dates
    after = moves.after if moves else {}
    counts = (counted.landed, counted.quarantined, counted.filtered, after)
    return [
        DatePreview(
            dt=dt,
            state=states[dt].state if dt in states else "new",
            rows=counted.landed[dt],
            quarantined=counted.quarantined[dt],
            filtered=counted.filtered[dt],
            files=sum(one.dt == dt for one in live) + len(plan.supersedes.get(dt, ())),
            bytes=sum(one.size for one in live if one.dt == dt),
            other_settings=counted.others[dt],
            after=after.get(dt, 0) if moves else None,
            lost=lost.get(dt, ()),
        )
        for dt in dates
        if any(one.get(dt) for one in counts)
    ]


def _partition(plan: RunPlan, part: PartitionPlan) -> PartitionPreview:
    tasks = [one for one in plan.tasks if (one.incarnation, one.partition) == part.key]
    ranges: list[SegmentRange] = [part for one in tasks for part in one.ranges]
    keys = list(dict.fromkeys(one.quarantined or one.key for one in ranges))
    return PartitionPreview(
        incarnation=part.incarnation,
        partition=part.partition,
        start=part.start,
        end=part.end,
        segments=len(keys),
        first=keys[0],
        last=keys[-1],
        bytes=sum(one.size for one in tasks),
    )
