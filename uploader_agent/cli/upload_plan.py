"""What an agent would upload now: segments, bytes and requests, without doing it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from uploader_agent.disk.segment_files import PartitionFiles, SegmentChanged, file_name
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.upload.eligibility import Work

_PER_SEGMENT_GETS = 1
"""``offset.wm`` is read before each manifest is written: the fence."""


class PlanLine(NamedTuple):
    """One partition, or all of them.

    Requests are those of a run without failures, at most: segments that finish together share a write of ``offset.wm``.
    """

    partition: str
    segments: int
    provisional: int
    bytes: int
    puts: int
    gets: int
    error: str | None


def plan_of(partitions: Iterable[LedPartition], quiet_before: float) -> Iterator[PlanLine]:
    """A line for each partition that has something to upload or an error, by name; they must have been surveyed.

    ``quiet_before`` is as in :meth:`LedPartition.plan`.
    """
    for partition in sorted(partitions, key=lambda one: one.at):
        works = [job for job in partition.plan(quiet_before) if isinstance(job, Work)] if partition.surveyed else []
        if works or partition.error:
            yield _line(partition, works)


def total_of(lines: Iterable[PlanLine]) -> PlanLine:
    """The sum."""
    lines = list(lines)
    failed = sum(line.error is not None for line in lines)
    return PlanLine(
        "total",
        sum(line.segments for line in lines),
        sum(line.provisional for line in lines),
        sum(line.bytes for line in lines),
        sum(line.puts for line in lines),
        sum(line.gets for line in lines),
        f"{failed} partitions failed" if failed else None,
    )


def _line(partition: LedPartition, works: list[Work]) -> PlanLine:
    size = puts = 0
    error = partition.error
    try:
        with PartitionFiles(partition.folder, partition.led.topic_id) as files:
            for work in works:
                names = list(_objects(files, work))
                size += sum(names_size for _, names_size in names)
                puts += len(names) + 1  # the manifest
    except SegmentChanged as changed:
        error = str(changed)
    provisional = sum(work.provisional for work in works)
    written = len(works)  # offset.wm, at most once for each segment
    gets = _PER_SEGMENT_GETS * len(works)
    return PlanLine(str(partition.at), len(works), provisional, size, puts + written, gets, error)


def _objects(files: PartitionFiles, work: Work) -> Iterator[tuple[str, int]]:
    """(name, bytes) of the objects of a segment but its manifest; of a provisional one at most as many bytes."""
    yield file_name(work.base_offset, "log"), work.size
    for name in (file_name(work.base_offset, extension) for extension in ("index", "timeindex", "txnindex")):
        file = files.open(name)
        if file is not None and (file.size or not name.endswith("txnindex")):
            yield name, file.size
    snapshot = None if work.provisional else files.open(file_name(work.end, "snapshot"))
    if snapshot is not None:
        yield snapshot.name, snapshot.size
