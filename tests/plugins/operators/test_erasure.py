"""The task that approves a request for erasure, as the user who started its run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError

from tests.plugins.world import CLUSTER, World
from tests.tidemark.erasure.asked import asked
from tidemark.erasure.requests import approved
from tidemark.formats.raw.erasure import Approved, NotApproved
from tidemark.storage import ClusterStore
from tidemark_airflow.dag_factories.erasure import ApproveErasureOperator, approval_dag

REQUEST = asked([b"ada@example.com"]).model_copy(update={"cluster": CLUSTER})


@pytest.fixture(autouse=True)
def requested(world: World) -> None:
    """The store has a request, which ada made with her own key."""
    world.raw.put(world.control.erasure(REQUEST.id, "request"), REQUEST.to_bytes())


def run(user: str | None = "grace", **fields: Any) -> dict[str, Any]:
    """The task's answer to the form with these fields, checked as Airflow checks them."""
    params = approval_dag().params
    params.update({"request": REQUEST.id, **fields})
    context = {"params": params.validate(), "dag_run": SimpleNamespace(triggering_user_name=user)}
    found: dict[str, Any] = ApproveErasureOperator(task_id="approve").execute(cast("Context", context))
    return found


def stands(world: World) -> Approved | NotApproved:
    return approved(ClusterStore(world.raw, world.control), REQUEST.id)


def test_the_user_of_the_run_approves(world: World, caplog: pytest.LogCaptureFixture) -> None:
    assert run(records=7) == run(records=7) == {"id": REQUEST.id, "by": "grace", "records": 7}
    found = stands(world)
    assert isinstance(found, Approved)
    assert (found.approval.by, found.approval.records) == ("grace", 7)
    with pytest.raises(AirflowFailException, match=r"grace approved it at .*, with 7 records"):
        run(records=8)
    with pytest.raises(AirflowFailException, match="grace approved it at"):
        run("alan", records=7)


@pytest.mark.parametrize(
    ("user", "rule"),
    [
        ("ada", "ada made the request, and another person must approve it"),
        ("ADA", "ada made the request"),
        (None, "Airflow names no user of this run"),
        ("", "Airflow names no user of this run"),
        ("eve", r"\[tidemark\] approvers: eve is none of the users who may approve"),
    ],
)
def test_others_do_not(world: World, monkeypatch: pytest.MonkeyPatch, user: str | None, rule: str) -> None:
    monkeypatch.setenv("AIRFLOW__TIDEMARK__APPROVERS", "ada,ADA,grace")
    with pytest.raises(AirflowFailException, match=rule):
        run(user)
    assert stands(world) == NotApproved(REQUEST, None)
    assert run()["by"] == "grace"


def test_the_workers_identity_is_not_that_of_the_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.erasure.requests.identity", lambda *_: "key ADA by airflow@worker")
    with pytest.raises(AirflowFailException, match="its approval needs another identity"):
        run()
    assert stands(world) == NotApproved(REQUEST, None)


def test_a_request_that_is_not_there_fails_without_a_retry() -> None:
    with pytest.raises(AirflowFailException, match="there is no such request"):
        run(request="0" * 16)


@pytest.mark.parametrize("fields", [{"request": "../x"}, {"request": REQUEST.id.upper() + "F"}, {"records": 0}])
def test_airflow_refuses_other_fields(fields: dict[str, Any]) -> None:
    with pytest.raises(ParamValidationError):
        run(**fields)


def test_no_field_takes_a_value_or_a_name() -> None:
    assert {*approval_dag().params} == {"request", "records"}
