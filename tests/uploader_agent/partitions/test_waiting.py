"""What is said to wait, since when and why; by what clock it is late; what of it the metrics show."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import pytest
import typer

from tests.support.waiting import wait_until
from tests.uploader_agent.fakes import OTHER_ID, FakePartition, T, World, records
from tests.uploader_agent.partitions.test_answers import answered, ask, led
from tests.uploader_agent.test_run import get, running, watermark_is
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.formats.keys import TopicPartition
from tidemark.terminal import Output
from tidemark.timestamps import utc_now
from uploader_agent import agent as agent_module
from uploader_agent import cli
from uploader_agent.broker.admin import Leader, Led
from uploader_agent.disk.watcher import Watcher
from uploader_agent.observability.health import HttpServer
from uploader_agent.partitions.led_partition import Ages, LedPartition
from uploader_agent.partitions.poller import LeadersAnswer
from uploader_agent.partitions.waiting import Wait, Waits, why_tail, why_unpacked

HOUR = 3600.0
TAIL_AFTER = 600.0
NOW = time.time()


@pytest.fixture(autouse=True)
def moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins now, however long ago this file was imported."""
    monkeypatch.setattr(sys.modules[__name__], "NOW", time.time())


def date(disk: FakePartition, base: int, seconds_ago: float) -> None:
    """Let the segment have been appended to last that long before :data:`NOW`."""
    os.utime(disk.log(base), (NOW - seconds_ago, NOW - seconds_ago))


@contextmanager
def surveyed(world: World, high_watermark: int | None) -> Iterator[tuple[TestedAgent, LedPartition]]:
    """An agent that does nothing by itself, and knows what the store has of its partition."""
    with world.agent() as agent:
        partition = led(agent)
        partition.uploader.learn()
        if high_watermark is not None:
            agent.leadership.observe(answered(ask(agent), high_watermark))
        partition.plan(NOW - TAIL_AFTER)
        yield agent, partition


def test_when_a_tail_is_packed_is_said_for_people(world: World) -> None:
    world.disk.partition().segment(0, records(0, 50))
    with surveyed(world, high_watermark=50) as (_, partition):
        assert why_unpacked(partition, 20.0) == "freshness: it is packed within 6.7 s"


def look(agent: TestedAgent, seconds_later: float = 0.0) -> dict[str, Wait]:
    return {wait.kind: wait for wait in Waits(agent.leadership).look(TAIL_AFTER, NOW + seconds_later)}


def test_a_segment_that_waits_for_the_high_watermark_is_seen(world: World) -> None:
    """It was in no metric, since there was nothing to do about it."""
    disk = world.disk.partition().fill(0, end=100)
    date(disk, 0, HOUR)
    with surveyed(world, 98) as (agent, partition):
        assert partition.is_unsettled
        found = look(agent)
        assert found["rotated"].seconds == found["rotated"].overdue == pytest.approx(HOUR)
        assert "the high watermark 98 is below the segment's end 100" in found["rotated"].reason
        agent_module.measure_lag([partition], found.values(), agent.metrics, NOW)
        metrics = agent.metrics
        assert metrics.lag_segments._value.get() == 1
        assert metrics.lag_offsets._value.get() == 100
        assert metrics.unstored_age.labels("rotated")._value.get() == pytest.approx(HOUR)
        assert metrics.overdue.labels("rotated")._value.get() == pytest.approx(HOUR)
        assert metrics.overdue.labels("tail")._value.get() == 0


@pytest.mark.parametrize("high_watermark", [50, 40], ids=["committed", "not committed"])
def test_a_tail_is_late_only_beyond_tail_after(world: World, high_watermark: int) -> None:
    disk = world.disk.partition().segment(0, records(0, 50))
    date(disk, 0, 60)
    with surveyed(world, high_watermark) as (agent, partition):
        tail = look(agent)["tail"]
        assert [tail.seconds, tail.overdue] == pytest.approx([60, 0])
        assert "tail_after: the last append was 60 s ago, and the tail is stored 600 s after it" in tail.reason
        tail = look(agent, HOUR)["tail"]
        assert [tail.seconds, tail.overdue] == pytest.approx([HOUR + 60, HOUR + 60 - TAIL_AFTER])
        behind = "the high watermark 40 is below the log end 50"
        assert (behind in tail.reason) == (high_watermark == 40)
        agent_module.measure_lag([partition], [tail], agent.metrics, NOW)
        assert agent.metrics.lag_offsets._value.get() == 50, "counted up to the log end"


def test_a_tail_waits_though_the_broker_says_nothing(world: World) -> None:
    """Appended to after the last answer: by the disk alone there is something that is not stored."""
    disk = world.disk.partition().segment(0, records(0, 50))
    world.metadata.default_high = 50
    with world.agent(tail_after="0s") as agent:
        agent.upload_once()
        partition = agent.leadership.partitions[T]
        partition.plan(NOW)
        assert look(agent) == {}
        disk.segment(0, records(0, 60))
        partition.look()
        partition.plan(NOW)
        tail = look(agent, HOUR)["tail"]
        assert tail.overdue > HOUR - TAIL_AFTER - 60
        assert "has not answered, since the last append" in tail.reason


def test_what_may_be_stored_counts_from_when_it_was_first_seen(world: World) -> None:
    """A start is no alarm: nobody has said yet what the store has of a segment that is a day old."""
    disk = world.disk.partition().fill(0, end=100).segment(100, records(100, 150))
    date(disk, 0, 24 * HOUR)
    date(disk, 100, 24 * HOUR)
    with world.agent() as agent:
        partition = led(agent)
        waits = Waits(agent.leadership)
        found = waits.look(TAIL_AFTER, NOW)
        assert {(wait.kind, wait.seconds, wait.overdue) for wait in found} == {("rotated", 0, 0), ("tail", 0, 0)}
        assert {wait.reason for wait in found} == {"the broker has not said its high watermark yet"}
        found = waits.look(TAIL_AFTER, NOW + HOUR)
        assert {(wait.kind, wait.seconds) for wait in found} == {("rotated", HOUR), ("tail", HOUR)}
        agent.leadership.observe(answered(ask(agent), 150))
        assert {wait.reason for wait in waits.look(TAIL_AFTER, NOW)} == {"its state in the store is not known yet"}
        partition.uploader.learn()
        found = waits.look(TAIL_AFTER, NOW)
        assert {wait.kind: wait.seconds for wait in found} == pytest.approx({"rotated": 24 * HOUR, "tail": 24 * HOUR})


def test_the_oldest_byte_of_a_tail_that_is_never_quiet_ages_and_is_not_late(world: World) -> None:
    disk = world.disk.partition().segment(0, records(0, 50))
    date(disk, 0, 0)
    with surveyed(world, 50) as (agent, partition):
        waits = Waits(agent.leadership)
        for minute in range(0, 60, 5):
            disk.segment(0, records(0, 50 + minute))
            date(disk, 0, -60.0 * minute)
            partition.look()
            [tail] = waits.look(TAIL_AFTER, NOW + 60 * minute)
            assert [tail.seconds, tail.overdue] == pytest.approx([60 * minute, 0])


def test_a_broker_that_cannot_be_reached_is_the_reason_and_not_its_followers(world: World) -> None:
    """As after its listener got another port."""
    disk = world.disk.partition().fill(0, end=100)
    date(disk, 0, HOUR)
    with surveyed(world, 98) as (agent, partition):
        agent.leadership.partitions[T].apply_freshness(60.0)
        disk.segment(100, records(100, 150))
        world.metadata.down = True
        agent.refresh()
        waits = Waits(agent.leadership).look(TAIL_AFTER, NOW)
        assert {wait.kind for wait in waits} >= {"rotated", "tail"}
        for wait in waits:
            assert "the broker cannot be asked: told so" in wait.reason, wait
            assert "followers" not in wait.reason
        world.metadata.down, world.metadata.default_high = False, 98
        agent.refresh()
        assert "followers have not fetched that yet" in look(agent)["rotated"].reason
    assert why_tail(partition, partition.segments[-1], 0.0, NOW + HOUR, "told so").endswith(": told so")
    with world.agent() as agent:
        world.metadata.down = True
        agent.refresh()
        [wait] = Waits(agent.leadership).look(TAIL_AFTER, NOW)
        assert wait.reason == "the broker has not said who leads it: the broker cannot be asked: told so"


def test_reasons_name_the_last_error_the_gap_and_the_leadership(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    other, elsewhere = TopicPartition("orders", 1), TopicPartition("orders", 2)
    world.disk.partition(other)
    world.disk.partition(elsewhere, topic_id=OTHER_ID)
    with surveyed(world, 200) as (agent, partition):
        partition.failed("AccessDenied: told so")
        assert "and the next one comes after a pause: AccessDenied: told so" in look(agent)["rotated"].reason
        leaders = {T: Leader(1, partition.led), elsewhere: Leader(1, Led(3, "xkU3OEVBNTcwNTJENDM2Qk"))}
        agent.leadership.learn(LeadersAnswer(utc_now(), 0.0, leaders, {}))
        said = dict(agent.leadership.undecided())
        assert said[other] == "the broker has not said who leads it"
        assert "its directory is another topic's" in said[elsewhere]
        leaders |= {other: Leader(-1, Led(3, None)), elsewhere: Leader(2, Led(3, None))}
        agent.leadership.learn(LeadersAnswer(utc_now(), 0.0, leaders, {}))
        assert dict(agent.leadership.undecided()) == {other: "nobody leads it"}
        assert look(agent)["leadership"].tp == other


def test_a_gap_waits(world: World) -> None:
    disk = world.disk.partition().fill(0, 100, end=200)
    world.once()
    disk.fill(300, end=400)
    disk.retire(0, 100, 200)
    disk.unlink_deleted()
    world.metadata.log_start = 300
    found = look(world.once())
    assert found["gap"].reason == "offsets 200 to 300 are stored nowhere: deleted_before_upload"


def test_the_page_is_json(world: World) -> None:
    world.disk.partition().fill(0, end=100)
    world.metadata.default_high = 90
    with (
        running(world, Watcher()) as agent,
        HttpServer("127.0.0.1", 0, agent.health, agent.metrics.registry, agent.waiting) as server,
    ):
        wait_until(lambda: agent.waiting()["agent"] is None, what="ready")

        def reasons() -> list[str]:
            status, text = get(server.port, "/waiting")
            assert status == 200
            found = json.loads(text)
            assert found.keys() == {"agent", "log_dirs", "partitions"}
            for wait in found["partitions"]:
                assert wait.keys() == {"topic", "partition", "kind", "seconds", "reason"}
                assert (wait["topic"], wait["partition"], wait["kind"]) == ("orders", 0, "rotated")
                assert wait["seconds"] >= 0
            return [wait["reason"] for wait in found["partitions"]]

        wait_until(lambda: any("high watermark 90 is below" in wait for wait in reasons()), what="the reason")
        world.metadata.default_high = 100
        world.store.await_put(lambda: watermark_is(world, 100))
        wait_until(lambda: not reasons(), what="nothing to wait")


def test_before_it_is_ready_the_agent_says_what_it_waits_for(world: World) -> None:
    with world.agent() as agent:
        assert agent.waiting() == {
            "agent": "the broker has not said yet which partitions it leads",
            "log_dirs": [],
            "partitions": [],
        }


def test_status_names_what_waits(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.disk.partition().fill(0, end=100)
    world.metadata.default_high = 98
    with world.agent(read_only=True) as agent:
        agent.survey()
        cli._report(agent.components, "text")
        assert "orders-0: rotated waits, for " in (text := capsys.readouterr().out)
        assert "the high watermark 98 is below the segment's end 100" in text
        cli._report(agent.components, "json")
        [wait] = json.loads(capsys.readouterr().out)["waiting"]
        assert (wait["topic"], wait["partition"], wait["kind"]) == ("orders", 0, "rotated")


def test_status_names_what_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path, log_dirs=2)
    away = world.disk.log_dirs[1]
    away.rename(tmp_path / "away")
    with world.agent(read_only=True) as agent:
        agent.survey()
        for output in get_args(Output):
            with pytest.raises(typer.Exit):
                cli._report(agent.components, output)
    text, answer = capsys.readouterr().out.rsplit("\n", 2)[:2]
    assert f"{away} cannot be read: " in text
    assert f"orders-0: directory waits, for 0 s so far: this broker leads it, and of {world.disk.log_dirs[0]}" in text
    assert [one["path"] for one in json.loads(answer)["log_dirs"]] == [str(away)]


def test_ages_forget_what_is_stored_and_stay_few() -> None:
    ages = Ages(0.0)
    assert ages.since(0) == 0.0
    for number in range(100):
        ages.note(float(number), number)
    assert ages.since(99) == 99.0
    assert ages.since(50) <= 50.0, "never younger than it is"
    ages.forget(98)
    assert ages.since(98) == 98.0
