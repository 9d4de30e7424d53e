"""Airflow's own processes land several topics in one run, in which the task starts in the triggerer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
import yaml

from tests.plugins.shared_stack import ADDED, SharedStack
from tests.plugins.test_airflow_stack import jobs_at, landed, runs, states
from tests.plugins.world import CLUSTER, DATE, World
from tests.support.waiting import wait_until
from tidemark.formats.table.live_landing import LiveLanding, read_landing
from tidemark.table.delta_table import committed_ledger

LIVE = f"tidemark_live__{CLUSTER}"


@pytest.fixture(scope="module")
def world(stack: SharedStack) -> Iterator[World]:
    stack.client.wait_for_dag(LIVE)
    stack.client.unpause(LIVE)
    yield stack.ingest
    stack.client.pause(LIVE)


def landing(world: World) -> LiveLanding | None:
    key = world.deployment.deployment_keys(CLUSTER).landing
    return read_landing(world.table("views").store, key).value


def upload(world: World, *topics: str) -> dict[str, int]:
    """A segment more of each; where each ends then."""
    ends = {topic: landed(world, topic) + 100 for topic in topics}
    for topic, end in ends.items():
        world.upload(topic, end, start=end - 100)
    return ends


def is_waiting(stack: SharedStack, after: int = 0) -> bool:
    """Whether the newest run waits, and more than ``after`` are there."""
    found = runs(stack, LIVE)
    return len(found) > after and states(stack, LIVE, found[-1]["dag_run_id"])["land"] == "deferred"


def test_one_run_lands_two_topics_and_a_third_fails_by_itself(stack: SharedStack, world: World) -> None:
    wait_until(lambda: is_waiting(stack), what="the first run to wait", interval=0.5)
    before = len(runs(stack, LIVE))
    ends = upload(world, "views", "hits", "broken")

    wait_until(lambda: {name: landed(world, name) for name in ends} == {**ends, "broken": 0}, what="both", interval=0.5)
    wait_until(lambda: is_waiting(stack, after=before), what="the next run to wait", interval=0.5)

    found = landing(world)
    assert found is not None
    assert found.ended_at is not None
    events = stack.client.get("/assets/events", source_dag_id=LIVE)["asset_events"]
    told = {(event["name"], event["partition_key"], event["extra"]["attempt"]) for event in events}
    attempts = {name: str(committed_ledger(world.table(name)).attempt) for name in ("views", "hits")}
    assert told == {(name, DATE, attempt) for name, attempt in attempts.items()}
    assert {run["state"] for run in runs(stack, LIVE)[:-1]} == {"success"}


def test_a_worker_that_is_killed_leaves_its_landing_to_the_next_try(
    stack: SharedStack, world: World, gate: Path
) -> None:
    before = {name: committed_ledger(world.table(name)).n for name in ("views", "hits")}
    ends = upload(world, "views", "hits")
    wait_until(lambda: len(jobs_at(gate)) == 1, what="the job to run")
    first = landing(world)
    job = psutil.Process(jobs_at(gate)[0])
    submitting = job.parents()[:2]
    assert all("airflow" in " ".join(one.cmdline()) for one in submitting), submitting
    for one in (*submitting, job):
        one.kill()
    wait_until(lambda: len(jobs_at(gate)) == 2, what="the landing to be carried out again", interval=0.5)
    again = landing(world)
    gate.unlink()

    wait_until(lambda: {name: landed(world, name) for name in ends} == ends, what="both to be landed", interval=0.5)
    assert first is not None
    assert again is not None
    assert [one.attempt for one in again.topics] == [one.attempt for one in first.topics]
    assert {name: committed_ledger(world.table(name)).n - n for name, n in before.items()} == {"views": 1, "hits": 1}


def test_a_topic_that_is_added_while_the_run_waits_lands_in_that_run(stack: SharedStack, world: World) -> None:
    wait_until(lambda: is_waiting(stack), what="a run to wait", interval=0.5)
    [*_, waiting] = runs(stack, LIVE)
    before = world.topics_file.read_text()
    content = yaml.safe_load(before)
    content["topics"].append({"topic": ADDED, "freshness": "10s"})
    world.write_topics(**content)
    try:
        world.upload(ADDED, 100)
        wait_until(lambda: landed(world, ADDED) == 100, what="the new topic to be landed", interval=0.5)
        state = partial(states, stack, LIVE, waiting["dag_run_id"])
        wait_until(lambda: state()["land"] == "success", what="the run that waited to end", interval=0.5)
    finally:
        world.topics_file.write_text(before)
