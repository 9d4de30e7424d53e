"""The metrics of the store's lag behind the broker, over all led partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from uploader_agent.observability.metrics import Metrics
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.partitions.waiting import Kind, Wait, oldest

_STORABLE: tuple[Kind, ...] = ("rotated", "tail")


def measure(partitions: Iterable[LedPartition], waits: Collection[Wait], metrics: Metrics, now: float) -> None:
    """Set the lag and gap metrics as of ``now``, in seconds since 1970.

    Only partitions that have a job or wait are measured in detail.
    """
    offsets = segments = size = gaps = gap_offsets = tiered = 0
    rotated = moved = now
    for partition in partitions:
        if partition.observation is not None:
            end = partition.observation.log_end or partition.observation.offsets.high_watermark
            offsets += max(0, end - max(partition.remote.next_offset, partition.packed.end))
        if not partition.restless:
            continue
        held_up = [gap for gap in partition.remote.gaps if not gap.in_remote_tier]
        gaps += len(held_up)
        gap_offsets += sum(gap.end - gap.start for gap in held_up)
        tiered += sum(gap.end - gap.start for gap in partition.remote.gaps if gap.in_remote_tier)
        pending = partition.pending()
        segments += len(pending)
        size += sum(segment.size for segment in pending)
        if pending:
            rotated = min(rotated, pending[0].modified)
            watermark = partition.remote.watermark
            moved = min(moved, watermark.written_at.timestamp() if watermark else pending[0].modified)
    metrics.lag_offsets.set(offsets)
    metrics.lag_segments.set(segments)
    metrics.lag_bytes.set(size)
    metrics.lag_seconds.set(now - rotated)
    metrics.watermark_age.set(now - moved)
    metrics.gaps.set(gaps)
    metrics.gap_offsets.set(gap_offsets)
    metrics.remote_tier_offsets.set(tiered)
    for kind in _STORABLE:
        seconds, overdue = oldest(waits, kind)
        metrics.unstored_age.labels(kind).set(seconds)
        metrics.overdue.labels(kind).set(overdue)
