"""Backfills as people start them: Airflow's own processes and form, the jobs' own programs, ingestion beside them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.spark.world import World
from tests.support.airflow import AirflowStack
from tests.support.paths import ROOT
from tests.support.raw_builder import RawBuilder
from tests.support.waiting import wait_until
from tests.tidemark.records.build import T0, Record, batch
from tidemark.backfill.report import Report, read_report
from tidemark.backfill.request import report_name
from tidemark.table import Lake, committed_ledger, open_lake
from tidemark.topics import load_topics

BACKFILL = "tidemark_backfill"
INGEST = "tidemark_ingest__east__orders"
DAY = 86_400_000
DATES = ("2026-02-02", "2026-02-03", "2026-02-04")
FORM = {"topics": ["east/orders", "east/clicks"], "from_date": DATES[0], "to_date": DATES[1]}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two topics of three dates; only ``orders`` has landed."""
    made = World(tmp_path_factory.mktemp("world"), "batch: {age: 0s}")
    with made.topics_file.open("a") as file:
        file.write("  - topic: clicks\n")
    upload(made.raw)
    made.land()
    clicks = RawBuilder(made.raw.store, topic="clicks")
    upload(clicks)
    clicks.publish()
    return made


def upload(raw: RawBuilder) -> None:
    """A segment of nine records, three of each date."""
    at = raw.partition().end
    raw.segment([batch(at, [Record(i, T0 + (i % 3) * DAY, b"k", b"v%d" % i) for i in range(9)])])


def lake_of(world: World, topic: str) -> Lake:
    deployment = load_topics(world.topics_file)
    return open_lake(deployment, deployment.topic(topic))


@pytest.fixture(scope="module")
def stack(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowStack]:
    home = tmp_path_factory.mktemp("airflow")
    submit = home / "spark-submit"
    submit.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m tests.spark.inline "$@"\n')
    submit.chmod(0o755)
    env = {
        "TIDEMARK_TOPICS": str(world.topics_file),
        "TIDEMARK_SPARK_SUBMIT": str(submit),
        "TIDEMARK_SCAN_SECONDS": "0.5",
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[1]"}',
    }
    with AirflowStack(home, dags=ROOT / "dags", plugins=ROOT / "plugins", env=env) as airflow:
        airflow.client.wait_for_dag(BACKFILL)
        airflow.client.unpause(BACKFILL)
        airflow.client.unpause(INGEST)
        yield airflow


def started(stack: AirflowStack, **change: Any) -> str:
    return stack.client.trigger(BACKFILL, FORM | change)


def ended(stack: AirflowStack, run: str) -> str:
    return stack.client.wait_for_run(BACKFILL, run, timeout=120)


def states(stack: AirflowStack, run: str) -> dict[str, list[str]]:
    """The states of a task's instances, by task."""
    found: dict[str, list[str]] = {}
    for one in stack.client.task_instances(BACKFILL, run):
        found.setdefault(one["task_id"], []).append(one["state"])
    return found


def report(world: World, run: str, topic: str = "orders") -> Report:
    return read_report(lake_of(world, topic), report_name(run))


def test_a_dry_run_changes_nothing_and_names_what_it_would(stack: AirflowStack, world: World) -> None:
    before = committed_ledger(world.lake)
    run = started(stack)

    assert ended(stack, run) == "success"
    assert states(stack, run) == {
        "validate": ["success"],
        "preview": ["success", "success"],
        "compare": ["skipped", "skipped"],
        "approve": ["success"],
        "convert": ["skipped"],
        "result": ["skipped"],
    }
    assert committed_ledger(world.lake) == before
    shown = report(world, run)
    assert shown.state == "dry run"
    assert shown.preview is not None
    assert [(one.dt, one.rows) for one in shown.preview.dates] == [(DATES[0], 3), (DATES[1], 3)]
    assert report(world, run, "clicks").state == "nothing to do"


def waiting(stack: AirflowStack, run: str) -> bool:
    return "awaiting_input" in states(stack, run).get("approve", [])


def test_an_approved_run_rewrites_beside_ingestion(stack: AirflowStack, world: World) -> None:
    run = started(stack, dry_run=False, approve_above_gib=0, reason="INC-7 <b>*bold*</b>", topics=["east/orders"])
    wait_until(lambda: waiting(stack, run), timeout=90, what="the approval to be asked for", interval=0.5)
    n = committed_ledger(world.lake).n
    upload(world.raw)
    world.raw.publish()
    wait_until(lambda: committed_ledger(world.lake).n > n, timeout=90, what="ingestion to land beside it", interval=0.5)
    path = f"/dags/{BACKFILL}/dagRuns/{run}/taskInstances/approve/-1/hitlDetails"
    detail = stack.client.get(path)
    assert "<b>" not in detail["body"]
    assert "Row differences" in detail["body"]
    stack.client.patch(path, {"chosen_options": ["Approve"], "params_input": {}})
    assert ended(stack, run) == "success"

    shown = report(world, run)
    assert shown.state == "landed"
    assert shown.comparison is not None
    assert not shown.comparison.differences
    assert shown.approval is not None
    assert shown.approval.by == "admin"
    assert shown.outcome is not None
    assert [(one.dt, one.before.landed, one.after.landed) for one in shown.outcome.dates] == [
        (DATES[0], 3, 3),
        (DATES[1], 3, 3),
    ]
    assert {dt: state.rows for dt, state in committed_ledger(world.lake).dates.items()} == dict.fromkeys(DATES, 6)
