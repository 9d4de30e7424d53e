"""The costs of a topic and the freshness of its table, from its rate, Kafka's settings and the agents'.

Costs are requests to the store, at their prices, and stored bytes. ``bench.agent`` and ``bench.idle`` measure the
requests of a segment and of a live landing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from tidemark.formats.raw.pack import MOST_UNSEALED_RANGES
from tidemark.formats.raw.watermark_index import PACKS_PER_FRESHNESS
from tidemark.onboarding.facts import Sample, TopicFacts
from tidemark.topics import TopicSettings

RateSource = Literal["option", "agents", "sample"]

DAYS_OF_MONTH: Final = 30.4
"""Days in a month."""

PUTS_PER_SEGMENT: Final = 5
"""PUT requests for one segment: its objects, manifest and ``offset.wm``."""

PUTS_PER_LANDING: Final = 7
GETS_PER_LANDING: Final = 11
"""Requests of a live landing for a topic's commit; those for heads, packs and partitions come on top."""

PUT_PRICE: Final = 0.005 / 1000
GET_PRICE: Final = 0.0004 / 1000
STORED_PRICE: Final = 0.023 / (1 << 30)
"""US dollars for a PUT, COPY, POST or LIST, for a GET or HEAD, and for a byte a month (the first 50 TB).

They are from the price list of S3 Standard in us-east-1.
"""

_MONTH: Final = timedelta(days=DAYS_OF_MONTH)
_LONG_WAIT: Final = timedelta(hours=1)
"""People expect a table's rows sooner; a note warns of later segments."""


class Rate(NamedTuple):
    """The growth of a topic in bytes a second, and its source: an option, the agents, or the sample."""

    bytes_a_second: float
    source: RateSource


class Expectation(NamedTuple):
    """The expected delay. ``wait`` is the longest time until Kafka rolls a segment; None if the agents pack."""

    freshness: timedelta | None
    wait: timedelta | None
    notes: tuple[str, ...]

    def answer(self) -> dict[str, Any]:
        """The delay for programs; in seconds."""
        return {
            "promise": self.freshness.total_seconds() if self.freshness else None,
            "rotation_within": self.wait.total_seconds() if self.wait else None,
            "notes": list(self.notes),
        }


def sampled_rate(sample: Sample) -> Rate | None:
    """The rate of a topic from its sample: all offsets times the sample's bytes a record, over the time they span.

    It uses the records' own times, and no compression or batches. None if the sample has no two times.
    """
    own: list[int | None] = sample.rows.column("kafka_timestamp").cast(pa.int64()).to_pylist()
    times = [time for time in own if time is not None and time > 0]
    seconds = (max(times) - min(times)) / 1e6 if times else 0.0
    if seconds < 1:
        return None
    offsets = sum(span.end - span.start for span in sample.spans.values())
    share = len(sample.spans) / sample.partitions
    return Rate(offsets / share * (sample.size / len(sample.rows)) / seconds, "sample")


def expected_freshness(topic: TopicSettings, facts: TopicFacts | None, rate: Rate | None) -> Expectation:
    """The time that records wait for their segment, and notes on shortening a long wait."""
    notes: list[str] = []
    wait = None
    if facts is not None and topic.freshness is None:
        wait = _rotation(facts, rate)
        if wait > _LONG_WAIT:
            notes.append(
                f"a record may wait {_words(wait)} until Kafka rolls its segment: segment.bytes={facts.segment_bytes}, "
                f"segment.ms={facts.segment_time / timedelta(milliseconds=1):.0f}. Give the topic a freshness here "
                "and in the agents' file, or lower segment.ms. The agent packs the tail if the partition pauses"
            )
    if facts is None and topic.freshness is None:
        notes.append("Kafka was not asked, so nobody knows when it rolls segments; give --bootstrap")
    retention = facts.retention_time if facts is not None else None
    if retention is not None and facts is not None and retention < max(facts.segment_time, _LONG_WAIT):
        notes.append(
            f"retention.ms is {_words(retention)}: the agent holds segments until they are stored, but a broker "
            "without an agent, or one whose agent is stopped, loses them after that"
        )
    return Expectation(topic.freshness, wait, tuple(notes))


def costs(topic: TopicSettings, facts: TopicFacts | None, rate: Rate, partitions: int) -> Iterator[CostLine]:
    """A month's requests and bytes that the topic adds, at S3's prices.

    The agents' requests without the topic, and packs, which all topics of a broker share, are not counted. Raw is
    stored for ``retention.raw``, or a month for each month that it is kept; the table is taken to be as large as raw.
    """
    month = _MONTH.total_seconds()
    size = rate.bytes_a_second * month
    segment = facts.segment_bytes if facts is not None else 1 << 30
    segment_time = (facts.segment_time if facts is not None else timedelta(days=7)).total_seconds()
    segments = max(size / segment, partitions * month / segment_time)
    window = (topic.freshness or topic.batch.age).total_seconds()
    landings = month / window if window else segments  # without a batch window, each segment lands by itself
    if topic.freshness is None:
        landings = min(landings, segments)
    else:
        segments = max(segments, partitions * landings * PACKS_PER_FRESHNESS / MOST_UNSEALED_RANGES)
    puts = segments * PUTS_PER_SEGMENT
    yield CostLine("segments: objects, manifests, watermarks", puts, puts * PUT_PRICE)
    puts = landings * PUTS_PER_LANDING
    yield CostLine("landings: plans and commits", puts, puts * PUT_PRICE)
    gets = landings * (GETS_PER_LANDING + (partitions if topic.freshness else 0)) + segments
    yield CostLine("landings: state and segments", gets, gets * GET_PRICE)
    for subject, kept in (("raw", topic.retention.raw), ("the table", topic.retention.table)):
        share = (kept or _MONTH) / _MONTH
        term = f"kept {_words(kept)}" if kept else "each month that is kept"
        yield CostLine(f"storage: {subject}, {term}", 0.0, size * share * STORED_PRICE)


def _rotation(facts: TopicFacts, rate: Rate | None) -> timedelta:
    if rate is None or rate.bytes_a_second <= 0:
        return facts.segment_time
    full = facts.segment_bytes * max(1, facts.partitions) / rate.bytes_a_second
    return min(facts.segment_time, timedelta(seconds=min(full, 1e9)))


def _words(length: timedelta) -> str:
    seconds = length.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.3g}{unit}"
    return f"{seconds:.3g}s"


@dataclass(frozen=True)
class CostLine:
    """One line of the table: requests and dollars in a month."""

    what: str
    requests: float
    dollars: float
