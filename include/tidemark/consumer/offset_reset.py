"""Initial positions and offset queries, over all tiers of the mode.

``EARLIEST`` is the lower of both starts, ``LATEST`` Kafka's end (of remote storage alone, the remote end), and the
first record at a time the lower of both tiers' answers. Answers of the brokers are kafka-python's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kafka.protocol.consumer import OffsetSpec
from kafka.structs import OffsetAndTimestamp

from tidemark.concurrency import in_parallel
from tidemark.consumer.modes import Mode
from tidemark.formats.keys import TopicPartition
from tidemark.remote.topics import RemotePartition

Times = Mapping[TopicPartition, int]
Found = dict[TopicPartition, Any]
"""kafka-python's ``OffsetAndTimestamp`` by partition; a partition without an answer is left out."""


class Queries(NamedTuple):
    """Offset queries. ``kafka`` takes times or :class:`OffsetSpec`, ``remote`` reads a catalogue. Both wait."""

    mode: Mode
    committed: bool
    kafka: Callable[[Times, float | None], Found]
    remote: Callable[[TopicPartition], RemotePartition | None]

    def by_time(self, times: Times, timeout_ms: float | None) -> Found:
        """The offset of the first record at or after a time, or a log's start or end, over the tiers."""
        offsets: Found = {}
        for_brokers = {tp: when for tp, when in times.items() if self.mode.reads_kafka}
        if for_brokers:
            offsets = dict(self.kafka(for_brokers, timeout_ms))
        stored = [(tp, when) for tp, when in times.items() if not (when == OffsetSpec.LATEST and self.mode.reads_kafka)]
        answers = in_parallel(lambda query: self._remote(*query), stored)
        for (tp, _), answer in zip(stored, answers, strict=True):
            if answer is not None and (tp not in offsets or answer.offset < offsets[tp].offset):
                offsets[tp] = answer
        return offsets

    def of_all(
        self, partitions: Iterable[TopicPartition], spec: int, timeout_ms: float | None
    ) -> dict[TopicPartition, int]:
        """The start or the end of each partition's log, selected by ``spec`` (:class:`OffsetSpec`)."""
        wanted = dict.fromkeys(partitions, spec)
        offsets = self.by_time(wanted, timeout_ms)
        return {tp: offsets[tp].offset for tp in wanted}

    def _remote(self, tp: TopicPartition, when: int) -> Any:
        """The answer for the stored records. Without any: 0, or None if Kafka answers."""
        partition = self.remote(tp)
        if when in {OffsetSpec.EARLIEST, OffsetSpec.LATEST}:
            if partition is None or partition.start >= partition.end(committed=False):
                if self.mode.reads_kafka:
                    return None
                return OffsetAndTimestamp(partition.end(committed=False) if partition else 0, -1, -1)
            offset = partition.start if when == OffsetSpec.EARLIEST else partition.end(committed=self.committed)
            return OffsetAndTimestamp(offset, -1, -1)
        answer = partition.offset_for_time(when, committed=self.committed) if partition else None
        return OffsetAndTimestamp(*answer) if answer else None
