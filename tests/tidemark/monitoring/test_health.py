from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.ledgers import landed
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.watermark_index import IndexEntry, LeaderEntry
from tidemark.formats.table.ledger import Ledger
from tidemark.monitoring.health import MOST_MARKS, TopicHealth, WaitingSince, marked, topic_health
from tidemark.topics import TopicSettings

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TOPIC = TopicSettings(topic="orders", cluster="east", table="orders", freshness=15 * MINUTE)


def gap(start: int, end: int, reason: str = "unknown") -> Gap:
    return Gap.model_validate({"from": start, "to": end, "reason": reason, "detected_at": NOW})


def entry(
    partition: int = 0, uploaded: int = 0, *, active: int | None = None, end: int = 0, gaps: tuple[Gap, ...] = ()
) -> IndexEntry:
    return IndexEntry(
        topic="orders",
        partition=partition,
        topic_id=None,
        incarnation=0,
        leader_epoch=0,
        next_offset=uploaded,
        uploaded_end=uploaded,
        log_end_offset=max(uploaded, active or 0, end),
        high_watermark=max(uploaded, active or 0, end),
        active_base_offset=active,
        observed_at=NOW,
        gaps=gaps,
    )


def led(*entries: IndexEntry) -> list[LeaderEntry]:
    """The entries, of broker 7."""
    return [LeaderEntry(7, one) for one in entries]


def ledger(*next_offsets: int, gaps: tuple[Gap, ...] = ()) -> Ledger:
    partitions = tuple(landed(offset, number, gaps=gaps) for number, offset in enumerate(next_offsets))
    fields = {"n": 1, "attempt": 7, "partitions": partitions, "committed_at": NOW}
    return Ledger.genesis("east", "orders", "orders").model_copy(update=fields)


class Looks:
    """One topic, looked at again and again."""

    def __init__(self) -> None:
        self.marks: tuple[WaitingSince, ...] = ()

    def __call__(self, minute: int, known: Ledger, *entries: IndexEntry) -> TopicHealth:
        found = topic_health(TOPIC, known, led(*entries), NOW + minute * MINUTE, marks=self.marks)
        self.marks = found.marks
        return found


def late(health: TopicHealth, minute: int) -> bool:
    return health.is_late(TOPIC, NOW + minute * MINUTE)


def test_where_nobody_knows_what_is_stored_a_mark_stays_and_none_is_made() -> None:
    """A new leader's agent has not read yet what the former one has packed."""
    look, unknown = Looks(), entry(uploaded=0, end=300).model_copy(update={"packs_known": False})
    assert look(0, ledger(100), unknown).behind_since is None
    packed = entry(uploaded=0, end=300).model_copy(update={"tail_end": 200})
    assert look(1, ledger(100), packed).behind_since == NOW + MINUTE
    found = look(2, ledger(100), unknown)
    assert (found.behind_since, found.partitions[0].watermark) == (NOW + MINUTE, None)
    assert look(3, ledger(200), unknown).behind_since is None


def test_a_topic_that_is_caught_up_is_never_late() -> None:
    look = Looks()
    for minute in (0, 60, 60 * 24):
        found = look(minute, ledger(100), entry(uploaded=100, active=100, end=180))
        assert (found.behind_since, late(found, minute), found.lag) == (None, False, 80)


def test_what_is_uploaded_and_not_landed_is_late_after_its_time() -> None:
    look = Looks()
    assert look(0, ledger(100), entry(uploaded=200)).behind_since == NOW
    found = look(15, ledger(100), entry(uploaded=900))
    assert (found.behind_since, late(found, 15), late(found, 16)) == (NOW, False, True)


def test_so_is_what_is_rotated_and_not_uploaded() -> None:
    look = Looks()
    look(0, ledger(100), entry(uploaded=100, active=200, end=250))
    assert late(look(16, ledger(100), entry(uploaded=100, active=200, end=250)), 16)


def test_a_topic_that_follows_its_log_is_not_late_however_long_it_never_catches_up() -> None:
    look = Looks()
    for minute in range(120):
        found = look(minute, ledger(100 * minute), entry(uploaded=100 * minute + 150))
        assert found.behind_since is not None
        assert not late(found, minute)


def test_one_partition_that_stands_makes_a_topic_late_that_goes_on() -> None:
    look = Looks()
    for minute in range(16):
        assert not late(look(minute, ledger(0, 100 * minute), entry(0, 10), entry(1, 100 * minute + 100)), minute)
    found = look(16, ledger(0, 1600), entry(0, 10), entry(1, 1700))
    assert late(found, 16)
    assert found.partitions[0].waits_since == NOW


def test_a_gap_is_what_waits_and_not_what_lies_beyond_it() -> None:
    found = topic_health(TOPIC, ledger(100), led(entry(uploaded=100, active=300, gaps=(gap(100, 150),))), NOW)
    assert found.behind_since is None
    assert [one.start for one in found.partitions[0].gaps] == [100]


def test_open_gaps_are_those_of_ledger_and_agent_but_not_what_has_landed_since() -> None:
    found = topic_health(
        TOPIC, ledger(100, gaps=(gap(120, 130),)), led(entry(uploaded=100, gaps=(gap(50, 60), gap(200, 210)))), NOW
    )
    assert [one.start for one in found.partitions[0].gaps] == [120, 200]


def test_a_partition_that_nobody_tells_of_or_that_never_landed() -> None:
    found = topic_health(TOPIC, ledger(40), led(entry(1, 30)), NOW)
    assert [(one.partition, one.landed, one.watermark, one.broker) for one in found.partitions] == [
        (0, 40, None, None),
        (1, None, 30, 7),
    ]
    assert found.lag == 30


def test_before_the_first_commit() -> None:
    found = topic_health(TOPIC, Ledger.genesis("east", "orders", "orders"), [], NOW)
    assert (found.committed_at, found.behind_since, found.lag) == (None, None, 0)


@pytest.mark.parametrize(
    ("reached", "goal", "offset", "minutes"),
    [
        pytest.param(50, 300, 100, 0, id="not yet"),
        pytest.param(100, 300, 300, 5, id="reached, and the next"),
        pytest.param(300, 300, None, None, id="caught up"),
        pytest.param(50, 40, None, None, id="the log was cut off"),
    ],
)
def test_a_mark_stays_until_it_is_reached(reached: int, goal: int, offset: int | None, minutes: int | None) -> None:
    before = [WaitingSince(incarnation=0, partition=0, offset=100, since=NOW)]
    found = marked({(0, 0): goal}, {(0, 0): reached}, before, NOW + 5 * MINUTE)
    wanted = [] if offset is None else [(offset, NOW + (minutes or 0) * MINUTE)]
    assert [(one.offset, one.since) for one in found] == wanted


def test_the_oldest_marks_are_kept() -> None:
    old = [WaitingSince(incarnation=0, partition=5000, offset=9, since=NOW)]
    goals = {(0, number): 10 for number in range(3 * MOST_MARKS)} | {(0, 5000): 10}
    found = marked(goals, {}, old, NOW + MINUTE)
    assert (len(found), found[0]) == (MOST_MARKS, old[0])
