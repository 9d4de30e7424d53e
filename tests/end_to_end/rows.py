"""Rows of a topic, as a consumer gets them from the broker and as its table has them."""

from __future__ import annotations

from typing import NamedTuple

from kafka import KafkaConsumer, TopicPartition

from tidemark.table.delta_table import TopicTable


class Row(NamedTuple):
    """A record, as every reader must give it."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def consumed(bootstrap: str, topic: str) -> set[Row]:
    """All that a read_committed consumer gets, by an independent implementation."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        enable_auto_commit=False,
        consumer_timeout_ms=10_000,
    )
    parts = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
    consumer.assign(parts)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(parts)  # under read_committed: the last stable offsets
    rows: list[Row] = []
    while any(consumer.position(part) < ends[part] for part in parts):
        for records in consumer.poll(500).values():
            rows += [
                Row(one.partition, one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in records
            ]
    consumer.close()
    assert len(rows) == len(set(rows))
    return set(rows)


def landed(table: TopicTable) -> list[Row]:
    """All rows of the table; each has the dt of its time, and there are three."""
    found = table.by_delta_rs().to_pyarrow_table().to_pylist()
    assert {one["dt"].isoformat() for one in found} == {"2026-11-18", "2026-11-19", "2026-11-20"}
    assert all(one["dt"] == one["kafka_timestamp"].date() for one in found)
    return [
        Row(
            one["kafka_partition"],
            one["kafka_offset"],
            int(one["kafka_timestamp"].timestamp() * 1000),
            one["kafka_key"],
            one["kafka_value"],
            tuple((header["key"], header["value"]) for header in one["kafka_headers"]),
        )
        for one in found
    ]
