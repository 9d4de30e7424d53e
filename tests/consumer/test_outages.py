"""Storage that cannot be read: Kafka gives what it has, and where it has not, the storage's error comes up."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.consumer.shaky import Shaky, nowhere, of_segments_from, shaken
from tests.consumer.test_tiers import Made, values
from tests.consumer.world import World, origins, read_to, read_until
from tests.support.waiting import wait_until
from tidemark import Mode, TieredConsumer
from tidemark.consumer import tier_selection
from tidemark.consumer.consumer import METRICS_GROUP
from tidemark.errors import Refused, SegmentError, TidemarkError
from tidemark.remote import RemoteTopics

PREFERRED = [Mode.REMOTE_PREFERRED, Mode.KAFKA_PREFERRED]
COUNT = 100

Fail = Callable[[Shaky, int], None]


def refuse(shaky: Shaky, base: int) -> None:
    """Segments from ``base`` on are refused."""
    shaky.refuses = of_segments_from(base)


def damage(shaky: Shaky, base: int) -> None:
    """Segments from ``base`` on are damaged."""
    shaky.damages = of_segments_from(base)


def mend(shaky: Shaky) -> None:
    """All is well again."""
    shaky.refuses = shaky.damages = nowhere


FAILURES = [pytest.param(refuse, Refused, id="refused"), pytest.param(damage, SegmentError, id="damaged")]


def history(world: World, deleted: int) -> Made:
    """Kafka has offsets ``deleted`` to 99, storage 0 to 89 in segments of ten."""
    found = Made(world, f"outage-{world.folder.name}", COUNT, deleted)
    for start in range(0, 90, 10):
        found.segment(start, start + 10)
    found.raw.publish()
    return found


def shaky_consumer(made: Made, mode: Mode, at: int, **settings: Any) -> tuple[TieredConsumer, Shaky]:
    storage, shaky = shaken(made.world.storage())
    return made.consumer(mode, at, storage=storage, **settings), shaky


def fallbacks(consumer: TieredConsumer) -> int:
    return int(consumer.metrics()[METRICS_GROUP]["fallbacks"])


@pytest.mark.essential
@pytest.mark.parametrize(("fail", "error"), FAILURES)
def test_what_storage_cannot_read_comes_from_kafka_and_then_from_storage_again(
    local_world: World, fail: Fail, error: type[TidemarkError], caplog: pytest.LogCaptureFixture
) -> None:
    made = history(local_world, 0)
    consumer, shaky = shaky_consumer(made, Mode.REMOTE_PREFERRED, 0)
    with consumer:
        for outage in (1, 2):
            fail(shaky, 40)
            assert values(read_to(consumer, {made.tp: COUNT})) == list(range(COUNT))
            assert fallbacks(consumer) >= outage
            mend(shaky)

            def back() -> bool:
                consumer.seek(made.tp, 0)
                assert values(read_until(consumer, bool, max_records=5)) == list(range(5))
                return consumer.tier(made.tp) == "remote"

            wait_until(back, what="storage to be read again", interval=0)
            consumer.seek(made.tp, 40)
            before = origins(consumer, made.tp)["remote"]
            assert values(read_to(consumer, {made.tp: COUNT})) == list(range(40, COUNT))
            assert origins(consumer, made.tp)["remote"] - before == 50
            consumer.seek(made.tp, 0)
    assert sum("cannot be read, reading from Kafka" in line for line in caplog.messages) == 2, "one for each outage"


@pytest.mark.parametrize("mode", PREFERRED)
@pytest.mark.parametrize(("fail", "error"), FAILURES)
def test_what_kafka_does_not_have_either_is_the_storages_error_and_no_reset(
    local_world: World, mode: Mode, fail: Fail, error: type[TidemarkError], caplog: pytest.LogCaptureFixture
) -> None:
    made = history(local_world, 60)
    consumer, shaky = shaky_consumer(made, mode, 5)
    found: list[int] = []

    def taken(got: dict[Any, list[Any]]) -> bool:
        found.extend(values(got))
        got.clear()
        return False

    with consumer:
        fail(shaky, 40)
        for _ in range(3):
            with pytest.raises(error):
                read_until(consumer, taken)
            assert consumer.position(made.tp) == 40
        assert found == list(range(5, 40))
        mend(shaky)
        assert values(read_to(consumer, {made.tp: COUNT})) == list(range(40, COUNT))
    assert sum("cannot be read" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("mode", PREFERRED)
def test_outages_that_come_and_go_lose_and_repeat_nothing(
    local_world: World, mode: Mode, rng: random.Random, full: bool
) -> None:
    """Seeks and polls over storage that fails at random, from a random segment on; Kafka has the upper part alone."""
    made = history(local_world, 60)
    consumer, shaky = shaky_consumer(made, mode, 0)
    refuse(shaky, 0)
    at = 0
    with consumer:
        for _ in range(3000 if full else 150):
            what = rng.random()
            if what < 0.06:
                rng.choice([refuse, damage])(shaky, rng.randrange(90))
            elif what < 0.1:
                mend(shaky)
            elif what < 0.3:
                at = rng.randrange(COUNT)
                consumer.seek(made.tp, at)
            else:
                try:
                    found = values(
                        consumer.poll(timeout_ms=rng.choice([0, 1, 150]), max_records=rng.choice([1, 7, 40]))
                    )
                except (Refused, SegmentError):
                    assert at < 60, "Kafka has it"
                    found = []
                assert found == list(range(at, at + len(found)))
                at += len(found)
            assert consumer.position(made.tp) == at
        mend(shaky)
        consumer.seek(made.tp, 0)
        assert values(read_to(consumer, {made.tp: COUNT})) == list(range(COUNT))


def test_storage_that_stays_unreadable_is_asked_less_and_less(local_world: World) -> None:
    made = history(local_world, 0)
    consumer, shaky = shaky_consumer(made, Mode.REMOTE_PREFERRED, 0)
    refuse(shaky, 0)
    rests: list[float] = []
    with consumer:
        place = consumer._fetcher._placements.of(made.tp)

        def asked_again() -> bool:
            consumer.seek(made.tp, 0)
            assert values(read_until(consumer, bool, max_records=5)) == list(range(5))
            if place.outage.rest not in rests:
                rests.append(place.outage.rest)
            return len(rests) == 4

        wait_until(asked_again, what="four failures", interval=0)
    assert rests == [0.1, 0.2, 0.4, 0.8]


def test_kafka_that_gives_nothing_either_brings_up_the_storages_error(
    local_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers do not answer: storage is asked again at the same offset, and what it says is told."""
    made = history(local_world, 0)
    consumer, shaky = shaky_consumer(made, Mode.REMOTE_PREFERRED, 0)
    refuse(shaky, 40)
    monkeypatch.setattr(tier_selection, "KAFKA_SECONDS", 0.3)
    with consumer:
        monkeypatch.setattr(consumer._fetcher, "send_fetches", list)
        for _ in range(2):
            with pytest.raises(Refused):
                read_until(consumer, lambda _: False)
            assert consumer.position(made.tp) == 40
        mend(shaky)
        assert values(read_until(consumer, bool))[0] == 40


def test_a_catalogue_that_cannot_be_read_any_more_leaves_the_tail_to_kafka(
    local_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once, and what it knew before does not count until it is read again."""
    made = history(local_world, 0)
    with made.consumer(Mode.REMOTE_PREFERRED, 95) as consumer:
        read_to(consumer, {made.tp: COUNT})
        sight = consumer._fetcher._scouts.sight(made.tp)
        failed: list[int] = []

        def failing(*_: Any) -> None:
            failed.append(1)
            raise Refused("offset.wm", "no")

        with monkeypatch.context() as patch:
            patch.setattr(type(sight.remote), "refresh", failing)
            wait_until(lambda: consumer.poll(timeout_ms=50) == {} and len(failed) > 3, what="looks that fail")
            consumer.seek(made.tp, 0)
            assert values(read_to(consumer, {made.tp: COUNT})) == list(range(COUNT))
            assert origins(consumer, made.tp)["remote"] == 0
        assert fallbacks(consumer) == 0, "Kafka had it all the while"
        seen = sight.remote_at
        wait_until(lambda: consumer.poll(timeout_ms=50) == {} and sight.remote_at > seen, what="a look")
        consumer.seek(made.tp, 0)
        read_to(consumer, {made.tp: COUNT})
        assert origins(consumer, made.tp)["remote"] == 90
    assert sum("cannot be read" in line for line in caplog.messages) == 1


def test_a_first_look_that_fails_is_a_fallback(local_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made = history(local_world, 0)

    def failing(*_: Any) -> None:
        raise Refused("offset.wm", "no")

    monkeypatch.setattr(RemoteTopics, "partition", failing)
    with made.consumer(Mode.REMOTE_PREFERRED, 0) as consumer:
        assert values(read_to(consumer, {made.tp: COUNT})) == list(range(COUNT))
        assert fallbacks(consumer) == 1
