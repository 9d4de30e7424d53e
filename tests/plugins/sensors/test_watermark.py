from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from tests.plugins.world import CLUSTER, DATE, LONG_AGO, World, commit, entry, state
from tests.support.requests import Requests
from tidemark.formats.table.ledger import DateState
from tidemark.kafka_log.batch import HEADER_SIZE
from tidemark.planning import read_plan
from tidemark.timestamps import utc_now
from tidemark_airflow.assets.outbox import Commit, mark_planned, move, read_published
from tidemark_airflow.sensors import watermark
from tidemark_airflow.sensors.watermark import WatermarkSensor
from tidemark_airflow.triggers.watermark import WatermarkTrigger

CONTEXT = cast("Context", {"dag_run": SimpleNamespace(logical_date=None, start_date=LONG_AGO), "ti": None})
ADVANCED = {"status": "advanced", "settles": "ab", "partitions": 1}


@pytest.fixture
def sensor(world: World, stored: set[Commit]) -> WatermarkSensor:
    assert world.deployment.topics
    assert not stored
    return WatermarkSensor(task_id="wait_and_plan", cluster=CLUSTER, topic="orders")


def deferred(sensor: WatermarkSensor, event: dict[str, Any] | None = None) -> WatermarkTrigger:
    """The trigger with which it waits, from its start or after ``event``."""
    with pytest.raises(TaskDeferred) as raised:
        _ = sensor.resume(CONTEXT, event) if event else sensor.execute(CONTEXT)
    assert raised.value.method_name == "resume"
    assert raised.value.timeout is None
    assert isinstance(raised.value.trigger, WatermarkTrigger)
    return raised.value.trigger


def publish_all(world: World, n: int) -> None:
    move(world.table(), Commit(n, 1))


def test_it_defers_with_what_is_landed(world: World, sensor: WatermarkSensor) -> None:
    commit(world.table(), state(0, 10), state(1, 20, epoch=3))
    publish_all(world, 1)
    mark_planned(world.table(), "0123456789abcdef")

    baseline = deferred(sensor).baseline

    assert baseline.landed == {"0-0": (10, 0, 0), "0-1": (20, 3, 0)}
    assert baseline.settled == "0123456789abcdef"
    assert baseline.settled_at is not None


def test_it_defers_before_anything_has_landed(sensor: WatermarkSensor) -> None:
    assert deferred(sensor).baseline.landed == {}


def test_it_plans_a_date_that_can_close(world: World, sensor: WatermarkSensor) -> None:
    commit(world.table(), state(0, 10), states={DATE: DateState(rows=10, changed_at=utc_now())})
    publish_all(world, 1)
    world.upload("orders", 10, observed_at=LONG_AGO)
    deferred(sensor)  # nobody has looked since the date was over
    world.put_index(entry(next_offset=10, observed_at=LONG_AGO + timedelta(days=2)))

    planned = sensor.execute(CONTEXT)

    assert list(read_plan(world.table(), planned["plan"]).closes) == [DATE]
    commit(world.table(), states={DATE: DateState(rows=10, state="final")})
    publish_all(world, 2)
    deferred(sensor)


def test_it_does_not_wait_while_a_commit_is_not_in_airflows_record(
    world: World, sensor: WatermarkSensor, stored: set[Commit]
) -> None:
    ledger = commit(world.table(), state(0, 10))

    assert sensor.execute(CONTEXT)["empty"] is True
    stored.add(Commit.of(ledger))
    deferred(sensor)
    assert read_published(world.table()).value.n == 1


def test_it_plans_what_the_trigger_found(world: World, sensor: WatermarkSensor) -> None:
    world.upload("orders", 100)

    planned = sensor.resume(CONTEXT, ADVANCED)

    [partition] = read_plan(world.table(), planned["plan"]).partitions
    assert (partition.start, partition.end) == (0, 100)
    assert (planned["empty"], planned["tasks"], planned["bytes"]) == (False, 1, HEADER_SIZE[2])
    assert all(value < 1 << 53 for value in planned.values() if isinstance(value, int))


def test_it_settles_what_cannot_be_landed_and_waits_on(world: World, sensor: WatermarkSensor) -> None:
    world.upload("orders", 100)
    commit(world.table(), state(0, 100))
    publish_all(world, 1)
    world.put_index(entry(partition=7, next_offset=5), broker=7)  # and no watermark yet

    assert deferred(sensor, ADVANCED).baseline.settled == "ab"
    assert read_published(world.table()).value.settled == "ab"


def test_it_waits_on_after_a_refresh_with_the_topics_file_as_it_is_now(world: World, sensor: WatermarkSensor) -> None:
    before = deferred(sensor)
    moved = world.root / "moved"
    world.write_topics(
        cluster=CLUSTER, raw={"url": f"file://{moved}"}, lake=f"file://{world.root}/lake", topics=[{"topic": "orders"}]
    )

    after = deferred(sensor, {"status": "refresh"})

    assert before.source.store == world.raw.url
    assert after.source.store == f"file://{moved}"


def test_it_fails_when_the_store_could_not_be_read(sensor: WatermarkSensor) -> None:
    with pytest.raises(AirflowFailException, match="orders: the watermark indexes cannot be read: 403"):
        sensor.resume(CONTEXT, {"status": "failed", "reason": "403"})


def test_it_waits_first_after_failed_runs(sensor: WatermarkSensor, monkeypatch: pytest.MonkeyPatch) -> None:
    until = utc_now() + timedelta(minutes=2)
    monkeypatch.setattr(watermark, "wait_until", lambda _: until)

    with pytest.raises(TaskDeferred) as raised:
        sensor.execute(CONTEXT)

    assert isinstance(raised.value.trigger, DateTimeTrigger)
    assert raised.value.trigger.moment == until
    with pytest.raises(TaskDeferred) as then:
        getattr(sensor, raised.value.method_name)(CONTEXT, event=until)
    assert isinstance(then.value.trigger, WatermarkTrigger)


def test_a_task_opens_the_table_and_reads_its_ledger_once(
    world: World, sensor: WatermarkSensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(world.table(), state(0, 10), attempt=1)
    publish_all(world, 1)
    table, requests = world.table(), Requests(monkeypatch)
    deferred(sensor, ADVANCED)  # it plans, finds nothing, and looks once more
    assert sum(key.startswith(f"{table.keys.root}/_delta_log/0") for key in requests.gets) == 2, "each version once"
    assert [key for key in requests.gets if key.startswith(table.keys.ledgers)] == [table.keys.ledger(1, 1)]
