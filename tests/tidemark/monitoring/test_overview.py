"""How topics are and were: summaries, samples, what is kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tidemark.formats.keys import DeploymentKeys
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.table.ledger import DateState
from tidemark.kafka_log import OpenTransaction
from tidemark.monitoring.health import PartitionHealth, TopicHealth
from tidemark.monitoring.overview import (
    KEPT,
    Overview,
    Samples,
    TopicSummary,
    hours,
    record,
)
from tidemark.store import Store, open_store

NOW = datetime(2026, 11, 21, 12, 2, tzinfo=UTC)
KEYS = DeploymentKeys("tables", "prod")
GAP = Gap.model_validate({"from": 7, "to": 10, "reason": "corrupt", "detected_at": NOW})
OPEN = OpenTransaction(producer_id=1, producer_epoch=0, first_offset=3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}")


def health(*partitions: PartitionHealth, behind: timedelta | None = None, **dates: DateState) -> TopicHealth:
    return TopicHealth(
        cluster="prod",
        topic="orders",
        table="orders",
        owner="shop",
        ledger_n=4,
        committed_at=NOW,
        lag=12,
        behind_since=NOW - behind if behind is not None else None,
        marks=(),
        partitions=partitions,
        dates={name.replace("_", "-").lstrip("d"): one for name, one in dates.items()},
    )


def part(**fields: object) -> PartitionHealth:
    return PartitionHealth.model_validate({"incarnation": 0, "partition": 0, "landed": 5, "log_end": 17, **fields})


def overview(at: datetime, *topics: TopicSummary) -> Overview:
    return Overview(cluster="prod", at=at, topics=topics)


def summary(lag: int = 3, topic: str = "orders", behind_since: datetime | None = None) -> TopicSummary:
    return TopicSummary(
        topic=topic, state="complete", ledger_n=1, landed=10, lag=lag, rows=9, behind_since=behind_since
    )


def test_a_summary_counts() -> None:
    given = health(
        part(gaps=(GAP,)),
        part(partition=1, held_by=(OPEN,), log_end=None),
        d2026_11_19=DateState(state="final_incomplete", rows=4),
        d2026_11_20=DateState(state="final", rows=5),
        d2026_11_21=DateState(state="open", rows=6),
    )
    found = TopicSummary.of(given)
    assert (found.gaps, found.missing, found.held, found.partitions) == (1, 3, 1, 2)
    assert (found.rows, found.final_to, found.incomplete) == (15, "2026-11-20", 1)
    assert found.landed == 5, "of the partitions that a broker leads"
    assert found.with_log_ends([17, 3]).lag == 15
    complete = summary(0).with_log_ends([10])
    assert (complete.state, complete.with_log_ends([12]).state) == ("complete", "current")


def test_the_overview_is_the_newest(store: Store) -> None:
    assert Overview.load_or_none(store, KEYS.overview) is None
    record(store, KEYS, overview(NOW, summary(3)), None)
    record(store, KEYS, overview(NOW + timedelta(minutes=1), summary(4)), NOW)
    found = Overview.load_or_none(store, KEYS.overview)
    assert found is not None
    assert [one.lag for one in found.topics] == [4]


def test_a_sample_is_taken_every_five_minutes(store: Store) -> None:
    sampled_at: datetime | None = None
    for minute in range(12):
        at = NOW + timedelta(minutes=minute)
        sampled_at = record(store, KEYS, overview(at, summary(minute, behind_since=NOW)), sampled_at)
    found = Samples.load_or_none(store, KEYS.samples(NOW))
    assert found is not None
    assert [(one.at, one.lag, one.waits, one.rows) for one in found.of("orders")] == [
        (NOW, 0, 0, 9),
        (NOW + timedelta(minutes=5), 5, 300, 9),
        (NOW + timedelta(minutes=10), 10, 600, 9),
    ]
    assert list(found.of("nobody's")) == []


def test_topics_come_and_go_between_samples() -> None:
    later = NOW + timedelta(minutes=5)
    found = Samples(cluster="prod").with_sample(overview(NOW, summary(1, "a")))
    found = found.with_sample(overview(later, summary(2, "b")))
    assert {name: [(one.at, one.lag) for one in found.of(name)] for name in "ab"} == {
        "a": [(NOW, 1)],
        "b": [(later, 2)],
    }


def test_old_samples_are_forgotten_with_the_next_hour(store: Store) -> None:
    old, kept = NOW - KEPT - timedelta(hours=1), NOW - KEPT + timedelta(hours=1)
    for at in (old, kept):
        store.put(KEYS.samples(at), Samples(cluster="prod").to_bytes())
    record(store, KEYS, overview(NOW, summary()), None)
    assert [one.key for one in store.list(KEYS.all_samples)] == [KEYS.samples(kept), KEYS.samples(NOW)]


def test_hours_are_whole_and_end_with_this_one() -> None:
    assert [f"{one:%d %H:%M}" for one in hours(datetime(2026, 11, 21, 0, 59, tzinfo=UTC), 3)] == [
        "20 22:00",
        "20 23:00",
        "21 00:00",
    ]
