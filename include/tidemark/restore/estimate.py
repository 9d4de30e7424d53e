"""A dry run: the amount that a restore would read, from the catalogue alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemark.formats.raw.gaps import Gap
from tidemark.remote.topics import RemotePartition
from tidemark.restore.request import RestoreRequest
from tidemark.restore.resume import asked_of


@dataclass(slots=True)
class PartitionEstimate:
    """Offsets ``[start, end)``, with as many records at most; ``size`` is in compressed bytes of segments.

    Ranges of packs count as segments.
    """

    partition: int
    start: int
    end: int
    segments: int = 0
    size: int = 0
    gaps: list[Gap] = field(default_factory=list)

    def answer(self) -> dict[str, Any]:
        """The estimate as JSON."""
        gaps = [{"from": gap.start, "to": gap.end, "reason": gap.reason} for gap in self.gaps]
        return {
            "partition": self.partition,
            "from": self.start,
            "to": self.end,
            "segments": self.segments,
            "bytes": self.size,
            "records_at_most": self.end - self.start,
            "gaps": gaps,
        }

    def lines(self) -> Iterator[str]:
        """The estimate in lines of text, for people."""
        size = f"{self.size / 1e6:,.1f} MB of {self.segments} segments"
        yield f"  {self.partition}: {self.start} to {self.end}, at most {self.end - self.start:,} records, about {size}"
        for gap in self.gaps:
            yield f"    gap {gap.start} to {gap.end}: {gap.reason}; it ends the restore, unless --on-gap skip"


def estimate(request: RestoreRequest, parts: Sequence[RemotePartition]) -> list[PartitionEstimate]:
    """The estimate for each of ``parts``. Raises errors of the restore."""
    return [_estimate(request, part) for part in parts]


def _estimate(request: RestoreRequest, part: RemotePartition) -> PartitionEstimate:
    start, end = asked_of(request, part)
    estimated = PartitionEstimate(part.partition, start, end)
    at = start
    while at < end:
        stretch = part.next_stretch(at, committed=request.committed)
        if stretch is None:
            break
        if isinstance(stretch, Gap):
            estimated.gaps.append(stretch)
            at = stretch.end
            continue
        segment = stretch.segment
        estimated.segments += 1
        share = (min(stretch.end, end) - stretch.start) / max(1, segment.end - segment.base)
        estimated.size += round(segment.size * min(1.0, share))
        at = stretch.end
    return estimated
