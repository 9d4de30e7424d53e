"""Airflow's own processes from a watermark to a published date: the one test that trusts no fake of Airflow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import pytest

from tests.plugins.world import CLUSTER, DATE, World, entry
from tests.support.airflow import AirflowStack
from tests.support.airflow_client import Json
from tests.support.paths import ROOT
from tests.support.waiting import wait_until
from tidemark.table import committed_ledger
from tidemark_airflow.outbox import read_published

ORDERS = f"tidemark_ingest__{CLUSTER}__orders"
CLICKS = f"tidemark_ingest__{CLUSTER}__clicks"
SECRET = "store-secret-of-this-test"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"), "orders", "clicks")


@pytest.fixture(scope="module")
def stack(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowStack]:
    home = tmp_path_factory.mktemp("airflow")
    submit = home / "spark-submit"
    submit.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.plugins.world "$@"\n')
    submit.chmod(0o755)
    env = {
        "TIDEMARK_TOPICS": str(world.topics_file),
        "TIDEMARK_SPARK_SUBMIT": str(submit),
        "TIDEMARK_SCAN_SECONDS": "0.5",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[1]"}',
    }
    with AirflowStack(home, dags=ROOT / "dags", plugins=ROOT / "plugins", env=env) as airflow:
        yield airflow


def runs(stack: AirflowStack, dag: str) -> list[Json]:
    """The DAG's runs, oldest first."""
    found: list[Json] = stack.client.get(f"/dags/{dag}/dagRuns", order_by="run_after", limit=100)["dag_runs"]
    return found


def states(stack: AirflowStack, dag: str, run: str) -> dict[str, str | None]:
    """State by task."""
    tasks = stack.client.get(f"/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
    return {task["task_id"]: task["state"] for task in tasks}


def is_waiting(stack: AirflowStack, dag: str, number: int) -> bool:
    """Whether the DAG's run ``number`` is deferred in its first task, which holds no worker."""
    found = runs(stack, dag)
    return len(found) > number and states(stack, dag, found[number]["dag_run_id"])["wait_and_plan"] == "deferred"


def start(stack: AirflowStack, *dags: str) -> None:
    for dag in dags:
        stack.client.wait_for_dag(dag)
        stack.client.patch(f"/dags/{dag}", {"is_paused": False})
    for dag in dags:
        last = max(0, len(runs(stack, dag)) - 1)
        wait_until(partial(is_waiting, stack, dag, last), timeout=60, what=f"{dag} to wait", interval=0.5)


def test_a_watermark_becomes_a_published_date(stack: AirflowStack, world: World) -> None:
    start(stack, ORDERS, CLICKS)
    assert stack.client.import_errors() == {}

    world.upload("orders", 100)
    wait_until(lambda: is_waiting(stack, ORDERS, 1), timeout=90, what="orders to be landed", interval=0.5)
    first = runs(stack, ORDERS)[0]
    assert first["state"] == "success"
    assert set(states(stack, ORDERS, first["dag_run_id"]).values()) == {"success"}
    assert len(runs(stack, CLICKS)) == 1
    lake = world.lake("orders")
    ledger = committed_ledger(lake)
    assert ledger.by_partition[0, 0].next_offset == 100
    events = stack.client.get("/assets/events", source_dag_id=ORDERS)["asset_events"]
    assert [event["partition_key"] for event in events] == [DATE]
    assert (events[0]["extra"]["ledger"], events[0]["extra"]["attempt"]) == (1, str(ledger.attempt))
    # Moved by the run that waits now, which has found the event in Airflow's record.
    published = read_published(lake).value
    assert (published.n, published.attempt) == (1, ledger.attempt)


def test_what_holds_a_partition_back_starts_no_run(stack: AirflowStack, world: World) -> None:
    start(stack, ORDERS)
    before = len(runs(stack, ORDERS))
    world.put_index(entry("orders", partition=7, next_offset=5), broker=7)

    lake = world.lake("orders")
    wait_until(lambda: bool(read_published(lake).value.settled), timeout=60, what="the plan to be empty", interval=0.5)
    wait_until(lambda: is_waiting(stack, ORDERS, before - 1), timeout=60, what="orders to wait again", interval=0.5)
    assert len(runs(stack, ORDERS)) == before


def test_the_stores_secret_is_in_no_log(stack: AirflowStack) -> None:
    logs = list(stack.home.rglob("*.log"))
    assert any("task_id=convert_and_publish" in str(path) for path in logs)
    assert not [path for path in logs if SECRET in path.read_text(errors="replace")]
