"""Airflow's own processes tell an OpenLineage receiver what they land, and no dataset that is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.plugins.shared_stack import ADDED, SharedStack
from tests.plugins.test_airflow_stack import ORDERS, is_waiting, jobs_at, landed, runs, start
from tests.plugins.world import CLUSTER, World
from tests.support.lineage import LineageServer, names
from tests.support.lineage import runs as told
from tests.support.waiting import wait_until
from tidemark.table.delta_table import committed_ledger

LIVE = f"tidemark_live__{CLUSTER}"
CONVERT = f"{ORDERS}.convert_and_publish"


@pytest.fixture(scope="module")
def world(stack: SharedStack) -> Iterator[World]:
    stack.client.wait_for_dag(ORDERS)
    yield stack.ingest
    for dag in (ORDERS, LIVE):
        stack.client.pause(dag)


def places(world: World, topic: str) -> dict[str, tuple[str, str]]:
    return {
        "kafka": (f"kafka://{CLUSTER}", topic),
        "raw": ("file", f"{world.root}/raw/{CLUSTER}/{topic}"),
        "table": ("file", f"{world.root}/lake/{topic}"),
        "state": ("file", f"{world.root}/lake/{topic}_current"),
    }


def ended(lineage: LineageServer, job: str, attempt: int) -> list[dict[str, Any]]:
    """The events of completed runs that tell of the attempt."""
    found = lineage.of("COMPLETE", job)
    return [one for one in found if any(run.get("attempt") == str(attempt) for run in told(one))]


def test_a_landing_is_told_once_with_its_parent_and_its_offsets(
    stack: SharedStack, world: World, lineage: LineageServer
) -> None:
    start(stack, ORDERS)
    before, end = len(runs(stack, ORDERS)), landed(world, "orders")
    world.upload("orders", end + 100, start=end)
    wait_until(lambda: is_waiting(stack, ORDERS, before), what="orders to be landed", interval=0.5)

    ledger = committed_ledger(world.table("orders"))
    wait_until(lambda: bool(ended(lineage, CONVERT, ledger.attempt)), what="the event")
    [event] = ended(lineage, CONVERT, ledger.attempt)
    at = places(world, "orders")
    assert names(event, "inputs") == sorted([at["kafka"], at["raw"]])
    assert names(event, "outputs") == [at["table"]]
    assert event["run"]["facets"]["parent"]["job"]["name"] == ORDERS
    assert event["outputs"][0]["facets"]["version"]["datasetVersion"] == str(ledger.n)
    [run] = told(event)
    assert run["offsets"] == [{"incarnation": 0, "partition": 0, "from": end, "to": end + 100}]
    [began] = [one for one in lineage.of("START", CONVERT) if one["run"]["runId"] == event["run"]["runId"]]
    assert names(began, "outputs") == [at["table"]]


def test_a_live_landing_tells_of_each_topic_that_landed(
    stack: SharedStack, world: World, lineage: LineageServer
) -> None:
    stack.client.wait_for_dag(LIVE)
    ends = {topic: landed(world, topic) + 100 for topic in ("views", "hits")}
    for topic, end in ends.items():
        world.upload(topic, end, start=end - 100)
    stack.client.unpause(LIVE)
    wait_until(lambda: all(landed(world, one) == end for one, end in ends.items()), what="both to land", interval=0.5)

    attempts = [committed_ledger(world.table(one)).attempt for one in ends]
    wait_until(lambda: all(ended(lineage, LIVE, one) for one in attempts), what="the events")
    events = [event for one in attempts for event in ended(lineage, LIVE, one)]
    outputs = {named for event in events for named in names(event, "outputs")}
    assert outputs == {places(world, one)["table"] for one in ends}
    stack.client.pause(LIVE)


@pytest.mark.full
def test_a_job_that_dies_is_told_and_its_retry_tells_of_the_landing_alone(
    stack: SharedStack, world: World, lineage: LineageServer, gate: Path
) -> None:
    start(stack, ORDERS)
    before, end = len(runs(stack, ORDERS)), landed(world, "orders")
    failed = len(lineage.of("FAIL", CONVERT))
    world.upload("orders", end + 100, start=end)
    wait_until(lambda: len(jobs_at(gate)) == 1, what="the job to run")
    psutil.Process(jobs_at(gate)[0]).kill()
    wait_until(lambda: len(lineage.of("FAIL", CONVERT)) == failed + 1, what="the failure to be told")
    gate.unlink()
    wait_until(lambda: is_waiting(stack, ORDERS, before), what="orders to be landed", interval=0.5)

    attempt = committed_ledger(world.table("orders")).attempt
    wait_until(lambda: bool(ended(lineage, CONVERT, attempt)), what="the event")
    [event] = ended(lineage, CONVERT, attempt)
    failure = lineage.of("FAIL", CONVERT)[-1]
    assert failure["run"]["runId"] != event["run"]["runId"]
    assert names(failure, "outputs") == [places(world, "orders")["table"]]
    assert told(failure) == []
    assert failure["run"]["facets"]["errorMessage"]["message"]


def test_every_event_is_as_the_schemas_want_it_and_names_no_asset_that_is_no_dataset(
    stack: SharedStack, world: World, lineage: LineageServer
) -> None:
    """Of all tests on the shared Airflow so far."""
    assert stack.ingest is world
    assert lineage.events
    assert lineage.wrong == []
    lakes = {named for named in lineage.datasets() if named[0] == "file"}
    topics = [*(one.topic for one in world.deployment.topics), ADDED]
    assert lakes <= {places(world, one)[kind] for one in topics for kind in ("raw", "table", "state")}
