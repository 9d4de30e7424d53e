"""A task whose job runs on a platform: deferred while the job runs, and what it does afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, TaskDeferred

from tests.plugins.submitters.platform_server import Platform, Request, stored, use
from tests.plugins.world import CLUSTER, World
from tidemark.timestamps import utc_now
from tidemark_airflow.operators import spark_job
from tidemark_airflow.operators.spark_job import RunPlanOperator
from tidemark_airflow.submitters.waiting import JobTrigger

# The provider of Databricks imports a name that Airflow has moved.
pytestmark = pytest.mark.filterwarnings("ignore:ProvidersManager.hooks is deprecated")

PLANNED = {"empty": False, "attempt": "42", "plan": "_tidemark/kafka-1/orders/attempts/42.json", "tasks": 1}
LIMIT = timedelta(hours=12)


class Store:
    """Airflow's state of a task."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.get = self.kept.get
        self.set = self.kept.__setitem__
        self.delete = self.kept.__delitem__


class Task:
    """A task of Airflow's on a platform whose run has the states that the test says, the last one for ever."""

    def __init__(self, platform: Platform, *states: str) -> None:
        self.platform, self.store, self.states = platform, Store(), list(states)
        self.published: list[Any] = []
        platform.answer = self._answer

    @property
    def context(self) -> Context:
        return cast("Context", {"task_state_store": self.store})

    @property
    def submitted(self) -> int:
        return len([one for one in self.platform.sent("POST") if one.path.endswith("/submit")])

    def execute(self) -> TaskDeferred | None:
        """Run the task to its end, or until it waits."""
        try:
            operator().execute(self.context)
        except TaskDeferred as deferred:
            return deferred
        return None

    def resume(self, waited: dict[str, Any], state: str) -> RunPlanOperator:
        """Return to the task in another process."""
        task = operator()
        event = {"state": state, "words": "as the platform says", "page": ""}
        task.resume_execution("resume", {**waited, "event": event}, self.context)
        return task

    def _answer(self, asked: Request) -> tuple[int, Any]:
        if asked.method == "POST":
            return 200, {"run_id": 7}
        result = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        life = "TERMINATED" if result else "RUNNING"
        state = {"life_cycle_state": life, "state_message": "", "result_state": result}
        return 200, {"state": state, "run_page_url": "https://dbc.example/run/7"}


def operator() -> RunPlanOperator:
    return RunPlanOperator(task_id="convert", cluster=CLUSTER, topic="orders", planned=PLANNED, execution_timeout=LIMIT)


@pytest.fixture
def task(platform: Platform, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Task]:
    assert world.topics_file.exists()
    at = {"host": "127.0.0.1", "port": platform.port, "schema": "http"}
    use(monkeypatch, tmp_path, {"existing_cluster_id": "1234"}, conn_type="databricks", password="p", **at)

    def made(*states: str) -> Task:
        task = Task(platform, *states)

        def publish(*_: Any) -> bool:
            task.published.append("published")
            return True

        monkeypatch.setattr(spark_job, "publish", publish)
        return task

    return made


def waited_for(deferred: TaskDeferred | None) -> dict[str, Any]:
    """What Airflow stores of the wait, beside the trigger."""
    assert deferred is not None
    assert deferred.method_name == "resume"
    found: dict[str, Any] = json.loads(json.dumps(deferred.kwargs))
    return found


def test_a_task_waits_without_a_worker_and_then_publishes(task: Callable[..., Task]) -> None:
    running = task("", "")
    before = utc_now()
    deferred = running.execute()
    waited = waited_for(deferred)
    assert deferred is not None
    trigger = stored(cast("JobTrigger", deferred.trigger))
    assert (trigger.submitter, trigger.conn_id, trigger.job_id) == ("DatabricksRun", "platform", "7")
    assert trigger.until is not None
    assert before + LIMIT <= datetime.fromisoformat(trigger.until) <= utc_now() + LIMIT
    assert running.published == []
    assert list(running.store.kept.values()) == ["7"]

    resumed = running.resume(waited, "succeeded")
    assert running.published == ["published"]
    assert running.store.kept == {}
    assert running.submitted == 1
    assert resumed.job_page == "https://dbc.example/run/7"


@pytest.mark.parametrize("state", ["failed", "unknown"])
def test_a_job_that_did_not_succeed_fails_the_try_and_the_next_submits_again(
    task: Callable[..., Task], state: str
) -> None:
    running = task("")
    waited = waited_for(running.execute())
    with pytest.raises(AirflowException, match=f"run_plan.py, job 7: {state}: as the platform says"):
        running.resume(waited, state)
    assert running.published == []
    assert running.store.kept == {}
    assert running.execute() is not None
    assert running.submitted == 2


def test_a_trigger_that_failed_leaves_the_job_to_the_next_try(task: Callable[..., Task]) -> None:
    running = task("")
    waited_for(running.execute())
    with pytest.raises(AirflowException):
        operator().resume_execution("__fail__", {"error": "Trigger failure"}, running.context)
    assert waited_for(running.execute())["job"]["job_id"] == "7"
    assert running.submitted == 1


def test_a_job_that_has_ended_at_once_is_not_waited_for(task: Callable[..., Task]) -> None:
    running = task("SUCCESS")
    assert running.execute() is None
    assert running.published == ["published"]
    assert running.store.kept == {}
