from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.plugins.world import entry
from tidemark.formats.raw.cluster import FIRST_SLOT
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.watermark_index import LeaderEntry
from tidemark.monitoring.topic_conditions import retention_near, unmeasured, unstored, unstored_for
from tidemark.topics import TopicSettings

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
TOPIC = TopicSettings(topic="orders", cluster="east", table="orders", freshness=60 * SECOND)
ANY = TOPIC.model_copy(update={"freshness": None})


def led(*said: tuple[float | None, int]) -> dict[int, LeaderEntry]:
    """For each partition the age of its oldest unstored byte, and how many seconds ago that was said."""
    return {
        partition: LeaderEntry(
            partition + 1,
            entry(partition=partition, next_offset=10, log_end=20, observed_at=NOW - ago * SECOND).model_copy(
                update={"oldest_unstored": oldest}
            ),
        )
        for partition, (oldest, ago) in enumerate(said)
    }


@pytest.mark.parametrize(
    ("oldest", "ago", "waits"),
    [
        pytest.param(None, 5, None, id="not known"),
        pytest.param(0.0, 50, 0, id="all stored"),
        pytest.param(7.0, 5, 12, id="and since then"),
        pytest.param(7.0, -5, 7, id="an agent whose clock is ahead"),
    ],
)
def test_how_long_the_oldest_byte_waits(oldest: float | None, ago: int, waits: int | None) -> None:
    [one] = led((oldest, ago)).values()

    assert unstored_for(one.entry, NOW) == (None if waits is None else waits * SECOND)


def test_retention_is_near_when_less_than_half_of_it_is_left() -> None:
    def left(*shares: float | None) -> dict[int, LeaderEntry]:
        known = led(*((0.0, 5) for _ in shares))
        return {
            partition: LeaderEntry(FIRST_SLOT + 3, found.entry.model_copy(update={"retention_left": shares[partition]}))
            for partition, found in known.items()
        }

    assert list(retention_near(TOPIC, left(None, 1.0, 0.5))) == []
    [found] = retention_near(TOPIC, left(None, 0.4, 0.25))
    assert (found.partition, found.start, found.end) == (2, 10, 20)
    assert "25% of the topic's retention is left for partition 2, and slot 3 is behind" in found.text


def test_bytes_that_wait_longer_than_the_promise_are_one_condition() -> None:
    assert list(unstored(TOPIC, led((40.0, 20), (0.0, 500)), NOW)) == []
    [found] = unstored(TOPIC, led((40.0, 21), (90.0, 5), (0.0, 5)), NOW)

    assert (found.kind, found.partition, found.start, found.end) == ("unstored", 1, 10, 20)
    assert found.since == NOW - 95 * SECOND
    assert "2 partitions" in found.text


def test_an_agent_that_does_not_say_is_as_bad_as_a_late_one() -> None:
    assert list(unmeasured(TOPIC, led((1.0, 5), (0.0, 5)), (), NOW)) == []
    [mute] = unmeasured(TOPIC, led((1.0, 5), (None, 5)), (), NOW)
    [gone] = unmeasured(TOPIC, led((1.0, 500), (0.0, 5)), {1}, NOW)

    assert (mute.kind, mute.since) == ("unmeasured", NOW)
    assert "brokers 2 " in mute.text
    assert gone.since == NOW - 500 * SECOND
    assert gone.likely == "the agent is stopped"


def test_what_waits_behind_a_gap_is_reported_with_the_gap() -> None:
    said = led((90.0, 5))
    missing = Gap.model_validate({"from": 10, "to": 15, "reason": "unknown", "detected_at": NOW})
    [at_gap] = [one._replace(entry=one.entry.model_copy(update={"gaps": (missing,)})) for one in said.values()]
    assert [one.kind for one in unstored(TOPIC, said, NOW)] == ["unstored"]
    assert list(unstored(TOPIC, {0: at_gap}, NOW)) == []


def test_a_new_leader_that_has_read_nothing_yet_is_not_late() -> None:
    said = led((None, 5))
    [new] = [one._replace(entry=one.entry.model_copy(update={"packs_known": False})) for one in said.values()]
    assert list(unstored(TOPIC, {0: new}, NOW)) == []
    [found] = unmeasured(TOPIC, {0: new}, (), NOW)
    assert found.patience == 120 * SECOND
    assert "former leaders" in found.likely


def test_numbers_are_for_people() -> None:
    third = TOPIC.model_copy(update={"freshness": 20 * SECOND / 3})
    [found] = unstored(third, led((90.0, 5)), NOW)
    assert "bytes of 1 partition are not in the store after 6.7 s" in found.text
    [mute] = unmeasured(third, led((None, 5)), (), NOW)
    assert "1 partition has" in mute.text


def test_a_topic_without_a_freshness_promises_nothing() -> None:
    said = led((900.0, 5), (None, 5))

    assert [*unstored(ANY, said, NOW), *unmeasured(ANY, said, {1}, NOW)] == []
