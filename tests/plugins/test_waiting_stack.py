"""Airflow's own processes wait for a job on a platform, and a person ends the task while it waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.plugins.shared_stack import REMOTE, SharedStack
from tests.plugins.submitters.platform_server import Platform, Request
from tests.plugins.test_airflow_stack import states
from tests.support.waiting import wait_until


class Runs:
    """The runs of a workspace of Databricks, each with its number; those in ``results`` have ended."""

    def __init__(self, platform: Platform) -> None:
        self.platform, self.results = platform, dict[int, str]()
        self.submitted = 0
        platform.requests.clear()
        platform.answer = self._answer

    @property
    def looks(self) -> int:
        return len(self.platform.sent("GET"))

    @property
    def cancelled(self) -> list[int]:
        return [one.body["run_id"] for one in self.platform.sent("POST") if one.path.endswith("/cancel")]

    def _answer(self, asked: Request) -> tuple[int, Any]:
        if asked.path.endswith("/submit"):
            self.submitted += 1
            return 200, {"run_id": self.submitted}
        if asked.method == "POST":
            self.results[asked.body["run_id"]] = "CANCELED"
            return 200, {}
        number = int(asked.path.rpartition("=")[2]) if "=" in asked.path else asked.body["run_id"]
        result = self.results.get(number, "")
        state = {"life_cycle_state": "TERMINATED" if result else "RUNNING", "state_message": "", "result_state": result}
        return 200, {"state": state, "run_page_url": f"https://dbc.example/run/{number}"}


@pytest.fixture
def waiting(stack: SharedStack, remote: Platform) -> Iterator[tuple[Runs, str]]:
    """The platform's runs, and the id of a DAG's run that waits for the first."""
    platform = Runs(remote)
    stack.client.wait_for_dag(REMOTE)
    stack.client.unpause(REMOTE)
    run = stack.client.trigger(REMOTE)

    def check() -> None:
        assert not is_in(stack, run, "failed"), stack.client.task_log(REMOTE, run, "job")

    wait_until(partial(is_in, stack, run, "deferred"), what="the task to wait", interval=0.5, check=check)
    yield platform, run
    stack.client.pause(REMOTE)


def is_in(stack: SharedStack, run: str, state: str) -> bool:
    return states(stack, REMOTE, run)["job"] == state


def looked(platform: Runs) -> Callable[[], bool]:
    """Whether the triggerer has looked at the run once more."""
    before = platform.looks
    return lambda: platform.looks > before


def test_the_task_waits_in_the_triggerer_and_ends_with_the_job(stack: SharedStack, waiting: tuple[Runs, str]) -> None:
    platform, run = waiting
    wait_until(looked(platform), what="the triggerer to look")
    assert is_in(stack, run, "deferred")
    stack.component("triggerer").kill()
    stack.component("triggerer").start()
    wait_until(looked(platform), what="another triggerer to look")
    platform.results[1] = "SUCCESS"
    wait_until(partial(is_in, stack, run, "success"), what="the task to end", interval=0.5)
    assert (platform.submitted, platform.cancelled) == (1, [])
    assert "databricks" in stack.client.task_log(REMOTE, run, "job").lower()


def test_a_task_that_a_person_ends_ends_its_job(stack: SharedStack, waiting: tuple[Runs, str]) -> None:
    platform, run = waiting
    wait_until(looked(platform), what="the triggerer to look")
    stack.client.patch(f"/dags/{REMOTE}/dagRuns/{run}/taskInstances/job", {"new_state": "failed"})
    wait_until(lambda: platform.cancelled == [1], what="the job to be ended", interval=0.5)
    assert is_in(stack, run, "failed")
    assert platform.submitted == 1
