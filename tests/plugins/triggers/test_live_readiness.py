from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from tests.plugins.world import row
from tidemark.formats.table.live_landing import LiveLanding, TopicLanding
from tidemark.topics import LIVE_BYTES
from tidemark_airflow.triggers.live_readiness import LiveTopic, LiveWatch, landing_of
from tidemark_airflow.triggers.readiness import Landed, Row

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
WAITS = timedelta(seconds=15)
TOPICS = [LiveTopic(topic=name, every=WAITS) for name in ("clicks", "orders")]


def scan(**ends: int) -> dict[str, tuple[Row, ...]]:
    return {topic: (row(topic, next_offset=end, observed_at=NOW),) for topic, end in ends.items()}


def landed(**ends: int) -> dict[str, Mapping[str, Landed]]:
    return {topic: {"0-0": Landed(end, 0)} for topic, end in ends.items()}


Known = Mapping[str, Mapping[str, Landed]]


class Judge:
    """One trigger's judgement, where ``known`` has landed."""

    def __init__(self, known: Known | None = None, last: LiveLanding | None = None) -> None:
        self.watch = LiveWatch(TOPICS)
        self.known = dict(known or {})
        self.last = last

    def due(self, rows: Mapping[str, tuple[Row, ...]], now: datetime) -> tuple[TopicLanding, ...]:
        return self.watch.due(rows, lambda topic: self.known.get(topic, {}), self.last, now)

    def names(self, rows: Mapping[str, tuple[Row, ...]], now: datetime) -> list[str]:
        return [one.topic for one in self.due(rows, now)]


def began(at: datetime) -> LiveLanding:
    """A landing that began then, after which nothing waits."""
    return LiveLanding(cluster="kafka-1", began_at=at, ended_at=at)


def test_a_topic_is_due_at_once_where_no_landing_was_lately() -> None:
    assert Judge(landed(orders=10)).names(scan(orders=11), NOW) == ["orders"]
    assert Judge(landed(orders=10), began(NOW - WAITS)).names(scan(orders=11), NOW) == ["orders"]
    assert Judge(landed(orders=11), began(NOW - WAITS)).names(scan(orders=11), NOW) == []


def test_landings_begin_no_more_often_than_a_topic_asks_for() -> None:
    judge = Judge(landed(orders=10), began(NOW))

    assert judge.names(scan(orders=11), NOW + WAITS - SECOND) == []
    assert judge.names(scan(orders=11), NOW + WAITS) == ["orders"]


def test_a_landing_begins_for_the_topic_that_asks_for_it_most_often() -> None:
    watch = LiveWatch([LiveTopic(topic="clicks", every=4 * WAITS), LiveTopic(topic="orders", every=WAITS)])

    def names(rows: Mapping[str, tuple[Row, ...]]) -> list[str]:
        return [one.topic for one in watch.due(rows, lambda _: {}, began(NOW), NOW + WAITS)]

    assert names(scan(clicks=1)) == []
    assert names(scan(clicks=1, orders=1)) == ["clicks", "orders"]


def test_all_topics_that_have_something_land_together() -> None:
    [clicks, orders] = Judge().due(scan(clicks=1, orders=5), NOW)

    assert (clicks.topic, orders.topic) == ("clicks", "orders")
    [partition] = orders.partitions
    assert (partition.partition, partition.incarnation, partition.end) == (0, 0, 5)
    assert clicks.attempt != orders.attempt


@pytest.mark.parametrize(
    ("at", "mark", "is_due"),
    [
        pytest.param(Landed(10, 0), row(next_offset=10), False, id="landed"),
        pytest.param(Landed(10, 0), row(next_offset=9), False, id="an index that lags behind the tail that has landed"),
        pytest.param(Landed(10, 0), row(next_offset=9, epoch=1), True, id="cut off by another leader"),
        pytest.param(Landed(10, 2), row(next_offset=10, epoch=1), False, id="a former leader's word"),
        pytest.param(None, row(next_offset=1), True, id="never landed"),
        pytest.param(None, row(next_offset=0, epoch=-1), False, id="nothing uploaded"),
    ],
)
def test_what_is_beyond_the_ledger_is_due(at: Landed | None, mark: Row, is_due: bool) -> None:
    judge = Judge({"orders": {"0-0": at}} if at else {})

    assert bool(judge.due({"orders": (mark,)}, NOW)) is is_due


def test_a_backlog_is_left_to_the_topics_own_runs() -> None:
    large = row(next_offset=11, bytes_per_offset=LIVE_BYTES, observed_at=NOW - WAITS)
    larger = row(next_offset=12, bytes_per_offset=LIVE_BYTES, observed_at=NOW - WAITS)

    assert Judge(landed(orders=10)).names({"orders": (large,)}, NOW) == ["orders"]
    assert Judge(landed(orders=10)).names({"orders": (larger,)}, NOW) == []


def after(**changes: object) -> LiveLanding:
    """A landing after which orders is not landed."""
    [orders] = Judge().due(scan(orders=5), NOW + WAITS)
    done = orders.model_copy(update={"again_at": NOW + 2 * WAITS, **changes})
    return LiveLanding(cluster="kafka-1", began_at=NOW, ended_at=NOW, topics=(done,))


def test_a_topic_that_failed_is_left_out_for_a_while_and_its_failures_are_counted() -> None:
    judge = Judge(last=after(status="failed", failures=2))

    assert judge.names(scan(orders=6, clicks=1), NOW + WAITS) == ["clicks"]
    [orders] = judge.due(scan(orders=6), NOW + 2 * WAITS)
    assert orders.failures == 2
    assert orders.status == "due"


def test_what_was_empty_is_tried_again_when_it_has_moved() -> None:
    judge = Judge(last=after(status="empty"))

    assert judge.names(scan(orders=5), NOW + WAITS) == []
    assert judge.names(scan(orders=6), NOW + WAITS) == ["orders"]
    assert Judge(last=after(status="empty")).names(scan(orders=5), NOW + 2 * WAITS) == ["orders"]


def test_a_new_leader_who_cut_nothing_off_is_planned_for_once() -> None:
    led_anew = {"orders": (row(next_offset=5, epoch=1, observed_at=NOW),)}
    [orders] = Judge(landed(orders=5)).due(led_anew, NOW + WAITS)
    done = orders.model_copy(update={"status": "empty", "again_at": NOW + WAITS})
    last = LiveLanding(cluster="kafka-1", began_at=NOW, ended_at=NOW, topics=(done,))

    assert Judge(landed(orders=5), last).names(led_anew, NOW + 1000 * WAITS) == []


def test_what_is_held_is_known_after_later_landings() -> None:
    last = after(status="failed", failures=2)
    for _ in range(3):
        due = Judge(last=last).due(scan(orders=6, clicks=1), NOW + WAITS)
        last = landing_of("kafka-1", due, last, NOW)

    assert [one.topic for one in last.topics] == ["clicks"]
    assert [(one.topic, one.failures) for one in last.held] == [("orders", 2)]
    assert Judge(last=last).names(scan(orders=6, clicks=1), NOW + WAITS) == ["clicks"]


def test_what_has_landed_is_not_kept() -> None:
    last = after(status="landed", again_at=None)

    assert landing_of("kafka-1", Judge().due(scan(clicks=1), NOW + WAITS), last, NOW).held == ()
