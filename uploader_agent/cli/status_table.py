"""The state of each partition, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemark.formats.raw.gaps import REMOTE_TIER, Gap
from tidemark.terminal import columns
from uploader_agent.partitions.led_partition import LedPartition


class GapLine(NamedTuple):
    """The missing offsets ``[start, end)``, the reason, and the time at which the gap was detected."""

    start: int
    end: int
    reason: str
    detected_at: str

    @classmethod
    def of(cls, gap: Gap) -> GapLine:
        """``gap`` in plain values."""
        return cls(gap.start, gap.end, gap.reason, gap.detected_at.isoformat())


class StatusRow(NamedTuple):
    """The state of a partition. ``pending`` counts rotated segments that are not in the store.

    Offsets are next offsets; ``uploaded_end`` is the end of segments and packs. ``remote_tier`` are the offsets below
    the partition's first one in the store that only Kafka's own remote tier has.
    """

    partition: str
    leader_epoch: int
    next_offset: int | None
    uploaded_end: int
    high_watermark: int | None
    pending: int
    pending_bytes: int
    gaps: tuple[GapLine, ...]
    error: str | None
    remote_tier: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> dict[str, object]:
        """The row as plain values, for ``json.dumps``."""
        return {**self._asdict(), "gaps": [gap._asdict() for gap in self.gaps]}


class LedLine(NamedTuple):
    """A partition that the broker leads, and its directory."""

    partition: str
    leader_epoch: int
    topic_id: str | None
    high_watermark: int | None
    directory: str


def of(partitions: Iterable[LedPartition]) -> list[StatusRow]:
    """A row for each partition, sorted by name."""
    return [_line(partition) for partition in sorted(partitions, key=lambda partition: partition.tp)]


def led(partitions: Iterable[LedPartition]) -> list[LedLine]:
    """A line for each partition that the broker leads, sorted by name."""
    return [
        LedLine(
            str(partition.tp),
            partition.led.leader_epoch,
            partition.led.topic_id,
            partition.offsets.high_watermark if partition.offsets else None,
            str(partition.folder),
        )
        for partition in sorted(partitions, key=lambda partition: partition.tp)
    ]


def table(lines: Iterable[StatusRow]) -> str:
    """Columns for a terminal, and a line for each gap below them."""
    lines = list(lines)
    heads = ["PARTITION", "EPOCH", "NEXT", "UPLOADED", "HIGH WM", "PENDING", "BYTES", "GAPS", "ERROR"]
    rows = [(*line[:7], len(line.gaps) or None, line.error) for line in lines]
    shown = [columns([heads, *rows])]
    for line in lines:
        shown += [
            f"{line.partition}: {start} to {end}: {REMOTE_TIER}, below its first offset in the store"
            for start, end in line.remote_tier
        ]
        shown += [f"{line.partition}: gap {gap.start} to {gap.end}: {_in_words(gap)}" for gap in line.gaps]
    return "\n".join(shown)


def _in_words(gap: GapLine) -> str:
    return f"{gap.reason}, since {gap.detected_at}"


def _line(partition: LedPartition) -> StatusRow:
    watermark, pending = partition.remote.watermark, partition.pending()
    return StatusRow(
        partition=str(partition.tp),
        leader_epoch=partition.led.leader_epoch,
        next_offset=watermark.next_offset if watermark else None,
        uploaded_end=partition.stored_end,
        high_watermark=partition.offsets.high_watermark if partition.offsets else None,
        pending=len(pending),
        pending_bytes=sum(segment.size for segment in pending),
        gaps=tuple(map(GapLine.of, partition.remote.gaps)),
        remote_tier=partition.remote.remote_tier,
        error=partition.error,
    )
