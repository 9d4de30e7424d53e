"""What a watermark says, for readers: from where and how far, which gaps, which branches were left. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemark.formats.gaps import Gap
from tidemark.formats.watermark import Truncation, Watermark
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.remote.catalog.aborted_transactions import Verdicts

_FOR_EVER = 1 << 63


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition at one moment. ``gaps`` are those that nobody acknowledged, ``passed`` those that somebody did.

    ``lineage`` tells which leader epoch wrote which offsets, up to ``end``, the offset after the last that can be read.
    Up to ``stable`` all transactions are decided.
    """

    watermark: Watermark | None = None
    lineage: Lineage = field(default_factory=Lineage)
    line_1: int = 0
    etag: str = ""
    start: int = 0
    gaps: tuple[Gap, ...] = ()
    passed: Intervals = field(default_factory=Intervals)
    end: int = 0
    stable: int = 0
    branch: int = 0
    verdicts: Verdicts = field(default_factory=Verdicts, compare=False)

    @property
    def missing(self) -> Intervals:
        """All that the watermark says is missing, acknowledged or not."""
        return offsets_of(self.gaps) | self.passed

    def gap_at(self, offset: int) -> Gap | None:
        """The unacknowledged gap that ``offset`` lies in."""
        return next((gap for gap in self.gaps if gap.start <= offset < gap.end), None)

    def clear_until(self, offset: int) -> int:
        """Where, above ``offset``, the next missing offsets begin; far away if none do."""
        starts = [part.start for part in self.missing if part.start > offset]
        return min(starts, default=_FOR_EVER)

    def diverged(self, offset: int, leader_epoch: int) -> int | None:
        """See :meth:`tidemark.remote.catalog.partition.RemotePartition.diverged`."""
        if self.watermark is None or leader_epoch < 0:
            return None
        ended = self.lineage.end_offset(leader_epoch, _FOR_EVER)
        places = [ended[1]] if ended is not None else []
        places += [cut.at for cut in self.watermark.truncations if self._cut_off(cut, offset, leader_epoch)]
        return min((at for at in places if at < offset), default=None)

    def _cut_off(self, cut: Truncation, offset: int, leader_epoch: int) -> bool:
        """Whether a reader that saw ``leader_epoch`` below ``offset`` was on the branch that ended at ``cut``."""
        assert self.watermark is not None
        if not cut.at < offset or leader_epoch > cut.old_epoch:
            return False
        if offset <= self.end:
            return self.lineage.epoch_at(offset - 1) != leader_epoch
        return cut.at >= self.end  # nothing of the new branch is there, so its lineage is not either


def left_branch(before: PartitionView, lineage: Lineage, end: int) -> bool:
    """Whether offsets that ``before`` had are taken back, or of another epoch now."""
    if before.watermark is None:
        return False
    return end < before.end or before.lineage.divergence(lineage, before.end) is not None


def extended(watermark: Watermark, above: Lineage) -> Lineage:
    """The lineage of a watermark, which ends at its next offset, and what ``above`` knows of the offsets beyond."""
    known = watermark.lineage
    last = known[-1] if known else (-1, -1)
    beyond = (one for one in above.entries if one[0] > last[0] and one[1] >= max(watermark.next_offset, last[1] + 1))
    return Lineage((*known, *beyond))


def readable_end(watermark: Watermark, passed: Intervals) -> int:
    """The offset after the last that can be read, above recorded gaps as well, but not above an unrecorded hole.

    Beyond such a hole an upload is under way, and what is there is reached once the hole is filled or recorded.
    """
    start = watermark.start_offset
    present = Intervals([(start, max(start, watermark.next_offset)), *watermark.ranges_above])
    missing = offsets_of((*watermark.gaps, *watermark.acknowledged_gaps))
    limit = (present | missing).contiguous_from(start)
    readable = present.clip(start, max(start, limit)) - passed
    return readable.parts[-1].end if readable else start


def split(watermark: Watermark, acknowledged: Intervals) -> tuple[tuple[Gap, ...], Intervals]:
    """(the gaps that still hold readers up, the offsets that a person gave up).

    An acknowledgement may be newer than the watermark. Where it says more than is missing, what is there is read.
    """
    passed = offsets_of(watermark.acknowledged_gaps) | (offsets_of(watermark.gaps) & acknowledged)
    holding: list[Gap] = []
    for gap in watermark.gaps:
        holding += [gap.model_copy(update=part._asdict()) for part in offsets_of([gap]) - passed]
    return tuple(holding), passed


def offsets_of(gaps: Iterable[Gap]) -> Intervals:
    """The offsets of ``gaps``."""
    return Intervals((gap.start, gap.end) for gap in gaps)
