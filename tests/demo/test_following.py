"""What the demo says while it waits, and what ends it: on a clock of the test's, with parts that only answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from demo import following
from demo.following import Follower
from demo.streams import CLICKS, ORDERS, SENSORS, STREAMS, Acknowledged, Stream
from tests.support.process import ProcessFailed


@dataclass
class World:
    """All that a follower asks. ``each_second`` moves it, and may say that all is settled by landing what is stored."""

    each_second: Callable[[World], None] = lambda world: None
    now: float = 1000.0
    stored: dict[str, dict[int, int]] = field(default_factory=lambda: {stream.topic: {0: 10} for stream in STREAMS})
    landed: dict[str, dict[int, int]] = field(default_factory=lambda: {stream.topic: {0: 10} for stream in STREAMS})
    state: str | None = "running"
    tries: int = 1
    failed: int = 0
    dead: bool = False
    said: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.now - 1000

    def follow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))
        client = SimpleNamespace(get=self.get, task_instances=self.task_instances)
        airflow = SimpleNamespace(client=client)
        acknowledged = {stream.topic: Acknowledged(ends={0: 10}) for stream in STREAMS}
        sent = {CLICKS.topic: 10}
        production = SimpleNamespace(
            running=False, half_sent=False, sent=sent, acknowledged=acknowledged, join=lambda: None
        )
        Follower(
            cast("Any", SimpleNamespace(check=self.check, agent_waits=self.waits, airflow=airflow)),
            cast("Any", SimpleNamespace(say=self.said.append)),
            cast("Any", production),
            cast("Any", SimpleNamespace(ledger=self.ledger, stored_up_to=self.stored_up_to)),
        ).follow()

    def waits(self) -> dict[tuple[str, int], str]:
        return {(SENSORS.topic, 0): "tail_after"}

    def stored_up_to(self, stream: Stream) -> dict[int, int]:
        return dict(self.stored[stream.topic])

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.each_second(self)

    def check(self) -> None:
        if self.dead:
            raise ProcessFailed("the agent has ended")

    def get(self, path: str, **query: object) -> dict[str, Any]:
        if query.get("state") == "failed":
            return {"total_entries": self.failed}
        return {"dag_runs": [{"dag_run_id": "one"}]}

    def task_instances(self, dag: str, run: str) -> list[dict[str, Any]]:
        done = {"task_id": "wait", "state": "success", "try_number": 1}
        return [done, {"task_id": "land", "state": self.state, "try_number": self.tries}]

    def ledger(self, stream: Stream) -> Any:
        ends = self.landed[stream.topic]
        partitions = [SimpleNamespace(partition=number, next_offset=end) for number, end in ends.items()]
        return SimpleNamespace(rows=sum(ends.values()), partitions=partitions)


def settle_after(seconds: float) -> Callable[[World], None]:
    def move(world: World) -> None:
        if world.seconds >= seconds:
            world.stored[SENSORS.topic][0] = 10
            world.landed = {topic: dict(ends) for topic, ends in world.stored.items()}

    return move


def test_what_is_settled_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.follow(monkeypatch)
    assert world.seconds == 0


def test_a_wait_of_more_than_twenty_seconds_says_for_which_partition_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(settle_after(50))
    world.landed[ORDERS.topic] = {0: 4}
    world.stored[SENSORS.topic] = {0: 8}
    world.landed[SENSORS.topic] = {0: 8}
    world.follow(monkeypatch)
    lines = [line for line in world.said if line.startswith("no row has landed for")]
    assert lines == [
        f"no row has landed for {seconds} s: {reason}"
        for seconds in (21, 42)
        for reason in (
            "orders: partition 0 (4 of 10 stored offsets): Airflow's task land is running, try 1",
            "sensors: partition 0 is stored up to 8: tail_after",
        )
    ]


def test_what_has_landed_is_stored_whatever_an_index_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.stored = {CLICKS.topic: {0: 4}, ORDERS.topic: {}, SENSORS.topic: {0: 10}}
    world.landed[CLICKS.topic], world.landed[ORDERS.topic] = {0: 6}, {}

    def settle(world: World) -> None:
        if world.seconds >= 30:
            world.landed = {stream.topic: {0: 10} for stream in STREAMS}

    world.each_second = settle
    world.follow(monkeypatch)
    assert [line.partition(": ")[2] for line in world.said if line.startswith("no row has landed for")] == [
        "clicks: partition 0 was stored up to 6 when an agent last wrote its index",
        "orders: partition 0 had nothing stored when an agent last wrote its index",
    ]


def test_where_nothing_happens_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(state=None)
    world.landed[ORDERS.topic] = {0: 4}
    with pytest.raises(TimeoutError, match="nothing has happened for 240 s"):
        world.follow(monkeypatch)


def test_a_task_that_runs_is_waited_for_longer_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.landed[ORDERS.topic] = {0: 4}
    with pytest.raises(TimeoutError, match="nothing has happened for 900 s"):
        world.follow(monkeypatch)


def test_a_busy_machine_on_which_anything_moves_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def crawl(world: World) -> None:
        world.tries = 1 + int(world.seconds // 200)  # a try that Airflow lost
        settle_after(3000)(world)

    world = World(crawl, state=None)
    world.landed[ORDERS.topic] = {0: 4}
    world.follow(monkeypatch)
    assert world.seconds >= 3000


def test_runs_that_fail_over_and_over_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(world: World) -> None:
        world.failed = int(world.seconds // 60)

    world = World(fail)
    world.landed[ORDERS.topic] = {0: 4}
    with pytest.raises(RuntimeError, match="3 runs of tidemark_live__demo have failed"):
        world.follow(monkeypatch)


def test_a_part_that_ended_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(dead=True)
    world.landed[ORDERS.topic] = {0: 4}
    with pytest.raises(ProcessFailed, match="the agent has ended"):
        world.follow(monkeypatch)
    assert world.seconds < 30
