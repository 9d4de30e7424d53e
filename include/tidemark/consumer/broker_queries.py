"""Queries to the brokers about offsets and topics, as kafka-python's own requests, from any thread."""

from __future__ import annotations

from typing import Any

from kafka import errors as kafka_errors
from kafka.protocol.consumer import OffsetSpec
from typing_extensions import override

from tidemark.consumer.offset_reset import Found, Times
from tidemark.consumer.tier_metadata import Brokers
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.incarnations import topic_id_text


class AskBrokers(Brokers):
    """Queries through a consumer's manager and loop, and through a plain ``Fetcher`` that fetches nothing."""

    def __init__(self, manager: Any, net: Any, plain: Any, timeout_ms: float) -> None:
        self._manager = manager
        self._net = net
        self._plain = plain
        self._timeout_ms = timeout_ms

    def offsets(self, times: Times, timeout_ms: float | None) -> Found:
        """Offsets from ListOffsets: at a time, or at the log's start or end."""
        offsets: Found = self._plain.offsets_by_times(dict(times), timeout_ms)
        return {tp: offset for tp, offset in offsets.items() if offset is not None}

    @override
    def log_range(self, partitions: list[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        starts = self.offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST), self._timeout_ms)
        ends = self.offsets(dict.fromkeys(partitions, OffsetSpec.LATEST), self._timeout_ms)
        return {tp: (starts[tp].offset, ends[tp].offset) for tp in partitions if tp in starts and tp in ends}

    def topic_id(self, topic: str) -> str | None:
        """The topic's id, after a request for metadata if the consumer has none of this topic yet. Waits."""
        cluster = self._manager.cluster
        if cluster.partitions_for_topic(topic) is None:
            cluster.add_topic(topic)
            try:
                self._net.run(self._manager.wait_for, cluster.request_update(), self._timeout_ms)
            except (kafka_errors.KafkaTimeoutError, kafka_errors.UnknownTopicOrPartitionError):
                return None  # the topic may be deleted, and its history is read all the same
        return self.topic_id_now(topic)

    def topic_id_now(self, topic: str) -> str | None:
        """The topic's id in the newest metadata, without a request."""
        return topic_id_text(self._manager.cluster.topic_id(topic))
