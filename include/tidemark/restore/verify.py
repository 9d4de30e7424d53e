"""The proof of a restore: the target is read back by another client and compared with the restored records."""

from __future__ import annotations

from dataclasses import replace

from tidemark.errors import NotEqual
from tidemark.formats.raw.hashsum import combine
from tidemark.restore.records import hash_sum, rows_of
from tidemark.restore.report import PartitionReport, RestoreReport
from tidemark.restore.target import Target


def verified(report: RestoreReport, target: Target) -> RestoreReport:
    """The report, with each partition read back. Raises :class:`NotEqual` at the first difference."""
    return replace(report, partitions=tuple(_verified(partition, report, target) for partition in report.partitions))


def _verified(partition: PartitionReport, report: RestoreReport, target: Target) -> PartitionReport:
    progress = partition.progress
    records = total = 0
    start, end = progress.target_first, progress.target_next
    for held in target.read(partition.partition, start, end, committed=report.transactional):
        rows = rows_of([record.record for record in held])
        total = combine(total, hash_sum(rows, partition.partition, records))
        records += len(held)
    if (records, total) != (progress.records, progress.total):
        place = f"{target.topic}-{partition.partition}: offsets {start} to {end}"
        raise NotEqual(
            f"{place} hold {records} records with the sum {total:032x}, and {progress.records} with the sum "
            f"{progress.total:032x} were restored: others wrote to it, or retention or compaction removed some"
        )
    return replace(partition, verified=True)
