"""Three realistic streams, and the producers' own record of the broker's acknowledgements.

* ``clicks``: JSON clickstream with keys and headers, zstd, three partitions
* ``orders``: transactions, most committed and some aborted, of JSON that becomes typed columns, lz4, two partitions
* ``sensors``: keyless, a few records a second

No topic has settings of its own: with Kafka's defaults, none of its segments is rotated while the demo runs. Record
times cover three dates. The partition, the offset and the time of acknowledgement of each record are kept, to find
missing and duplicate records, and the time until a record was queryable.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from tests.support.kafka import KafkaCluster

DAYS = 3
REPLICAS = 2

Delivery = Callable[[KafkaError | None, Message], None]


@dataclass(frozen=True)
class Stream:
    """A topic, and its numbers of partitions and records."""

    topic: str
    partitions: int
    records: int


CLICKS = Stream("clicks", 3, 180_000)
ORDERS = Stream("orders", 2, 60_000)
SENSORS = Stream("sensors", 1, 600)
STREAMS = (CLICKS, ORDERS, SENSORS)


@dataclass
class Acknowledged:
    """A topic's records that the broker acknowledged and, in transactions, committed.

    ``committed`` has the offsets by partition, each with its time in seconds since 1970; ``ends`` has the offset after
    the last by partition, and may be read by other threads meanwhile.
    """

    committed: dict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    ends: dict[int, int] = field(default_factory=dict)
    aborted: int = 0

    @property
    def count(self) -> int:
        """Committed records."""
        return sum(len(offsets) for offsets in self.committed.values())

    def add(self, partition: int, offset: int) -> None:
        """Add a record."""
        self.committed[partition][offset] = time.time()
        self.ends[partition] = max(self.ends.get(partition, 0), offset + 1)


class RecordClock:
    """Record times: from midnight two days ago to now, following a stream's progress with some lateness."""

    def __init__(self, rng: random.Random, now: datetime) -> None:
        self._rng = rng
        self._start = datetime(now.year, now.month, now.day, tzinfo=UTC) - timedelta(days=DAYS - 1)
        self._span = now - self._start

    def at(self, progress: float) -> int:
        """Milliseconds since 1970 when ``progress`` (0 to 1) of the stream has been sent."""
        late = min(self._rng.expovariate(1 / 0.002), 0.1)
        moment = self._start + self._span * max(0.0, progress - late)
        return int(moment.timestamp() * 1000)


def create_topics(kafka: KafkaCluster) -> None:
    """Create the three topics."""
    for stream in STREAMS:
        kafka.create_topic(stream.topic, partitions=stream.partitions, replication=REPLICAS)


class Production:
    """Sends all streams at once, each on its own thread, over about ``seconds``."""

    def __init__(self, bootstrap: str, seconds: float, seed: int, log: Path) -> None:
        """``log`` is the file of librdkafka, which logs each try while the broker elects its coordinators."""
        self._bootstrap = bootstrap
        self._log = logging.getLogger(str(log))
        self._log.propagate = False
        self._log.addHandler(logging.FileHandler(log, delay=True))
        self._seconds = seconds
        self._seed = seed
        self._failed: list[BaseException] = []
        self.acknowledged = {stream.topic: Acknowledged() for stream in STREAMS}
        self.sent = dict.fromkeys(self.acknowledged, 0)
        senders = ((CLICKS, self._clicks), (ORDERS, self._orders), (SENSORS, self._sensors))
        self._threads = [
            threading.Thread(target=self._run, args=(stream, sender), name=stream.topic, daemon=True)
            for stream, sender in senders
        ]

    def start(self) -> None:
        """Begin sending; a failed demo ends without waiting for the rest."""
        for thread in self._threads:
            thread.start()

    @property
    def half_sent(self) -> bool:
        """True if half of all records are sent."""
        return 2 * sum(self.sent.values()) >= sum(stream.records for stream in STREAMS)

    @property
    def running(self) -> bool:
        """True while records are being sent."""
        return any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        """Wait for the end. Raises any error of a sender."""
        for thread in self._threads:
            thread.join()
        for handler in self._log.handlers:
            handler.close()
        if self._failed:
            raise self._failed[0]

    def _run(self, stream: Stream, sender: Callable[[Stream, random.Random, RecordClock], None]) -> None:
        rng = random.Random(f"{self._seed}-{stream.topic}")  # noqa: S311 - the stream must be repeatable
        try:
            sender(stream, rng, RecordClock(rng, datetime.now(UTC)))
        except BaseException as error:  # noqa: BLE001 - raised again in join()
            self._failed.append(error)

    def _producer(self, **options: object) -> Producer:
        common = {"bootstrap.servers": self._bootstrap, "linger.ms": 50, "enable.idempotence": True}
        return Producer({**common, **options}, logger=self._log)

    def _paced(self, stream: Stream, number: int, started: float) -> None:
        """Wait until record ``number`` is due."""
        due = started + self._seconds * number / stream.records
        delay = due - time.monotonic()
        if delay > 0:
            time.sleep(delay)

    def _committed(self, topic: str) -> Delivery:
        acknowledged = self.acknowledged[topic]

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                acknowledged.add(_partition(message), _offset(message))

        return delivered

    def _clicks(self, stream: Stream, rng: random.Random, clock: RecordClock) -> None:
        producer = self._producer(**{"compression.type": "zstd"})
        delivered, started = self._committed(stream.topic), time.monotonic()
        for number in range(stream.records):
            if number % 500 == 0:
                self._paced(stream, number, started)
            user, progress = rng.randrange(20_000), number / stream.records
            producer.produce(
                stream.topic,
                key=f"user-{user}",
                value=_click(rng, number, user),
                headers=[("trace", rng.randbytes(8).hex().encode()), ("source", b"web")],
                timestamp=clock.at(progress),
                on_delivery=delivered,
            )
            producer.poll(0)
            self.sent[stream.topic] = number + 1
        _flush(producer)

    def _orders(self, stream: Stream, rng: random.Random, clock: RecordClock) -> None:
        producer = self._producer(**{"compression.type": "lz4", "transactional.id": "demo-orders"})
        producer.init_transactions()
        number, started = 0, time.monotonic()
        while number < stream.records:
            self._paced(stream, number, started)
            size = min(rng.randrange(50, 500), stream.records - number)
            self._transaction(stream, producer, rng, clock, range(number, number + size))
            number += size
            self.sent[stream.topic] = number

    def _transaction(
        self, stream: Stream, producer: Producer, rng: random.Random, clock: RecordClock, numbers: range
    ) -> None:
        written: list[tuple[int, int]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                written.append((_partition(message), _offset(message)))

        producer.begin_transaction()
        for number in numbers:
            progress = number / stream.records
            customer = f"customer-{rng.randrange(3000)}"
            order = {
                "order_id": number,
                "customer": customer,
                "amount": rng.randrange(100, 90_000) / 100,
                "items": rng.choices(range(5000), k=6),
                "note": rng.randbytes(60).hex(),
            }
            producer.produce(
                stream.topic,
                key=customer,
                value=json.dumps(order),
                timestamp=clock.at(progress),
                on_delivery=delivered,
            )
            producer.poll(0)
        _flush(producer)  # so that an aborted transaction is in the log, too
        acknowledged = self.acknowledged[stream.topic]
        if rng.random() < 0.1:
            producer.abort_transaction()
            acknowledged.aborted += len(written)
            return
        producer.commit_transaction()
        for partition, offset in written:
            acknowledged.add(partition, offset)

    def _sensors(self, stream: Stream, rng: random.Random, clock: RecordClock) -> None:
        producer = self._producer()
        delivered, started = self._committed(stream.topic), time.monotonic()
        for number in range(stream.records):
            self._paced(stream, number, started)
            value = json.dumps({"sensor": rng.randrange(40), "celsius": round(rng.gauss(20, 4), 2)})
            producer.produce(
                stream.topic, value=value, timestamp=clock.at(number / stream.records), on_delivery=delivered
            )
            producer.poll(0)
            self.sent[stream.topic] = number + 1
        _flush(producer)


def _click(rng: random.Random, number: int, user: int) -> str:
    event = {
        "event": number,
        "user": user,
        "page": f"/shop/{rng.choice(('shoes', 'hats', 'bags', 'books'))}/{rng.randrange(3000)}",
        "referrer": rng.choice(("search", "mail", "direct", "social")),
        "agent": rng.choice(("Firefox", "Chrome", "Safari")),
        "session": rng.randbytes(12).hex(),
        "position": [rng.random(), rng.random()],
        "experiments": rng.choices(range(100), k=5),
    }
    return json.dumps(event)


def _flush(producer: Producer) -> None:
    left = producer.flush(60)
    if left:
        raise TimeoutError(f"{left} records were not acknowledged within 60 s; see the broker's log")


def _partition(message: Message) -> int:
    partition = message.partition()
    if partition is None:
        raise ValueError("an acknowledged record has no partition")
    return partition


def _offset(message: Message) -> int:
    offset = message.offset()
    if offset is None:
        raise ValueError("an acknowledged record has no offset")
    return offset
