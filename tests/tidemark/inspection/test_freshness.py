from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.plugins.world import CLUSTER, World, entry
from tidemark.cli.app import app
from tidemark.cli.read_models import freshness_problems, topic_problems
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import IndexEntry, LeaderEntry
from tidemark.formats.table.live_landing import LiveLanding, write_landing
from tidemark.formats.table.statuses import ScanStatus
from tidemark.timestamps import utc_now
from tidemark.topics import TopicSettings

TOPIC = TopicSettings(topic="orders", cluster="east", table="orders", freshness=timedelta(seconds=60))


def said(partition: int = 0, freshness: float | None = 60.0) -> IndexEntry:
    return entry(partition=partition, next_offset=5).model_copy(update={"freshness": freshness})


def problems(*of_brokers: float | None, gone: set[int] | None = None) -> list[str]:
    """Broker n leads partition n - 1."""
    led = {
        TopicPartition("orders", number): LeaderEntry(number + 1, said(number, freshness))
        for number, freshness in enumerate(of_brokers)
    }
    return list(topic_problems(TOPIC, led, gone or set()))


def test_agents_that_pack_soon_enough_are_right() -> None:
    assert problems(60.0, 30.0) == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            problems(60.0, None, None), ["brokers 2, 3 packs only its quiet tails: set freshness: 60s"], id="none"
        ),
        pytest.param(problems(60.0, 61.0), ["broker 2 is set to 61s: set freshness: 60s or less"], id="too long"),
        pytest.param(problems(60.0, 60.0, gone={2}), ["broker 2 is silent"], id="silent"),
        pytest.param(problems(None, 90.0, gone={1}), ["is silent", "only its quiet tails", "90s"], id="all of it"),
    ],
)
def test_each_problem_is_a_line_that_says_what_to_do(found: list[str], expected: list[str]) -> None:
    assert len(found) == len(expected)
    for line, part in zip(found, expected, strict=True):
        assert line.startswith("east/orders: promises 60s, but ")
        assert part in line


def test_without_packs_it_says_how_often_kafka_has_to_roll() -> None:
    assert "segment.ms=20000 or less" in problems(None)[0]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, "orders", freshness="60s")
    world.put_index(said())
    return world


def land(world: World, capacity: int | None = None) -> None:
    """As triggerer and live DAG leave it."""
    store, keys = world.table().store, world.deployment.deployment_keys(CLUSTER)
    store.put(keys.scan, ScanStatus(cluster=CLUSTER, at=utc_now(), capacity=capacity).to_bytes())
    write_landing(store, keys.landing, LiveLanding(cluster=CLUSTER, began_at=utc_now()), None)


def test_a_deployment_that_holds_its_promises_has_no_problem(world: World) -> None:
    land(world)

    assert freshness_problems(world.deployment, utc_now()) == []


def test_what_is_only_packed_could_have_landed_too(world: World) -> None:
    world.put_index(said().model_copy(update={"next_offset": 0, "uploaded_end": 0, "tail_end": 5}))

    assert any("nothing was ever landed live" in one for one in freshness_problems(world.deployment, utc_now()))


def test_what_runs_nowhere_is_a_problem(world: World) -> None:
    assert [one.partition(":")[2].split(":")[0].strip() for one in freshness_problems(world.deployment, utc_now())] == [
        "the scan of the watermark indexes was never",
        "nothing was ever landed live",
    ]
    land(world)
    later = utc_now() + timedelta(minutes=6)
    assert [line for line in freshness_problems(world.deployment, later) if "does Airflow's triggerer run?" in line]
    assert [line for line in freshness_problems(world.deployment, later) if "broker 1 is silent" in line]


@pytest.mark.parametrize(
    ("capacity", "outcome", "detail"),
    [
        (None, "not tried", "none has reported how many triggers it runs"),
        (2, "yes", "2 DAGs wait as triggers, and a triggerer runs 2 ([triggerer] capacity)"),
        (1, "not tried", "raise it, or run 2 triggerers; Airflow alone knows how many run"),
    ],
)
def test_config_check_compares_the_topics_with_the_triggerer(
    world: World, capacity: int | None, outcome: str, detail: str
) -> None:
    """A topic with a freshness has two DAGs that wait: its own, and its cluster's."""
    arguments = ["config", "check", "--agents", "--topics", str(world.topics_file), "--output", "json"]
    land(world, capacity)
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    said = {one["what"]: one for one in json.loads(done.stdout)["checks"]}["triggerers"]
    assert said["outcome"] == outcome
    assert detail in said["detail"]


def test_config_check_fails_with_a_line_for_each_problem(world: World) -> None:
    arguments = ["config", "check", "--agents", "--topics", str(world.topics_file), "--output", "json"]
    land(world)
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    said_of_agents = {one["what"]: one for one in json.loads(done.stdout)["checks"]}["agents"]
    assert said_of_agents["outcome"] == "yes"
    assert "their settings of freshness hold 1 promises" in said_of_agents["detail"]

    world.put_index(said(freshness=None))
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    [line] = done.stderr.splitlines()
    assert "packs only its quiet tails" in line
    assert json.loads(done.stdout)["topics"][0]["topic"] == f"{CLUSTER}/orders"


def test_a_topic_without_a_freshness_promises_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "slow", "orders")
    world.put_index(said(freshness=None))

    assert freshness_problems(world.deployment, utc_now()) == []
