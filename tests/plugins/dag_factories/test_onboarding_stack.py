"""The form that proposes a topic, on Airflow's own processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.operators.test_onboarding import command, stored
from tests.plugins.shared_stack import KAFKA_SECRET, STORE_SECRET, SharedStack
from tests.plugins.world import CLUSTER, World
from tests.support.airflow import USER
from tests.support.airflow_client import AirflowApiError
from tests.support.browser import Browser, clicked

ONBOARD = "tidemark_onboard"


@pytest.fixture(scope="module")
def world(stack: SharedStack) -> World:
    stack.client.wait_for_dag(ONBOARD)
    stored(stack.ingest, "sales")
    return stack.ingest


def ended(stack: SharedStack, **fields: Any) -> tuple[str, str, dict[str, Any]]:
    """(state, log, what the task returned and pushed) of a run of the form with these fields."""
    run = stack.client.trigger(ONBOARD, {"cluster": CLUSTER, **fields})
    state = stack.client.wait_for_run(ONBOARD, run)
    task = f"/dags/{ONBOARD}/dagRuns/{run}/taskInstances/propose"
    assert stack.client.get(task)["try_number"] == 1
    entries = stack.client.get(f"{task}/xcomEntries")["xcom_entries"]
    found = {one["key"]: stack.client.get(f"{task}/xcomEntries/{one['key']}")["value"] for one in entries}
    log = stack.client.task_log(ONBOARD, run, "propose")
    assert not [one for one in (STORE_SECRET, KAFKA_SECRET) if one in f"{log}{json.dumps(found)}"]
    return state, log, found


def test_the_form_ends_in_the_patch_of_the_command(stack: SharedStack, world: World) -> None:
    [dag] = stack.client.get("/dags", dag_id_pattern=ONBOARD)["dags"]
    assert dag["is_paused"] is False
    before = world.topics_file.read_text()
    state, log, found = ended(stack, topic="sales", owner="payments", rate="20MB/s")
    assert state == "success", log
    code, text, _ = command(world, f"{CLUSTER}/sales", "--owner", "payments", "--rate", "20MB/s")
    assert code == 0
    assert text == f"{found['report']}\n{found['return_value']}"
    assert found["return_value"].startswith("--- a/")
    for part in ("topic: sales", "+++ b/", "sampling records", "put to file://"):
        assert part in log
    assert world.topics_file.read_text() == before


def test_a_topic_that_is_refused_fails_once_in_the_words_of_the_command(stack: SharedStack, world: World) -> None:
    state, log, found = ended(stack, topic="orders")
    _, _, told = command(world, f"{CLUSTER}/orders")
    assert state == "failed"
    assert "is already in " in told
    assert told in log
    assert found == {}


@pytest.mark.parametrize(
    ("field", "value"), [("topic", "or/ders"), ("topic", ""), ("cluster", "x"), ("schema", "../../etc/passwd")]
)
def test_airflow_refuses_what_breaks_the_schema_of_a_field(
    stack: SharedStack, world: World, field: str, value: str
) -> None:
    with pytest.raises(AirflowApiError, match=field):
        stack.client.trigger(ONBOARD, {"cluster": CLUSTER, "topic": "sales", field: value})
    with pytest.raises(AirflowApiError, match="topic"):
        stack.client.trigger(ONBOARD, {"cluster": CLUSTER})


def test_a_person_fills_in_the_topic_alone(
    starts_browser: None, stack: SharedStack, world: World, tmp_path: Path
) -> None:
    """Airflow's own form has no other field that it takes for missing or wrong."""
    assert world.deployment.clusters == (CLUSTER,)
    World(stack.page)  # where the API server reads what a person may see of a form
    runs = len(stack.client.runs(ONBOARD))
    with Browser(tmp_path) as browser:
        browser.get(f"{stack.url}/dags/{ONBOARD}")
        browser.first("input[name=username]").send_keys(USER)
        browser.first("input[name=password]").send_keys(json.loads((stack.home / "passwords.json").read_text())[USER])
        browser.click("button[type=submit]")
        browser.click("button", text="Trigger")
        browser.first("[role=dialog] input[name=element_topic]").send_keys("sales")
        [start] = [one for one in browser.all("[role=dialog] button") if one.text == "Trigger"]
        browser.wait(start.is_enabled, what="the form to be complete")
        browser.wait(lambda: clicked(start), what="the form to be sent")
        browser.wait(lambda: len(stack.client.runs(ONBOARD)) > runs, what="the run")
    [run, *_] = stack.client.runs(ONBOARD)
    assert stack.client.wait_for_run(ONBOARD, run["dag_run_id"]) == "success"
