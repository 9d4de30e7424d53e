from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

from tidemark.brokersets.load import PartitionLoad
from tidemark.intervals import Interval
from tidemark.onboarding.expectations import (
    PUTS_PER_LANDING,
    PUTS_PER_SEGMENT,
    Rate,
    costs,
    expected_freshness,
    sampled_rate,
)
from tidemark.onboarding.facts import SAMPLE_COLUMNS, Sample, TopicFacts
from tidemark.onboarding.onboard import loads_of_leaders
from tidemark.topics import BatchWindow, RetentionSettings, TopicSettings

TOPIC = TopicSettings(topic="orders", cluster="east", table="orders")
FACTS = TopicFacts(
    "orders", ((1,), (2,)), internal=False, config={"segment.bytes": "1000000", "segment.ms": "604800000"}
)


def test_a_trickling_topic_waits_for_segment_ms() -> None:
    found = expected_freshness(TOPIC, FACTS, Rate(1.0, "sample"))
    assert found.wait == timedelta(days=7)
    assert "may wait 7d" in found.notes[0]


def test_a_busy_topic_waits_until_its_segments_are_full() -> None:
    found = expected_freshness(TOPIC, FACTS, Rate(100_000.0, "sample"))
    assert (found.wait, found.notes) == (timedelta(seconds=20), ())


def test_with_a_freshness_nothing_waits_for_kafka() -> None:
    topic = TOPIC.model_copy(update={"freshness": timedelta(seconds=60)})
    assert expected_freshness(topic, FACTS, None).wait is None


def test_short_retention_and_silence_of_kafka_are_told() -> None:
    short = FACTS._replace(config={"retention.ms": "600000", "segment.ms": "60000"})
    assert "retention.ms is 10m" in expected_freshness(TOPIC, short, Rate(1e9, "option")).notes[-1]
    assert "nobody knows" in expected_freshness(TOPIC, None, None).notes[0]


def test_a_sampled_rate_counts_the_partitions_that_were_not_sampled() -> None:
    shared: dict[str, object] = {"kafka_partition": 0, "kafka_value": b"x" * 10, "kafka_headers": []}
    rows = [{**shared, "kafka_offset": at, "kafka_timestamp": at * 10**6} for at in (1, 101)]
    sample = Sample(
        "kafka", pa.RecordBatch.from_pylist(rows, schema=SAMPLE_COLUMNS), {0: Interval(0, 1000)}, partitions=3
    )
    found = sampled_rate(sample)
    assert found is not None
    assert found.bytes_a_second == pytest.approx(3 * 1000 * 10 / 100)
    alone = sample._replace(rows=sample.rows.slice(0, 1))
    assert sampled_rate(alone) is None, "one time spans nothing"


def test_costs_grow_with_what_is_kept() -> None:
    rate = Rate(1e6, "option")
    total = sum(one.dollars for one in costs(TOPIC, FACTS, rate, 2))
    kept = TOPIC.model_copy(update={"retention": RetentionSettings(raw=timedelta(days=304))})
    more = sum(one.dollars for one in costs(kept, FACTS, rate, 2))
    stored = 1e6 * 86_400 * 30.4 * 0.023 / (1 << 30)
    assert more - total == pytest.approx(9 * stored)
    segments = 1e6 * 86_400 * 30.4 / 1e6
    [first, *_] = costs(TOPIC, FACTS, rate, 2)
    assert first.requests == pytest.approx(segments * 5)


def test_without_a_batch_window_each_segment_lands() -> None:
    topic = TOPIC.model_copy(update={"batch": BatchWindow(age=timedelta(0))})
    segments, landings, *_ = costs(topic, FACTS, Rate(1e6, "option"), 2)
    assert landings.requests / PUTS_PER_LANDING == pytest.approx(segments.requests / PUTS_PER_SEGMENT)


def test_each_leader_has_a_load_or_is_not_measured() -> None:
    led = [PartitionLoad("orders", 0, 1, 5.0), PartitionLoad("orders", 1, 2), PartitionLoad("orders", 2, 1, 7.0)]
    rate = Rate(12.0, "agents")
    assert loads_of_leaders(FACTS, led, rate) == {1: 12.0, 2: None}
    assert loads_of_leaders(FACTS, [*led, PartitionLoad("orders", 3, 3, 0.0)], rate) == {1: 12.0, 2: None, 3: 0.0}
    assert loads_of_leaders(FACTS, led[1:2], rate) == {1: 6.0, 2: 6.0}, "spread over the preferred leaders"
    assert loads_of_leaders(None, led[1:2], rate) == loads_of_leaders(FACTS, [], None) == {}
