"""Topics on a real broker, the remote tier that the real agent made of them, and consumers over both."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from tests.support.kafka import KafkaCluster
from tests.support.kafka_broker import KafkaVersion
from tests.support.paths import ROOT
from tests.support.process import ManagedProcess
from tests.support.tuned_agent import tuned_agent
from tests.support.waiting import HUNG
from tests.uploader_agent.in_process import run_here
from tidemark import Mode, TieredConsumer
from tidemark.consumer.consumer import METRICS_GROUP
from tidemark.storage import Storage
from tidemark.store import StoreOptions

SMALL: Mapping[KafkaVersion, Mapping[str, str]] = {
    "4.3.1": {"internal.segment.bytes": "16384"},
    "3.9.2": {"segment.bytes": "16384"},
}
"""Settings of a topic for segments of 16 KiB."""


@dataclass(frozen=True)
class Place:
    """A store: its URL below which a test may write, and how to reach it."""

    url: str
    options: StoreOptions = field(default_factory=StoreOptions)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class World:
    """A broker, and a store that its agent uploads to."""

    folder: Path
    kafka: KafkaCluster
    place: Place

    @property
    def cluster(self) -> str:
        """The cluster's name in the store."""
        return self.kafka.cluster_id

    @property
    def small(self) -> Mapping[str, str]:
        """Settings of a topic for segments of 16 KiB."""
        return SMALL[self.kafka.version]

    def storage(self) -> Storage:
        """The remote tier, as a consumer opens it."""
        return Storage.at(self.place.url, self.cluster, options=self.place.options)

    def agent_file(self, topics: Iterable[str], **settings: Any) -> Path:
        """The configuration of an agent that uploads ``topics``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        store = self.place.options.model_dump(mode="json", exclude_defaults=True)
        path = self.folder / "agent.yaml"
        content = {
            "broker": {"properties": str(self.kafka.brokers[0].properties_path)},
            "raw": {"url": self.place.url},
            "store": store,
            "state_dir": str(self.folder / "agent"),
            "include": list(topics),
            "tail_after": "1h",
            **settings,
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def upload(self, *topics: str, **settings: Any) -> None:
        """Upload what has been rotated, by the agent in this process."""
        log = self.folder / "upload.log"
        code = run_here(["upload-once", "--config", self.agent_file(topics, **settings)], log, self.place.env)
        assert code == 0, log.read_text()

    def agent(self, *topics: str, **settings: Any) -> ManagedProcess:
        """The agent as it runs beside a broker; start it with ``with``."""
        tuned = tuned_agent({"scan_interval": "200ms", "index_interval": "200ms"})
        return ManagedProcess(
            "agent",
            [*tuned, "run", "--config", self.agent_file(topics, **settings)],
            cwd=ROOT,
            log=self.folder / "agent.log",
            env={**self.place.env, "PATH": "/usr/bin:/bin"},
        )

    def consumer(self, mode: Mode, *topics: str, **settings: Any) -> TieredConsumer:
        """A consumer of the mode, from the earliest offset unless told otherwise."""
        storage = self.storage() if mode.reads_remote else None
        given = {"auto_offset_reset": "earliest", "remote_refresh_ms": 500, "storage": storage, **settings}
        return TieredConsumer(*topics, bootstrap_servers=self.kafka.bootstrap, mode=mode, **given)

    def plain(self, *topics: str, **settings: Any) -> KafkaConsumer:
        """kafka-python's own."""
        return KafkaConsumer(
            *topics, bootstrap_servers=self.kafka.bootstrap, **{"auto_offset_reset": "earliest", **settings}
        )

    def delete_before(self, topic: str, offsets: Mapping[int, int]) -> None:
        """DeleteRecords: move the log start of partitions."""
        with self.kafka.admin() as admin:
            admin.delete_records({TopicPartition(topic, partition): offset for partition, offset in offsets.items()})

    def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        """Change a topic's settings."""
        with self.kafka.admin() as admin:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict(settings))])


def delivered(error: KafkaError | None, _message: Message) -> None:
    """Raise if the broker refused a record: out of ``flush``, which counts it as done."""
    if error is not None:
        raise KafkaException(error)


PRODUCER: Final = {"linger.ms": 1, "batch.num.messages": 20, "on_delivery": delivered}
"""Settings of a producer that raises what the broker refuses, and whose batches fit into segments of 16 KiB."""


def produce(
    bootstrap: str, topic: str, records: Iterable[tuple[int, bytes | None, bytes | None]], **config: Any
) -> None:
    """Send (partition, key, value), every third with headers, and wait for the acknowledgements."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **PRODUCER, **config})
    for number, (partition, key, value) in enumerate(records):
        headers: list[Any] | None = (
            [("number", b"%d" % number), ("none", None), ("empty", b"")] if number % 3 == 0 else None
        )
        producer.produce(topic, value, key, partition=partition, headers=headers)
        producer.poll(0)
    assert producer.flush(30) == 0


def some(
    count: int, partitions: int = 1, size: int = 300, start: int = 0
) -> list[tuple[int, bytes | None, bytes | None]]:
    """Records with and without keys and values, some of them empty."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    for number in range(start, start + count):
        key = None if number % 4 == 0 else b"" if number % 4 == 1 else b"key-%d" % (number % 50)
        value = (
            None
            if number % 11 == 0
            else b""
            if number % 13 == 0
            else b"%d:" % number + os.urandom(size // 2) + bytes(size // 2)
        )
        found.append((number % partitions, key, value))
    return found


def origins(consumer: TieredConsumer, tp: TopicPartition) -> dict[str, int]:
    """Records delivered of a partition, by tier."""
    found = consumer.metrics()[METRICS_GROUP]["partitions"].get(f"{tp.topic}-{tp.partition}", {})
    return {tier: counts["records"] for tier, counts in found.items()}


def read_until(
    consumer: Any, done: Callable[[dict[TopicPartition, list[Any]]], bool], *, seconds: float | None = None, **poll: Any
) -> dict[TopicPartition, list[Any]]:
    """Poll until ``done`` says so of what has come, by partition; TimeoutError after ``seconds``.

    Their default is short for kafka-python's own consumer, which on a busy machine may lose a group's join for good.
    """
    if seconds is None:
        seconds = HUNG / 4 if type(consumer) is KafkaConsumer else HUNG
    found: dict[TopicPartition, list[Any]] = {}
    deadline = time.monotonic() + seconds
    while not done(found):
        for tp, records in consumer.poll(timeout_ms=200, **poll).items():
            found.setdefault(tp, []).extend(records)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{ {tp: len(records) for tp, records in found.items()} } after {seconds} s")
    return found


def read_to(consumer: Any, ends: Mapping[TopicPartition, int], **options: Any) -> dict[TopicPartition, list[Any]]:
    """Poll until each partition's position is at its end, and none beyond."""
    found = read_until(consumer, lambda _: all(consumer.position(tp) >= end for tp, end in ends.items()), **options)
    assert {tp: consumer.position(tp) for tp in ends} == dict(ends)
    return found


def partitions(topic: str, count: int = 1) -> list[TopicPartition]:
    """The first partitions of a topic."""
    return [TopicPartition(topic, number) for number in range(count)]
