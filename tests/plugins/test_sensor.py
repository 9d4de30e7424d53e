from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from tests.plugins.world import CLUSTER, DATE, LONG_AGO, World, commit, entry, gap, state
from tidemark.ledger import DateState
from tidemark.stored import utc_now
from tidemark_airflow.continuity import settle
from tidemark_airflow.outbox import update_published
from tidemark_airflow.sensor import WatermarkSensor
from tidemark_airflow.trigger import WatermarkTrigger

CONTEXT = cast("Context", {})


@pytest.fixture
def sensor(world: World) -> WatermarkSensor:
    assert world.deployment.topics
    return WatermarkSensor(task_id="wait", cluster=CLUSTER, topic="orders")


def deferred(sensor: WatermarkSensor) -> WatermarkTrigger:
    with pytest.raises(TaskDeferred) as raised:
        sensor.execute(CONTEXT)
    assert raised.value.method_name == "resume"
    assert raised.value.timeout is None
    assert isinstance(raised.value.trigger, WatermarkTrigger)
    return raised.value.trigger


def publish_all(world: World) -> None:
    settle(world.lake(), n=1)


def test_it_defers_with_what_is_landed_and_told(world: World, sensor: WatermarkSensor) -> None:
    commit(world.lake(), state(0, 10), state(1, 20))
    publish_all(world)
    settle(world.lake(), settled="0123456789abcdef")

    baseline = deferred(sensor).baseline

    assert baseline.committed == {"0-0": 10, "0-1": 20}
    assert baseline.settled == "0123456789abcdef"
    assert baseline.settled_at is not None


def test_it_does_not_wait_while_a_date_can_close(world: World, sensor: WatermarkSensor) -> None:
    commit(world.lake(), state(0, 10), states={DATE: DateState(rows=10, changed_at=utc_now())})
    publish_all(world)
    world.put_index(entry(next_offset=10, observed_at=LONG_AGO))
    deferred(sensor)  # nobody has looked since the date was over
    world.put_index(entry(next_offset=10, observed_at=LONG_AGO + timedelta(days=2)))

    assert sensor.execute(CONTEXT)["status"] == "advanced"
    commit(world.lake(), states={DATE: DateState(rows=10, state="final")})
    settle(world.lake(), n=2)
    deferred(sensor)


def test_it_defers_before_anything_has_landed(sensor: WatermarkSensor) -> None:
    assert deferred(sensor).baseline.committed == {}


def test_it_does_not_wait_while_a_commit_is_unpublished(world: World, sensor: WatermarkSensor) -> None:
    commit(world.lake(), state(0, 10))

    assert sensor.execute(CONTEXT)["status"] == "advanced"
    publish_all(world)
    deferred(sensor)


def test_it_does_not_wait_while_a_gap_of_the_ledger_is_untold(world: World, sensor: WatermarkSensor) -> None:
    commit(world.lake(), state(0, 10, gaps=[gap(10, 12)]))
    publish_all(world)

    assert sensor.execute(CONTEXT)["status"] == "advanced"
    update_published(world.lake(), lambda it: it.model_copy(update={"alerted": {"0-0-10": "run"}, "at": utc_now()}))
    deferred(sensor)


def test_it_returns_what_the_trigger_found(world: World, sensor: WatermarkSensor) -> None:
    world.put_index(entry(next_offset=3))
    event: dict[str, Any] = {"status": "advanced", "settles": "ab", "partitions": 1, "gaps": [], "reason": ""}

    assert sensor.resume(CONTEXT, event) == event


def test_it_waits_on_after_a_refresh_with_the_topics_file_as_it_is_now(world: World, sensor: WatermarkSensor) -> None:
    before = deferred(sensor)
    moved = world.root / "moved"
    world.write_topics(
        cluster=CLUSTER, raw={"url": f"file://{moved}"}, lake=f"file://{world.root}/lake", topics=[{"topic": "orders"}]
    )

    with pytest.raises(TaskDeferred) as raised:
        sensor.resume(CONTEXT, {"status": "refresh"})

    assert before.source.places[0][0] == world.raw.url
    assert cast("WatermarkTrigger", raised.value.trigger).source.places[0][0] == f"file://{moved}"


def test_it_fails_when_the_store_could_not_be_read(sensor: WatermarkSensor) -> None:
    with pytest.raises(AirflowFailException, match="orders: the watermark indexes cannot be read: 403"):
        sensor.resume(CONTEXT, {"status": "failed", "reason": "403"})
