"""Every private name of kafka-python that the consumer relies on, for kafka-python 3.0.x.

After an update of kafka-python that moves a name, a test here fails instead of a consumer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
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

CONSUMER = (
    "_client",
    "_cluster",
    "_closed",
    "_coordinator",
    "_fetcher",
    "_iterator",
    "_manager",
    "_metrics",
    "_net",
    "_subscription",
)
"""Attributes of a ``KafkaConsumer``."""

ADMIN = ("_client", "_net")
"""Attributes of a ``KafkaAdminClient``."""

FETCHER = (
    "_completed_fetches",
    "_net",
    "_manager",
    "_reset_task",
    "_sensors",
    "_subscriptions",
    "_validation_task",
    "config",
)
"""Attributes of its ``Fetcher``."""

COORDINATOR = ("_join_task", "rejoining")
"""Attributes of its ``ConsumerCoordinator``."""

CLUSTER = ("config",)
"""Attributes of its ``ClusterMetadata``."""

CONSUMER_METHODS = {
    "_poll_once": ("timer", "max_records", "update_offsets"),
    "_refresh_committed_offsets": ("timeout_ms",),
    "poll": ("timeout_ms", "max_records", "update_offsets"),
}
"""Methods of ``KafkaConsumer`` that are overridden or called, with their parameters."""

FETCHER_METHODS = {
    "__init__": ("client", "subscriptions", "configs"),
    "_fetchable_partitions": (),
    "_parse_fetched_data": ("completed_fetch",),
    "_reset_offset_if_needed": ("partition", "timestamp", "offset"),
    "beginning_or_end_offset": ("partitions", "timestamp", "timeout_ms"),
    "close": (),
    "in_flight_fetches": (),
    "maybe_validate_positions": (),
    "offsets_by_times": ("timestamps", "timeout_ms"),
    "reset_offsets_if_needed": ("timeout_ms",),
    "send_fetches": (),
    "validate_offsets_if_needed": ("timeout_ms",),
}
"""Methods of ``Fetcher`` that are overridden or called, with their parameters."""

PARTITION_RECORDS = (
    "fetch_offset",
    "tp",
    "records",
    "key_deserializer",
    "value_deserializer",
    "check_crcs",
    "isolation_level",
    "aborted_transactions",
    "metric_aggregator",
    "on_drain",
)
"""Parameters of ``Fetcher.PartitionRecords``, which ``KafkaRows`` replaces."""

SUBSCRIPTIONS_METHODS = {
    "assigned_partitions": (),
    "fetchable_partitions": (),
    "has_all_fetch_positions": (),
    "has_default_offset_reset_policy": (),
    "is_assigned": ("partition",),
    "is_fetchable": ("partition",),
    "is_paused": ("partition",),
    "maybe_validate_position_for_current_leader": ("partition", "current_leader_epoch"),
    "missing_fetch_positions": (),
    "partitions_needing_reset": (),
    "position": ("partition",),
    "request_offset_reset": ("partition", "offset_reset_strategy"),
    "reset_missing_positions": (),
    "seek": ("partition", "offset"),
}
"""Methods of ``SubscriptionState``."""

PARTITION_STATE = ("position", "reset_strategy", "highwater")
"""Attributes of a ``TopicPartitionState``."""

COORDINATOR_METHODS = {
    "fetch_committed_offsets": ("partitions", "timeout_ms"),
    "poll": ("timeout_ms",),
    "request_rejoin": (),
    "time_to_next_poll": (),
}
"""Methods of ``ConsumerCoordinator``."""

NET_METHODS = {"run": ("coro", "args"), "call_soon_threadsafe": ("callback",), "stop": ("timeout_ms",)}
"""Methods of ``NetworkSelector``."""

MANAGER_METHODS = {"wait_for": ("future", "timeout_ms")}
"""Methods of ``KafkaConnectionManager``."""

CLUSTER_METHODS = {
    "add_topic": ("topic",),
    "leader_epoch_for_partition": ("partition",),
    "partitions_for_topic": ("topic",),
    "request_update": (),
    "set_topics": ("topics",),
    "topic_id": ("topic_name",),
}
"""Methods of ``ClusterMetadata``."""


def test_the_version_is_the_one_that_was_read() -> None:
    assert re.fullmatch(r"3\.0\.\d+", kafka.__version__), (
        "read the consumer's sources of this version, then say so here"
    )


@pytest.mark.parametrize(
    ("cls", "methods"),
    [
        (KafkaConsumer, CONSUMER_METHODS),
        (Fetcher, FETCHER_METHODS),
        (SubscriptionState, SUBSCRIPTIONS_METHODS),
        (ConsumerCoordinator, COORDINATOR_METHODS),
        (NetworkSelector, NET_METHODS),
        (KafkaConnectionManager, MANAGER_METHODS),
        (ClusterMetadata, CLUSTER_METHODS),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_methods_have_the_parameters_relied_on(cls: type, methods: Mapping[str, tuple[str, ...]]) -> None:
    found = {name: tuple(inspect.signature(getattr(cls, name)).parameters)[1:] for name in methods}
    assert found == dict(methods)


def test_a_fetch_response_is_opened_by_the_class_that_we_replace() -> None:
    assert tuple(inspect.signature(Fetcher.PartitionRecords).parameters) == PARTITION_RECORDS
    assert "self.PartitionRecords(" in inspect.getsource(Fetcher._parse_fetched_data)
    assert MemoryRecords(b"abc")._buffer == b"abc"
    assert CompletedFetch._fields[:2] == ("topic_partition", "fetched_offset")
    assert len(ConsumerRecord._fields) == 13


@pytest.mark.essential
def test_attributes_are_there(kafka: KafkaCluster) -> None:
    with KafkaConsumer(bootstrap_servers=kafka.bootstrap) as consumer, kafka.admin() as admin:
        holders: list[tuple[Any, tuple[str, ...]]] = [
            (consumer, CONSUMER),
            (admin, ADMIN),
            (consumer._fetcher, FETCHER),
            (consumer._coordinator, COORDINATOR),
            (consumer._cluster, CLUSTER),
            (TopicPartitionState(), PARTITION_STATE),
        ]
        for holder, names in holders:
            assert [name for name in names if not hasattr(holder, name)] == []


def test_no_other_private_name_is_used() -> None:
    """Whatever follows a dot and begins with an underscore is listed, or an attribute of ours."""
    lists: tuple[Iterable[str], ...] = (
        CONSUMER, CONSUMER_METHODS, ADMIN, FETCHER, FETCHER_METHODS, COORDINATOR, COORDINATOR_METHODS, CLUSTER,
        CLUSTER_METHODS, SUBSCRIPTIONS_METHODS, PARTITION_STATE, PARTITION_RECORDS, NET_METHODS, MANAGER_METHODS,
    )  # fmt: skip
    listed = {"_buffer"}.union(*lists)
    text = "".join(path.read_text(encoding="utf-8") for path in Path(tidemark.consumer.__path__[0]).glob("*.py"))
    own = set(re.findall(r"def (_\w+)", text)) | set(re.findall(r"self\.(_\w+)(?:: [^=\n]+)?(?:, self\.\w+)? = ", text))
    assert set(re.findall(r"\.(_[a-z]\w*)", text)) - own - listed == set()
