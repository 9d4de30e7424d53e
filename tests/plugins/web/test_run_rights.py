"""Rights to backfills by topic: the middleware before a stand-in for Airflow's API, with Airflow's own users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from airflow.utils.types import DagRunType
from fastapi import FastAPI, Request

from tests.plugins.web.page_server import PageServer
from tests.plugins.web.page_world import PageWorld
from tests.plugins.world import CLUSTER
from tidemark.monitoring.incidents import Incident
from tidemark.timestamps import utc_now
from tidemark_airflow.dag_factories.backfill import DAG_ID
from tidemark_airflow.dag_factories.ingest import dag_id
from tidemark_airflow.dag_factories.maintenance import ALL
from tidemark_airflow.web import models, responses
from tidemark_airflow.web.reader import reader
from tidemark_airflow.web.run_rights import RunRights

ORDERS, CLICKS, PAYMENTS = (f"{CLUSTER}/{name}" for name in ("orders", "clicks", "payments"))
SEES = {"ann": {"GET": {ORDERS, CLICKS}, "PUT": {ORDERS}}, "bob": {"GET": {ORDERS, CLICKS}, "PUT": {ORDERS, CLICKS}}}
"""Ann may edit one topic and see another; Bob may edit both; Root, an admin, may do all."""

WET: dict[str, Any] = {"dry_run": False, "mode": "rebuild"}
RUNS = f"/api/v2/dags/{DAG_ID}/dagRuns"


def api() -> FastAPI:
    """What Airflow would answer once it acts."""
    app = FastAPI()
    params = {
        "topics": {
            "value": None,
            "schema": {"items": {"enum": [ORDERS, CLICKS, PAYMENTS]}, "examples": [ORDERS, PAYMENTS]},
        },
        "topic": {"value": ALL, "schema": {"enum": [ALL, CLICKS, PAYMENTS]}},
    }

    @app.get("/api/v2/dags/{dag_id}/details")
    def details(dag_id: str) -> dict[str, Any]:
        return {"dag_id": dag_id, "params": params}

    @app.api_route("/{path:path}", methods=["GET", "POST", "PATCH", "DELETE"])
    async def acts(request: Request) -> dict[str, Any]:
        return {"acted": True, "body": (await request.body()).decode()}

    app.add_middleware(RunRights)
    return app


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    home = tmp_path_factory.mktemp("rights")
    with PageServer(PageWorld(home / "world"), home, app=api()) as running, create_session() as session:
        session.merge(DagBundleModel(name="bundle"))
        session.flush()
        session.merge(DagModel(dag_id=DAG_ID, bundle_name="bundle"))  # type: ignore[no-untyped-call] # Airflow's
        session.flush()
        for name, conf in {
            "of-orders": {"topics": [ORDERS], **WET},
            "of-both": {"topics": [ORDERS, CLICKS], **WET},
            "dry": {"topics": [CLICKS]},
        }.items():
            run = DagRun(dag_id=DAG_ID, run_id=name, conf=conf, run_type=DagRunType.MANUAL)
            run.triggering_user_name = "ann"
            session.add(run)
        session.commit()
        yield running


@pytest.fixture(autouse=True)
def rights(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's simple users have one right to all DAGs; these have rights to some."""

    def authorized(*, dag_ids: set[str], user: Any, method: str, team_name: str | None) -> set[str]:
        assert team_name is None
        if user.get_name() not in SEES:
            return dag_ids
        named = {dag_id(one): f"{one.cluster}/{one.topic}" for one in reader().deployment().topics}
        return {one for one in dag_ids if named[one] in SEES[user.get_name()][method]}

    monkeypatch.setattr(server.manager, "filter_authorized_dag_ids", authorized)


def send(server: PageServer, user: str | None, method: str, path: str, body: Any = None) -> httpx.Response:
    with server.client((user, "user") if user else None) as client:
        return client.request(method, server.url.removesuffix("/tidemark/") + path, json=body)


def form(*topics: str, **change: Any) -> dict[str, Any]:
    return {"logical_date": None, "conf": {"topics": list(topics), "from_date": "2026-01-01", **change}}


@pytest.mark.parametrize(
    ("user", "body", "hidden"),
    [
        ("ann", form(ORDERS, **WET), None),
        ("ann", form(ORDERS, CLICKS), None),  # a form without more is a dry run
        ("ann", form(CLICKS, dry_run=False, mode="compare"), None),
        ("bob", form(ORDERS, CLICKS, **WET), None),
        ("root", form(ORDERS, CLICKS, PAYMENTS, **WET), None),
        ("ann", form(ORDERS, CLICKS, **WET), f"{CLICKS}: to rewrite a table needs the right to edit"),
        ("ann", form(ORDERS, PAYMENTS), f"{PAYMENTS}: not in the topics file, or you may not see"),
        ("ann", form("east/nope"), "east/nope: not in the topics file, or you may not see"),
        ("ann", form(CLICKS, dry_run="no"), f"{CLICKS}: to rewrite a table needs"),
        ("ann", form(), "topics: choose at least one"),
        ("ann", {"conf": {"topics": ORDERS}}, "topics: choose at least one"),
        ("ann", {"conf": None}, "topics: choose at least one"),
        ("ann", [], "topics: choose at least one"),
    ],
)
def test_a_run_starts_for_who_may(server: PageServer, user: str, body: Any, hidden: str | None) -> None:
    answer = send(server, user, "POST", RUNS, body)
    if hidden is None:
        assert answer.json()["acted"]
        assert httpx.Response(200, text=answer.json()["body"]).json() == body, "Airflow gets what was sent"
    else:
        assert answer.status_code in {400, 403}
        assert hidden in answer.json()["detail"]
        named = {one for one in (ORDERS, CLICKS, PAYMENTS) if one in answer.json()["detail"]}
        assert named <= set(str(body).replace("'", " ").replace(",", " ").split()), "it names what was asked for alone"


@pytest.mark.parametrize(
    ("method", "rest", "body"),
    [
        ("PATCH", "", {"note": "x"}),
        ("DELETE", "", None),
        ("POST", "/clear", {"dry_run": False}),
        ("PATCH", "/taskInstances/convert", {}),
    ],
)
def test_a_run_that_exists_is_changed_by_who_might_have_started_it(
    server: PageServer, method: str, rest: str, body: Any
) -> None:
    for user, run, passes in [
        ("ann", "of-orders", True),
        ("ann", "of-both", False),
        ("bob", "of-both", True),
        ("ann", "dry", True),
        ("ann", "unknown", False),
        ("root", "unknown", True),
    ]:
        assert (send(server, user, method, f"{RUNS}/{run}{rest}", body).status_code == 200) == passes, (user, run)


def test_nobody_approves_their_own_request(server: PageServer) -> None:
    path = "/taskInstances/approve/-1/hitlDetails"
    body = {"chosen_options": ["Approve"], "params_input": {}}
    refused = send(server, "ann", "PATCH", f"{RUNS}/of-orders{path}", body)
    assert (refused.status_code, refused.json()["detail"]) == (
        403,
        "ann started this backfill: somebody else has to answer",
    )
    assert send(server, "bob", "PATCH", f"{RUNS}/of-orders{path}", body).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"/api/v2/dags/{DAG_ID}/clearTaskInstances", {"dry_run": False}),
        ("PATCH", f"/api/v2/dags/{DAG_ID}", {"is_paused": True}),
        ("PATCH", "/api/v2/dags/~/dagRuns/~/taskInstances", {"actions": [{"entities": [{"dag_id": DAG_ID}]}]}),
        ("POST", "/api/v2/dags/~/clearDagRuns", {"dag_runs": {DAG_ID: ["of-both"]}}),
    ],
)
def test_whatever_else_names_the_dag_needs_rights_to_every_topic(
    server: PageServer, method: str, path: str, body: Any
) -> None:
    assert send(server, "bob", method, path, body).status_code == 403
    assert send(server, "root", method, path, body).status_code == 200


def test_what_does_not_concern_backfills_passes(server: PageServer) -> None:
    assert (
        send(server, "ann", "POST", "/api/v2/dags/other/dagRuns", {"conf": {"topics": [PAYMENTS]}}).status_code == 200
    )
    assert send(server, "ann", "GET", f"{RUNS}/of-both").status_code == 200
    assert send(server, None, "POST", RUNS, form(ORDERS)).status_code == 200, (
        "Airflow itself refuses who is not signed in"
    )


@pytest.mark.parametrize("dag", [DAG_ID, "tidemark_audit"])
def test_a_form_names_the_topics_that_one_may_see(server: PageServer, dag: str) -> None:
    path = f"/api/v2/dags/{dag}/details"
    whole = send(server, "root", "GET", path).json()["params"]
    assert whole["topics"]["schema"]["items"]["enum"] == [ORDERS, CLICKS, PAYMENTS]
    seen = send(server, "ann", "GET", path).json()
    assert seen["dag_id"] == dag
    assert seen["params"]["topics"]["schema"] == {"items": {"enum": [ORDERS, CLICKS]}, "examples": [ORDERS]}
    assert seen["params"]["topic"]["schema"]["enum"] == [ALL, CLICKS]
    assert PAYMENTS not in send(server, None, "GET", path).text


def test_incidents_of_a_cluster_do_not_name_what_one_may_not_see() -> None:
    now = utc_now()
    gone = Incident(
        kind="agent_gone",
        key="agent_gone/east/1",
        cluster="east",
        since=now,
        title="east: the agent of broker 1 is silent",
        text="it was the last to lead 3 partitions of orders, payments.eu and 2 more",
        opened_at=now,
        updated_at=now,
        likely="it is stopped",
        mend="systemctl status tidemark-agent",
    )

    def told(*hidden: str) -> models.IncidentNow:
        [one] = responses.topics_answer([], {}, [gone], hidden=hidden).incidents
        return one

    assert told() == told("clicks", "payments", "order") == told("eu")
    assert told("payments.eu").text == told("orders").text == "(this names topics that you may not see)"
    assert told("orders").title == gone.title
