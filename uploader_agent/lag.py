"""How far the store is behind the broker, over all led partitions, in metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable

from uploader_agent.metrics import Metrics
from uploader_agent.partition import LedPartition


def measure(partitions: Iterable[LedPartition], metrics: Metrics) -> None:
    """Set the lag and gap metrics. Only partitions with something to do are looked at closely."""
    now = time.time()
    offsets = segments = size = gaps = gap_offsets = 0
    oldest = moved = now
    for partition in partitions:
        if partition.offsets is not None:
            offsets += max(0, partition.offsets.high_watermark - partition.next_offset)
        if not partition.restless:
            continue
        gaps += len(partition.gaps)
        gap_offsets += sum(gap.end - gap.start for gap in partition.gaps)
        pending = partition.pending()
        segments += len(pending)
        size += sum(segment.size for segment in pending)
        if pending:
            oldest = min(oldest, pending[0].modified)
            watermark = partition.watermark
            moved = min(moved, watermark.written_at.timestamp() if watermark else pending[0].modified)
    metrics.lag_offsets.set(offsets)
    metrics.lag_segments.set(segments)
    metrics.lag_bytes.set(size)
    metrics.lag_seconds.set(now - oldest)
    metrics.watermark_age.set(now - moved)
    metrics.gaps.set(gaps)
    metrics.gap_offsets.set(gap_offsets)
