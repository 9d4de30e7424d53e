"""What brokers of several versions answer about their remote tier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse, OffsetSpec

from tests.uploader_agent.fakes import ID, T
from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import AdminMetadata, BrokerUnavailable, KafkaTier, Led

OTHER = TopicPartition("orders", 1)


class Brokers:
    """kafka-python's admin client of a broker that knows versions of ListOffsets up to ``latest``."""

    def __init__(self, latest: int, offsets: Mapping[OffsetSpec, int], *, hangs: bool = False) -> None:
        self._offsets, self._hangs = offsets, hangs
        self._versions = BrokerVersionData(api_versions={ListOffsetsRequest.API_KEY: (1, latest)})
        self._manager = self

    def run(self, _send: object, _client: object, request: ListOffsetsRequest, _node: int) -> Any:
        if self._hangs:
            raise KafkaTimeoutError("told so")
        self._versions.api_version(request)
        [topic] = request.topics
        made = ListOffsetsResponse.ListOffsetsTopicResponse
        parts = [
            made.ListOffsetsPartitionResponse(
                partition_index=part.partition_index,
                error_code=6 if part.partition_index else 0,
                offset=self._offsets[OffsetSpec(part.timestamp)],
            )
            for part in topic.partitions
        ]
        return ListOffsetsResponse(topics=[made(name=topic.name, partitions=parts)])

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("latest", "last", "expected"),
    [
        pytest.param(11, 199, {T: KafkaTier(180, 200)}, id="4.3"),
        pytest.param(9, -1, {T: KafkaTier(180, 0)}, id="3.9, just started"),
        pytest.param(8, -1, {T: KafkaTier(180, None)}, id="3.6 does not say what is there"),
        pytest.param(7, -1, {T: None, OTHER: None}, id="3.4 has no remote tier"),
    ],
)
def test_a_broker_s_version_decides_what_is_known(
    latest: int, last: int, expected: dict[TopicPartition, KafkaTier | None]
) -> None:
    """The other partition has another leader by now, and is left out."""
    offsets = {OffsetSpec.EARLIEST_LOCAL: 180, OffsetSpec.LATEST_TIERED: last}
    metadata = AdminMetadata(1, lambda: Brokers(latest, offsets))
    assert metadata.remote_tier({T: Led(3, ID), OTHER: Led(3, ID)}) == expected


def test_a_broker_that_does_not_answer_is_no_older_one() -> None:
    metadata = AdminMetadata(1, lambda: Brokers(11, {}, hangs=True))
    with pytest.raises(BrokerUnavailable):
        metadata.remote_tier({T: Led(3, ID)})
