"""Producers that go on through faults and remember what they sent and what was acknowledged."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.support.kafka import KafkaCluster
from tests.support.waiting import HUNG
from tests.uploader_agent.faults.oracle import Truth, digest

_TICK = 0.02
_POOL = os.urandom(1 << 20)
_numbers = itertools.count(1)


class Book:
    """What all producers of a topic's incarnation know, by partition."""

    def __init__(self) -> None:
        self._truths: defaultdict[int, Truth] = defaultdict(Truth)
        self._lock = threading.Lock()
        self.refused = 0

    def truth(self, partition: int) -> Truth:
        """What is known of one partition."""
        with self._lock:
            return self._truths[partition]

    @property
    def acknowledged(self) -> int:
        """How many records were acknowledged."""
        with self._lock:
            return sum(len(truth.acknowledged) for truth in self._truths.values())

    def note(self, partition: int, key: bytes | None, value: bytes) -> Callable[[KafkaError | None, Message], None]:
        """A record is being sent; the result takes its delivery report."""
        record = digest(key, value)
        with self._lock:
            self._truths[partition].sent.add(record)

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            with self._lock:
                if error is not None or offset is None:
                    self.refused += 1
                    return
                self._truths[partition].acknowledged[offset] = record
                if key is not None:
                    self._truths[partition].keys[offset] = key

        return delivered


def make_value(size: int) -> bytes:
    """A value that was never sent before."""
    number = next(_numbers)
    start = number * 7919 % (len(_POOL) - size)
    return b"%d:" % number + _POOL[start : start + size]


def producer(cluster: KafkaCluster, **config: object) -> Producer:
    """An idempotent producer that waits for all in-sync replicas, and goes on trying for a minute."""
    base: dict[str, object] = {
        "bootstrap.servers": cluster.bootstrap,
        "acks": "all",
        "batch.size": 16_384,
        "enable.idempotence": True,
        "linger.ms": 2,
        "delivery.timeout.ms": 60_000,
        "reconnect.backoff.max.ms": 500,
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 200,
        "topic.metadata.refresh.interval.ms": 1000,
        "log_level": 0,
    }
    return Producer({**base, **config})


def send(
    cluster: KafkaCluster,
    topic: str,
    book: Book,
    count: int,
    *,
    partition: int = 0,
    size: int = 400,
    keys: int = 0,
    one_by_one: bool = False,
    **config: object,
) -> None:
    """Send ``count`` records and wait for all; ``one_by_one`` puts each in a batch of its own that followers have.

    ``config`` is the producer's.
    """
    client, refused = producer(cluster, **config), book.refused
    for number in range(count):
        key = b"key-%d" % (number % keys) if keys else None
        value = make_value(size)
        client.produce(topic, value, key, partition=partition, on_delivery=book.note(partition, key, value))
        if one_by_one:
            client.flush(30)
        client.poll(0)
    assert client.flush(60) == 0, f"{topic}-{partition}: not everything was answered"
    assert book.refused == refused, f"{topic}-{partition}: {book.refused - refused} records were refused"


class Load:
    """A thread that sends at a steady rate until it is stopped.

    ``rate`` is in records a second over all ``partitions``. With ``transactional`` every 20 records or so are a
    transaction, of which one in four is aborted; with ``keys`` records have that many different keys.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        topic: str,
        book: Book,
        *,
        partitions: int = 1,
        rate: int = 200,
        size: int = 4000,
        keys: int = 0,
        transactional: str | None = None,
        **config: object,
    ) -> None:
        self._cluster, self._topic, self._book = cluster, topic, book
        self._partitions, self._rate, self._size, self._keys = partitions, rate, size, keys
        self._transactional = transactional
        self._config = {**config, "transactional.id": transactional} if transactional else config
        self._sent = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"load-{topic}", daemon=True)
        self.errors: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until everything sent is acknowledged or refused."""
        self._stopping.set()
        self._thread.join(HUNG)
        assert not self._thread.is_alive(), f"the producer of {self._topic} does not end: {self.errors[-3:]}"

    def _run(self) -> None:
        while not self._stopping.is_set():
            client = producer(self._cluster, **self._config)
            try:
                if self._transactional:
                    self._run_transactions(client)
                else:
                    self._run_plain(client)
            except (KafkaException, BufferError) as error:
                self.errors.append(str(error))
                client.purge()
            client.flush(70)

    def _run_plain(self, client: Producer) -> None:
        while not self._stopping.wait(_TICK):
            self._some(client, max(1, round(self._rate * _TICK)))

    def _run_transactions(self, client: Producer) -> None:
        client.init_transactions(60)
        for number in itertools.count():
            if self._stopping.is_set():
                return
            client.begin_transaction()
            for _ in range(5):
                self._some(client, 4)
                self._stopping.wait(20 / self._rate / 5)
            if number % 4 == 3:
                client.flush(30)  # an abort would take back what has not been sent
                client.abort_transaction(60)
            else:
                client.commit_transaction(60)

    def _some(self, client: Producer, count: int) -> None:
        for _ in range(count):
            self._sent += 1
            number = self._sent
            partition = number % self._partitions
            key = b"key-%d" % (number % self._keys) if self._keys else None
            value = make_value(self._size)
            try:
                client.produce(
                    self._topic, value, key, partition=partition, on_delivery=self._book.note(partition, key, value)
                )
            except BufferError:
                client.poll(0.1)
        client.poll(0)


@contextmanager
def under(*loads: Load) -> Iterator[None]:
    """Run loads while the block runs."""
    for load in loads:
        load.start()
    try:
        yield
    finally:
        for load in loads:
            load.stop()


@contextmanager
def open_transaction(cluster: KafkaCluster, topic: str, book: Book, *, partitions: int) -> Iterator[None]:
    """A transaction with a record in each partition that stays open as long as the block runs, and then commits."""
    client = producer(cluster, **{"transactional.id": f"long-{topic}", "transaction.timeout.ms": 600_000})
    client.init_transactions(60)
    client.begin_transaction()
    for partition in range(partitions):
        value = make_value(100)
        client.produce(topic, value, partition=partition, on_delivery=book.note(partition, None, value))
    client.flush(30)
    try:
        yield
    finally:
        deadline = time.monotonic() + 60
        while True:
            try:
                client.commit_transaction(30)
                break
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
