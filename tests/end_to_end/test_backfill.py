"""Backfills as people start them: Airflow's own processes and form, the jobs' own programs, ingestion beside them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from selenium.webdriver.common.keys import Keys

from tests.spark.world import World
from tests.support.airflow import AirflowStack
from tests.support.airflow_client import AirflowApiError, AirflowClient
from tests.support.browser import Browser
from tests.support.paths import ROOT, env_bin
from tests.support.raw_builder import RawBuilder
from tests.support.waiting import HUNG, wait_until
from tests.tidemark.records.build import T0, Record, batch
from tidemark.audits import AuditReport
from tidemark.backfill.report import Report, read_report
from tidemark.backfill.request import report_name
from tidemark.cli.airflow import Airflow
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
    return stack.client.wait_for_run(BACKFILL, run)


def states(stack: AirflowStack, run: str) -> dict[str, list[str]]:
    """The states of a task's instances, by task."""
    found: dict[str, list[str]] = {}
    for one in stack.client.task_instances(BACKFILL, run):
        found.setdefault(one["task_id"], []).append(one["state"])
    return found


def report(world: World, run: str, topic: str = "orders") -> Report:
    return read_report(lake_of(world, topic), report_name(run))


def token(stack: AirflowStack, user: str) -> str:
    body = json.dumps(login(stack, user)).encode()
    asked = Request(f"{stack.url}/auth/token", body, {"Content-Type": "application/json"})  # noqa: S310 - our own server
    with urlopen(asked, timeout=30) as answer:  # noqa: S310 - likewise
        found: str = json.load(answer)["access_token"]
    return found


@pytest.fixture(scope="module")
def browser(stack: AirflowStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser in which the user ``uma`` is logged in."""
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        opened.set_cookie(stack.url, "_token", token(stack, "uma"))
        yield opened


SELECTED = """
const field = document.querySelector(arguments[0]);
if (!field || !field.checkVisibility() || field.closest("[data-state=closed]")) return false;
field.focus();
field.select();
return true;
"""
SUBMIT = 'button[data-testid="trigger-dag-submit"]'


def filled(stack: AirflowStack, browser: Browser, first: str, last: str, *topics: str) -> None:
    """Open the form and fill it in; dates are digits that mean the same wherever the month stands."""
    browser.get(f"{stack.url}/dags/{BACKFILL}")
    browser.first('[data-testid="trigger-dag-button"], button[aria-label="Trigger Dag"]').click()
    browser.first(f"{SUBMIT}[disabled]")  # as long as a field is missing
    for topic in topics:
        browser.first('input[aria-label="Select one or multiple values"]').send_keys(topic + Keys.ENTER)
    browser.first("#element_from_date").send_keys(first)
    browser.first("#element_to_date").send_keys(last)


def submitted(stack: AirflowStack, browser: Browser) -> str:
    """Send the form; returns the run's id."""
    browser.first(f"{SUBMIT}:not([disabled])").click()
    browser.wait(lambda: "/runs/" in browser.current_url, what="the run's page")
    return str(stack.client.runs(BACKFILL)[0]["dag_run_id"])


def test_the_form_refuses_bad_input_with_a_message(stack: AirflowStack, browser: Browser) -> None:
    filled(stack, browser, "03032026", "02022026", "east/orders")
    run = submitted(stack, browser)

    assert ended(stack, run) == "failed"
    browser.get(f"{stack.url}/dags/{BACKFILL}/runs/{run}/tasks/validate")
    rule = "to_date: 2026-02-02 is before from_date, 2026-03-03; swap them"
    browser.first("code, pre, div", text=rule)
    assert list(Airflow(stack.url, token(stack, "uma")).failures(BACKFILL, run)) == [
        ("validate", f"the backfill's form: {rule}")
    ]
    assert set(states(stack, run)) - {"validate"} == {"preview", "compare", "approve", "convert", "result"}


def test_a_dry_run_changes_nothing_and_shows_what_it_would(stack: AirflowStack, browser: Browser, world: World) -> None:
    before = committed_ledger(world.lake)
    filled(stack, browser, "02022026", "03032026", "east/orders", "east/clicks")
    run = submitted(stack, browser)

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
    browser.get(f"{stack.url}/dags/{BACKFILL}/runs/{run}/tasks/preview/mapped/0/details")
    link = browser.first("a", text="Report").get_dom_attribute("href")
    assert link == f"{stack.url}/tidemark/reports/east/orders/{report_name(run)}"
    browser.get(link)
    assert browser.first(".state").text == "dry run"
    dates = browser.first("#part-2").text
    assert [f"{dt} open 3 0 0 1" in dates for dt in DATES] == [True] * 3
    assert report(world, run, "clicks").state == "nothing to do"
    assert browser.console() == []


def waiting(stack: AirflowStack, run: str) -> bool:
    """Whether a run asks for its approval and the scheduler has noted that it does.

    An answer before that is lost, and the run asks again when it tries again (apache/airflow#72716).
    """
    found = states(stack, run)
    if ["failed"] in found.values():
        raise AssertionError(f"{run} failed: {found}")
    noted = re.escape(f"task_id=approve, run_id={run}, ") + ".* state=awaiting_input, "
    asks = found.get("approve") == ["awaiting_input"]
    return asks and bool(re.search(noted, stack.component("scheduler").log.read_text()))


def answer(stack: AirflowStack, run: str, user: str, option: str) -> None:
    path = f"/dags/{BACKFILL}/dagRuns/{quote(run)}/taskInstances/approve/-1/hitlDetails"
    client_of(stack, user).patch(path, {"chosen_options": [option], "params_input": {}})


def test_an_approved_run_rewrites_beside_ingestion(stack: AirflowStack, browser: Browser, world: World) -> None:
    filled(stack, browser, "02022026", "03032026", "east/orders")
    browser.first('label[id="switch:element_dry_run"]').click()
    browser.first("#element_reason").send_keys("INC-7 <b>*bold*</b>")
    browser.first('button[id$="trigger:Limits"]').click()
    limit = '[id="number-input:element_approve_above_gib"] input'
    browser.wait(lambda: bool(browser.run(SELECTED, limit)), what="the limit to be shown")
    browser.first(limit).send_keys("0")
    browser.wait(lambda: browser.run("return document.querySelector(arguments[0]).value", limit) == "0", what="a limit")
    run = submitted(stack, browser)
    wet = {"dry_run": False, "reason": "not now", "approve_above_gib": 0, "differences": False}
    other = started(stack, topics=["east/orders"], **wet)
    for one in (run, other):
        wait_until(partial(waiting, stack, one), what="the approval to be asked for", interval=0.5)
    answer(stack, other, "uma", "Reject")
    n = committed_ledger(world.lake).n
    upload(world.raw)
    world.raw.publish()
    wait_until(lambda: committed_ledger(world.lake).n > n, what="ingestion to land beside it", interval=0.5)

    with pytest.raises(AirflowApiError, match="uma started this backfill: somebody else has to answer"):
        answer(stack, run, "uma", "Approve")
    browser.set_cookie(stack.url, "_token", token(stack, "oskar"))
    browser.get(f"{stack.url}/dags/{BACKFILL}/runs/{run}/tasks/approve/required_actions")
    browser.first("td", text="INC-7 <b>*bold*</b>")
    browser.first("p", text="9 rows were compared with what raw gives now, and are the same.")
    browser.first('button[data-testid="hitl-option-Approve"]').click()
    assert ended(stack, run) == "success"
    browser.get(f"{stack.url}/tidemark/reports/east/orders/{report_name(run)}")
    assert browser.first(".state").text == "landed"
    browser.first("td", text="approved by oskar")
    browser.first("td", text="INC-7 <b>*bold*</b>")
    assert browser.console() == []

    assert ended(stack, other) == "success"
    assert (states(stack, other)["convert"], states(stack, other)["result"]) == (["skipped"], ["skipped"])
    assert report(world, other).state == "rejected"
    outcome = report(world, run).outcome
    assert outcome is not None
    assert [(one.dt, one.before.landed, one.after.landed) for one in outcome.dates] == [(dt, 3, 3) for dt in DATES]
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
    changes: list[dict[str, Any]] = [
        {"topics": ["east/nope"]},
        {"topics": []},
        {"from_date": "yesterday"},
        {"max_gib": 0},
    ]
    for change, status in zip(changes, [403, 400, 400, 400], strict=True):
        with pytest.raises(AirflowApiError) as error:
            started(stack, **change)
        assert error.value.status == status
        assert "east/clicks" not in str(error.value), "a refusal must not name topics that were not asked for"


def command(stack: AirflowStack, token: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``tidemark backfill`` of ``orders``, as the user ``uma``."""
    dates = ["--from", DATES[0], "--to", DATES[1]]
    where = ["--airflow", stack.url, "--token-file", str(token)]
    words = [str(env_bin("dev", "tidemark")), "backfill", "east/orders", *dates, *where, *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=HUNG, check=False)


def test_the_command_line_compares_and_refuses(stack: AirflowStack, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token(stack, "uma"))

    done = command(stack, file, "--mode", "compare", "--run", "--output", "json")
    assert (done.returncode, done.stderr.startswith(f"started {stack.url}/dags/{BACKFILL}/runs/")) == (0, True)
    found = json.loads(done.stdout)
    assert (found["state"], found["failures"]) == ("success", {})
    assert found["reports"]["east/orders"]["comparison"]["differences"] == []
    assert found["reports"]["east/orders"]["request"]["by"] == "uma"
    schema = command(stack, file, "--max-gib", "5", "--configuration", "no digest")
    assert (schema.returncode, "Airflow refused (400)" in schema.stderr) == (2, True)


def accepted(stack: AirflowStack, body: dict[str, Any]) -> bool:
    """Whether Airflow has taken the backfill; on SQLite it refuses while anybody else writes."""
    try:
        stack.client.post("/backfills", body | {"dag_run_conf": {"topic": "east/orders"}})
    except AirflowApiError as error:
        if error.status != 503:
            raise
        return False
    return True


def test_a_native_backfill_audits_date_by_date(stack: AirflowStack, world: World) -> None:
    stack.client.unpause(AUDIT)
    body = {"dag_id": AUDIT, "from_date": f"{DATES[0]}T00:00:00Z", "to_date": f"{DATES[1]}T23:59:59Z"}
    wait_until(lambda: accepted(stack, body), what="the backfill to be accepted", interval=0.5)
    lake = world.lake

    def audited() -> set[tuple[str, ...]]:
        found = (
            AuditReport.from_bytes(lake.store.get(one.key).body, one.key) for one in lake.store.list(lake.keys.audits)
        )
        return {one.dates for one in found if one.passed}

    wait_until(
        lambda: audited() >= {(DATES[0],), (DATES[1],)}, what="both dates' audits", interval=0.5, check=stack.revive
    )
    runs = stack.client.runs(AUDIT)
    assert {one["run_type"] for one in runs if one["data_interval_start"] < "2026-03"} == {"backfill"}
