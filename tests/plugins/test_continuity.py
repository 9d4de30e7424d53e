from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowFailException

from tests.plugins.world import World, commit, gap, state
from tidemark.table import committed_ledger
from tidemark_airflow.alerts import OpenGaps
from tidemark_airflow.continuity import tell
from tidemark_airflow.outbox import read_published
from tidemark_airflow.pending import OpenGap

IN_INDEX = OpenGap.of(0, 3, gap(7, 9))


class Person:
    """Who is told, and may be out of reach."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.reachable = True

    def __call__(self, subject: str, text: str) -> None:
        if not self.reachable:
            raise ConnectionError("nobody answers")
        self.heard.append((subject, text))


@pytest.fixture
def person() -> Person:
    return Person()


def check(world: World, person: Person, run: str, *seen: OpenGap) -> None:
    lake = world.lake()
    tell(lake, committed_ledger(lake), seen, run, person)


def test_without_gaps_nobody_is_told(world: World, person: Person) -> None:
    commit(world.lake(), state(0, 10))
    check(world, person, "run 1")

    assert person.heard == []
    assert read_published(world.lake()).etag is None


def test_a_gap_of_the_ledger_is_named_once(world: World, person: Person) -> None:
    commit(world.lake(), state(4, 1200, gaps=[gap(1200, 1300)]))

    with pytest.raises(OpenGaps, match=r"orders-4: offsets 1200 to 1299 \(100\) are missing: deleted_before_upload"):
        check(world, person, "run 1")
    check(world, person, "run 2")

    [(subject, text)] = person.heard
    assert subject == "kafka-1/orders: 1 gaps"
    assert "orders-4: offsets 1200 to 1299" in text
    assert read_published(world.lake()).value.alerted == {"0-4-1200": "run 1"}


def test_it_is_not_tried_again(world: World, person: Person) -> None:
    with pytest.raises(AirflowFailException):
        check(world, person, "run 1", IN_INDEX)


def test_a_gap_that_only_the_watermarks_know_is_named_too(world: World, person: Person) -> None:
    with pytest.raises(OpenGaps, match="orders-3: offsets 7 to 8"):
        check(world, person, "run 1", IN_INDEX)
    check(world, person, "run 2", IN_INDEX)

    assert len(person.heard) == 1


def test_a_gap_in_both_is_one_gap(world: World, person: Person) -> None:
    commit(world.lake(), state(3, 7, gaps=[gap(7, 9)]))

    with pytest.raises(OpenGaps):
        check(world, person, "run 1", IN_INDEX)

    assert person.heard[0][1].count("orders-3") == 1


def test_who_cannot_be_reached_is_told_by_the_next_try(world: World, person: Person) -> None:
    person.reachable = False
    with pytest.raises(ConnectionError):
        check(world, person, "run 1", IN_INDEX)
    person.reachable = True

    with pytest.raises(OpenGaps):
        check(world, person, "run 2", IN_INDEX)

    assert len(person.heard) == 1


def test_a_run_killed_after_its_record_still_turns_red(world: World, person: Person) -> None:
    with pytest.raises(OpenGaps):
        check(world, person, "run 1", IN_INDEX)

    with pytest.raises(OpenGaps, match="orders-3"):
        check(world, person, "run 1", IN_INDEX)

    assert len(person.heard) == 1


def test_the_record_of_a_gap_goes_when_the_partition_has_passed_it(world: World, person: Person) -> None:
    lake = world.lake()
    with pytest.raises(OpenGaps):
        check(world, person, "run 1", IN_INDEX)
    commit(lake, state(3, 50), state(4, 10, gaps=[gap(10, 20)]))

    with pytest.raises(OpenGaps, match="orders-4"):
        check(world, person, "run 2")

    assert read_published(lake).value.alerted == {"0-4-10": "run 2"}


def test_a_later_incarnation_is_named_with_its_number(world: World, person: Person) -> None:
    with pytest.raises(OpenGaps, match=r"orders-0 \(incarnation 2\): offsets 0 to 4 \(5\)"):
        check(world, person, "run 1", OpenGap.of(2, 0, gap(0, 5)))
