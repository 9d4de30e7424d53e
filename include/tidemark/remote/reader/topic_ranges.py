"""Ranges of several partitions of a topic, resolved against the remote tier and read side by side.

Each partition's records come in order; those of different partitions come as they are ready.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from tidemark.errors import ConfigError, OutOfRange
from tidemark.formats.keys import TopicPartition
from tidemark.intervals import Interval
from tidemark.kafka_log.indexes import MAX_OFFSET
from tidemark.offset_bounds import Edges, OffsetBounds
from tidemark.remote.topics import RemotePartition, RemoteTopics

if TYPE_CHECKING:
    from tidemark.remote.reader.blocks import Block
    from tidemark.remote.reader.tier import RemoteTier

_LOOK_AGAIN_SECONDS: Final = 1.0


class RemoteEdges(Edges):
    """The offsets of a stored partition for bounds: see :class:`tidemark.offset_bounds.Edges`."""

    def __init__(self, part: RemotePartition, *, committed: bool) -> None:
        self._part = part
        self._committed = committed

    @override
    def beginning(self) -> int:
        return self._part.start

    def end(self) -> int:
        """The end, see ``offset_bounds.Edges``. If a recorded gap follows, the gap's end, so that a reader meets it.

        This concerns a gap with nothing after it: offsets after a gap can be read, and count.
        """
        at = self._part.end(committed=self._committed)
        gap = self._part.gap_at(at)
        return at if gap is None else gap.end

    @override
    def at_time(self, timestamp_ms: int) -> int | None:
        record = self._part.offset_for_time(timestamp_ms, committed=self._committed, markers=False)
        return None if record is None else record.offset


def remote_partitions(topics: RemoteTopics, topic: str, chosen: Collection[int]) -> list[RemotePartition]:
    """The ``chosen`` partitions of a topic, all if none is. Raises ConfigError for a partition that nobody has seen."""
    known = topics.partitions_for_topic(topic)
    if not known:
        raise ConfigError(topic, [("", topics.unseen(topic))])
    missing = sorted(set(chosen) - known)
    if missing:
        rule = f"there is no partition {missing[0]}; the remote tier has {', '.join(map(str, sorted(known)))}"
        raise ConfigError(topic, [("--partition", rule)])
    partitions = [topics.partition(topic, number) for number in sorted(set(chosen) or known)]
    return [partition for partition in partitions if partition is not None]


def span_of(part: RemotePartition, first: OffsetBounds, last: OffsetBounds, edges: RemoteEdges) -> Interval:
    """The offsets of a partition between two bounds; an empty range if the last lies below the first.

    Raises:
        OutOfRange: a range that is not empty begins below the first stored offset; nothing is left out silently.
    """
    start = first.of(part.partition).resolve(edges)
    end = max(start, last.of(part.partition).resolve(edges))
    if start < edges.beginning() and start < end:
        raise OutOfRange(part.topic, part.partition, start, edges.beginning(), edges.end())
    return Interval(start, end)


def read_spans(
    tier: RemoteTier, topic: str, spans: Mapping[int, Interval], ready: threading.Event
) -> Iterator[tuple[int, Block]]:
    """(partition, block) of all ``spans`` by partition, each block cut to its span; a span up to MAX_OFFSET never ends.

    ``ready`` is set by the tier's ``on_ready``. Raises the errors of reading, see :meth:`RemoteTier.take`, and
    OutOfRange if a span's end is not there (any more).
    """
    left = {TopicPartition(topic, number): span for number, span in spans.items() if span.start < span.end}
    for at, span in left.items():
        tier.read(at, span.start)
    while left:
        ready.clear()
        idle = True
        for at, span in list(left.items()):
            block = tier.take(at)
            if block is None:
                _check_end(tier, at, span)
                continue
            idle = False
            if block.next_offset >= span.end:
                del left[at]
                tier.stop(at)
                block = block.before(span.end)
            yield at.partition, block
        if idle:
            ready.wait(_LOOK_AGAIN_SECONDS)


def _check_end(tier: RemoteTier, at: TopicPartition, span: Interval) -> None:
    """Raise OutOfRange if a span ended before its end: most likely an election cut off the log."""
    if span.end == MAX_OFFSET or not tier.at_end(at):
        return
    part = tier.partition(*at)
    if part is not None:
        raise OutOfRange(*at, span.end - 1, part.start, RemoteEdges(part, committed=True).end())
