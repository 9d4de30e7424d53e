"""The monthly cost of a deployment's requests to the store, from the requests of one segment and one idle agent.

Arithmetic over figures that ``bench.agent`` and ``bench.idle`` measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidemark.words import duration

DAYS: Final = 30.4
"""Days in a month."""


@dataclass(frozen=True)
class Prices:
    """Prices in US dollars, from the price list of S3 Standard in us-east-1.

    For a request (``put``: PUT, COPY, POST, LIST; ``get``: GET, HEAD), and for a byte ``stored`` for a month (the first
    50 TB).
    """

    put: float = 0.005 / 1000
    get: float = 0.0004 / 1000
    stored: float = 0.023 / (1 << 30)


@dataclass(frozen=True)
class Deployment:
    """The quantities that the cost depends on: bytes of leaders alone, sizes in bytes, intervals in seconds.

    ``live_partitions`` of ``live_topics`` always have new records, and a promised ``freshness``.
    ``pausing_partitions`` of other topics pause for longer than the agent's ``tail_after``, ``pauses`` times a day.
    """

    bytes_a_day: float = 200e12
    segment: float = 1 << 30
    brokers: int = 3000
    index_news: float = 10
    index_idle: float = 60
    fill_interval: float = 60
    live_partitions: float = 0
    live_topics: float = 0
    freshness: float = 60
    pausing_partitions: float = 0
    pauses: float = 0


@dataclass(frozen=True)
class PerSegment:
    """Requests for one segment: its objects, manifest and ``offset.wm``."""

    put: float = 5


TICKS: Final = 3
"""Packs that a broker stores within a ``freshness``."""

RANGES: Final = 256
"""Ranges of a partition after which it is sealed."""


GATHERED: Final = 60
"""Seconds for which an agent gathers quiet tails for a pack."""


@dataclass(frozen=True)
class PerLanding:
    """Requests of a live landing: for a broker's head and each pack, for a partition, for a topic's commit.

    The scan reads each version of a head, and the landing reads the last one again.
    """

    head_get: float = TICKS + 1
    pack_get: float = 3
    partition_get: float = 1
    range_get: float = 1
    topic_put: float = 7
    topic_get: float = 12


@dataclass(frozen=True)
class Line:
    """One line of the table: requests and dollars in a month."""

    what: str
    requests: float
    dollars: float


def lines(deployment: Deployment, each: PerSegment, prices: Prices) -> Iterator[Line]:
    """The month's requests by purpose."""
    month = 86_400 * DAYS
    segments = deployment.bytes_a_day * DAYS / deployment.segment
    news = min(segments / deployment.brokers, month / deployment.index_news)
    indexes = deployment.brokers * max(month / deployment.index_idle, news)
    listed = deployment.brokers * month / deployment.fill_interval
    yield Line("segments: objects, manifests, watermarks", segments * each.put, segments * each.put * prices.put)
    yield Line(f"watermark indexes, every {duration(deployment.index_idle)} or on news", indexes, indexes * prices.put)
    yield Line(f"looking for gaps, every {duration(deployment.fill_interval)}", listed, listed * prices.put)


def live_lines(deployment: Deployment, each: PerLanding, prices: Prices) -> Iterator[Line]:
    """The month's requests for packs and live landings; a landing comes once within each ``freshness``."""
    landings = 86_400 * DAYS / deployment.freshness
    packed = 2 * TICKS * deployment.brokers * landings
    sealed = deployment.live_partitions * landings * TICKS / RANGES * PerSegment().put
    yield Line(f"packs and heads, every {duration(deployment.freshness / TICKS)}", packed, packed * prices.put)
    yield Line(f"seals of packed partitions, after {RANGES} ranges", sealed, sealed * prices.put)
    of_broker = each.head_get + TICKS * each.pack_get
    of_partition = each.partition_get + TICKS * each.range_get
    read = landings * (deployment.brokers * of_broker + deployment.live_partitions * of_partition)
    yield Line("live landings: heads, packs, `offset.wm`, ranges", read, read * prices.get)
    puts, gets = deployment.live_topics * landings * each.topic_put, deployment.live_topics * landings * each.topic_get
    yield Line("live landings: plans and commits of topics", puts + gets, puts * prices.put + gets * prices.get)


def quiet_lines(deployment: Deployment, each: PerSegment, prices: Prices) -> Iterator[Line]:
    """The month's requests for partitions that pause, if their brokers' pauses are spread out evenly.

    A pack and a head take all tails that become quiet within :data:`GATHERED`. A partition that pauses is sealed within
    a day, once for all its pauses.
    """
    month = 86_400 * DAYS
    pauses = deployment.pausing_partitions * deployment.pauses * DAYS
    packed = 2 * min(pauses, deployment.brokers * month / GATHERED)
    sealed = deployment.pausing_partitions * min(deployment.pauses, 1) * DAYS * each.put
    yield Line(f"packs and heads of quiet tails, within {GATHERED} s", packed, packed * prices.put)
    yield Line("seals of partitions that paused, after a day", sealed, sealed * prices.put)
