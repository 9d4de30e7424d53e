"""Requests about many partitions. A broker that leads them answers under the leader epochs that they name.

kafka-python is slow to import: import this module where a request is made.

Source: KIP-101 (ends of epochs), KIP-207 and KIP-320 (leader epochs in requests), KIP-405 and KIP-1005 (remote tier).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, Final

from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest, OffsetForLeaderEpochRequest, OffsetSpec
from kafka.protocol.metadata import MetadataRequest

from tidemark.formats.keys import TopicPartition

_WITH_EPOCHS: Final = 4
_WITH_EPOCH_FENCING: Final = 2
"""The first versions of ListOffsets and of OffsetForLeaderEpoch that send leader epochs to the broker."""

_OF_REMOTE_TIER: Final = {"EARLIEST_LOCAL": 8, "LATEST_TIERED": 9}
"""The first versions of ListOffsets that know these offsets of a log with a remote tier."""

_CONSUMER: Final = -1


def topics(names: Iterable[str] | None) -> Any:
    """A Metadata request for these topics, or for all if None, which creates none."""
    topic = MetadataRequest.MetadataRequestTopic
    wanted = None if names is None else [topic(name=name) for name in names]
    return MetadataRequest(topics=wanted, allow_auto_topic_creation=False)


def epoch_ends(asked: Mapping[TopicPartition, tuple[int, int]]) -> Any:
    """An OffsetForLeaderEpoch request: each partition's leader epoch, and the epoch whose end is asked for."""
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    def part(tp: TopicPartition) -> Any:
        leader_epoch, epoch = asked[tp]
        return topic.OffsetForLeaderPartition(
            partition=tp.partition, current_leader_epoch=leader_epoch, leader_epoch=epoch
        )

    topics = [topic(topic=name, partitions=parts) for name, parts in _by_topic(asked, part)]
    return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics, min_version=_WITH_EPOCH_FENCING)


def offsets(epochs: Mapping[TopicPartition, int], spec: str, *, committed: bool = False) -> Any:
    """A ListOffsets request for the ``EARLIEST`` or ``LATEST`` offset of each partition with its leader epoch.

    The latest is the high watermark, or with ``committed`` the last stable offset. ``EARLIEST_LOCAL`` is the first
    offset on the broker's disk, ``LATEST_TIERED`` the last one in the remote tier, -1 if there is none.
    """
    topic = ListOffsetsRequest.ListOffsetsTopic

    def part(tp: TopicPartition) -> Any:
        return topic.ListOffsetsPartition(
            partition_index=tp.partition, current_leader_epoch=epochs[tp], timestamp=OffsetSpec[spec]
        )

    return ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
        topics=[topic(name=name, partitions=parts) for name, parts in _by_topic(epochs, part)],
        min_version=_OF_REMOTE_TIER.get(spec, _WITH_EPOCHS),
    )


def _by_topic(asked: Iterable[TopicPartition], part: Callable[[TopicPartition], Any]) -> list[tuple[str, list[Any]]]:
    """The names of the topics, with the ``part`` of each partition."""
    return [(name, list(map(part, tps))) for name, tps in groupby(sorted(asked), key=lambda tp: tp.topic)]
