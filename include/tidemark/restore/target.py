"""The topic that is restored to: whether it fits, what it holds, and the progress that its cluster keeps.

The only module that asks the target's cluster anything; what is written goes through :mod:`tidemark.restore.producer`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

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
    # From 4.0 on brokers refuse what is an hour ahead of their clock, and history may be.
    "message.timestamp.after.max.ms": _FOREVER,
    "message.timestamp.before.max.ms": _FOREVER,
    # Retention goes by the records' own times: old ones would be deleted while they are restored.
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""The configuration of a topic that ``--create`` makes, unless told otherwise."""


class HeldRecord(NamedTuple):
    """A record that the target holds at ``offset``."""

    offset: int
    record: Record


class Target:
    """A topic of the cluster that ``client`` (kafka-python's settings, ``bootstrap_servers`` first) leads to."""

    def __init__(self, topic: str, group: str, client: Mapping[str, Any]) -> None:
        """Connects. Raises kafka-python's errors, as all methods do."""
        self.topic = topic
        self.group = group
        self.client = dict(client)
        self.largest_batch = 1 << 20  # as the topic has it, once it was checked
        self._admin = AdminClient(**self.client)
        self._reading: set[KafkaConsumer] = set()

    def partitions(self) -> int:
        """How many partitions the topic has; 0 if it does not exist."""
        if self.topic not in patiently(self._admin.list_topics):
            return 0  # asking for it by name might create it
        [found] = patiently(self._admin.describe_topics, [self.topic])
        return len(found["partitions"])

    def create(self, partitions: int, config: Mapping[str, str]) -> None:
        """Make the topic, if there is none, with :data:`CREATED` and ``config``; the cluster's replication factor."""
        new = NewTopic(self.topic, partitions, -1, topic_configs={**CREATED, **config})
        try:
            patiently(self._admin.create_topics, [new], wait_for_metadata=True)
        except TopicAlreadyExistsError:
            return  # a run before this one made it and was killed; its partitions and settings are checked next

    def check(self, *, transactional: bool) -> list[str]:
        """What will not be kept as it is, in words, by the topic's configuration.

        Raises:
            ConfigError: a record would lose its time, or go while it is counted.
        """
        resource = ConfigResource(ConfigResourceType.TOPIC, self.topic)
        answer = patiently(self._admin.describe_configs, [resource], config_filter="all")
        found = {name: str(one["value"]) for name, one in answer["topic"][self.topic].items()}
        self.largest_batch = int(found.get("max.message.bytes", self.largest_batch))
        if found.get("message.timestamp.type") == "LogAppendTime":
            rule = (
                "is LogAppendTime, which would replace the records' times; set it to CreateTime until all is restored"
            )
            raise ConfigError(self.topic, [("message.timestamp.type", rule)])
        compacted = "compact" in found.get("cleanup.policy", "")
        if compacted and not transactional:
            rule = "is compacted, so records may disappear before they are counted; restore with --transactional"
            raise ConfigError(self.topic, [("cleanup.policy", rule)])
        limits = {name: found.get(name, "-1") for name in ("retention.ms", "retention.bytes")}
        if "delete" not in found.get("cleanup.policy", "delete"):
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
        asked = [TopicPartition(self.topic, one) for one in partitions]
        first = patiently(self._admin.list_partition_offsets, dict.fromkeys(asked, OffsetSpec.EARLIEST))
        last = patiently(self._admin.list_partition_offsets, dict.fromkeys(asked, OffsetSpec.LATEST))
        return {one.partition: (first[one].offset, last[one].offset) for one in asked}

    def progress(self, partitions: Sequence[int]) -> dict[int, RestoreProgress]:
        """What is known of partitions for which a restore was begun. Raises FormatError for invalid progress."""
        asked = [TopicPartition(self.topic, one) for one in partitions]
        found = patiently(self._admin.list_group_offsets, {self.group: asked})[self.group]
        return {
            at.partition: RestoreProgress.of(one.offset, one.metadata, f"group {self.group}, partition {at.partition}")
            for at, one in found.items()
            if one.offset >= 0
        }

    def offsets(self, progress: Mapping[int, RestoreProgress]) -> dict[TopicPartition, OffsetAndMetadata]:
        """``progress`` as offsets of the group, for a transaction or :meth:`save`."""
        return {
            TopicPartition(self.topic, partition): OffsetAndMetadata(one.next, one.to_metadata(), -1)
            for partition, one in progress.items()
        }

    def save(self, progress: Mapping[int, RestoreProgress]) -> None:
        """Commit ``progress``, and only return when it is. Raises :class:`RestoreError` if the cluster refuses."""
        answer = patiently(self._admin.alter_group_offsets, self.group, self.offsets(progress))
        refused = {at.partition: error for at, error in answer.items() if error is not NoError}
        if refused:
            told = ", ".join(f"{partition}: {error.__name__}" for partition, error in sorted(refused.items()))
            raise RestoreError(f"group {self.group}: the progress could not be committed ({told}); run it again")

    def read(self, partition: int, start: int, end: int, *, committed: bool) -> Iterator[list[HeldRecord]]:
        """What the target holds at offsets ``[start, end)``, by kafka-python's own consumer; lists that are not empty.

        Raises:
            RestoreError: the broker gave nothing for a minute, or does not have ``start`` any more.
        """
        at = TopicPartition(self.topic, partition)
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
            consumer.assign([at])
            consumer.seek(at, start)
            moved = time.monotonic()
            while (position := consumer.position(at)) < end:
                found = consumer.poll(timeout_ms=_POLL_MS).get(at, [])  # of markers and aborts it waits for its time
                held = [HeldRecord(one.offset, _record(one)) for one in found if one.offset < end]
                if held:
                    yield held
                if consumer.position(at) > position:
                    moved = time.monotonic()
                elif time.monotonic() > moved + _READ_SECONDS:
                    raise RestoreError(f"{at.topic}-{partition}: nothing was read at offset {position} for a minute")
        finally:
            self._reading.discard(consumer)
            consumer.close()

    def close(self) -> None:
        """Let all connections go, those of reads that were given up as well."""
        for consumer in self._reading:
            consumer.close()
        self._reading.clear()
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _record(found: Any) -> Record:
    headers = [(key, None if value is None else bytes(value)) for key, value in found.headers]
    timestamp = NO_TIMESTAMP if found.timestamp is None else found.timestamp
    return Record(found.key, found.value, headers, timestamp)
