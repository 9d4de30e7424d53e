"""The whole system at work: agent, watermarks, Airflow, Spark and table; and backfills as people start them, beside it.

All is one deployment in one Airflow. A topic of Kafka lands by the real spark-submit. The segments of ``orders`` and
``clicks`` are made by hand, and their jobs are the same programs without Spark, whose start is most of the time of a
small run.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Producer
from selenium.webdriver.common.keys import Keys

from tests.end_to_end.deployment import ENTROPY_BITS, SmallDeployment, credentials
from tests.end_to_end.rows import consumed, landed
from tests.end_to_end.test_whole_path import SMALL, transactional
from tests.support.airflow import AirflowStack, import_early
from tests.support.airflow_client import AirflowApiError, AirflowClient
from tests.support.browser import Browser
from tests.support.fixtures import SEED
from tests.support.kafka import KafkaCluster
from tests.support.lineage import LineageServer, names
from tests.support.lineage import runs as told
from tests.support.paths import ROOT, env_bin
from tests.support.pipeline import pipeline_env
from tests.support.raw_builder import RawBuilder
from tests.support.s3 import S3Server
from tests.support.waiting import HUNG, wait_until
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.backfill.report import BackfillReport, read_report
from tidemark.backfill.request import report_name
from tidemark.cli.airflow_client import Airflow
from tidemark.formats.keys import Endpoint
from tidemark.formats.table.audit_report import AuditReport
from tidemark.store import open_store
from tidemark.table.delta_table import committed_ledger, live_files, open_delta

BACKFILL = "tidemark_backfill"
AUDIT = "tidemark_audit"
INGEST = "tidemark_ingest__east__orders"
DAY = 86_400_000
DATES = ("2026-02-02", "2026-02-03", "2026-02-04")
pytestmark = pytest.mark.essential  # all: they go on from one another
FORM = {"topics": ["east/orders", "east/clicks"], "from_date": DATES[0], "to_date": DATES[1]}


class MadeByHand(RawBuilder):
    """The raw objects of a topic of cluster ``east`` in a deployment of the agent's."""

    def __init__(self, small: SmallDeployment, topic: str, *, broker: int) -> None:
        """Nothing is uploaded yet. Each topic has a ``broker`` of its own, whose index has nothing else."""
        bucket, _, prefix = small.deployment.raw.url.removeprefix("s3://").partition("/")
        store = open_store(f"s3://{bucket}", small.deployment.store)
        super().__init__(store, topic=topic, prefix=prefix, broker=broker)
        self._endpoint = Endpoint(store.url, prefix, ENTROPY_BITS)


@pytest.fixture(scope="module")
def small(
    kafka: KafkaCluster, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SmallDeployment]:
    """A topic of Kafka's, and two more, each of three dates, of which only ``orders`` has landed."""
    mark = uuid.uuid4().hex[:8]
    more = [{"topic": one, "cluster": "east", "batch": {"age": "0s"}} for one in ("orders", "clicks")]
    with credentials(s3_server):
        made = SmallDeployment(
            tmp_path_factory.mktemp("small"), kafka, s3_server, mark, (f"transactional-{mark}",), more=more
        )
        clicks = MadeByHand(made, "clicks", broker=2)
        upload(clicks)
        clicks.publish()
        yield made


@pytest.fixture(scope="module")
def orders(small: SmallDeployment) -> RawBuilder:
    """What is uploaded of ``orders``; what there is has landed."""
    made = MadeByHand(small, "orders", broker=1)
    upload(made)
    made.publish()
    assert small.land("orders").status == "landed"
    return made


def upload(raw: RawBuilder) -> None:
    """A segment of nine records, three of each date."""
    at = raw.partition().end
    raw.segment([batch(at, [Record(i, T0 + (i % 3) * DAY, b"k", b"v%d" % i) for i in range(9)])])


@pytest.fixture(scope="module")
def lineage() -> Iterator[LineageServer]:
    """Where Airflow sends OpenLineage events."""
    with LineageServer() as server:
        yield server


@pytest.fixture(scope="module")
def stack(
    starts_airflow: None,
    starts_spark: None,
    small: SmallDeployment,
    orders: RawBuilder,
    lineage: LineageServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[AirflowStack]:
    """Airflow with Tidemark's own DAGs."""
    import_early(home := tmp_path_factory.mktemp("airflow"))
    # The right keys are in this connection alone. Those of the environment would be refused.
    env = pipeline_env(small.topics_file, home / "spark-conf", scan_seconds=0.5)
    env |= {"AIRFLOW__TIDEMARK__AWS_CONN_ID": "lake", "AIRFLOW_CONN_LAKE": small.s3.connection()}
    env |= {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "wrong"}
    submit = home / "spark-submit"
    submit.write_text(
        f'#!/bin/sh\n{{ echo "$0 $*"; env; }} >> {home}/started\n'
        f'case "$*" in */run_plan.py*{small.topics[0]}*) exec {env["AIRFLOW__TIDEMARK__SPARK_SUBMIT"]} "$@";; esac\n'
        f'cd {ROOT} && exec {sys.executable} -m tests.spark.inline "$@"\n'
    )
    submit.chmod(0o755)
    env |= {
        "AIRFLOW__TIDEMARK__SPARK_SUBMIT": str(submit),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,vera:viewer,uma:user,oskar:op",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",  # the topics file does not change
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps({"type": "http", "url": lineage.url}),
    }
    dags = [f"tidemark_ingest__test__{small.topics[0]}", BACKFILL, INGEST]
    with AirflowStack(home, dags=ROOT / "dags", plugins=ROOT / "plugins", env=env, unpaused=dags) as airflow:
        airflow.client.wait_for_dag(AUDIT)
        yield airflow


@pytest.fixture(scope="module")
def sent(small: SmallDeployment, stack: AirflowStack) -> Iterator[Producer]:
    """All kinds of records in Kafka, with the agent beside it; the producer keeps a transaction open."""
    topic = small.topics[0]
    small.kafka.create_topic(topic, partitions=3, config=SMALL)
    producer = transactional(small.kafka.bootstrap, topic, "lz4", random.Random(f"{SEED}:{__name__}"))
    with small.running_agent():
        yield producer
    producer.abort_transaction()


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


def report(small: SmallDeployment, run: str, topic: str = "orders") -> BackfillReport:
    return read_report(small.table(topic), report_name(run))


def token(stack: AirflowStack, user: str) -> str:
    body = json.dumps(login(stack, user)).encode()
    asked = Request(f"{stack.url}/auth/token", body, {"Content-Type": "application/json"})  # noqa: S310 - our own server
    with urlopen(asked, timeout=HUNG) as answer:  # noqa: S310 - likewise
        found: str = json.load(answer)["access_token"]
    return found


@pytest.fixture(scope="module")
def browser(starts_browser: None, stack: AirflowStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
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
    browser.click('[data-testid="trigger-dag-button"], button[aria-label="Trigger Dag"]')
    browser.first(f"{SUBMIT}[disabled]")  # as long as a field is missing
    for topic in topics:
        browser.first('input[aria-label="Select one or multiple values"]').send_keys(topic + Keys.ENTER)
    browser.first("#element_from_date").send_keys(first)
    browser.first("#element_to_date").send_keys(last)


def submitted(stack: AirflowStack, browser: Browser) -> str:
    """Send the form; returns the run's id."""
    browser.click(f"{SUBMIT}:not([disabled])")
    browser.wait(lambda: "/runs/" in browser.current_url, what="the run's page")
    leave(stack, browser)
    return str(stack.client.runs(BACKFILL)[0]["dag_run_id"])


def leave(stack: AirflowStack, browser: Browser) -> None:
    """Show a page that does nothing, while Airflow's would draw and ask all the time.

    It is of the same site, so that the browser keeps the process that has compiled the scripts of Airflow's pages. What
    they wrote to the console is dropped: on SQLite, Airflow answers a page that asks while others write with 500 at
    times.
    """
    browser.get(f"{stack.url}/api/v2/version")
    browser.console()


@pytest.mark.usefixtures("sent")  # which lands meanwhile
def test_the_form_refuses_bad_input_with_a_message(stack: AirflowStack, browser: Browser) -> None:
    filled(stack, browser, "03032026", "02022026", "east/orders", "east/clicks")
    run = submitted(stack, browser)
    form = stack.client.run(BACKFILL, run)["conf"]
    assert (form["topics"], form["dry_run"]) == (["east/orders", "east/clicks"], True)

    assert ended(stack, run) == "failed"
    browser.get(f"{stack.url}/dags/{BACKFILL}/runs/{run}/tasks/validate")
    rule = "to_date: 2026-02-02 is before from_date, 2026-03-03; swap them"
    browser.wait(lambda: rule in browser.run("return document.body.innerText"), what="the rule in the task's log")
    leave(stack, browser)
    assert list(Airflow(stack.url, token(stack, "uma")).failures(BACKFILL, run)) == [
        ("validate", f"the backfill's form: {rule}")
    ]
    assert set(states(stack, run)) - {"validate"} == {"preview", "compare", "approve", "convert", "result"}


def test_a_dry_run_changes_nothing_and_shows_what_it_would(
    stack: AirflowStack, browser: Browser, small: SmallDeployment
) -> None:
    before = committed_ledger(small.table("orders"))
    run = started(stack, to_date="2026-03-03")

    assert ended(stack, run) == "success"
    assert states(stack, run) == {
        "validate": ["success"],
        "preview": ["success", "success"],
        "compare": ["skipped", "skipped"],
        "approve": ["success"],
        "convert": ["skipped"],
        "result": ["skipped"],
    }
    assert committed_ledger(small.table("orders")) == before
    browser.get(f"{stack.url}/dags/{BACKFILL}/runs/{run}/tasks/preview/mapped/0/details")
    link = browser.first("a", text="Report").get_dom_attribute("href")
    assert link == f"{stack.url}/tidemark/reports/east/orders/{report_name(run)}"
    leave(stack, browser)
    browser.get(link)
    assert browser.first(".state").text == "dry run"
    dates = browser.first("#part-2").text
    assert [f"{dt} open 3 0 0 1" in dates for dt in DATES] == [True] * 3
    assert report(small, run, "clicks").state == "nothing to do"
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


def question(run: str) -> str:
    """The path of what a run asks a person."""
    return f"/dags/{BACKFILL}/dagRuns/{quote(run)}/taskInstances/approve/-1/hitlDetails"


def answered(stack: AirflowStack, run: str) -> bool:
    return bool(stack.client.get(question(run))["response_received"])


def answer(stack: AirflowStack, run: str, user: str, option: str) -> None:
    client_of(stack, user).patch(question(run), {"chosen_options": [option], "params_input": {}})


def test_an_approved_run_rewrites_beside_ingestion(
    stack: AirflowStack, browser: Browser, small: SmallDeployment, orders: RawBuilder
) -> None:
    table = small.table("orders")
    filled(stack, browser, "02022026", "03032026", "east/orders")
    browser.click('label[id="switch:element_dry_run"]')
    browser.first("#element_reason").send_keys("INC-7 <b>*bold*</b>")
    browser.click('button[id$="trigger:Limits"]')
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
    n = committed_ledger(table).n
    upload(orders)
    orders.publish()
    wait_until(lambda: committed_ledger(table).n > n, what="ingestion to land beside it", interval=0.5)

    with pytest.raises(AirflowApiError, match="uma started this backfill: somebody else has to answer"):
        answer(stack, run, "uma", "Approve")
    browser.set_cookie(stack.url, "_token", token(stack, "oskar"))
    browser.get(f"{stack.url}/dags/{BACKFILL}/runs/{run}/tasks/approve/required_actions")
    browser.first("td", text="INC-7 <b>*bold*</b>")
    browser.first("p", text="9 rows were compared with what raw gives now, and are the same.")
    browser.click('button[data-testid="hitl-option-Approve"]')
    wait_until(partial(answered, stack, run), what="the approval to be taken")
    leave(stack, browser)
    assert ended(stack, run) == "success"
    browser.get(f"{stack.url}/tidemark/reports/east/orders/{report_name(run)}")
    assert browser.first(".state").text == "landed"
    browser.first("td", text="approved by oskar")
    browser.first("td", text="INC-7 <b>*bold*</b>")
    assert browser.console() == []

    assert ended(stack, other) == "success"
    assert (states(stack, other)["convert"], states(stack, other)["result"]) == (["skipped"], ["skipped"])
    assert report(small, other).state == "rejected"
    outcome = report(small, run).outcome
    assert outcome is not None
    assert [(one.dt, one.before.landed, one.after.landed) for one in outcome.dates] == [(dt, 3, 3) for dt in DATES]
    assert {dt: state.rows for dt, state in committed_ledger(table).dates.items()} == dict.fromkeys(DATES, 6)


def test_watermarks_land_a_topic_and_a_form_makes_a_date_again(
    small: SmallDeployment, stack: AirflowStack, sent: Producer, full: bool
) -> None:
    topic = small.topics[0]
    rows = consumed(small.kafka.bootstrap, topic)
    wait_until(lambda: committed_ledger(small.table(topic)).rows == len(rows), what="all records to land")
    found = landed(small.table(topic))
    assert len(found) == len(rows)
    assert set(found) == rows
    assert [state for state in committed_ledger(small.table(topic)).partitions if state.held_by]
    if full:  # else by the runs above, without Spark, and by tests/spark, without Airflow
        remake(small, stack, topic)


def remake(small: SmallDeployment, airflow: AirflowStack, topic: str) -> None:
    """A date of the topic, by the form."""
    bootstrap, table = small.kafka.bootstrap, small.table(topic)
    date = "2026-11-19"
    before = files(small, topic)
    dates = {"from_date": date, "to_date": date}
    form = {"topics": [f"test/{topic}"], **dates, "dry_run": False, "differences": False, "reason": "a test"}
    run = airflow.client.trigger(BACKFILL, form)
    assert airflow.client.wait_for_run(BACKFILL, run) == "success"

    after = files(small, topic)
    assert committed_ledger(table).kind == "rebuild"
    assert {path for path in before if date not in path} == {path for path in after if date not in path}
    assert not {path for path in before & after if date in path}, "the date's files are other ones now"
    rows = landed(table)
    assert len(rows) == len(set(rows))
    assert set(rows) == consumed(bootstrap, topic)
    events = airflow.client.get("/assets/events", source_dag_id=BACKFILL)["asset_events"]
    found = {(event["name"], event["partition_key"]) for event in events if topic in event["name"]}
    assert (topic, date) in found
    assert {key for _, key in found} == {date}


def files(small: SmallDeployment, topic: str) -> set[str]:
    delta = open_delta(small.table(topic))
    assert delta is not None
    return {file.path for file in live_files(delta)}


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


def test_a_native_backfill_audits_date_by_date(stack: AirflowStack, small: SmallDeployment) -> None:
    stack.client.unpause(AUDIT)
    body = {"dag_id": AUDIT, "from_date": f"{DATES[0]}T00:00:00Z", "to_date": f"{DATES[1]}T23:59:59Z"}
    wait_until(lambda: accepted(stack, body), what="the backfill to be accepted", interval=0.5)
    table = small.table("orders")

    def audited() -> set[tuple[str, ...]]:
        found = (
            AuditReport.from_bytes(table.store.get(one.key).body, one.key)
            for one in table.store.list(table.keys.audits)
        )
        return {one.dates for one in found if one.passed}

    wait_until(
        lambda: audited() >= {(DATES[0],), (DATES[1],)}, what="both dates' audits", interval=0.5, check=stack.revive
    )
    runs = stack.client.runs(AUDIT)
    assert {one["run_type"] for one in runs if one["data_interval_start"] < "2026-03"} == {"backfill"}


def test_lineage_has_landings_backfills_and_audits_and_nothing_else(
    small: SmallDeployment, lineage: LineageServer
) -> None:
    """Of all that ran above: what the jobs handed over, as Airflow sent it."""

    def events(job: str) -> list[dict[str, Any]]:
        return [one for one in lineage.of("COMPLETE", job) if "orders" in str(told(one))]

    wait_until(lambda: len(events(AUDIT)) >= 2, what="both audits to be told")
    raw = f"{small.deployment.raw.url.removeprefix('s3://').partition('/')[0]}"
    lake, table = small.deployment.lake_store, small.deployment.table_keys(small.table("orders").topic).root
    kinds = {INGEST: "ingest", BACKFILL: "rebuild", AUDIT: "audit"}
    assert {name: {one["kind"] for event in events(name) for one in told(event)} for name in kinds} == {
        name: {kind} for name, kind in kinds.items()
    }
    for event in (*events(INGEST), *events(BACKFILL)):
        assert (lake, table) in names(event, "outputs")
        assert any(namespace == f"s3://{raw}" for namespace, _ in names(event, "inputs"))
    for event in events(AUDIT):
        assert names(event, "outputs") == []
        [audited] = [one for one in event["inputs"] if one["name"] == table]
        assert all(one["success"] for one in audited["inputFacets"]["dataQualityAssertions"]["assertions"])
    assert lineage.wrong == []
    assert not [named for named in lineage.datasets() if named[1].endswith(".final")]


def test_the_keys_of_the_connection_are_nowhere_but_there(small: SmallDeployment, stack: AirflowStack) -> None:
    """Neither in what jobs were started with, nor in logs, nor in what Airflow stores: fields, XCom, triggers."""
    secret = json.loads(small.s3.connection())["password"].encode()
    jobs = (stack.home / "started").read_text()
    assert "run_plan.py" in jobs
    assert "AWS_CONFIG_FILE=" in jobs
    searched = [path for path in stack.home.rglob("*") if path.is_file()]
    assert any("task_id=convert_and_publish" in str(path) for path in searched)
    assert stack.home / "airflow.db" in searched
    assert not [path for path in searched if secret in path.read_bytes()]
