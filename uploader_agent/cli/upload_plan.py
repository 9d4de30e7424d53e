"""The segments, bytes and requests that ``upload-once`` would upload now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from uploader_agent.disk.partition_files import PartitionFiles
from uploader_agent.disk.segment_files import SegmentChanged, file_name
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.upload.eligibility import SealRun

_PUTS = 4
"""``.log``, ``.index``, ``.timeindex`` and the manifest; a ``.txnindex`` only where a transaction was aborted."""


class PlanLine(NamedTuple):
    """The plan for a partition, or for all of them. ``puts`` are the most requests of a run without failures."""

    partition: str
    segments: int
    tails: int
    bytes: int
    puts: int
    error: str | None


def plan_of(partitions: Iterable[LedPartition], quiet_before: float) -> Iterator[PlanLine]:
    """A line for each partition that has something to upload or an error, sorted by name.

    The partitions must have been surveyed. ``quiet_before`` is as in :meth:`LedPartition.plan`.
    """
    for partition in sorted(partitions, key=lambda partition: partition.tp):
        works = [*partition.work(quiet_before)] if partition.remote.surveyed else []
        if works or partition.error:
            yield _line(partition, works)


def total_of(lines: Iterable[PlanLine]) -> PlanLine:
    """A line with the sums of ``lines``."""
    lines = list(lines)
    failed = sum(line.error is not None for line in lines)
    return PlanLine(
        "total",
        sum(line.segments for line in lines),
        sum(line.tails for line in lines),
        sum(line.bytes for line in lines),
        sum(line.puts for line in lines),
        f"{failed} partitions failed" if failed else None,
    )


def _line(partition: LedPartition, works: list[SealRun]) -> PlanLine:
    size = puts = 0
    error = partition.error
    try:
        with PartitionFiles(partition.folder, partition.led.topic_id) as files:
            for work in works:
                size += _size(files, work)
                puts += _PUTS
    except (SegmentChanged, OSError) as changed:
        error = str(changed)
    tails = sum(work.is_tail for work in works)
    written = len(works) + (not partition.uploader.claimed)  # offset.wm, at most once for each run, and first of all
    return PlanLine(str(partition.tp), len(works), tails, size, puts + written, error)


def _size(files: PartitionFiles, work: SealRun) -> int:
    """The most bytes that the run can have: a run that begins within its local segment is shorter than that."""
    log = files.open(file_name(work.segment, "log"))
    return log.size if log else 0
