"""Kafka's Java client from a broker's own jars, driven from Python through Py4J's gateway: no compiler is needed."""

from __future__ import annotations

from typing import Any, Self

from py4j.java_gateway import JavaGateway

from tests.support.jars import class_path
from tests.support.java import java
from tests.support.kafka_broker import TINY_JVM, KafkaVersion
from tests.support.waiting import HUNG

_SERIALIZER = "org.apache.kafka.common.serialization.ByteArraySerializer"


class JavaClient:
    """A JVM with the client of one version; usable with ``with``. It ends with this process at the latest."""

    def __init__(self, version: KafkaVersion) -> None:
        """Nothing is started yet."""
        self._version = version
        self._gateway: Any = None

    def __enter__(self) -> Self:
        self._gateway = JavaGateway.launch_gateway(
            classpath=class_path(f"kafka-{self._version}"),
            javaopts=[*TINY_JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"],
            java_path=str(java()),
            die_on_exit=True,
            enable_auth=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        process = self._gateway.java_process
        self._gateway.shutdown()
        process.stdin.close()
        process.wait(HUNG)

    def producer(self, settings: dict[str, str]) -> Any:
        """A ``KafkaProducer<byte[], byte[]>`` with ``settings``."""
        properties = self._gateway.jvm.java.util.HashMap()
        for name, value in {**settings, "key.serializer": _SERIALIZER, "value.serializer": _SERIALIZER}.items():
            properties.put(name, value)
        return self._gateway.jvm.org.apache.kafka.clients.producer.KafkaProducer(properties)

    def record(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> Any:
        """A ``ProducerRecord``; ``timestamp`` is in milliseconds."""
        kafka = self._gateway.jvm.org.apache.kafka
        listed = self._gateway.jvm.java.util.ArrayList()
        for name, content in headers:
            listed.add(kafka.common.header.internals.RecordHeader(name, content))
        return kafka.clients.producer.ProducerRecord(topic, partition, timestamp, key, value, listed)
