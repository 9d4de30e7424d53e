"""The task that brings a state table up to date: it runs the job for its topic, and sends the commit's event."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from tests.plugins.operators.test_spark import CONTEXT, called, pytestmark
from tests.plugins.world import CLUSTER, World
from tidemark.topics import Deployment, TopicSettings
from tidemark_airflow.dag_factories import maintenance
from tidemark_airflow.dag_factories.maintenance import PublishStatesOperator
from tidemark_airflow.operators import backfill
from tidemark_airflow.operators.backfill import StateOperator

__all__ = ["called", "pytestmark"]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics whose commits are published."""
    topics: list[str] = []

    def publish(_context: object, _deployment: Deployment, of: list[TopicSettings]) -> None:
        topics.extend(topic.topic for topic in of)

    for module in (backfill, maintenance):
        monkeypatch.setattr(module, "publish_states", publish)
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


def test_a_state_that_the_run_has_made_is_only_published(
    called: Path, world: World, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_state(world)
    monkeypatch.setattr(backfill, "_is_current", lambda _: True)
    StateOperator(task_id="state", cluster=CLUSTER, topic="orders").execute(CONTEXT)
    assert not called.exists()
    assert told == ["orders"]


def test_a_job_that_failed_publishes_nothing(
    called: Path, world: World, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_state(world)
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    with pytest.raises(AirflowException):
        StateOperator(task_id="state", cluster=CLUSTER, topic="orders").execute(CONTEXT)
    assert told == []


def test_the_states_of_all_groups_are_published(world: World, told: list[str]) -> None:
    with_state(world)
    groups = [{"cluster": CLUSTER, "topics": ["orders"]}]
    PublishStatesOperator(task_id="publish", groups=groups).execute(CONTEXT)
    assert told == ["orders"]


@pytest.mark.usefixtures("world")
def test_without_groups_there_is_no_state_to_publish(told: list[str]) -> None:
    PublishStatesOperator(task_id="publish", groups=None).execute(CONTEXT)
    assert told == []
