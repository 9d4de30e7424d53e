"""Airflow's four processes start, are healthy, run a DAG and are gone after stop."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.support.airflow import AirflowStack

DAG = """
from airflow.sdk import dag, task

@dag(schedule=None)
def greet():
    @task
    def say() -> None:
        print("good morning")
    say()

greet()
"""


@pytest.mark.full
def test_a_dag_runs_and_nothing_is_left_or_told(tmp_path: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "greet.py").write_text(DAG)
    home = tmp_path / "home"
    with AirflowStack(home, dags=dags) as stack:
        stack.client.wait_for_dag("greet")
        assert stack.client.import_errors() == {}
        stack.client.unpause("greet")
        run = stack.client.trigger("greet")
        assert stack.client.wait_for_run("greet", run) == "success"
        assert [task["task_id"] for task in stack.client.task_instances("greet", run)] == ["say"]
        assert "good morning" in stack.client.task_log("greet", run, "say")
        family = [
            member
            for process in stack.processes
            for member in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        ]
        listening = {
            connection.laddr.ip
            for member in family
            for connection in member.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {"127.0.0.1"}
    assert not any(member.is_running() for member in family)
    hidden = [stack.password, stack.env["AIRFLOW__API_AUTH__JWT_SECRET"], stack.env["AIRFLOW__CORE__FERNET_KEY"]]
    for log in home.rglob("*.log"):
        assert not any(secret in log.read_text() for secret in hidden), log
