"""Pinterest's consumer of tiered storage as published: it reads segments from S3, and asks the brokers for the rest.

Version 1.0.1 is the only one on Maven Central. It is in the region us-east-1, and takes endpoint and credentials from
the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.support.jars import fetch
from tests.support.java_client import JavaGatewayProcess

_DESERIALIZER = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
_LAST = "ts-segment-uploader-"  # it holds an older AWS SDK
_IDLE_POLLS = 3


class Read(NamedTuple):
    """A record; ``timestamp`` is in milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class PinterestJvm(JavaGatewayProcess):
    """A JVM for consumers; usable with ``with``."""

    def __init__(self, env: Mapping[str, str], log: Path) -> None:
        """Nothing is started yet. ``env`` names the store and its credentials; ``log`` gets what consumers log."""
        jars = sorted(fetch("pinterest").glob("*.jar"), key=lambda jar: (jar.name.startswith(_LAST), jar.name))
        super().__init__(os.pathsep.join(map(str, jars)), log=log)
        self._env = env

    def _start(self) -> None:
        with patch.dict(os.environ, self._env):
            super()._start()

    def know_bucket(self, bucket: str) -> None:
        """Spare Amazon's file system of S3 the question where a bucket is: its endpoint is AWS's, whatever is set."""
        amazon = self.jvm.software.amazon
        region = amazon.awssdk.regions.Region.US_EAST_1
        store = amazon.nio.spi.s3.S3ClientStore.getInstance()
        clients = store.getClass().getDeclaredField("bucketToAsyncClientMap")
        clients.setAccessible(True)
        clients.get(store).put(bucket, amazon.awssdk.services.s3.S3AsyncClient.builder().region(region).build())

    @contextmanager
    def consumer(
        self, bootstrap: str, *, cluster: str, bucket: str, prefix: str, topic: str
    ) -> Iterator[PinterestConsumer]:
        """A consumer of partition 0 of a topic, from the store alone; ``prefix`` must not be empty."""
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "pinterest",
            "enable.auto.commit": "false",
            "max.poll.records": "7",
            "key.deserializer": _DESERIALIZER,
            "value.deserializer": _DESERIALIZER,
            "kafka.cluster.id": cluster,
            "offset.reset.policy": "earliest",
            "tiered.storage.mode": "TIERED_STORAGE_ONLY",
            "storage.service.endpoint.s3.bucket": bucket,
            "storage.service.endpoint.s3.prefix": prefix,
        }
        properties = self.jvm.java.util.Properties()
        for name, value in settings.items():
            properties.setProperty(name, value)
        java = self.jvm.com.pinterest.kafka.tieredstorage.consumer.TieredStorageConsumer(properties)
        try:
            yield PinterestConsumer(self.jvm, java, topic)
        finally:
            java.close()


class PinterestConsumer:
    """A consumer that is assigned partition 0 of a topic."""

    def __init__(self, jvm: Any, java: Any, topic: str) -> None:
        """``java`` is the Java object."""
        self._jvm, self._java = jvm, java
        self._wait = jvm.java.time.Duration.ofMillis(100)
        self._partition = jvm.org.apache.kafka.common.TopicPartition(topic, 0)
        self._partitions = jvm.java.util.ArrayList()
        self._partitions.add(self._partition)
        java.assign(self._partitions)

    def poll(self) -> list[Read]:
        """One poll."""
        return [_read(record) for record in self._java.poll(self._wait).records(self._partition)]

    def read(self, end: int) -> list[Read]:
        """Poll until the record before ``end`` has come, or no more come."""
        found: list[Read] = []
        idle = 0
        while idle < _IDLE_POLLS and (not found or found[-1].offset + 1 < end):
            records = self.poll()
            found += records
            idle = 0 if records else idle + 1
        return found

    def seek(self, offset: int) -> None:
        """Go on from ``offset``."""
        self._java.seek(self._partition, offset)

    def bounds(self) -> tuple[int, int]:
        """The base offsets of the first and of the last segment, which it takes for the ends of the partition."""
        first, last = self._java.beginningOffsets(self._partitions), self._java.endOffsets(self._partitions)
        return first[self._partition], last[self._partition]

    def offset_for_time(self, timestamp: int) -> None:
        """``offsetsForTimes``, which 1.0.1 refuses."""
        asked = self._jvm.java.util.HashMap()
        asked.put(self._partition, timestamp)
        self._java.offsetsForTimes(asked)


def _read(record: Any) -> Read:
    headers: Sequence[Any] = record.headers().toArray()
    named = tuple((header.key(), header.value()) for header in headers)
    return Read(record.offset(), record.timestamp(), record.key(), record.value(), named)
