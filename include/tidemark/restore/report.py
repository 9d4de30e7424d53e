"""What a restore did, for people and programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidemark.restore.progress import RestoreProgress


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition; ``verified`` is None unless what the target holds was read back, and then true."""

    partition: int
    progress: RestoreProgress
    resumed: bool = False
    verified: bool | None = None

    @property
    def without_record(self) -> int:
        """Offsets of the range that had no record: transaction markers, aborted records, what compaction removed."""
        return self.progress.next - self.progress.first - self.progress.records

    def answer(self) -> dict[str, Any]:
        """As JSON has it; ranges are half-open."""
        at = self.progress
        return {
            "partition": self.partition,
            "resumed": self.resumed,
            "source": {"from": at.first, "to": at.end},
            "target": {"from": at.target_first, "to": at.target_next},
            "records": at.records,
            "offsets_without_record": self.without_record,
            "sum": f"{at.total:032x}",
            "verified": self.verified,
        }


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """One run: ``sent`` records, of ``bytes`` bytes read; ``warnings`` tell what may not be kept."""

    source: str
    target: str
    group: str
    transactional: bool
    seconds: float
    sent: int
    bytes: int
    warnings: tuple[str, ...]
    partitions: tuple[PartitionReport, ...]

    def answer(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "source": self.source,
            "target": self.target,
            "group": self.group,
            "transactional": self.transactional,
            "seconds": round(self.seconds, 3),
            "sent": self.sent,
            "bytes": self.bytes,
            "warnings": list(self.warnings),
            "partitions": [one.answer() for one in self.partitions],
        }

    def lines(self) -> Iterator[str]:
        """The report in lines of text, for people."""
        total = sum(one.progress.records for one in self.partitions)
        speed = f"{self.sent:,} of them sent in {self.seconds:.1f} s by this run"
        yield f"{self.source} → {self.target}: {total:,} records restored, {speed}"
        for one in self.partitions:
            at = one.progress
            verified = ", read back and equal" if one.verified else ""
            yield (
                f"  {one.partition}: {at.first} to {at.end} → {at.target_first} to {at.target_next}: {at.records:,} "
                f"records, {one.without_record:,} offsets without one, sum {at.total:032x}{verified}"
            )
