"""The proof: what the target holds is read back by another client and compared with what was restored."""

from __future__ import annotations

from dataclasses import replace

from tidemark.errors import NotEqual
from tidemark.formats.hashsum import combine
from tidemark.restore.records import hash_sum, rows_of
from tidemark.restore.report import PartitionReport, RestoreReport
from tidemark.restore.target import Target


def verified(report: RestoreReport, target: Target) -> RestoreReport:
    """The report, with each partition read back. Raises :class:`NotEqual` at the first that differs."""
    return replace(report, partitions=tuple(_verified(one, report, target) for one in report.partitions))


def _verified(one: PartitionReport, report: RestoreReport, target: Target) -> PartitionReport:
    at = one.progress
    records = total = 0
    for held in target.read(one.partition, at.target_first, at.target_next, committed=report.transactional):
        rows = rows_of([found.record for found in held])
        total = combine(total, hash_sum(rows, one.partition, records))
        records += len(held)
    if (records, total) != (at.records, at.total):
        place = f"{target.topic}-{one.partition}: offsets {at.target_first} to {at.target_next}"
        raise NotEqual(
            f"{place} hold {records} records with the sum {total:032x}, and {at.records} with the sum {at.total:032x} "
            "were restored: others wrote to it, or retention or compaction removed some"
        )
    return replace(one, verified=True)
