"""Java's clients, driven from Python through Py4J's gateway: no compiler is needed.

:class:`JavaClient` is Kafka's own, from a broker's jars.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from py4j.java_gateway import JavaGateway

from tests.support.jars import class_path
from tests.support.java import java
from tests.support.kafka_broker import TINY_JVM, KafkaVersion
from tests.support.waiting import HUNG

_SERIALIZER = "org.apache.kafka.common.serialization.ByteArraySerializer"


class JavaBatch(NamedTuple):
    """A batch, and the offset, timestamp, key and value of its records."""

    base_offset: int
    last_offset: int
    codec: str
    records: list[tuple[int, int, bytes | None, bytes | None]]


class JavaGatewayProcess:
    """A JVM with a class path; usable with ``with``. It ends with this process at the latest."""

    def __init__(self, classpath: str, *options: str, log: Path | None = None) -> None:
        """Nothing is started yet. Standard output goes to ``log``, or nowhere."""
        self._classpath, self._options, self._log = classpath, options, log or Path(os.devnull)
        self._gateway: Any = None

    def __enter__(self) -> Self:
        self._start()
        return self

    def _start(self) -> None:
        self._gateway = JavaGateway.launch_gateway(
            classpath=self._classpath,
            javaopts=[*TINY_JVM, *self._options],
            java_path=str(java()),
            die_on_exit=True,
            enable_auth=True,
            redirect_stdout=self._log.open("w"),
        )
        self._gateway.gateway_parameters.read_timeout = HUNG

    def __exit__(self, *_: object) -> None:
        process = self._gateway.java_process
        self._gateway.shutdown()
        process.stdin.close()
        process.wait(HUNG)

    @property
    def jvm(self) -> Any:
        """Java's packages."""
        return self._gateway.jvm


class JavaClient(JavaGatewayProcess):
    """A JVM with the client of one version."""

    def __init__(self, version: KafkaVersion) -> None:
        """Nothing is started yet."""
        super().__init__(class_path(f"kafka-{version}"), "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
        self._records = "record" if version.startswith("3.") else "record.internal"

    def batches(self, segment: Path) -> list[JavaBatch]:
        """The batches of a segment as Kafka's own classes read it, with all checksums verified."""
        java, kafka = self.jvm.java, self.jvm.org.apache.kafka.common
        package = kafka
        for name in self._records.split("."):
            package = getattr(package, name)
        file = package.FileRecords.open(java.io.File(str(segment)))
        try:
            return [self._batch(batch) for batch in _each(file.batches())]
        finally:
            file.close()

    def _batch(self, batch: Any) -> JavaBatch:
        batch.ensureValid()
        array = self.jvm.org.apache.kafka.common.utils.Utils.toNullableArray
        records = [
            (record.offset(), record.timestamp(), array(record.key()), array(record.value())) for record in _each(batch)
        ]
        return JavaBatch(batch.baseOffset(), batch.lastOffset(), batch.compressionType().toString(), records)

    def producer(self, settings: dict[str, str]) -> Any:
        """A ``KafkaProducer<byte[], byte[]>`` with ``settings``."""
        properties = self.jvm.java.util.HashMap()
        for name, value in {**settings, "key.serializer": _SERIALIZER, "value.serializer": _SERIALIZER}.items():
            properties.put(name, value)
        return self.jvm.org.apache.kafka.clients.producer.KafkaProducer(properties)

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
        kafka = self.jvm.org.apache.kafka
        listed = self.jvm.java.util.ArrayList()
        for name, content in headers:
            listed.add(kafka.common.header.internals.RecordHeader(name, content))
        return kafka.clients.producer.ProducerRecord(topic, partition, timestamp, key, value, listed)


def _each(iterable: Any) -> Iterator[Any]:
    """The items of a Java iterable."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()
