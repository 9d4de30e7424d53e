from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import cast

import pytest
from airflow.sdk import Context

from tidemark_airflow.sensors.watermark import delay, failed_in_a_row, wait_until

START = datetime(2026, 6, 1, tzinfo=UTC)


class Ti:
    """A task instance of the newest run; the runs before it ended in ``states``, oldest first, a day each."""

    dag_id = "dag"

    def __init__(self, states: Sequence[str]) -> None:
        self.states = states
        self.asked = 0

    def get_previous_ti(self, *, logical_date: datetime) -> object:
        self.asked += 1
        number = (logical_date - START).days - 1
        if number < 0:
            return None
        return SimpleNamespace(run_id=f"run {number}", logical_date=START + timedelta(days=number))

    def get_dagrun_state(self, _dag_id: str, run_id: str) -> str:
        return self.states[int(run_id.removeprefix("run "))]


def context(*states: str, manual: bool = False) -> Context:
    logical_date = None if manual else START + timedelta(days=len(states))
    run = SimpleNamespace(logical_date=logical_date, start_date=START, run_after=START)
    return cast("Context", {"ti": Ti(states), "dag_run": run})


@pytest.mark.parametrize(
    ("states", "failures"),
    [
        ([], 0),
        (["success"], 0),
        (["failed", "success"], 0),
        (["success", "failed"], 1),
        (["failed", "success", "failed", "failed"], 2),
        (["failed", "failed"], 2),
    ],
)
def test_failures_count_from_the_last_run_that_did_not_fail(states: list[str], failures: int) -> None:
    assert failed_in_a_row(context(*states)) == failures


def test_not_all_of_a_long_history_is_asked_for() -> None:
    found = context(*["failed"] * 1000)

    assert failed_in_a_row(found) == 6
    assert cast("Ti", found["ti"]).asked == 6


def test_the_delay_doubles_up_to_a_quarter_of_an_hour() -> None:
    assert [delay(n).total_seconds() for n in range(8)] == [0, 30, 60, 120, 240, 480, 900, 900]


def test_it_counts_from_the_start_of_the_run() -> None:
    assert wait_until(context("success", "failed", "failed")) == START + timedelta(minutes=1)


def test_a_run_that_a_person_started_does_not_wait() -> None:
    assert wait_until(context("failed", manual=True)) == START
