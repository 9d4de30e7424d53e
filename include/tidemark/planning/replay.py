"""The plan of a run that parses quarantined rows again, without raw: a parser, a schema or a setting was corrected.

A replay takes all rows of a date, or all rows if no dates are given. Rows that pass land, the others are quarantined
again, and the earlier rows no longer count. Batches that could not be decoded are tried again as well.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from itertools import groupby

from tidemark.errors import ContinuityError
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import ConversionTask, PartitionPlan, RunPlan, SegmentRange
from tidemark.planning.common import following
from tidemark.planning.rebuild import files_by_date
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import EvidenceRow
from tidemark.table.tampering import check_untampered
from tidemark.timestamps import utc_now


def plan_replay(table: TopicTable, dates: Collection[str] | None = None, *, attempt: int | None = None) -> RunPlan:
    """The plan to parse the quarantined rows of ``dates`` (ISO, empty for rows without one) again, or all if None."""
    standing = EffectiveEvidence.of(table)
    check_untampered(table, standing.ledger, standing.live.values())
    ledger = standing.ledger
    rows = [row for row in standing.set_aside(dates) if row.offset_class == "quarantined"]
    created = utc_now()
    tasks = [
        ConversionTask(
            incarnation=incarnation,
            topic_id=ledger.by_partition[incarnation, partition].topic_id,
            partition=partition,
            ranges=tuple(_range(table, row, created) for row in group),
        )
        for (incarnation, partition, _), group in groupby(rows, lambda row: (*row.key, row.day))
    ]
    return RunPlan(
        **following(table, ledger, attempt, created_at=created),
        kind="replay",
        partitions=tuple(
            _partition(ledger, key, list(group))
            for key, group in groupby(tasks, lambda task: (task.incarnation, task.partition))
        ),
        tasks=tuple(tasks),
        supersedes=files_by_date(rows),
    )


def _range(table: TopicTable, row: EvidenceRow, created: datetime) -> SegmentRange:
    if row.file is None or row.segment is None or row.byte_start is None or row.byte_end is None:
        rule = f"evidence of refused records from offset {row.first} on does not state their bytes; audit the table"
        raise ContinuityError(f"{table.url}: {rule}")
    return SegmentRange(
        store=table.deployment.lake_store,
        key=row.segment,
        etag="",
        base_offset=row.first,
        start=row.byte_start,
        end=row.byte_end,
        from_offset=row.first,
        to_offset=row.next,
        uploaded_at=created,
        quarantined=row.file,
    )


def _partition(ledger: Ledger, key: tuple[int, int], tasks: list[ConversionTask]) -> PartitionPlan:
    state = ledger.by_partition[key]
    start = min(task.from_offset for task in tasks)
    return PartitionPlan.of(state, start, max(part.to_offset for task in tasks for part in task.ranges))
