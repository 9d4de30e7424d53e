"""The target topic of a restore: its settings, its records, and the progress that its cluster keeps.

No other module reads from the target's cluster; writing goes through :mod:`tidemark.restore.run`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

from kafka import KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic, OffsetSpec
from kafka.errors import NoError, TopicAlreadyExistsError
from kafka.structs import OffsetAndMetadata

from tidemark.errors import ConfigError, RestoreError
from tidemark.kafka_admin import AdminClient, patiently
from tidemark.restore.progress import RestoreProgress
from tidemark.restore.records import NO_TIMESTAMP, Record

_FOREVER: Final = "9223372036854775807"
_READ_SECONDS: Final = 60.0
_POLL_MS: Final = 200

CREATED: Final[Mapping[str, str]] = {
    "message.timestamp.type": "CreateTime",
    # From 4.0 on brokers refuse records an hour ahead of their clock, and history may have some.
    "message.timestamp.after.max.ms": _FOREVER,
    "message.timestamp.before.max.ms": _FOREVER,
    # Retention uses the records' own times: old records would be deleted while they are restored.
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""The configuration of a topic that ``--create`` makes, unless ``--config`` overrides it."""


class Target:
    """A topic of the cluster that ``client`` (kafka-python's settings, ``bootstrap_servers`` first) leads to."""

    def __init__(self, topic: str, group: str, client: Mapping[str, Any]) -> None:
        """Connect. Raises kafka-python's errors, as all methods do."""
        self.topic = topic
        self.group = group
        self.client = dict(client)
        self.largest_batch = 1 << 20  # the topic's own limit after `check`
        self._admin = AdminClient(**self.client)
        self._reading: set[KafkaConsumer] = set()

    def partitions(self) -> int:
        """Number of the topic's partitions; 0 if it does not exist."""
        if self.topic not in patiently(self._admin.list_topics):
            return 0  # a request for it by name might create it
        [described] = patiently(self._admin.describe_topics, [self.topic])
        return len(described["partitions"])

    def create(self, partitions: int, config: Mapping[str, str]) -> None:
        """Create the topic unless it exists, with :data:`CREATED`, ``config`` and the cluster's replication factor."""
        new = NewTopic(self.topic, partitions, -1, topic_configs={**CREATED, **config})
        try:
            patiently(self._admin.create_topics, [new], wait_for_metadata=True)
        except TopicAlreadyExistsError:
            return  # an earlier run created it and was killed; its partitions and settings are checked next

    def check(self, *, transactional: bool) -> list[str]:
        """The properties that the topic's configuration will not keep, in words.

        Raises:
            ConfigError: a record would lose its time, or be removed before it is counted.
        """
        resource = ConfigResource(ConfigResourceType.TOPIC, self.topic)
        answer = patiently(self._admin.describe_configs, [resource], config_filter="all")
        settings = {name: str(setting["value"]) for name, setting in answer["topic"][self.topic].items()}
        self.largest_batch = int(settings.get("max.message.bytes", self.largest_batch))
        if settings.get("message.timestamp.type") == "LogAppendTime":
            rule = (
                "is LogAppendTime, which would replace the records' times; set it to CreateTime until all is restored"
            )
            raise ConfigError(self.topic, [("message.timestamp.type", rule)])
        compacted = "compact" in settings.get("cleanup.policy", "")
        if compacted and not transactional:
            rule = "is compacted, so records may disappear before they are counted; restore with --transactional"
            raise ConfigError(self.topic, [("cleanup.policy", rule)])
        limits = {name: settings.get(name, "-1") for name in ("retention.ms", "retention.bytes")}
        if "delete" not in settings.get("cleanup.policy", "delete"):
            limits = {}
        warnings = [
            f"{self.topic} has {name}={value}: brokers delete records beyond it, by the records' own times, as soon "
            "as a segment is full; set it to -1 until the restored records have been read"
            for name, value in limits.items()
            if value != "-1"
        ]
        if compacted:
            warnings.append(f"{self.topic} is compacted: of the restored records only the last one of each key stays")
        return warnings

    def edges(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """(log start offset, high watermark) of each partition."""
        wanted = [TopicPartition(self.topic, partition) for partition in partitions]
        first = patiently(self._admin.list_partition_offsets, dict.fromkeys(wanted, OffsetSpec.EARLIEST))
        last = patiently(self._admin.list_partition_offsets, dict.fromkeys(wanted, OffsetSpec.LATEST))
        return {tp.partition: (first[tp].offset, last[tp].offset) for tp in wanted}

    def progress(self, partitions: Sequence[int]) -> dict[int, RestoreProgress]:
        """The progress of partitions for which a restore was begun. Raises FormatError for invalid progress."""
        wanted = [TopicPartition(self.topic, partition) for partition in partitions]
        committed = patiently(self._admin.list_group_offsets, {self.group: wanted})[self.group]
        return {
            tp.partition: RestoreProgress.of(
                offset.offset, offset.metadata, f"group {self.group}, partition {tp.partition}"
            )
            for tp, offset in committed.items()
            if offset.offset >= 0
        }

    def offsets(self, progress: Mapping[int, RestoreProgress]) -> dict[TopicPartition, OffsetAndMetadata]:
        """``progress`` as offsets of the group, for a transaction or :meth:`save`."""
        return {
            TopicPartition(self.topic, partition): OffsetAndMetadata(reached.next, reached.to_metadata(), -1)
            for partition, reached in progress.items()
        }

    def save(self, progress: Mapping[int, RestoreProgress]) -> None:
        """Commit ``progress``, and return when that is done. Raises :class:`RestoreError` if the cluster refuses."""
        answer = patiently(self._admin.alter_group_offsets, self.group, self.offsets(progress))
        refused = {tp.partition: error for tp, error in answer.items() if error is not NoError}
        if refused:
            errors = ", ".join(f"{partition}: {error.__name__}" for partition, error in sorted(refused.items()))
            raise RestoreError(f"group {self.group}: the progress could not be committed ({errors}); run it again")

    def read(self, partition: int, start: int, end: int, *, committed: bool) -> Iterator[list[tuple[int, Record]]]:
        """The target's records at offsets ``[start, end)``, by kafka-python's consumer: nonempty lists with offsets.

        Raises:
            RestoreError: the broker sent nothing for a minute, or does not have ``start`` any more.
        """
        tp = TopicPartition(self.topic, partition)
        consumer = KafkaConsumer(
            **self.client,
            isolation_level="read_committed" if committed else "read_uncommitted",
            auto_offset_reset="none",
            enable_auto_commit=False,
            group_id=None,
            max_poll_records=5000,
        )
        self._reading.add(consumer)
        try:
            consumer.assign([tp])
            consumer.seek(tp, start)
            moved = time.monotonic()
            while (position := consumer.position(tp)) < end:
                polled = consumer.poll(timeout_ms=_POLL_MS).get(tp, [])  # waits over markers and aborted records
                held = [(message.offset, _record(message)) for message in polled if message.offset < end]
                if held:
                    yield held
                if consumer.position(tp) > position:
                    moved = time.monotonic()
                elif time.monotonic() > moved + _READ_SECONDS:
                    raise RestoreError(f"{tp.topic}-{partition}: nothing was read at offset {position} for a minute")
        finally:
            self._reading.discard(consumer)
            consumer.close()

    def close(self) -> None:
        """Close all connections, also of reads that were given up."""
        for consumer in self._reading:
            consumer.close()
        self._reading.clear()
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _record(message: Any) -> Record:
    headers = [(key, None if value is None else bytes(value)) for key, value in message.headers]
    timestamp = NO_TIMESTAMP if message.timestamp is None else message.timestamp
    return Record(message.key, message.value, headers, timestamp)
