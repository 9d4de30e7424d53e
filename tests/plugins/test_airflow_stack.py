"""Airflow's own processes from a watermark to a published date, and when they are killed: no part of it is a fake."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.plugins.shared_stack import DAILY, STORE_SECRET, SharedStack
from tests.plugins.world import CLUSTER, DATE, GATE, World, commit, entry, state
from tests.support.airflow_client import Json
from tests.support.waiting import wait_until
from tidemark.formats.table.statuses import ScanStatus
from tidemark.table.delta_table import committed_ledger
from tidemark.table.state_table import StateTable
from tidemark.timestamps import utc_now
from tidemark_airflow.assets.outbox import read_published
from tidemark_airflow.sensors import watermark

ORDERS = f"tidemark_ingest__{CLUSTER}__orders"
CLICKS = f"tidemark_ingest__{CLUSTER}__clicks"
STATE = "tidemark_state"


@pytest.fixture(scope="module")
def world(stack: SharedStack) -> Iterator[World]:
    for dag in (ORDERS, CLICKS, DAILY):
        stack.client.wait_for_dag(dag)
    yield stack.ingest
    for dag in (ORDERS, CLICKS, DAILY):
        stack.client.pause(dag)


def runs(stack: SharedStack, dag: str) -> list[Json]:
    """The DAG's runs, oldest first."""
    found: list[Json] = stack.client.get(f"/dags/{dag}/dagRuns", order_by="run_after", limit=100)["dag_runs"]
    return found


def states(stack: SharedStack, dag: str, run: str) -> dict[str, str | None]:
    """State by task."""
    tasks = stack.client.get(f"/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
    return {task["task_id"]: task["state"] for task in tasks}


def has_ended(stack: SharedStack, dag: str, run: str) -> bool:
    """Whether the run is over."""
    return stack.client.get(f"/dags/{dag}/dagRuns/{run}")["state"] in {"success", "failed"}


def is_waiting(stack: SharedStack, dag: str, number: int | None = None) -> bool:
    """Whether the DAG's run ``number``, or its newest, is deferred in its first task, which holds no worker."""
    found = runs(stack, dag)
    if len(found) <= (number or 0):
        return False
    run = found[-1 if number is None else number]
    return states(stack, dag, run["dag_run_id"])["wait_and_plan"] == "deferred"


def start(stack: SharedStack, *dags: str) -> None:
    for dag in dags:
        stack.client.wait_for_dag(dag)
        stack.client.patch(f"/dags/{dag}", {"is_paused": False})
    for dag in dags:
        wait_until(partial(is_waiting, stack, dag), what=f"{dag} to wait", interval=0.5)


def test_a_watermark_becomes_a_published_date(stack: SharedStack, world: World) -> None:
    start(stack, ORDERS, CLICKS)
    assert stack.client.import_errors() == {}

    world.upload("orders", 100)
    wait_until(lambda: is_waiting(stack, ORDERS, 1), what="orders to be landed", interval=0.5)
    first = runs(stack, ORDERS)[0]
    assert first["state"] == "success"
    assert set(states(stack, ORDERS, first["dag_run_id"]).values()) == {"success"}
    assert len(runs(stack, CLICKS)) == 1
    table = world.table("orders")
    ledger = committed_ledger(table)
    assert ledger.by_partition[0, 0].next_offset == 100
    events = stack.client.get("/assets/events", source_dag_id=ORDERS)["asset_events"]
    assert [event["partition_key"] for event in events] == [DATE]
    assert (events[0]["extra"]["ledger"], events[0]["extra"]["attempt"]) == (1, str(ledger.attempt))
    # Moved by the run that waits now, which has found the event in Airflow's record.
    published = read_published(table).value
    assert (published.n, published.attempt) == (1, ledger.attempt)


def test_a_commit_of_a_state_table_is_an_event_once(stack: SharedStack, world: World) -> None:
    """The second run finds the event of the first in Airflow's record. A run for one topic has one task for it."""
    if not committed_ledger(world.table("orders")).n:
        commit(world.table("orders"), state(0, 100))
    stack.client.wait_for_dag(STATE)
    stack.client.unpause(STATE)
    for _ in range(2):
        run = stack.client.trigger(STATE, {"topic": f"{CLUSTER}/orders"})
        wait_until(partial(has_ended, stack, STATE, run), what="the run of the state", interval=0.5)
        assert set(states(stack, STATE, run).values()) == {"success"}
        assert len(stack.client.task_instances(STATE, run)) == len(states(stack, STATE, run)) == 3
    stack.client.pause(STATE)
    ledger = StateTable.open(world.table("orders")).committed()
    assert ledger is not None
    events = stack.client.get("/assets/events", source_dag_id=STATE)["asset_events"]
    assert [(event["extra"]["ledger"], event["extra"]["attempt"]) for event in events] == [(1, str(ledger.attempt))]
    assert events[0]["extra"]["of"] == committed_ledger(world.table("orders")).n


def test_a_state_that_fails_makes_the_run_red_and_keeps_no_other_from_its_event(
    stack: SharedStack, world: World
) -> None:
    commit(world.table("orders"), state(0, 100))
    before = len(stack.client.get("/assets/events", source_dag_id=STATE)["asset_events"])
    stack.client.unpause(STATE)
    run = stack.client.trigger(STATE)
    wait_until(partial(has_ended, stack, STATE, run), what="the run of the states", interval=0.5)
    stack.client.pause(STATE)
    assert stack.client.run(STATE, run)["state"] == "failed"
    tasks = [(one["rendered_map_index"], one["state"]) for one in stack.client.task_instances(STATE, run)]
    assert {named: ended for named, ended in tasks if named is not None} == {
        f"{CLUSTER}/broken": "failed",
        f"{CLUSTER}/orders": "success",
    }
    assert states(stack, STATE, run)["publish"] == "success"
    assert len(stack.client.get("/assets/events", source_dag_id=STATE)["asset_events"]) == before + 1


def test_a_date_that_closes_starts_the_dag_that_waits_for_it(stack: SharedStack, world: World) -> None:
    stack.client.wait_for_dag(DAILY)
    stack.client.unpause(DAILY)
    start(stack, ORDERS)
    world.upload("orders", 200, start=100, observed_at=utc_now())

    wait_until(lambda: [run["state"] for run in runs(stack, DAILY)] == ["success"], what="the report", interval=0.5)
    [run] = runs(stack, DAILY)
    assert run["partition_key"] == DATE
    path = f"/dags/{DAILY}/dagRuns/{run['dag_run_id']}/taskInstances/report/xcomEntries/return_value"
    assert stack.client.get(path)["value"] == {"dt": DATE, "rows": 1, "late_rows": 0, "complete": True}
    final = stack.client.get("/assets/events", source_dag_id=ORDERS, name_pattern="orders.final")["asset_events"]
    assert [event["extra"]["incomplete"] for event in final if event["name"] == "orders.final"] == [[]]


def landed(world: World, topic: str) -> int:
    """Up to where partition 0 is landed."""
    state = committed_ledger(world.table(topic)).by_partition.get((0, 0))
    return state.next_offset if state else 0


def jobs_at(gate: Path) -> list[int]:
    """Process ids of the jobs that have come to the gate."""
    return [int(path.suffix.removeprefix(".")) for path in gate.parent.glob(f"{GATE}.*")]


def check_given(job: psutil.Process) -> None:
    """The job has the connection's keys, in a file for its user alone, and nobody sees them by its process."""
    given = job.environ()
    for process in (job, *job.parents()[:3]):
        assert STORE_SECRET not in " ".join(process.cmdline())
    assert not [name for name, value in given.items() if STORE_SECRET in value]
    folder = Path(given["AWS_CONFIG_FILE"]).parent
    assert STORE_SECRET in (folder / "keys.json").read_text()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_watermarks_8_ms_apart_while_a_run_is_on_are_landed_by_the_next(
    stack: SharedStack, world: World, gate: Path
) -> None:
    start(stack, CLICKS)
    before, end = len(runs(stack, CLICKS)), landed(world, "clicks")
    world.upload("clicks", end + 100, start=end)
    wait_until(lambda: len(jobs_at(gate)) == 1, what="the job to run")
    check_given(psutil.Process(jobs_at(gate)[0]))
    world.upload("clicks", end + 200, start=end + 100)
    time.sleep(0.008)
    world.upload("clicks", end + 300, start=end + 200)
    gate.unlink()

    wait_until(lambda: landed(world, "clicks") == end + 300, what="all to be landed", interval=0.5)
    wait_until(lambda: is_waiting(stack, CLICKS, before + 1), what="clicks to wait again", interval=0.5)
    assert {run["state"] for run in runs(stack, CLICKS)[:-1]} == {"success"}


@pytest.mark.full
def test_a_worker_that_is_killed_leaves_a_job_that_lands_once_beside_the_retrys(
    stack: SharedStack, world: World, gate: Path
) -> None:
    start(stack, CLICKS)
    before, end, n = len(runs(stack, CLICKS)), landed(world, "clicks"), committed_ledger(world.table("clicks")).n
    world.upload("clicks", end + 100, start=end)
    wait_until(lambda: len(jobs_at(gate)) == 1, what="the job to run")
    job = psutil.Process(jobs_at(gate)[0])
    submitting = job.parents()[:2]
    assert all("airflow" in " ".join(one.cmdline()) for one in submitting), submitting
    for one in submitting:
        one.kill()
    wait_until(lambda: len(jobs_at(gate)) == 2, what="the plan to be submitted again", interval=0.5)
    assert job.is_running()
    gate.unlink()

    wait_until(lambda: landed(world, "clicks") == end + 100, what="all to be landed", interval=0.5)
    wait_until(lambda: is_waiting(stack, CLICKS, before), what="clicks to wait again", interval=0.5)
    assert {run["state"] for run in runs(stack, CLICKS)[:-1]} == {"success"}
    assert committed_ledger(world.table("clicks")).n == n + 1


def test_what_comes_while_the_dag_is_paused_and_the_triggerer_dead_is_landed_after_all(
    stack: SharedStack, world: World
) -> None:
    start(stack, CLICKS)
    stack.client.pause(CLICKS)
    stack.component("triggerer").kill()
    end = landed(world, "clicks") + 100
    world.upload("clicks", end, start=end - 100)
    stack.component("triggerer").start()
    stack.client.unpause(CLICKS)

    wait_until(lambda: landed(world, "clicks") == end, what="clicks to be landed", interval=0.5)


@pytest.mark.full
def test_the_run_after_a_failed_one_waits_first(stack: SharedStack, world: World) -> None:
    start(stack, CLICKS)
    before, end = len(runs(stack, CLICKS)), landed(world, "clicks")
    failing = runs(stack, CLICKS)[-1]["dag_run_id"]
    stack.client.patch(f"/dags/{CLICKS}/dagRuns/{failing}", {"state": "failed"})
    wait_until(lambda: is_waiting(stack, CLICKS, before), what="the next run to wait", interval=0.5)
    world.upload("clicks", end + 100, start=end)

    wait_until(lambda: is_waiting(stack, CLICKS, before + 1), what="it to land", interval=0.5)
    assert landed(world, "clicks") == end + 100
    run = runs(stack, CLICKS)[before]
    tasks = stack.client.task_instances(CLICKS, run["dag_run_id"])
    converted = next(datetime.fromisoformat(one["start_date"]) for one in tasks if one["task_id"] != "wait_and_plan")
    assert (converted - datetime.fromisoformat(run["start_date"])).total_seconds() >= watermark.BACKOFF.first

    world.upload("clicks", end + 200, start=end + 100)
    wait_until(lambda: is_waiting(stack, CLICKS, before + 2), what="the next to land", interval=0.5)
    run = runs(stack, CLICKS)[before + 1]
    took = datetime.fromisoformat(run["end_date"]) - datetime.fromisoformat(run["start_date"])
    assert took.total_seconds() < watermark.BACKOFF.first, "after a run that has landed none waits"


def scan_status(world: World) -> ScanStatus:
    key = world.deployment.deployment_keys(CLUSTER).scan
    return ScanStatus.from_bytes(world.table().store.get(key).body, key)


def test_a_store_that_fails_the_scan_is_told_of_and_tried_again(stack: SharedStack, world: World) -> None:
    start(stack, CLICKS)
    world.put_index(entry("clicks", next_offset=landed(world, "clicks")), broker=500)
    wait_until((world.root / "lake" / world.deployment.deployment_keys(CLUSTER).scan).exists, what="the first scan")
    indexes = [*(world.root / "raw" / world.control.indexes).glob("*.json")]
    for index in indexes:
        index.rename(index.with_suffix(".aside"))
        index.symlink_to("/proc/self/mem")  # reading it is an I/O error
    wait_until(lambda: scan_status(world).failing_since is not None, what="the failure to be told of")
    for index in indexes:
        index.with_suffix(".aside").replace(index)
    end = landed(world, "clicks") + 100
    world.upload("clicks", end, start=end - 100)

    wait_until(lambda: landed(world, "clicks") == end, what="clicks to be landed", interval=0.5)
    assert scan_status(world).failing_since is None


def test_what_holds_a_partition_back_starts_no_run(stack: SharedStack, world: World) -> None:
    start(stack, ORDERS)
    before = len(runs(stack, ORDERS))
    world.put_index(entry("orders", partition=7, next_offset=5), broker=7)

    table = world.table("orders")
    wait_until(lambda: bool(read_published(table).value.settled), what="the plan to be empty", interval=0.5)
    wait_until(lambda: is_waiting(stack, ORDERS, before - 1), what="orders to wait again", interval=0.5)
    assert len(runs(stack, ORDERS)) == before


def test_the_stores_secret_is_in_no_log_and_not_in_the_database(stack: SharedStack) -> None:
    """The database has rendered fields, XCom, triggers and the states of tasks."""
    files = [path for path in stack.home.rglob("*") if path.is_file()]
    assert any("task_id=convert_and_publish" in str(path) for path in files)
    assert stack.home / "airflow.db" in files
    assert not [path for path in files if STORE_SECRET.encode() in path.read_bytes()]
