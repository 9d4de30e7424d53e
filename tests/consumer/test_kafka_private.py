"""kafka-python still has what the consumer relies on beyond its public interface."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kafka
import pytest
from kafka import KafkaConsumer
from kafka.cluster import ClusterMetadata
from kafka.consumer.fetcher import CompletedFetch, ConsumerRecord, Fetcher
from kafka.consumer.subscription_state import SubscriptionState, TopicPartitionState
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.record import MemoryRecords

import tidemark.consumer
from tests.support.kafka import KafkaCluster
from tidemark.consumer import kafka_private as private


def test_the_version_is_the_one_that_was_read() -> None:
    assert re.fullmatch(r"3\.0\.\d+", kafka.__version__), (
        "read the consumer's sources of this version, then say so here"
    )


@pytest.mark.parametrize(
    ("cls", "methods"),
    [
        (KafkaConsumer, private.CONSUMER_METHODS),
        (Fetcher, private.FETCHER_METHODS),
        (SubscriptionState, private.SUBSCRIPTIONS_METHODS),
        (ConsumerCoordinator, private.COORDINATOR_METHODS),
        (NetworkSelector, private.NET_METHODS),
        (KafkaConnectionManager, private.MANAGER_METHODS),
        (ClusterMetadata, private.CLUSTER_METHODS),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_methods_have_the_parameters_relied_on(cls: type, methods: Mapping[str, tuple[str, ...]]) -> None:
    found = {name: tuple(inspect.signature(getattr(cls, name)).parameters)[1:] for name in methods}
    assert found == dict(methods)


def test_a_fetch_response_is_opened_by_the_class_that_we_replace() -> None:
    assert tuple(inspect.signature(Fetcher.PartitionRecords).parameters) == private.PARTITION_RECORDS
    assert "self.PartitionRecords(" in inspect.getsource(Fetcher._parse_fetched_data)
    assert MemoryRecords(b"abc")._buffer == b"abc"
    assert CompletedFetch._fields[:2] == ("topic_partition", "fetched_offset")
    assert len(ConsumerRecord._fields) == 13


def test_attributes_are_there(brokers: KafkaCluster) -> None:
    with KafkaConsumer(bootstrap_servers=brokers.bootstrap) as consumer, brokers.admin() as admin:
        holders: list[tuple[Any, tuple[str, ...]]] = [
            (consumer, private.CONSUMER),
            (admin, private.ADMIN),
            (consumer._fetcher, private.FETCHER),
            (consumer._coordinator, private.COORDINATOR),
            (consumer._cluster, private.CLUSTER),
            (TopicPartitionState(), private.PARTITION_STATE),
        ]
        for holder, names in holders:
            assert [name for name in names if not hasattr(holder, name)] == []


def test_no_other_private_name_is_used() -> None:
    """Whatever follows a dot and begins with an underscore is listed, or an attribute of ours."""
    listed = {name for value in vars(private).values() if isinstance(value, tuple | dict) for name in value} | {
        "_buffer"
    }
    text = "".join(path.read_text(encoding="utf-8") for path in Path(tidemark.consumer.__path__[0]).glob("*.py"))
    own = set(re.findall(r"def (_\w+)", text)) | set(re.findall(r"self\.(_\w+)(?:: [^=\n]+)?(?:, self\.\w+)? = ", text))
    assert set(re.findall(r"\.(_[a-z]\w*)", text)) - own - listed == set()
