"""The results of a restore, for people and programs, and their proof.

The proof is that another client reads the target back, and the records are compared with the restored ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tidemark.errors import NotEqual
from tidemark.formats.raw.hashsum import combine
from tidemark.restore.progress import RestoreProgress
from tidemark.restore.records import hash_sum, rows_of
from tidemark.restore.target import Target


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of one run: ``sent`` records, of ``bytes`` bytes read; ``warnings`` name properties at risk.

    ``progress`` is by partition; ``resumed`` are the partitions that an earlier run had begun. ``verified`` is true if
    the target was read back, else None.
    """

    source: str
    target: str
    group: str
    transactional: bool
    seconds: float
    sent: int
    bytes: int
    warnings: tuple[str, ...]
    progress: Mapping[int, RestoreProgress]
    resumed: frozenset[int]
    verified: bool | None = None

    def answer(self) -> dict[str, Any]:
        """The report as JSON; ranges are half-open."""
        return {
            "source": self.source,
            "target": self.target,
            "group": self.group,
            "transactional": self.transactional,
            "seconds": round(self.seconds, 3),
            "sent": self.sent,
            "bytes": self.bytes,
            "warnings": list(self.warnings),
            "partitions": [
                {
                    "partition": partition,
                    "resumed": partition in self.resumed,
                    "source": {"from": progress.first, "to": progress.end},
                    "target": {"from": progress.target_first, "to": progress.target_next},
                    "records": progress.records,
                    "offsets_without_record": progress.without_record,
                    "sum": f"{progress.total:032x}",
                    "verified": self.verified,
                }
                for partition, progress in self.progress.items()
            ],
        }

    def lines(self) -> Iterator[str]:
        """The report in lines of text, for people."""
        total = sum(progress.records for progress in self.progress.values())
        speed = f"{self.sent:,} of them sent in {self.seconds:.1f} s by this run"
        yield f"{self.source} → {self.target}: {total:,} records restored, {speed}"
        verified = ", read back and equal" if self.verified else ""
        for partition, progress in self.progress.items():
            target = f"{progress.target_first} to {progress.target_next}"
            yield (
                f"  {partition}: {progress.first} to {progress.end} → {target}: {progress.records:,} "
                f"records, {progress.without_record:,} offsets without one, sum {progress.total:032x}{verified}"
            )


def verified(report: RestoreReport, target: Target) -> RestoreReport:
    """The report, with each partition read back. Raises :class:`NotEqual` at the first difference."""
    for partition, progress in report.progress.items():
        records = total = 0
        start, end = progress.target_first, progress.target_next
        for held in target.read(partition, start, end, committed=report.transactional):
            rows = rows_of([record for _, record in held])
            total = combine(total, hash_sum(rows, partition, records))
            records += len(held)
        if (records, total) != (progress.records, progress.total):
            place = f"{target.topic}-{partition}: offsets {start} to {end}"
            raise NotEqual(
                f"{place} hold {records} records with the sum {total:032x}, and {progress.records} with the sum "
                f"{progress.total:032x} were restored: others wrote to it, or retention or compaction removed some"
            )
    return replace(report, verified=True)
