"""The resume point of each partition of a restore: its progress, or the start if the target has no other records."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tidemark.errors import ConfigError, ForeignRecords, OutOfRange, RestoreError
from tidemark.intervals import Interval
from tidemark.remote.reader.topic_ranges import OffsetSpan, RemoteEdges, span_of
from tidemark.remote.topics import RemotePartition
from tidemark.restore.overlap import Overlap
from tidemark.restore.producer import FOREIGN
from tidemark.restore.progress import RestoreProgress
from tidemark.restore.request import RestoreRequest
from tidemark.restore.target import Target

STABLE_SECONDS: Final = 3.0
"""Time for which a target's end must stand still before the records of a killed process count as arrived."""


@dataclass(slots=True)
class ResumePoint:
    """One partition: its committed progress, the target's next offset, and records that the target may hold already."""

    partition: int
    progress: RestoreProgress
    expected: int
    overlap: Overlap | None = None
    resumed: bool = False
    next: int = field(init=False)
    records: int = field(init=False)
    total: int = field(init=False)
    epoch: int = field(init=False)

    def __post_init__(self) -> None:
        known = self.progress
        self.next, self.records, self.total, self.epoch = known.next, known.records, known.total, known.epoch

    @property
    def compared(self) -> int | None:
        """The target's offset up to which its records were found in the history; None if the search is over."""
        return None if self.overlap is None or self.overlap.done else self.overlap.next

    @property
    def span(self) -> OffsetSpan:
        """The offsets that are left to be read."""
        return OffsetSpan(self.partition, self.progress.next, self.progress.end)

    def reached(self, target_next: int) -> RestoreProgress:
        """The progress if all records taken so far are acknowledged and end at ``target_next``."""
        return replace(
            self.progress,
            next=self.next,
            target_next=target_next,
            records=self.records,
            total=self.total,
            epoch=self.epoch,
        )


def prepare(
    request: RestoreRequest, parts: Sequence[RemotePartition], everything: Collection[int], target: Target
) -> list[str]:
    """Create the target if requested, and check that it fits; returns in words the properties that will be lost.

    ``everything`` are all partitions of the source. Raises ConfigError if the target does not exist or does not fit.
    """
    if request.create and not target.partitions():
        target.create(max(everything) + 1, request.config)
    partitions = target.partitions()
    if not partitions:
        raise ConfigError(target.topic, [("", "does not exist in the target's cluster: create it, or say --create")])
    needed = max(part.partition for part in parts) + 1
    if partitions < needed:
        rule = f"has {partitions} partitions, and {needed} are needed, because each record keeps its partition"
        raise ConfigError(target.topic, [("partitions", rule)])
    return target.check(transactional=request.transactional)


def asked_of(request: RestoreRequest, part: RemotePartition) -> Interval:
    """The offsets ``[start, end)`` of a request in a partition, as of now. Raises OutOfRange if some are missing."""
    edges = RemoteEdges(part, committed=request.committed)
    start, end = span_of(part, request.first, request.last, edges)[1:]
    assert end is not None
    readable = edges.end()
    if end > max(readable, start):
        raise OutOfRange(part.topic, part.partition, end - 1, part.start, readable)
    return Interval(start, end)


def check_branch(part: RemotePartition, next_offset: int, epoch: int) -> None:
    """Raise :class:`RestoreError` if an election cut off records below ``next_offset``, read up to leader ``epoch``."""
    cut = part.diverged(next_offset, epoch) if epoch >= 0 else None
    if cut is not None:
        raise RestoreError(
            f"{part.topic}-{part.partition}: an unclean election gave the source other records from offset {cut} on, "
            f"and those up to {next_offset} are restored: delete the target and its group, and start again"
        )


def begin(request: RestoreRequest, parts: Sequence[RemotePartition], target: Target) -> list[ResumePoint]:
    """The resume points of ``parts``; commits the progress of new partitions, before any of their records.

    Raises:
        RestoreError: another restore into the target is not finished, or the source's topic was created again.
        ForeignRecords: the target holds records that no restore of this source wrote.
        OutOfRange: the range, or the rest of it, is not in the remote tier.
    """
    numbers = [part.partition for part in parts]
    known = target.progress(numbers)
    if not request.transactional and any(not progress.done for progress in known.values()):
        _await_stable_edges(target, numbers)
    edges = target.edges(numbers)
    lines = [_line(request, part, target, known.get(part.partition), edges[part.partition]) for part in parts]
    new = {line.partition: line.progress for line in lines if not line.resumed}
    if new:
        target.save(new)
    return lines


def _line(
    request: RestoreRequest,
    part: RemotePartition,
    target: Target,
    known: RestoreProgress | None,
    edges: tuple[int, int],
) -> ResumePoint:
    number, (_, end) = part.partition, edges
    same = known is not None and known.asked == request.asked(number)
    if known is not None and not same and not known.done:
        raise RestoreError(
            f"{target.topic}-{number}: another restore from {request.topic} is at {known.next} of {known.end}: "
            f"continue with its own options, including --transactional, or delete the group {target.group} and the "
            "target, and start again"
        )
    if known is None or not same:
        return _new(request, part, target, known, edges)
    if part.incarnation != known.incarnation:
        raise RestoreError(
            f"{request.topic}-{number} was created again since the restore began: its offsets have other records now"
        )
    if end < known.target_next:
        observation = (
            f"it ends, but {known.records} records were restored up to {known.target_next}: it was created again, or "
            f"lost records; delete the group {target.group}, and restore into an empty topic"
        )
        raise ForeignRecords(target.topic, number, end, observation)
    line = ResumePoint(number, known, end, resumed=True)
    if known.done:
        return line
    if known.next < part.start:
        raise OutOfRange(part.topic, number, known.next, part.start, RemoteEdges(part, committed=True).end())
    check_branch(part, known.next, known.epoch)
    if request.transactional:
        _refuse_foreign(request, target, number, known.target_next, end)
    elif end > known.target_next:
        held = target.read(number, known.target_next, end, committed=False)
        line.overlap = Overlap(target.topic, number, known.target_next, end, held)
    return line


def _new(
    request: RestoreRequest,
    part: RemotePartition,
    target: Target,
    known: RestoreProgress | None,
    edges: tuple[int, int],
) -> ResumePoint:
    number, (start, end) = part.partition, edges
    if not request.append:
        _refuse_foreign(request, target, number, max(start, known.target_next if known else 0), end)
    first, last = asked_of(request, part)
    progress = RestoreProgress(
        asked=request.asked(number),
        incarnation=part.incarnation,
        first=first,
        end=last,
        next=first,
        target_first=end,
        target_next=end,
    )
    return ResumePoint(number, progress, end)


def _refuse_foreign(request: RestoreRequest, target: Target, number: int, start: int, end: int) -> None:
    """Raise :class:`ForeignRecords` if ``[start, end)`` of the target holds a record other than markers and aborts."""
    if request.append:
        return
    for held in target.read(number, start, end, committed=True) if start < end else ():
        seen = f"there are records that this restore did not write. {FOREIGN}; or use --append to restore behind them"
        raise ForeignRecords(target.topic, number, held[0].offset, seen)


def _await_stable_edges(target: Target, numbers: Sequence[int]) -> None:
    """Wait until the records that a killed process had still in flight have arrived, or will not arrive."""
    seen: Mapping[int, tuple[int, int]] = {}
    while (now := target.edges(numbers)) != seen:
        seen = now
        time.sleep(STABLE_SECONDS)
