"""The tasks' own code, in Airflow's order, with a context like Airflow's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors

from tests.plugins.world import CLUSTER, TOPIC_ID, World, commit, gap, run_job, state
from tidemark.ledger import PartitionState
from tidemark.manifest import OpenTransaction
from tidemark.stored import utc_now
from tidemark.table import committed_ledger
from tidemark_airflow import tasks
from tidemark_airflow.alerts import OpenGaps
from tidemark_airflow.outbox import read_published
from tidemark_airflow.pending import Baseline, Event, OpenGap, Watch
from tidemark_airflow.scan import IndexScanner, Source

NAME = (CLUSTER, "orders")


class Run:
    """One DAG run's tasks, called as Airflow would."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, run_id: str = "run 1") -> None:
        self.world = world
        self.outlets = OutletEventAccessors()
        self.task = SimpleNamespace(outlets=["as declared"])
        ti = SimpleNamespace(task=self.task, dag_id="dag", run_id=run_id)
        context = {"ti": ti, "outlet_events": self.outlets}
        monkeypatch.setattr(tasks, "get_current_context", lambda: context)

    def wait(self) -> Event | None:
        """What the sensor and its trigger say now; None while they wait."""
        lake = self.world.lake()
        scan = IndexScanner(Source.of(lake.deployment, lake.topic, 1)).scan()
        known = Baseline.of(lake.topic, committed_ledger(lake), read_published(lake).value)
        return Watch(known).judge(scan.topics.get("orders", ()), utc_now())

    def plan(self) -> Any:
        return tasks.plan.function(*NAME)

    def convert(self, planned: Any) -> None:
        options = ("--topics", str(self.world.topics_file), "--cluster", CLUSTER, "--topic", "orders")
        run_job(["convert.py", *options, "--plan", planned["plan"]])

    def publish(self, planned: Any) -> Any:
        return tasks.publish.function(*NAME, planned)

    def continuity(self, planned: Any, published: Any, event: Event | None = None) -> None:
        tasks.continuity.function(*NAME, planned, published, event.model_dump(mode="json") if event else None)

    @property
    def events(self) -> set[str]:
        """The partition keys of the events that Airflow would send."""
        if not self.task.outlets:
            return set()
        [asset] = self.task.outlets
        assert isinstance(asset, Asset)
        return self.outlets[asset].partition_keys


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(world, monkeypatch)


def test_a_run_lands_publishes_and_leaves_nothing_to_do(run: Run) -> None:
    run.world.upload("orders", 100)
    event = run.wait()
    planned = run.plan()
    assert planned["empty"] is False
    run.convert(planned)
    published = run.publish(planned)
    assert run.events == {"2026-01-01"}
    assert read_published(run.world.lake()).etag is None
    run.continuity(planned, published, event)

    assert read_published(run.world.lake()).value.n == 1
    assert run.wait() is None
    assert run.plan()["empty"] is True


def test_a_kill_between_event_and_pointer_sends_the_event_again(
    run: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(world.lake(), state(0, 10), dates=["2026-01-01"])
    nothing = {"empty": True, "attempt": "1", "plan": ""}
    run.publish(nothing)

    commit(world.lake(), state(0, 20), dates=["2026-01-02"])
    again = Run(world, monkeypatch, "run 2")
    published = again.publish(nothing)
    assert again.events == {"2026-01-01", "2026-01-02"}
    again.continuity(nothing, published)

    with pytest.raises(AirflowSkipException):
        Run(world, monkeypatch, "run 3").publish(nothing)


def test_a_commit_without_a_date_is_no_event_but_moves_the_pointer(run: Run, world: World) -> None:
    commit(world.lake(), state(0, 0), dates=[])
    nothing = {"empty": True, "attempt": "1", "plan": ""}
    published = run.publish(nothing)
    assert run.events == set()
    run.continuity(nothing, published)

    assert read_published(world.lake()).value.n == 1


def test_a_partition_held_by_a_transaction_starts_one_run_and_no_more(run: Run, world: World) -> None:
    world.upload("orders", 100)
    held = PartitionState(
        incarnation=0,
        topic_id=TOPIC_ID,
        partition=0,
        start_offset=0,
        next_offset=40,
        leader_epoch=0,
        lineage=((0, 0),),
        held_by=(OpenTransaction(producer_id=1, producer_epoch=0, first_offset=40),),
    )
    commit(world.lake(), held)
    event = run.wait()
    assert event is not None

    run.continuity({"empty": True, "attempt": "1", "plan": ""}, {"n": 1, "attempt": "1"}, event)

    assert run.wait() is None
    world.upload("orders", 200, start=100)
    assert run.wait() is not None


def test_a_head_that_was_deleted_is_told_of_though_nothing_lands(run: Run, world: World) -> None:
    world.upload("orders", 0, gaps=[gap(0, 40)])
    event = run.wait()
    assert event is not None
    assert [one.name for one in event.gaps] == ["0-0-0"]
    planned = run.plan()
    run.convert(planned)
    published = run.publish(planned)

    with pytest.raises(OpenGaps, match="orders-0: offsets 0 to 39"):
        run.continuity(planned, published, event)

    assert run.wait() is None


def test_a_gap_is_told_of_after_what_landed_is_published(run: Run, world: World) -> None:
    commit(world.lake(), state(0, 10, gaps=[gap(10, 20)]))
    nothing = {"empty": True, "attempt": "1", "plan": ""}
    published = run.publish(nothing)

    with pytest.raises(OpenGaps):
        run.continuity(nothing, published, Event(status="advanced", gaps=(OpenGap.of(0, 1, gap(5, 6)),)))

    found = read_published(world.lake()).value
    assert found.n == 1
    assert set(found.alerted) == {"0-0-10", "0-1-5"}


def test_no_xcom_has_a_number_that_a_browser_would_round(run: Run, world: World) -> None:
    world.upload("orders", 100)
    planned = run.plan()
    run.convert(planned)
    published = run.publish(planned)

    numbers = [value for value in (*planned.values(), *published.values()) if isinstance(value, int)]
    assert all(number < 1 << 53 for number in numbers)
