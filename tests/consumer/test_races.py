"""What must hold whichever thread comes first, and however long storage keeps a consumer waiting."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.consumer.test_tiers import Made, stored, values
from tests.consumer.world import World, read_to, read_until
from tests.support.waiting import HUNG, wait_until
from tidemark import Mode, TieredConsumer
from tidemark.consumer import tier_selection
from tidemark.consumer.fetcher import Wakeup
from tidemark.consumer.tier_metadata import THREADS
from tidemark.errors import GapError, UnknownOutcome, WakeupError
from tidemark.formats.keys import Endpoint, SegmentName
from tidemark.remote import RemoteTopics
from tidemark.remote.topics import Observations
from tidemark.store.retrying import ATTEMPTS


@pytest.fixture
def made(local_world: World) -> Made:
    """Kafka has offsets 60 to 99 of a hundred, storage 0 to 19."""
    found = Made(local_world, f"race-{local_world.folder.name}", 100, 60)
    found.segment(0, 20)
    found.raw.publish()
    return found


def poll_on(consumer: TieredConsumer, found: list[int]) -> None:
    """Poll until that raises; what came before goes to ``found``."""
    while True:
        found += values(consumer.poll(timeout_ms=200))


def test_a_wakeup_before_the_wait_begins_is_not_slept_through(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    with made.consumer(Mode.REMOTE_ONLY, 20) as consumer:
        assert consumer.poll(timeout_ms=200) == {}

        def reset(*_: Any) -> None:
            consumer.wakeup()

        slept: list[int] = []
        wait = Wakeup.wait

        def checked(self: Wakeup, heard: int, seconds: float) -> None:
            if self.count == heard:
                slept.append(heard)
            wait(self, heard, min(seconds, 0.1))

        monkeypatch.setattr(Wakeup, "wait", checked)
        monkeypatch.setattr(consumer._fetcher, "validate_offsets_if_needed", reset)
        with pytest.raises(WakeupError):
            consumer.poll(timeout_ms=60_000)
        assert slept == []


def test_a_consumer_at_the_end_of_storage_sleeps(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    with made.consumer(Mode.REMOTE_ONLY, 20) as consumer:
        assert consumer.poll(timeout_ms=500) == {}
        rounds: list[float] = []
        wait = Wakeup.wait

        def counted(self: Wakeup, heard: int, seconds: float) -> None:
            rounds.append(seconds)
            wait(self, heard, seconds)

        monkeypatch.setattr(Wakeup, "wait", counted)
        assert consumer.poll(timeout_ms=1000) == {}
        assert len(rounds) < 40, "ten looks of the readers, each of which rings"


@pytest.mark.parametrize("mode", [Mode.REMOTE_PREFERRED, Mode.KAFKA_PREFERRED])
def test_a_hole_without_a_record_is_read_once_it_is_filled(made: Made, mode: Mode) -> None:
    """A segment that the watermark vouches for was not there; a caller that went on asking gets it."""
    for start in (20, 30):
        made.segment(start, start + 10)
    key = made.raw.keys().segment(SegmentName(20), "manifest.json")
    manifest = made.raw.store.get(key).body
    made.raw.publish()
    made.raw.store.delete(key)
    found: list[int] = []
    with made.consumer(mode, 5) as consumer:
        for _ in range(2):
            with pytest.raises(GapError) as raised:
                poll_on(consumer, found)
            assert (raised.value.start, raised.value.reason) == (20, "unknown")
        made.raw.store.put(key, manifest)
        made.raw.publish()

        def tried_again() -> bool:
            with contextlib.suppress(GapError):
                found.extend(values(consumer.poll(timeout_ms=200)))
            return len(found) >= 35

        wait_until(tried_again, what="the hole's records")
    assert found == list(range(5, 40))


def test_what_an_agent_saw_is_not_asked_by_the_callers_thread(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    look = Observations._look
    threads: set[str] = set()

    def noted(self: Observations, place: Endpoint) -> None:
        threads.add(threading.current_thread().name)
        look(self, place)

    monkeypatch.setattr(Observations, "_look", noted)
    with made.consumer(Mode.REMOTE_ONLY, 50, auto_offset_reset="none") as consumer:
        assert consumer.poll(timeout_ms=1500) == {}
    assert threads
    assert threading.current_thread().name not in threads


def test_records_of_another_branch_wait_until_the_position_was_compared_with_it(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The election is seen, and the records after it are there, between the decision for a tier and the taking."""
    with made.consumer(Mode.REMOTE_ONLY, 0) as consumer:
        assert values(read_to(consumer, {made.tp: 20})) == list(range(20))
        made.part.lineage, made.part.leader_epoch = ((0, 0), (1, 12)), 1
        made.segment(12, 30, epoch=1)
        made.raw.publish()
        remote = consumer._fetcher._remote
        collect = consumer._fetcher._collect
        part = consumer._fetcher._scouts.sight(made.tp).remote

        def late(*arguments: Any, **options: Any) -> Any:
            if part.branch == 0:
                part.refresh()
                remote.stop(made.tp)
                remote.read(made.tp, 20)
                wait_until(lambda: remote._lanes[made.tp]._blocks, what="records to be read ahead")
            return collect(*arguments, **options)

        monkeypatch.setattr(consumer._fetcher, "_collect", late)
        assert values(read_to(consumer, {made.tp: 30})) == list(range(12, 30))


@pytest.mark.parametrize("mode", [Mode.REMOTE_PREFERRED, Mode.KAFKA_PREFERRED])
def test_kafka_serves_what_it_has_while_storage_does_not_answer(
    made: Made, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def silent(*_: Any) -> None:
        answers.wait(HUNG)
        raise UnknownOutcome("raw/offset.wm", "no answer")

    monkeypatch.setattr(RemoteTopics, "partition", silent)
    monkeypatch.setattr(tier_selection, "FIRST_LOOK_SECONDS", 0.2)
    with made.consumer(mode, 60) as consumer:
        assert values(read_to(consumer, {made.tp: 100})) == list(range(60, 100))
        for _ in range(THREADS):
            consumer._fetcher._scouts.look(made.tp)
            consumer._fetcher._scouts.forget(made.tp)
        consumer.seek_to_end()
        assert consumer.position(made.tp, timeout_ms=10_000) == 100
        answers.set()


def test_a_look_that_fails_is_not_repeated_by_those_who_ask(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remote tier has tried again and again itself."""
    asked: list[int] = []

    def failing(*_: Any) -> None:
        asked.append(1)
        raise UnknownOutcome("raw/offset.wm", "no answer")

    monkeypatch.setattr(RemoteTopics, "partition", failing)
    with made.consumer(Mode.REMOTE_ONLY, 0) as consumer:
        with pytest.raises(UnknownOutcome):
            read_until(consumer, bool)
        assert len(asked) < 2 * ATTEMPTS


def new_metadata(consumer: Any) -> None:
    """Let the coordinator join again, as if it had assigned partitions before there was metadata."""
    consumer._coordinator._assignment_snapshot = {}


def rebalance(consumer: Any) -> None:
    """Let the coordinator join again, as after a heartbeat that says so."""
    consumer._coordinator.request_rejoin()


@pytest.mark.parametrize("cause", [new_metadata, rebalance])
def test_a_join_that_ends_between_two_polls_is_not_lost(local_world: World, cause: Callable[[Any], None]) -> None:
    """kafka-python's own consumer, with its partitions revoked, gets nothing any more, or joins again and again."""
    [tp] = stored(local_world, f"join-{local_world.folder.name}", 60)
    with local_world.consumer(Mode.KAFKA_ONLY, tp.topic, group_id=f"g-{tp.topic}") as consumer:
        read_until(consumer, bool)
        coordinator = consumer._coordinator
        cause(consumer)
        consumer.poll()
        wait_until(lambda: coordinator._join_task.is_done, what="the group's answer")
        assert coordinator.rejoining
        assert coordinator.need_rejoin() is (cause is rebalance), "new metadata: it is not noticed as under way"
        consumer.poll()
        assert not coordinator.rejoining, "the join is not taken up"
        consumer.seek_to_beginning()
        assert read_until(consumer, bool)
