"""Three families of Kafka clients behind one face, since each frames its batches in its own way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from confluent_kafka import Producer
from kafka import KafkaProducer

from tests.support.java_client import JavaClient
from tests.tidemark.kafka_log.build import Record

_RDKAFKA_SECONDS = 60.0
_TRANSACTION_MILLISECONDS = 900_000
"""The most that brokers grant: a transaction that is left open must stay open for the test."""


class Client(Protocol):
    """A producer, transactional if it was given an id."""

    def send(self, partition: int, records: Iterable[tuple[str, Record]]) -> None:
        """Send records to that partition of their topics, and wait until all are acknowledged."""

    def begin(self) -> None:
        """Begin a transaction."""

    def commit(self) -> None:
        """Commit the transaction."""

    def abort(self) -> None:
        """Abort the transaction."""

    def close(self) -> None:
        """Let the connections go."""


class PythonClient:
    """kafka-python."""

    def __init__(self, bootstrap: str, codec: str, transactional_id: str | None, *, idempotent: bool = True) -> None:
        """A ``transactional_id`` makes it transactional; ``idempotent`` must be off for old message formats."""
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            transactional_id=transactional_id,
            transaction_timeout_ms=_TRANSACTION_MILLISECONDS,
            enable_idempotence=idempotent,
            acks="all",
            linger_ms=2,
        )
        if transactional_id:
            self._producer.init_transactions()

    def send(self, partition: int, records: Iterable[tuple[str, Record]]) -> None:
        """See :class:`Client`."""
        for topic, one in records:
            self._producer.send(
                topic, one.value, one.key, headers=list(one.headers), timestamp_ms=one.timestamp, partition=partition
            )
        self._producer.flush()

    def begin(self) -> None:
        """See :class:`Client`."""
        self._producer.begin_transaction()

    def commit(self) -> None:
        """See :class:`Client`."""
        self._producer.commit_transaction()

    def abort(self) -> None:
        """See :class:`Client`."""
        self._producer.abort_transaction()

    def close(self) -> None:
        """See :class:`Client`."""
        self._producer.close()


class RdkafkaClient:
    """librdkafka, through confluent-kafka."""

    def __init__(self, bootstrap: str, codec: str, transactional_id: str | None, *, idempotent: bool = True) -> None:
        """See :class:`PythonClient`."""
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "enable.idempotence": idempotent,
            "log_level": 0,
            "linger.ms": 2,
        }
        if transactional_id:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": _TRANSACTION_MILLISECONDS}
        self._producer = Producer(settings)
        self._failures: list[str] = []
        if transactional_id:
            self._producer.init_transactions(_RDKAFKA_SECONDS)

    def send(self, partition: int, records: Iterable[tuple[str, Record]]) -> None:
        """See :class:`Client`."""
        for topic, one in records:
            self._producer.produce(
                topic,
                one.value,
                one.key,
                partition=partition,
                timestamp=one.timestamp,
                headers=list(one.headers),
                on_delivery=self._delivered,
            )
        assert self._producer.flush(_RDKAFKA_SECONDS) == 0
        assert not self._failures, self._failures[0]

    def begin(self) -> None:
        """See :class:`Client`."""
        self._producer.begin_transaction()

    def commit(self) -> None:
        """See :class:`Client`."""
        self._producer.commit_transaction(_RDKAFKA_SECONDS)

    def abort(self) -> None:
        """See :class:`Client`."""
        self._producer.abort_transaction(_RDKAFKA_SECONDS)

    def close(self) -> None:
        """See :class:`Client`; librdkafka does so when the object goes."""
        del self._producer

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self._failures.append(str(error))


class JavaProducer:
    """The Java client, in the JVM of ``java``."""

    def __init__(
        self, java: JavaClient, bootstrap: str, codec: str, transactional_id: str | None, *, idempotent: bool = True
    ) -> None:
        """See :class:`PythonClient`."""
        settings = {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "enable.idempotence": "true" if idempotent else "false",
            "linger.ms": "2",
        }
        if transactional_id:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": f"{_TRANSACTION_MILLISECONDS}"}
        self._java = java
        self._producer = java.producer(settings)
        if transactional_id:
            self._producer.initTransactions()

    def send(self, partition: int, records: Iterable[tuple[str, Record]]) -> None:
        """See :class:`Client`."""
        sent = [
            self._producer.send(
                self._java.record(topic, partition, one.timestamp, one.key, one.value, list(one.headers))
            )
            for topic, one in records
        ]
        self._producer.flush()
        for future in sent:
            future.get()

    def begin(self) -> None:
        """See :class:`Client`."""
        self._producer.beginTransaction()

    def commit(self) -> None:
        """See :class:`Client`."""
        self._producer.commitTransaction()

    def abort(self) -> None:
        """See :class:`Client`."""
        self._producer.abortTransaction()

    def close(self) -> None:
        """See :class:`Client`."""
        self._producer.close()
