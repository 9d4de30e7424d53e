"""The dry run of a rebuild or a replay: the data that it would read and replace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from tidemark.backfill.preview import DatePreview, PartitionPreview, Preview, ReasonPreview, conversion_rate
from tidemark.formats.table.plan import PartitionPlan, QuarantineTask, RunPlan, StoredRange, StoredTask
from tidemark.inspection.quarantine import quarantine_of
from tidemark.planning import waiting_offsets
from tidemark.table.delta_table import TopicTable, open_delta
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import PARSED, EvidenceClass
from tidemark.table.topic_columns import check_columns, schema_change
from tidemark_spark.convert.segment_reader import WINDOW_BYTES
from tidemark_spark.rebuild.affected_dates import AffectedDates

_REASONS_OF: Final = 100
"""The newest files of quarantine, of which a dry run reads the reasons on the driver."""

_REASONS: Final = 50

_COMMIT_WRITES: Final = 4
"""Evidence, ledger, Delta commit, result."""


def preview(
    table: TopicTable,
    plan: RunPlan,
    moves: AffectedDates | None = None,
    lost: Mapping[str, tuple[str, ...]] | None = None,
) -> Preview:
    """The effect of ``plan``, given its ``moves`` and its ``lost`` files by date.

    Raises:
        ConfigError: the topic's columns do not fit the table's columns.
    """
    delta = open_delta(table)
    columns: tuple[str, ...] = ()
    if delta is not None:
        check_columns(table, delta, whole=plan.whole)
        columns = tuple(schema_change(table, delta))
    partitions = tuple(_partition(plan, part) for part in plan.partitions if part.end > part.start)
    standing = EffectiveEvidence.of(table)
    dates = tuple(_dates(standing, plan, moves, lost or {}))
    refused = _refused(table, standing, plan) if plan.kind == "replay" else {}
    return Preview(
        cluster=plan.cluster,
        topic=plan.topic,
        table=plan.table,
        kind="rebuild" if plan.kind not in {"replay", "repair"} else plan.kind,
        ledger_n=plan.ledger_n,
        configuration=plan.configuration,
        whole=plan.whole,
        dates=dates,
        added=tuple(dt for dt in plan.dates if moves and dt not in moves.asked),
        partitions=partitions,
        tasks=len(plan.tasks),
        segments=sum(part.segments for part in partitions),
        bytes=sum(task.size for task in plan.tasks),
        removes=plan.removes,
        columns=columns,
        **refused,
        waiting=waiting_offsets(table, standing.ledger) if plan.kind != "replay" else 0,  # a replay needs no raw
        reads=sum(_reads(task) for task in plan.tasks),
        writes=max(len(plan.tasks), sum(row.files for row in dates)) + len(dates) + _COMMIT_WRITES,
        rate=conversion_rate(table, standing.ledger),
    )


def _refused(table: TopicTable, standing: EffectiveEvidence, plan: RunPlan) -> dict[str, Any]:
    """The reasons of the rows that a replay parses again."""
    found = quarantine_of(table, standing, plan.supersedes.__contains__, most_files=_REASONS_OF, values=False)
    reasons = (ReasonPreview(**each.model_dump(exclude={"examples"})) for each in found.reasons[:_REASONS])
    return {"reasons": tuple(reasons), "reasons_of": found.files_read}


def _reads(task: StoredTask) -> int:
    """Number of requests for the bytes of a task: one for a window, or for a file of quarantine."""
    if isinstance(task, QuarantineTask):
        return len({part.quarantined for part in task.ranges})
    return sum(-(-(part.end - part.start) // WINDOW_BYTES) for part in task.ranges)


def _dates(
    standing: EffectiveEvidence, plan: RunPlan, moves: AffectedDates | None, lost: Mapping[str, tuple[str, ...]]
) -> list[DatePreview]:
    replaced = frozenset(plan.replaced)
    counted: dict[EvidenceClass, Counter[str]] = {name: Counter() for name in PARSED}
    others = Counter[str]()
    for row in standing.of_files(replaced):
        counted[row.offset_class][row.day] += row.rows
        others[row.day] += row.rows if row.configuration != plan.configuration else 0
    live = [file for file in standing.live.values() if file.path in replaced]
    dates = plan.dates or tuple(sorted({*plan.supersedes, *(file.dt for file in live)}))
    states = standing.ledger.dates
    after = moves.after if moves else {}
    return [
        DatePreview(
            dt=dt,
            state=states[dt].state if dt in states else "new",
            rows=counted["landed"][dt],
            quarantined=counted["quarantined"][dt],
            filtered=counted["filtered"][dt],
            files=sum(file.dt == dt for file in live) + len(plan.supersedes.get(dt, ())),
            bytes=sum(file.size for file in live if file.dt == dt),
            other_settings=others[dt],
            after=after.get(dt, 0) if moves else None,
            lost=lost.get(dt, ()),
        )
        for dt in dates
        if any(count.get(dt) for count in (*counted.values(), after))
    ]


def _partition(plan: RunPlan, part: PartitionPlan) -> PartitionPreview:
    tasks = [task for task in plan.tasks if (task.incarnation, task.partition) == part.key]
    ranges: list[StoredRange] = [part for task in tasks for part in task.ranges]
    keys = list(dict.fromkeys(part.quarantined or part.key for part in ranges))
    return PartitionPreview(
        incarnation=part.incarnation,
        partition=part.partition,
        start=part.start,
        end=part.end,
        segments=len(keys),
        first=keys[0],
        last=keys[-1],
        bytes=sum(task.size for task in tasks),
    )
