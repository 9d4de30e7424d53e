"""The task that brings a state table up to date: it runs the job for its topic, and sends the commit's event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from tests.plugins.operators.test_spark import CONTEXT, called, pytestmark
from tests.plugins.world import CLUSTER, World
from tidemark_airflow.dag_factories.maintenance import UpkeepOperator
from tidemark_airflow.operators import state
from tidemark_airflow.operators.state import StateOperator

__all__ = ["called", "pytestmark"]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics whose commits are published."""
    topics: list[str] = []
    monkeypatch.setattr(state, "publish_state", lambda _, table: topics.append(table.topic.topic))
    return topics


def with_state(world: World) -> None:
    world.write_topics(
        cluster=CLUSTER,
        raw={"url": f"file://{world.root}/raw"},
        lake=f"file://{world.root}/lake",
        topics=[{"topic": "orders", "state": {}}],
    )


def test_it_runs_the_job_and_then_publishes(called: Path, world: World, told: list[str]) -> None:
    with_state(world)
    StateOperator(task_id="state", cluster=CLUSTER, topic="orders").execute(CONTEXT)
    arguments = called.read_text().splitlines()
    at = next(n for n, argument in enumerate(arguments) if argument.endswith("spark/jobs/state.py"))
    assert arguments[at + 1 :][-2:] == ["--topic", "orders"]
    assert told == ["orders"]


def test_a_topic_without_a_state_is_skipped_without_spark(called: Path, told: list[str]) -> None:
    with pytest.raises(AirflowSkipException, match="has no state table"):
        StateOperator(task_id="state", cluster=CLUSTER, topic="orders").execute(CONTEXT)
    assert not called.exists()
    assert told == []


def test_a_job_that_failed_publishes_nothing(
    called: Path, world: World, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_state(world)
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    with pytest.raises(AirflowException):
        StateOperator(task_id="state", cluster=CLUSTER, topic="orders").execute(CONTEXT)
    assert told == []


@pytest.mark.parametrize(("name", "topics"), [("state", ["orders"]), ("state_audit", []), ("vacuum", [])])
def test_the_hourly_task_publishes_and_others_do_not(
    called: Path, world: World, name: str, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_state(world)
    told: list[str] = []

    def publish(_: Any, table: Any) -> None:
        told.append(table.topic.topic)

    operator = UpkeepOperator(task_id=name, upkeep_name=name, cluster=CLUSTER, topic="orders")
    upkeep = operator._upkeep
    monkeypatch.setattr(operator, "_upkeep", upkeep._replace(publishes=upkeep.publishes and publish))
    context: Any = {**CONTEXT, "params": {"topic": "all", "date": None}}
    operator.execute(context)
    assert told == topics
