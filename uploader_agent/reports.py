"""Where each partition stands, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from uploader_agent.partition import LedPartition


class Line(NamedTuple):
    """One partition. ``pending`` counts rotated segments that are not in the store; offsets are next offsets."""

    partition: str
    leader_epoch: int
    next_offset: int | None
    uploaded_end: int
    high_watermark: int | None
    pending: int
    pending_bytes: int
    gaps: list[list[int]]
    error: str | None


def of(partitions: Iterable[LedPartition]) -> list[Line]:
    """A line for each partition, by name."""
    return [_line(partition) for partition in sorted(partitions, key=lambda one: one.at)]


def table(lines: Iterable[Line]) -> str:
    """Columns for a terminal."""
    rows = [["PARTITION", "EPOCH", "NEXT", "UPLOADED", "HIGH WM", "PENDING", "BYTES", "GAPS", "ERROR"]]
    for line in lines:
        gaps = " ".join(f"{start}-{end}" for start, end in line.gaps) or None
        rows.append(["-" if value is None else str(value) for value in (*line[:7], gaps, line.error)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    )


def _line(partition: LedPartition) -> Line:
    watermark, pending = partition.watermark, partition.pending()
    return Line(
        partition=str(partition.at),
        leader_epoch=partition.led.leader_epoch,
        next_offset=watermark.next_offset if watermark else None,
        uploaded_end=partition.uploaded_end,
        high_watermark=partition.offsets.high_watermark if partition.offsets else None,
        pending=len(pending),
        pending_bytes=sum(segment.size for segment in pending),
        gaps=[[gap.start, gap.end] for gap in partition.gaps],
        error=partition.error,
    )
