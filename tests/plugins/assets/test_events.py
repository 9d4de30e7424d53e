"""What a run does from its plan to its events, with a context like Airflow's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.execution_time.context import OutletEventAccessors

from tests.plugins.world import CLUSTER, DATE, World, commit, run_job, state
from tidemark.errors import StoreError
from tidemark.formats.table.ledger import DateState, Ledger
from tidemark.formats.table.state_ledger import CommitName
from tidemark.planning import plan_ingest
from tidemark.table.state_table import StateTable
from tidemark_airflow.assets.events import assets_of, named_by, publish, publish_states
from tidemark_airflow.assets.outbox import Commit, read_published
from tidemark_airflow.planned import Planned, write_planned

NOTHING: Planned = {"empty": True, "attempt": "1", "plan": "", "tasks": 0, "bytes": 0}
CLOSED = DateState(rows=5, state="final", closed_at=datetime(2026, 1, 3, tzinfo=UTC))


class Airflow:
    """Runs the task, and stores its events if it is let succeed."""

    def __init__(self, world: World, stored: set[Commit]) -> None:
        self.world = world
        self.stored = stored
        self.events: list[tuple[str, str, dict[str, Any]]] = []

    def run(self, planned: Planned = NOTHING, *, succeeds: bool = True) -> list[tuple[str, str]]:
        """(asset, partition key or nothing) of the events of a task that publishes and then succeeds, or is killed."""
        accessors = OutletEventAccessors()
        task = SimpleNamespace(outlets=["as declared"])
        context = {"task": task, "outlet_events": accessors}
        publish(cast("Context", context), self.world.table(), planned)
        found = [
            (asset.name, key, dict(accessors[asset].extra))
            for asset in cast("Sequence[Any]", task.outlets)
            for key in sorted(accessors[asset].partition_keys) or [""]
        ]
        if succeeds:
            self.events += found
            self.stored |= {commit for _, _, extra in found if (commit := named_by(extra))}
        return [(name, key) for name, key, _ in found]


@pytest.fixture
def airflow(world: World, stored: set[Commit]) -> Airflow:
    return Airflow(world, stored)


def ledger_with(world: World, *dates: str, **states: str) -> Ledger:
    closed = {dt: CLOSED.model_copy(update={"state": name}) for dt, name in states.items()}
    return commit(world.table(), state(0, 10), dates=dates, states=closed)


def test_a_run_lands_publishes_and_leaves_nothing_to_do(airflow: Airflow, world: World) -> None:
    world.upload("orders", 100)
    planned = write_planned(world.table(), plan_ingest(world.table()))
    options = ("--topics", str(world.topics_file), "--cluster", CLUSTER, "--lineage", "off", "--topic", "orders")
    run_job(["run_plan.py", *options, "--plan", planned["plan"]])

    assert airflow.run(planned) == [("orders", DATE)]
    assert read_published(world.table()).etag is None
    assert airflow.run() == []
    assert read_published(world.table()).value.n == 1
    assert plan_ingest(world.table()).empty


def test_a_kill_before_the_events_are_stored_sends_them_again(airflow: Airflow, world: World) -> None:
    ledger_with(world, "2026-01-01")
    airflow.run(succeeds=False)
    ledger_with(world, "2026-01-02")

    assert airflow.run() == [("orders", "2026-01-01"), ("orders", "2026-01-02")]
    assert airflow.run() == []


def test_a_date_that_closes_is_an_event_of_its_own(airflow: Airflow, world: World) -> None:
    ledger_with(world, "2026-01-03", **{"2026-01-01": "final", "2026-01-02": "final_incomplete"})

    assert airflow.run() == [("orders", "2026-01-03"), ("orders.final", "2026-01-01"), ("orders.final", "2026-01-02")]
    [rows, *final] = [extra for _, _, extra in airflow.events]
    assert "incomplete" not in rows
    assert [extra["incomplete"] for extra in final] == [["2026-01-02"]] * 2


def test_only_what_there_is_to_say_has_an_outlet(airflow: Airflow, world: World) -> None:
    ledger_with(world, **{"2026-01-01": "final"})

    assert airflow.run() == [("orders.final", "2026-01-01")]


def test_an_event_says_of_what_it_is(airflow: Airflow, world: World) -> None:
    ledger = ledger_with(world, "2026-01-01")
    airflow.run()

    [(_, _, extra)] = airflow.events
    assert extra == {
        "cluster": CLUSTER,
        "topic": "orders",
        "ledger": 1,
        "attempt": str(ledger.attempt),  # a browser rounds numbers above 2^53
        "rows": 0,
    }


def test_a_commit_without_a_date_is_no_event_but_moves_the_pointer(airflow: Airflow, world: World) -> None:
    ledger_with(world)

    assert airflow.run() == []
    assert read_published(world.table()).value.n == 1


def test_new_columns_are_an_event_without_a_date(airflow: Airflow, world: World) -> None:
    table = world.table()
    commit(table, state(0, 10), columns=["dt", "id"])
    assert airflow.run() == [("orders", DATE)]
    commit(table, kind="schema", dates=(), columns=["vip"])
    assert airflow.run() == [("orders", "")]
    assert [extra.get("columns_added") for _, _, extra in airflow.events] == [None, ["vip"]]
    assert airflow.run() == []
    commit(table, state(0, 20), columns=["city"])
    assert airflow.run() == [("orders", DATE)]
    assert airflow.events[-1][2]["columns_added"] == ["city"]


def test_the_assets_of_a_table_have_names_that_no_other_table_has(world: World) -> None:
    deployment = world.deployment
    rows, final = assets_of(deployment, deployment.topics[0])

    assert (rows.name, rows.uri) == ("orders", f"file://{world.root}/lake/orders")
    assert (final.name, final.uri) == ("orders.final", f"file://{world.root}/lake/orders.final")


@pytest.mark.parametrize(
    "extra", [None, {}, {"ledger": 1}, {"ledger": "1", "attempt": "2"}, {"ledger": 1, "attempt": "two"}, {"from": "me"}]
)
def test_an_event_of_a_persons_making_names_no_commit(extra: dict[str, Any] | None) -> None:
    assert named_by(extra) is None


@pytest.fixture
def state_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path / "with_state", "orders", state={})
    monkeypatch.setenv("AIRFLOW__TIDEMARK__TOPICS", str(world.topics_file))
    return world


def committed(monkeypatch: pytest.MonkeyPatch, n: int, attempt: int = 7) -> None:
    """The state table has this commit."""
    ledger = SimpleNamespace(n=n, attempt=attempt, of=CommitName(n=40, attempt=1), rows=3)
    monkeypatch.setattr(StateTable, "committed", lambda _: ledger if n else None)


def state_events(world: World) -> list[tuple[str, dict[str, Any]]]:
    """The events of a task that publishes the state, by asset."""
    accessors, task = OutletEventAccessors(), SimpleNamespace(outlets=["as declared"])
    context = {"task": task, "outlet_events": accessors}
    publish_states(cast("Context", context), world.deployment, world.deployment.topics)
    return [(asset.name, dict(accessors[asset].extra)) for asset in cast("Sequence[Any]", task.outlets)]


def test_a_state_sends_an_event_of_each_commit_until_it_is_stored(
    state_world: World, stored: set[Commit], monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(monkeypatch, 0)
    assert state_events(state_world) == []
    committed(monkeypatch, 3)
    [(name, extra)] = state_events(state_world)
    assert name == "orders_current"
    assert extra == {"cluster": CLUSTER, "topic": "orders", "ledger": 3, "attempt": "7", "of": 40, "rows": 3}
    assert len(state_events(state_world)) == 1, "after a kill it is sent again"
    stored.add(cast("Commit", named_by(extra)))
    assert state_events(state_world) == []
    committed(monkeypatch, 4, attempt=8)
    assert [extra["ledger"] for _, extra in state_events(state_world)] == [4]


def test_a_state_that_cannot_be_read_keeps_no_other_from_its_event(
    state_world: World, stored: set[Commit], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not stored
    lake = f"file://{state_world.root}/lake"
    topics: list[dict[str, Any]] = [{"topic": name, "state": {}} for name in ("lost", "orders")]
    state_world.write_topics(cluster=CLUSTER, raw={"url": f"file://{state_world.root}/raw"}, lake=lake, topics=topics)
    ledger = SimpleNamespace(n=3, attempt=7, of=CommitName(n=40, attempt=1), rows=3)

    def found(table: StateTable) -> Any:
        if table.of.topic.topic == "lost":
            raise StoreError(lake, "does not answer")
        return ledger

    monkeypatch.setattr(StateTable, "committed", found)
    assert [name for name, _ in state_events(state_world)] == ["orders_current"]


def test_a_topic_without_a_state_sends_no_event_of_one(world: World) -> None:
    assert state_events(world) == []
