"""The page's API over a real store, behind Airflow's own authorization."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from typer.testing import CliRunner

from tests.plugins.web.page_server import ANN, NOBODY, VIC, PageServer
from tests.plugins.web.page_world import FILE, GAP, REASONS, REFUSED, PageWorld
from tests.plugins.world import CLUSTER, commit, entry, gap, state
from tests.support.paths import ROOT
from tidemark.cli.app import app
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.watermark_index import LeaderEntry
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.schema_state import Definition, SchemaChange, SchemaState, SchemaVersion
from tidemark.formats.table.statuses import AUDIT_PARTS, AuditedPart, StateStatus, StateStop
from tidemark.monitoring.deployment_conditions import AGENT_GONE
from tidemark.monitoring.health import topic_health
from tidemark.monitoring.judgement import STATES
from tidemark.monitoring.overview import Overview, TopicSummary, record
from tidemark.timestamps import utc_now
from tidemark_airflow.web.app import page_app
from tidemark_airflow.web.auth import REQUEST_HEADER
from tidemark_airflow.web.models import StateTableNow
from tidemark_airflow.web.reader import TopicNow, reader
from tidemark_airflow.web.responses import topic_answer

ORDERS = f"api/topics/{CLUSTER}/orders"
WORD = {"partition": 0, "start": GAP.start, "end": GAP.end, "reason": "the disk is gone"}
MEANT = {REQUEST_HEADER: "test"}
MANY_TOPICS, MANY_PARTITIONS = 1000, 2000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    home = tmp_path_factory.mktemp("page")
    world = PageWorld(home / "world")
    with PageServer(world, home) as running:
        world.add_topics(*(f"quiet-{number:04}" for number in range(MANY_TOPICS - 6)))
        yield running


@pytest.fixture
def ann(server: PageServer) -> Iterator[httpx.Client]:
    with server.client(ANN) as client:
        yield client


def get(client: httpx.Client, path: str, **query: Any) -> Any:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def routes() -> list[tuple[str, str]]:
    """(method, path) of all that the application serves, parameters filled in."""
    found = page_app().routes
    assert all(isinstance(one, APIRoute) for one in found), "FastAPI's own pages have no authorization"
    named = {"cluster": CLUSTER, "topic": "orders", "name": "page.js"}
    return [
        (method, one.path.format(**named).lstrip("/"))
        for one in found
        if isinstance(one, APIRoute)
        for method in sorted(one.methods)
    ]


def asks_who(dependant: Dependant) -> bool:
    return dependant.call is get_user or any(asks_who(one) for one in dependant.dependencies)


def test_every_route_asks_who_it_is() -> None:
    assert not [one.path for one in page_app().routes if isinstance(one, APIRoute) and not asks_who(one.dependant)]


def test_every_route_of_the_api_is_documented() -> None:
    text = (ROOT / "docs" / "page.md").read_text()
    paths = [one.path for one in page_app().routes if isinstance(one, APIRoute) and one.path.startswith("/api/")]
    names = [one.removeprefix("/api").replace("/topics/{cluster}/{topic}/", "…/") for one in paths]
    assert len(names) >= 8
    assert not [one for one in names if f" {one}`" not in text]


@pytest.mark.parametrize(("method", "path"), routes())
def test_no_route_answers_who_is_not_signed_in(server: PageServer, method: str, path: str) -> None:
    with server.client() as client:
        answer = client.request(method, path)
        forged = client.request(method, path, headers={"Authorization": "Bearer forged"})
    if path == "" or path.startswith("reports/"):  # pages: a person is led to the login
        there = urlencode({"next": f"/tidemark/{path}"})
        assert answer.headers["location"] == f"/api/v2/auth/login?{there}"
        assert (answer.status_code, forged.status_code) == (303, 303)
    else:
        assert (answer.status_code, forged.status_code) == (401, 403)


@pytest.mark.parametrize(("method", "path"), [one for one in routes() if one[1].startswith("api/topics/")])
def test_no_route_of_a_topic_answers_who_may_not_see_its_dag(server: PageServer, method: str, path: str) -> None:
    with server.client(NOBODY) as client:
        query = {"partition": 0, "start": 0, "end": 1}
        answer = client.request(method, path, params=query, json=WORD if method == "POST" else None, headers=MEANT)
    assert answer.status_code == 404
    assert "or you may not see its DAG" in answer.json()["detail"]


def test_who_may_see_no_dag_sees_no_topic(server: PageServer) -> None:
    with server.client(NOBODY) as client:
        assert get(client, "api/topics") == {
            "clusters": [],
            "counts": dict.fromkeys(STATES, 0),
            "total": 0,
            "offset": 0,
            "topics": [],
            "incidents": [],
        }


@pytest.fixture
def brokersets(server: PageServer) -> Iterator[Path]:
    assert isinstance(server.world, PageWorld)
    path = server.world.add_brokersets()
    yield path
    path.unlink()
    reader.cache_clear()


def test_brokersets_have_the_figures_of_the_command(server: PageServer, ann: httpx.Client, brokersets: Path) -> None:
    [cluster] = get(ann, "api/brokersets")["clusters"]
    assert (cluster["cluster"], cluster["failure"]) == (CLUSTER, "")
    asked = ["brokersets", "show", "--topics", str(server.world.topics_file), "--brokersets", str(brokersets)]
    told = json.loads(CliRunner().invoke(app, [*asked, "--output", "json"]).stdout)["brokersets"]
    same = ("brokerset", "partitions", "unmeasured", "capacity", "exceeded", "rate", "lag", "held", "failover")
    assert [{name: one[name] for name in same} for one in cluster["brokersets"]] == [
        {name: one[name] for name in same} for one in told
    ]
    for one, of_command in zip(cluster["brokersets"], told, strict=True):
        worst = {"without": one["without"], "busiest": one["busiest_then"], "rate": one["rate_then"]}
        assert worst == of_command["worst"]
        assert one["brokers"] == len(of_command["brokers"])
    busy, quiet = cluster["brokersets"]
    assert (busy["rate"], busy["busiest"], busy["busiest_rate"]) == (6e6, 23, 3e6)
    assert (busy["without"], busy["busiest_then"], busy["rate_then"], busy["exceeded"]) == (22, 23, 4e6, False)
    assert (busy["lag"], busy["held"]) == (330, 6e7)
    assert (quiet["without"], quiet["rate"], quiet["exceeded"]) == (None, 0.0, False)


def test_brokersets_are_shown_to_who_may_see_a_topic_of_the_cluster(server: PageServer, brokersets: Path) -> None:
    assert brokersets.exists()
    with server.client(NOBODY) as client:
        assert get(client, "api/brokersets") == {"clusters": []}


def test_without_brokersets_there_is_nothing_to_show(ann: httpx.Client) -> None:
    assert get(ann, "api/brokersets") == {"clusters": []}


def test_what_is_wrong_with_brokersets_is_told(server: PageServer, ann: httpx.Client, brokersets: Path) -> None:
    index = server.world.control.index(29)
    server.world.raw.put(index, b"{")
    try:
        [cluster] = get(ann, "api/brokersets")["clusters"]
    finally:
        server.world.raw.delete(index)
    assert index in cluster["failure"]
    brokersets.write_text("clusters: {}\nzones: {}\n")
    answer = ann.get("api/brokersets")
    assert (answer.status_code, answer.json()["detail"].partition(": ")[0]) == (500, str(brokersets))


def test_every_answer_keeps_foreign_scripts_out(server: PageServer, ann: httpx.Client) -> None:
    for answer in (ann.get(""), ann.get("static/page.js"), ann.get("api/topics"), server.client().get("api/topics")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'self'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "%2e%2e/app.py", ".."])
def test_no_other_file_is_served(ann: httpx.Client, name: str) -> None:
    assert "page_app" not in ann.get(f"static/{name}").text


def test_topics_come_from_the_worst_to_the_best_and_in_parts(ann: httpx.Client) -> None:
    found = get(ann, "api/topics", limit=3)
    assert [(one["topic"], one["state"]) for one in found["topics"]] == [
        ("orders", "gap"),
        ("clicks", "late"),
        ("invoices", "complete"),
    ]
    assert found["total"] == MANY_TOPICS
    assert found["counts"] == {**dict.fromkeys(STATES, 0), "gap": 1, "late": 1, "complete": 4, "unknown": 994}
    assert (found["topics"][0]["gaps"], found["topics"][0]["missing"], found["topics"][0]["held"]) == (1, 40, 1)
    assert [one["topic"] for one in get(ann, "api/topics", contains="1/ORDERS")["topics"]] == ["orders"]
    assert [one["topic"] for one in get(ann, "api/topics", state="late")["topics"]] == ["clicks"]


def test_a_topic_has_its_incidents_and_what_may_be_done(server: PageServer, ann: httpx.Client) -> None:
    found = get(ann, ORDERS)
    assert (found["state"], found["missing"], found["rows"]) == ("gap", 40, 7313734)
    assert found["counts"] == {"all": 8, "gaps": 1, "held": 1, "behind": 2}
    assert "gap" in [one["kind"] for one in found["incidents"]]
    assert found["may_acknowledge"] is True
    with server.client(VIC) as vic:
        assert get(vic, ORDERS)["may_acknowledge"] is False


def test_a_topic_has_the_agents_of_its_leaders_with_version_and_life(server: PageServer, ann: httpx.Client) -> None:
    now = utc_now()
    world, gone = server.world, AGENT_GONE
    world.put_index(entry("shipments", 0, 2700, epoch=1), broker=31)
    world.put_index(entry("shipments", 1, 5), broker=32, written_at=now - gone - timedelta(seconds=5))
    world.put_index(entry("shipments", 1, 4), broker=33)
    reader.cache_clear()
    found = get(ann, f"api/topics/{CLUSTER}/shipments")["agents"]
    assert [(one["broker"], one["version"], one["alive"]) for one in found] == [(31, "test", True), (32, "test", False)]
    for broker in (31, 32, 33):
        world.raw.delete(world.control.index(broker))


def test_an_incident_names_the_backfill_that_repairs_it(ann: httpx.Client) -> None:
    found = {one["kind"]: (one["mode"], one["date"]) for one in get(ann, ORDERS)["incidents"]}
    assert found["quarantine"] == ("replay", "")
    assert found["gap"] == ("", "")


def test_a_tables_columns_have_names_and_types(ann: httpx.Client) -> None:
    found = get(ann, f"{ORDERS}/columns")["columns"]
    assert found == [{"name": "kafka_offset", "kind": "long"}, {"name": "dt", "kind": "date"}]
    assert get(ann, f"api/topics/{CLUSTER}/quiet-0003/columns")["columns"] == []


def test_a_promise_is_shown_with_what_keeps_it_from_being_held(server: PageServer, ann: httpx.Client) -> None:
    assert get(ann, ORDERS)["promise"] is None
    now = utc_now()
    ages = enumerate((None, 0.0, 7.0, 90.0))
    said = ((partition, entry(partition=partition, next_offset=5, observed_at=now), age) for partition, age in ages)
    entries = {(0, partition): one.model_copy(update={"oldest_unstored": age}) for partition, one, age in said}
    table = server.world.table("orders")
    topic = table.topic.model_copy(update={"freshness": timedelta(seconds=60)})
    ledger = Ledger.genesis(topic.cluster, topic.topic, topic.table)
    health = topic_health(topic, ledger, [LeaderEntry(1, one) for one in entries.values()], now)

    shown = topic_answer(
        TopicNow(now, table._replace(topic=topic), ledger, entries, health, "", None), None, (), may_acknowledge=False
    )

    assert (shown.promise, shown.unmeasured, shown.unstored_since) == (60, 1, now - timedelta(seconds=90))


def test_the_schema_that_a_topic_follows_is_shown_with_what_waits(server: PageServer) -> None:
    table = server.world.table("orders")
    ledger = Ledger.genesis(CLUSTER, "orders", "orders")
    now = utc_now()
    health = topic_health(table.topic, ledger, (), now)
    added = SchemaChange(path="vip", kind="added", detail="boolean")
    wider = SchemaChange(path="id", kind="wider", detail="int becomes long")
    state = SchemaState(
        kind="avro",
        subject="orders-value",
        adopted=Definition(number=11, version=1, at=now, changes=(added,), definition=""),
        newest=SchemaVersion(number=12, version=2, at=now),
        proposal=Definition(number=12, version=2, at=now, changes=(wider,), definition=""),
    )

    shown = topic_answer(TopicNow(now, table, ledger, {}, health, "", state), None, (), may_acknowledge=False).followed

    assert shown is not None
    assert (shown.subject, shown.version, shown.waiting_version) == ("orders-value", 1, 2)
    assert (shown.changes, shown.waits) == (["vip: boolean"], ["id: int becomes long"])


def test_a_state_table_is_shown_with_its_doubts_and_the_age_of_its_proof(server: PageServer) -> None:
    table = server.world.table("orders")
    ledger = Ledger.genesis(CLUSTER, "orders", "orders")
    now = utc_now()
    health = topic_health(table.topic, ledger, (), now)
    audits = {part: AuditedPart(at=now - timedelta(hours=part), n=4) for part in range(AUDIT_PARTS)}
    status = StateStatus(
        cluster=CLUSTER, topic="orders", table="orders_current", at=now, n=4, of=9, rows=7, quarantined=3, audits=audits
    )

    def shown(known: StateStatus | None) -> StateTableNow | None:
        topic = TopicNow(now, table, ledger, {}, health, "", None, known)
        return topic_answer(topic, None, (), may_acknowledge=False).state_table

    assert shown(None) is None
    told = shown(status)
    assert told is not None
    assert (told.table, told.n, told.of, told.rows, told.stopped) == ("orders_current", 4, 9, 7, "")
    assert told.doubts == ["records in quarantine: 3"]
    assert told.proved_at == now - timedelta(hours=15), "that of the part which was audited the longest ago"
    del audits[7]
    told = shown(status.model_copy(update={"audits": audits, "stopped": StateStop(since=now, reason="truncated")}))
    assert told is not None
    assert (told.proved_at, told.stopped) == (None, "truncated")


def test_a_partition_is_a_strip_without_holes(ann: httpx.Client) -> None:
    first = get(ann, f"{ORDERS}/partitions", only="gaps")["partitions"][0]
    assert [(one["kind"], one["start"], one["end"]) for one in first["spans"]] == [
        ("landed", 0, 120),
        ("gap", 120, 160),
        ("uploaded", 160, 300),
        ("log", 300, 340),
    ]
    assert first["gaps"][0]["reason"] == "deleted_before_upload"
    held = get(ann, f"{ORDERS}/partitions", only="held")["partitions"]
    assert [(one["partition"], one["state"], one["spans"][1]["kind"]) for one in held] == [(2, "held", "held")]
    assert held[0]["held_by"][0]["producer_id"] == 4711


def test_the_page_with_a_partition_is_found(ann: httpx.Client) -> None:
    found = get(ann, f"{ORDERS}/partitions", at="5", limit=3)
    assert (found["offset"], [one["partition"] for one in found["partitions"]]) == (3, [3, 4, 5])


def test_offsets_are_derived_from_segments_and_files(ann: httpx.Client) -> None:
    found = get(ann, f"{ORDERS}/lineage", partition=0, start=90, end=110)
    assert [(one["offset_class"], one["start"], one["end"], one["in_table"]) for one in found["rows"]] == [
        ("landed", 0, 100, True),
        ("quarantined", 100, 120, False),
    ]
    assert found["rows"][0]["file"].endswith(f"/lake/orders/{FILE}")
    assert [(one["base_offset"], one["next_offset"], one["state"]) for one in found["segments"]] == [(0, 120, "whole")]
    assert get(ann, f"{ORDERS}/lineage", partition=1, start=0, end=10)["rows"] == []
    assert ann.get(f"{ORDERS}/lineage", params={"partition": 0, "start": 5, "end": 5}).status_code == 422


def test_dates_have_their_states_and_refused_rows(ann: httpx.Client) -> None:
    found = get(ann, f"{ORDERS}/dates")
    assert (found["years"], found["year"]) == ([2026], 2026)
    by_date = {one["dt"]: one for one in found["dates"]}
    assert by_date["2026-01-01"]["quarantined"] == 20
    assert by_date["2026-04-01"]["state"] == "final_incomplete"
    assert by_date["2026-03-24"]["late_rows"] == 77
    other = get(ann, f"{ORDERS}/dates", year=2025)
    assert (other["dates"], other["quarantined"]) == ([], 20)


def test_refused_records_are_told_by_reason_without_their_values(ann: httpx.Client) -> None:
    found = get(ann, f"{ORDERS}/quarantine")
    assert (found["records"], found["dates"], found["lost"]) == (20, {"2026-01-01": 20}, [])
    assert [(one["reason"], one["records"], len(one["examples"])) for one in found["reasons"]] == [
        (REASONS[0], 13, 3),
        (REASONS[1], 7, 3),
    ]
    example = {
        "kind": "record",
        "incarnation": 0,
        "partition": 0,
        "start": 113,
        "end": 114,
        "timestamp_ms": 1_767_225_600_113,
    }
    assert found["reasons"][1]["examples"][0] == {**example, "value": None}
    [file] = found["files"]
    assert file.endswith(f"/lake/orders__quarantine/{REFUSED}")
    assert get(ann, f"api/topics/{CLUSTER}/clicks/quarantine")["reasons"] == []


def test_the_past_is_what_the_watch_sampled(ann: httpx.Client) -> None:
    found = get(ann, f"{ORDERS}/history", hours=6)
    assert 70 <= len(found["samples"]) <= 73  # one each five minutes, whatever minute it is now
    oldest = utc_now() - datetime.fromisoformat(found["samples"][0]["at"])
    assert timedelta(hours=5, minutes=50) < oldest < timedelta(hours=6, minutes=1)
    assert found["samples"][-1]["lag"] == 490
    assert found["samples"] == sorted(found["samples"], key=lambda one: one["at"])
    assert get(ann, f"api/topics/{CLUSTER}/quiet-0001/history")["samples"] == []


def test_a_dags_tab_leads_to_its_topic(ann: httpx.Client) -> None:
    tab = ann.get("", params={"dag_id": f"tidemark_ingest__{CLUSTER}__orders"})
    assert (tab.status_code, tab.headers["location"]) == (303, f"/tidemark/?topic={CLUSTER}/orders")
    assert ann.get("", params={"dag_id": "https://elsewhere"}).headers["location"] == "/tidemark/?"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        pytest.param({}, WORD, id="without the header, as a form of another site"),
        pytest.param({**MEANT, "Content-Type": "text/plain"}, WORD, id="not as JSON"),
        pytest.param(MEANT, {**WORD, "reason": "  "}, id="without a reason"),
        pytest.param(MEANT, {**WORD, "end": 170}, id="beyond the gap"),
        pytest.param(MEANT, {**WORD, "partition": 1}, id="no gap there"),
    ],
)
def test_what_is_no_clear_word_is_refused(
    server: PageServer, ann: httpx.Client, headers: dict[str, str], body: dict[str, Any]
) -> None:
    answer = ann.post(f"{ORDERS}/acknowledgements", json=body, headers=headers)
    assert answer.status_code in {403, 409, 422}
    assert words(server) == []


def words(server: PageServer) -> list[str]:
    keys = ControlKeys("", CLUSTER).acknowledgements("orders", 0)
    return [one.key for one in server.world.raw.list(keys)]


def test_a_gap_is_acknowledged_by_who_may_and_in_their_name(server: PageServer, ann: httpx.Client) -> None:
    with server.client(VIC) as vic:
        refused = vic.post(f"{ORDERS}/acknowledgements", json=WORD, headers=MEANT)
    assert refused.status_code == 403
    assert "tidemark_ingest__kafka-1__orders" in refused.json()["detail"]
    assert words(server) == []

    said = ann.post(f"{ORDERS}/acknowledgements", json=WORD, headers=MEANT).json()
    assert said["new"] is True
    assert (said["acknowledged"]["by"], said["acknowledged"]["reason"]) == ("ann", "the disk is gone")
    assert len(words(server)) == 1
    assert ann.post(f"{ORDERS}/acknowledgements", json=WORD, headers=MEANT).json()["new"] is False
    other = ann.post(f"{ORDERS}/acknowledgements", json={**WORD, "reason": "another"}, headers=MEANT)
    assert other.status_code == 409
    shown = get(ann, f"{ORDERS}/partitions", only="gaps")["partitions"][0]["gaps"][0]
    assert shown["acknowledged"]["by"] == "ann"


def test_a_gap_that_only_a_run_has_found_is_acknowledged(server: PageServer, ann: httpx.Client) -> None:
    """The segment of [120, 160) is gone, and the ledger says so; the agent's watermark is past it."""
    world, table = server.world, server.world.table("sessions")
    world.upload("sessions", 120)
    world.upload("sessions", 200, start=160)
    commit(table, state(0, 120, gaps=[gap(120, 160)]))
    reader.cache_clear()
    word = {**WORD, "start": 120, "end": 160}
    said = ann.post(f"api/topics/{CLUSTER}/sessions/acknowledgements", json=word, headers=MEANT)
    assert (said.status_code, said.json().get("new")) == (200, True), said.text
    outside = ann.post(
        f"api/topics/{CLUSTER}/sessions/acknowledgements", json={**word, "start": 160, "end": 170}, headers=MEANT
    )
    assert outside.status_code == 409


def test_a_store_that_fails_is_told_of(server: PageServer, ann: httpx.Client) -> None:
    assert isinstance(server.world, PageWorld)
    deployment = server.world.deployment
    key = deployment.deployment_keys(CLUSTER).samples(server.world.now)  # of the hour in which the world was made
    store = server.world.table().store
    before = store.get(key).body
    store.put(key, b"no JSON")
    reader.cache_clear()
    try:
        answer = ann.get(f"api/topics/{CLUSTER}/sessions/history", params={"hours": 24})
    finally:
        store.put(key, before)
    assert answer.status_code == 503
    assert key in answer.json()["detail"]


def test_a_view_of_many_is_bounded(server: PageServer, ann: httpx.Client) -> None:
    """A thousand topics, and a topic of two thousand partitions: what a view loads does not grow with them."""
    world, deployment = server.world, server.world.deployment
    keys, store = deployment.deployment_keys(CLUSTER), world.table().store
    topics = tuple(TopicSummary(topic=f"quiet-{n:04}", state="complete", ledger_n=1, rows=10**9) for n in range(994))
    record(store, keys, Overview(cluster=CLUSTER, at=utc_now(), topics=topics), utc_now())
    commit(world.table("quiet-0000"), *(state(number, 10**9 + number) for number in range(MANY_PARTITIONS)))
    rows = (entry("quiet-0000", n, 10**9 + n + 5, log_end=10**9 + n + 9) for n in range(MANY_PARTITIONS))
    world.put_index(*rows, broker=7)

    many = f"api/topics/{CLUSTER}/quiet-0000"
    assert get(ann, many)["counts"]["all"] == MANY_PARTITIONS
    sizes = {path: len(ann.get(path).content) for path in ("api/topics", many, f"{many}/partitions", f"{many}/dates")}
    assert max(sizes.values()) < 64 << 10, sizes
    last = get(ann, f"{many}/partitions", at="1999")
    assert (last["offset"], last["partitions"][-1]["partition"]) == (1950, 1999)
