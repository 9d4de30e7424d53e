from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Asset, Context
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessors

from tests.plugins.world import CLUSTER, DATE, World, commit, state
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.live_landing import LiveLanding, TopicLanding, read_landing, write_landing
from tidemark.formats.table.plan import RunResult
from tidemark.table import delta_table
from tidemark.table.delta_table import TopicTable
from tidemark.timestamps import utc_now
from tidemark_airflow.assets import events
from tidemark_airflow.assets.outbox import Commit, move
from tidemark_airflow.dag_factories.live import live_dags
from tidemark_airflow.operators.landing import LandLiveOperator
from tidemark_airflow.submitters.base import SparkJob
from tidemark_airflow.submitters.child_processes import SparkSubmit
from tidemark_airflow.triggers.landing import LandingTrigger

EVENT = {"topics": ["orders", "clicks"]}


@pytest.fixture
def live(world: World, stored: set[Commit]) -> World:
    assert not stored
    content = {"cluster": CLUSTER, "raw": {"url": f"file://{world.root}/raw"}, "lake": f"file://{world.root}/lake"}
    topics = [{"topic": name, "freshness": "10s"} for name in ("orders", "clicks")]
    world.write_topics(**content, topics=[*topics, {"topic": "slow"}])
    return world


@pytest.fixture
def operator(live: World) -> LandLiveOperator:
    [dag] = live_dags(live.deployment)
    return cast("LandLiveOperator", dag.task_dict["land"])


class Airflow:
    """A task's context, and what it would send."""

    def __init__(self) -> None:
        self.accessors = OutletEventAccessors()
        self.task = SimpleNamespace(outlets=["as declared"])

    @property
    def context(self) -> Context:
        ti = SimpleNamespace(id="a try", dag_id="a DAG", run_id="a run", task_id="a task", map_index=-1)
        return cast("Context", {"ti": ti, "task": self.task, "outlet_events": self.accessors})

    @property
    def events(self) -> list[tuple[str, str]]:
        assets = cast("list[Any]", self.task.outlets)
        return [(asset.name, key) for asset in assets for key in sorted(self.accessors[asset].partition_keys)]


def due(world: World) -> None:
    topics = tuple(TopicLanding(topic=name, attempt=n, digest="") for n, name in enumerate(EVENT["topics"], 1))
    landing = LiveLanding(cluster=CLUSTER, began_at=utc_now(), topics=topics)
    write(world, landing)


def write(world: World, landing: LiveLanding) -> None:
    store, key = world.table().store, world.deployment.deployment_keys(CLUSTER).landing
    write_landing(store, key, landing, read_landing(store, key).etag)


def stored_landing(world: World) -> LiveLanding:
    found = read_landing(world.table().store, world.deployment.deployment_keys(CLUSTER).landing).value
    assert found is not None
    return found


def lands(world: World, **statuses: str) -> Callable[..., None]:
    """What the job does: commits those that are to land, and says what became of each."""

    def submit(self: object, _: Context, *__: str) -> None:
        landing = stored_landing(world)
        for one in landing.topics:
            if statuses[one.topic] == "landed":
                table = world.table(one.topic)
                ledger = commit(table, state(0, 5), attempt=one.attempt)
                result = RunResult(
                    attempt=one.attempt, status="landed", cluster=CLUSTER, topic=one.topic, table=one.topic,
                    ledger_n=ledger.n,
                )  # fmt: skip
                table.store.put(table.keys.result(one.attempt), result.to_bytes())
        done = tuple(one.model_copy(update={"status": statuses[one.topic]}) for one in landing.topics)
        write(world, landing.model_copy(update={"topics": done}))

    return submit


def test_events_of_all_topics_that_landed_are_sent_and_the_landing_ends(
    live: World, operator: LandLiveOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    due(live)
    monkeypatch.setattr(LandLiveOperator, "submit", lands(live, orders="landed", clicks="landed"))
    airflow = Airflow()

    operator.land(airflow.context, EVENT)

    assert airflow.events == [("orders", DATE), ("clicks", DATE)]
    assert stored_landing(live).ended_at is not None


def test_the_ledger_of_a_landing_is_read_without_the_tables_log(
    live: World, operator: LandLiveOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    due(live)
    job = lands(live, orders="landed", clicks="landed")

    def submit(self: object, context: Context) -> None:
        job(self, context)
        monkeypatch.setattr(delta_table, "open_delta", None)

    monkeypatch.setattr(LandLiveOperator, "submit", submit)
    airflow = Airflow()

    operator.land(airflow.context, EVENT)

    assert airflow.events == [("orders", DATE), ("clicks", DATE)]


def test_what_a_run_of_the_topics_own_has_published_meanwhile_is_not_sent_again(
    live: World, operator: LandLiveOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ledger is behind what was published, as that of a table which was put back would be."""
    due(live)
    job = lands(live, orders="landed", clicks="landed")
    asked: list[str] = []
    real = events.announced

    def announced(context: Context, table: TopicTable, ledger: Ledger) -> list[Asset] | None:
        asked.append(table.topic.topic)
        return real(context, table, ledger)

    monkeypatch.setattr(events, "announced", announced)

    def submit(self: object, context: Context) -> None:
        job(self, context)
        move(live.table("orders"), Commit.of(commit(live.table("orders"), state(0, 9))))

    monkeypatch.setattr(LandLiveOperator, "submit", submit)
    airflow = Airflow()

    operator.land(airflow.context, EVENT)

    assert airflow.events == [("clicks", DATE)]
    assert asked == ["clicks"]


def test_a_topic_that_failed_sends_nothing_and_the_others_do(
    live: World, operator: LandLiveOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    due(live)
    monkeypatch.setattr(LandLiveOperator, "submit", lands(live, orders="failed", clicks="landed"))
    airflow = Airflow()

    operator.land(airflow.context, EVENT)

    assert airflow.events == [("clicks", DATE)]


def test_a_topic_that_cannot_be_published_does_not_keep_the_others(
    live: World, operator: LandLiveOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    due(live)
    monkeypatch.setattr(LandLiveOperator, "submit", lands(live, orders="landed", clicks="landed"))
    table = live.table("orders")
    table.store.put(table.keys.published, b"{}")
    airflow = Airflow()

    operator.land(airflow.context, EVENT)

    assert airflow.events == [("clicks", DATE)]


def test_a_job_that_failed_leaves_the_landing_to_the_next_try(
    live: World, operator: LandLiveOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    due(live)

    def fails(self: object, *_: object) -> None:
        raise AirflowException("Spark does not answer")

    monkeypatch.setattr(LandLiveOperator, "submit", fails)

    with pytest.raises(AirflowException, match="does not answer"):
        operator.land(Airflow().context, EVENT)
    assert stored_landing(live).ended_at is None


def test_a_landing_that_others_have_ended_is_skipped(
    live: World, operator: LandLiveOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LandLiveOperator, "submit", lambda *_: None)
    airflow = Airflow()

    with pytest.raises(AirflowSkipException):
        operator.land(airflow.context, EVENT)
    assert airflow.events == []


def test_the_job_gets_the_cluster_alone(
    live: World, operator: LandLiveOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')
    given: list[SparkJob] = []
    monkeypatch.setattr(SparkSubmit, "run", lambda _self, job, _kept: given.append(job))

    operator.submit(Airflow().context)

    arguments = ("--topics", str(live.topics_file), "--cluster", CLUSTER, "--lineage", "off")
    assert [one[:3] for one in given] == [("land_live.py", arguments, f"tidemark-{CLUSTER}")]


def test_without_a_scheduler_it_waits_by_the_same_trigger(operator: LandLiveOperator) -> None:
    with pytest.raises(TaskDeferred) as raised:
        operator.execute(Airflow().context)

    arguments = operator.start_trigger_args
    assert arguments is not None
    assert isinstance(raised.value.trigger, LandingTrigger)
    assert raised.value.trigger.serialize() == (arguments.trigger_cls, arguments.trigger_kwargs)
    assert raised.value.method_name == arguments.next_method == "land"
