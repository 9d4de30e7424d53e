"""Backfills as people start them: Airflow's own processes and form, the jobs' own programs, ingestion beside them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.spark.world import World
from tests.support.airflow import AirflowStack
from tests.support.airflow_client import AirflowApiError, AirflowClient
from tests.support.paths import ROOT, env_bin
from tests.support.raw_builder import RawBuilder
from tests.support.waiting import wait_until
from tests.tidemark.records.build import T0, Record, batch
from tidemark.audits import AuditReport
from tidemark.backfill.report import Report, read_report
from tidemark.backfill.request import report_name
from tidemark.table import Lake, committed_ledger, open_lake
from tidemark.topics import load_topics

BACKFILL = "tidemark_backfill"
AUDIT = "tidemark_audit"
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
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,vera:viewer,uma:user,oskar:op",
    }
    with AirflowStack(home, dags=ROOT / "dags", plugins=ROOT / "plugins", env=env) as airflow:
        airflow.client.wait_for_dag(BACKFILL)
        airflow.client.unpause(BACKFILL)
        airflow.client.unpause(INGEST)
        airflow.client.wait_for_dag(AUDIT)
        yield airflow


def login(stack: AirflowStack, user: str) -> dict[str, str]:
    """What ``user`` logs in with; Airflow has made the password."""
    return {"username": user, "password": json.loads((stack.home / "passwords.json").read_text())[user]}


def client_of(stack: AirflowStack, user: str) -> AirflowClient:
    host, port = stack.url.removeprefix("http://").split(":")
    return AirflowClient(host, int(port), *login(stack, user).values())


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


def test_a_viewer_may_neither_start_nor_approve(stack: AirflowStack) -> None:
    viewer = client_of(stack, "vera")
    path = f"/dags/{BACKFILL}/dagRuns/any/taskInstances/approve/-1/hitlDetails"
    for refused in (
        lambda: viewer.trigger(BACKFILL, FORM),
        lambda: viewer.patch(path, {"chosen_options": ["Approve"], "params_input": {}}),
        lambda: viewer.post("/backfills", {"dag_id": AUDIT, "from_date": DATES[0], "to_date": DATES[1]}),
    ):
        with pytest.raises(AirflowApiError) as error:
            refused()
        assert error.value.status == 403


def test_the_schema_refuses_what_is_no_topic_or_date(stack: AirflowStack) -> None:
    for change in ({"topics": ["east/nope"]}, {"topics": []}, {"from_date": "yesterday"}, {"max_gib": 0}):
        with pytest.raises(AirflowApiError) as error:
            started(stack, **change)
        assert error.value.status == 400


def command(stack: AirflowStack, *arguments: str, token: Path | None = None) -> subprocess.CompletedProcess[str]:
    """``tidemark backfill`` of ``orders``, as the user ``uma``."""
    dates = ["--from", DATES[0], "--to", DATES[1]]
    where = ["--airflow", stack.url, *(["--token-file", str(token)] if token else [])]
    words = [str(env_bin("dev", "tidemark")), "backfill", "east/orders", *dates, *where, *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_line_compares_and_refuses(stack: AirflowStack, tmp_path: Path) -> None:
    assert command(stack).returncode == 2  # without a token
    token = tmp_path / "token"
    body = json.dumps(login(stack, "uma")).encode()
    asked = Request(f"{stack.url}/auth/token", body, {"Content-Type": "application/json"})  # noqa: S310 - our own server
    with urlopen(asked, timeout=30) as answer:  # noqa: S310 - likewise
        token.write_text(json.load(answer)["access_token"])

    done = command(stack, "--mode", "compare", "--run", "--output", "json", token=token)
    assert (done.returncode, done.stderr.startswith(f"started {stack.url}/dags/{BACKFILL}/runs/")) == (0, True)
    found = json.loads(done.stdout)
    assert (found["state"], found["failures"]) == ("success", {})
    assert found["reports"]["east/orders"]["comparison"]["differences"] == []
    assert found["reports"]["east/orders"]["request"]["by"] == "uma"
    refused = command(stack, "--run", token=token)
    assert refused.returncode == 2
    assert "validate: the backfill's form: reason: is needed for what rewrites a table" in refused.stderr
    schema = command(stack, "--max-gib", "5", "--configuration", "no digest", token=token)
    assert (schema.returncode, "Airflow refused (400)" in schema.stderr) == (2, True)


def test_a_native_backfill_audits_date_by_date(stack: AirflowStack, world: World) -> None:
    stack.client.unpause(AUDIT)
    body = {"dag_id": AUDIT, "from_date": f"{DATES[0]}T00:00:00Z", "to_date": f"{DATES[1]}T23:59:59Z"}
    stack.client.post("/backfills", body | {"dag_run_conf": {"topic": "east/orders"}})
    lake = world.lake

    def audited() -> list[tuple[str, ...]]:
        found = (
            AuditReport.from_bytes(lake.store.get(one.key).body, one.key) for one in lake.store.list(lake.keys.audits)
        )
        return sorted(one.dates for one in found if one.passed)

    wait_until(lambda: audited() == [(DATES[0],), (DATES[1],)], timeout=120, what="both dates' audits", interval=0.5)
    runs = stack.client.runs(AUDIT)
    assert {one["run_type"] for one in runs if one["data_interval_start"] < "2026-03"} == {"backfill"}
