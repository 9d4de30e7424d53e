"""Records are field by field those of kafka-python, which decodes the same bytes here itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.record import MemoryRecords

from tests.tidemark.kafka_log.build import T0, Record, batch, legacy, simple
from tests.tidemark.remote.reader import CODECS, TP, Reader, records_of
from tests.tidemark.remote.world import RemoteStore
from tidemark.consumer.consumer import consumer_records
from tidemark.remote.reader.blocks import Block

APPEND = 0x08
STRANGE = [
    Record(0, T0, b"", b"", [("a", b"1"), ("a", None), ("ümlaut", b"")]),
    Record(1, -1, None, None),
    Record(2, (1 << 63) - 1, b"k", None, [("only", None)]),
    Record(3, -(1 << 62), None, b"v"),
    Record(4, 0, b"\xff" * 300, b"x" * 5000, [("", b"\x00")]),
    Record(7, T0 + 1, b"k", b"v"),
]
LOGS = {
    "strange records": [batch(0, STRANGE)],
    "none is null": [simple(0, 5)],
    "append time": [simple(0, 4, attributes=APPEND, max_timestamp=T0 + 99), simple(4, 2)],
    "other epochs": [simple(0, 2, leader_epoch=1), simple(2, 2, leader_epoch=3)],
    "no header": [batch(0, [Record(0), Record(1, headers=[("h", b"v")])]), batch(2, [Record(0)])],
    "magic 0": [legacy(0, 0, 4)],
    "magic 0 in a wrapper": [legacy(0, 0, 4, "gzip"), legacy(0, 4, 2, "gzip")],
    "magic 1": [legacy(1, 0, 4), simple(4, 2)],
    "magic 1 by append time": [legacy(1, 0, 4, "gzip", APPEND)],
    **{codec: [simple(0, 50, codec), simple(50, 20, codec)] for codec in CODECS},
}


class Doubled:
    """A deserializer of today: it is given the headers."""

    def deserialize(self, topic: str, headers: list[Any], data: bytes | None) -> Any:
        return topic, len(headers), data


class Older:
    """One of older releases: it is not."""

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        return None if data is None else json.loads(data)


def theirs(data: bytes, **options: Any) -> list[Any]:
    """What kafka-python makes of a log."""
    partition = TopicPartition(*TP)
    records: list[Any] = Fetcher.PartitionRecords(0, partition, MemoryRecords(data), **options).take()
    return records


@pytest.mark.parametrize("name", LOGS)
def test_every_field_is_that_of_kafka_python(local_store: RemoteStore, name: str) -> None:
    raw = local_store.raw()
    if name == "other epochs":
        raw.partition().lineage = ((1, 0), (3, 2))
    raw.segment(LOGS[name])
    raw.publish()
    with Reader(local_store.storage()) as reader:
        found = reader.read(0, max_rows=3)
    # kafka-python has no snappy here. The checksum of a v0 or v1 message is the one field that is not theirs.
    log = LOGS["none"] if name == "snappy" else LOGS[name]
    expected = [one._replace(checksum=None) for one in theirs(b"".join(log))]
    assert found == expected
    assert [[type(field) for field in one] for one in found] == [[type(field) for field in one] for one in expected]
    assert all(type(one) is type(other) for one, other in zip(found, expected, strict=True))


def blocks(store: RemoteStore, log: list[bytes]) -> list[Block]:
    raw = store.raw()
    raw.segment(log)
    raw.publish()
    with Reader(store.storage()) as reader:
        reader.tier.read(TP, 0)
        return list(reader.blocks())


def test_deserializers_are_called_as_kafka_python_calls_them(local_store: RemoteStore) -> None:
    log = [batch(0, [Record(0, T0, b"1", b"[1]", [("h", b"x")]), Record(1, T0, None, None)])]
    [block] = blocks(local_store, log)
    found = consumer_records(block.rows, "orders", Doubled(), Older())
    assert found == theirs(log[0], key_deserializer=Doubled(), value_deserializer=Older())


def test_what_a_deserializer_refuses_comes_up_at_its_record(local_store: RemoteStore) -> None:
    [block] = blocks(local_store, [batch(0, [Record(0, T0, b"k", b"1"), Record(1, T0, b"k", b"no JSON")])])
    found = consumer_records(block.rows, "orders", value_deserializer=Older())
    assert [one.value for one in found] == [1]
    with pytest.raises(json.JSONDecodeError):
        consumer_records(block.rows.slice(1), "orders", value_deserializer=Older())


def test_any_part_of_a_block_is_the_same_as_in_the_whole(local_store: RemoteStore) -> None:
    [block] = blocks(local_store, [batch(0, STRANGE)])
    whole = records_of(block)
    for start in range(len(whole)):
        for count in range(len(whole) - start + 1):
            assert consumer_records(block.rows.slice(start, count), "orders") == whole[start : start + count]
