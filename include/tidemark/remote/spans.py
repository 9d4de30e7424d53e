"""Ranges of several partitions of a topic, resolved against the remote tier and read side by side.

Each partition's records come in order; those of different partitions come as they are ready.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from tidemark.bounds import Bounds
from tidemark.errors import ConfigError, OutOfRange
from tidemark.layout import TopicPartition
from tidemark.remote.catalog import RemotePartition, RemoteTopics

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.remote.blocks import Block
    from tidemark.remote.tier import RemoteTier

_LOOK_AGAIN_SECONDS: Final = 1.0


class Span(NamedTuple):
    """Offsets ``[start, end)`` of a partition; without an ``end`` it goes on for ever."""

    partition: int
    start: int
    end: int | None


class RemoteEdges:
    """What bounds are resolved against: see :class:`tidemark.bounds.Edges`."""

    def __init__(self, part: RemotePartition, *, committed: bool) -> None:
        self._part = part
        self._committed = committed

    def beginning(self) -> int:
        """See :class:`tidemark.bounds.Edges`."""
        return self._part.start

    def end(self) -> int:
        """See :class:`tidemark.bounds.Edges`."""
        return self._part.end(committed=self._committed)

    def at_time(self, timestamp_ms: int) -> int | None:
        """See :class:`tidemark.bounds.Edges`."""
        found = self._part.offset_for_time(timestamp_ms, committed=self._committed)
        return None if found is None else found.offset


def remote_partitions(topics: RemoteTopics, topic: str, chosen: Collection[int]) -> list[RemotePartition]:
    """The partitions of a topic that are asked for, all if none is. Raises ConfigError for one that nobody has seen."""
    known = topics.partitions_for_topic(topic)
    if not known:
        raise ConfigError(topic, [("", f"the remote tier of cluster {topics.storage.cluster} has no such topic")])
    missing = sorted(set(chosen) - known)
    if missing:
        rule = f"the remote tier has partitions {', '.join(map(str, sorted(known)))}, and not {missing[0]}"
        raise ConfigError(topic, [("--partition", rule)])
    found = [topics.partition(topic, one) for one in sorted(set(chosen) or known)]
    return [one for one in found if one is not None]


def span_of(part: RemotePartition, first: Bounds, last: Bounds, *, committed: bool) -> Span:
    """The offsets that two bounds mean in a partition; an empty range where the last lies below the first.

    Raises:
        OutOfRange: a range that is not empty begins below what is there; nothing is left out silently.
    """
    edges = RemoteEdges(part, committed=committed)
    start = first.of(part.partition).resolve(edges)
    end = max(start, last.of(part.partition).resolve(edges))
    if start < edges.beginning() and start < end:
        raise OutOfRange(part.topic, part.partition, start, edges.beginning(), edges.end())
    return Span(part.partition, start, end)


def read_spans(
    tier: RemoteTier, topic: str, spans: Collection[Span], ready: threading.Event
) -> Iterator[tuple[int, Block]]:
    """(partition, block) of all ``spans``, each block cut to its span; ``ready`` is set by the tier's ``on_ready``.

    A span beyond what is there is waited for. Raises what reading met, see :meth:`RemoteTier.take`.
    """
    left = {TopicPartition(topic, one.partition): one for one in spans if one.end is None or one.start < one.end}
    for at, span in left.items():
        tier.read(at, span.start)
    while left:
        ready.clear()
        idle = True
        for at, span in list(left.items()):
            block = tier.take(at)
            if block is None:
                continue
            idle = False
            if span.end is not None and block.next_offset >= span.end:
                del left[at]
                tier.stop(at)
                block = block._replace(rows=until(block.rows, span.end), next_offset=span.end)
            yield at.partition, block
        if idle:
            ready.wait(_LOOK_AGAIN_SECONDS)


def until(rows: pa.RecordBatch, end: int | None) -> pa.RecordBatch:
    """The rows, which are sorted by offset, below ``end``; all of them without one."""
    if end is None:
        return rows
    return rows.slice(0, int(rows.column("kafka_offset").to_numpy().searchsorted(end)))
