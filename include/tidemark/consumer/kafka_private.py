"""Every private name of kafka-python that is used here, for kafka-python 3.0.x.

A test asserts that each name exists, with these parameters: after an update of kafka-python that moves a name, the test
fails instead of a consumer.
"""

from __future__ import annotations

from typing import Final

CONSUMER: Final = (
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

ADMIN: Final = ("_client", "_net")
"""Attributes of a ``KafkaAdminClient``."""

FETCHER: Final = (
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

COORDINATOR: Final = ("rejoining",)
"""Attributes of its ``ConsumerCoordinator``."""

CLUSTER: Final = ("config",)
"""Attributes of its ``ClusterMetadata``."""

CONSUMER_METHODS: Final = {
    "_poll_once": ("timer", "max_records", "update_offsets"),
    "_refresh_committed_offsets": ("timeout_ms",),
    "poll": ("timeout_ms", "max_records", "update_offsets"),
}
"""Methods of ``KafkaConsumer`` that are overridden or called, with their parameters."""

FETCHER_METHODS: Final = {
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

PARTITION_RECORDS: Final = (
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
"""Parameters of ``Fetcher.PartitionRecords``, which :class:`tidemark.consumer.kafka_rows.KafkaRows` replaces."""

SUBSCRIPTIONS_METHODS: Final = {
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

PARTITION_STATE: Final = ("position", "reset_strategy", "highwater")
"""Attributes of a ``TopicPartitionState``."""

COORDINATOR_METHODS: Final = {
    "fetch_committed_offsets": ("partitions", "timeout_ms"),
    "poll": ("timeout_ms",),
    "request_rejoin": (),
    "time_to_next_poll": (),
}
"""Methods of ``ConsumerCoordinator``."""

NET_METHODS: Final = {"run": ("coro", "args"), "call_soon_threadsafe": ("callback",), "stop": ("timeout_ms",)}
"""Methods of ``NetworkSelector``."""

MANAGER_METHODS: Final = {"wait_for": ("future", "timeout_ms")}
"""Methods of ``KafkaConnectionManager``."""

CLUSTER_METHODS: Final = {
    "add_topic": ("topic",),
    "leader_epoch_for_partition": ("partition",),
    "partitions_for_topic": ("topic",),
    "request_update": (),
    "set_topics": ("topics",),
    "topic_id": ("topic_name",),
}
"""Methods of ``ClusterMetadata``."""
