"""The form that approves a request for erasure, on Airflow's own processes: the user is who Airflow signed in."""

from __future__ import annotations

import pytest

from tests.plugins.shared_stack import SharedStack
from tests.plugins.world import CLUSTER, World
from tests.support.airflow import USER
from tests.support.airflow_client import AirflowApiError
from tests.tidemark.erasure.asked import asked
from tidemark.erasure.requests import approved
from tidemark.formats.raw.erasure import Approved, NotApproved
from tidemark.storage import ClusterStore

APPROVE = "tidemark_approve_erasure"
OTHER = "ann"
REQUEST = asked([b"ada@example.com"]).model_copy(update={"cluster": CLUSTER, "by": USER})


@pytest.fixture(scope="module")
def world(stack: SharedStack) -> World:
    """The store has a request, which the administrator made."""
    stack.client.wait_for_dag(APPROVE)
    stack.ingest.raw.put(stack.ingest.control.erasure(REQUEST.id, "request"), REQUEST.to_bytes())
    return stack.ingest


def ended(stack: SharedStack, user: str, **fields: object) -> tuple[str, str]:
    """(state, log) of a run that ``user`` starts with these fields; nothing is tried twice."""
    run = stack.client_of(user).trigger(APPROVE, {"request": REQUEST.id, **fields})
    state = stack.client.wait_for_run(APPROVE, run)
    [task] = stack.client.task_instances(APPROVE, run)
    assert task["try_number"] == 1
    return state, stack.client.task_log(APPROVE, run, "approve")


def test_who_made_the_request_cannot_approve_it_and_another_user_can(stack: SharedStack, world: World) -> None:
    [dag] = stack.client.get("/dags", dag_id_pattern=APPROVE)["dags"]
    assert dag["is_paused"] is False
    state, log = ended(stack, USER)
    assert (state, f"{USER} made the request, and another person must approve it" in log) == ("failed", True), log
    assert isinstance(approved(ClusterStore(world.raw, world.control), REQUEST.id), NotApproved)
    state, log = ended(stack, OTHER, records=7, by="eve")
    assert state == "success", log
    assert f"{REQUEST.id}: 1 value of {CLUSTER}/orders kafka_key, for 'DSR-1182', by {USER} at " in log
    found = approved(ClusterStore(world.raw, world.control), REQUEST.id)
    assert isinstance(found, Approved)
    assert (found.approval.by, found.approval.records) == (OTHER, 7)


@pytest.mark.parametrize(("field", "value"), [("request", "ada@example.com"), ("records", 0)])
def test_airflow_refuses_what_breaks_the_schema_of_a_field(
    stack: SharedStack, world: World, field: str, value: object
) -> None:
    with pytest.raises(AirflowApiError, match=field):
        stack.client.trigger(APPROVE, {"request": REQUEST.id, field: value})
