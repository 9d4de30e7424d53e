from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.plugins.world import CLUSTER, World, entry, gap
from tidemark.cli.app import app
from tidemark.monitoring.incident_store import watch
from tidemark.timestamps import utc_now


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "orders")


def command(world: World, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["incidents", "--topics", str(world.topics_file), *arguments])
    return done.exit_code, done.output


def test_open_incidents_are_shown_and_make_it_fail(world: World) -> None:
    world.put_index(entry("orders", 0, 100, gaps=[gap(100, 150)]))
    watch(world.deployment, CLUSTER, utc_now())
    code, text = command(world)
    assert code == 1
    assert "kafka-1: 1 open" in text
    assert "gap: kafka-1/orders partition 0: offsets 100 to 149 are missing" in text
    assert "what to do: on a broker that still has them: tidemark-agent reupload orders 0 --from 100 --to 150" in text
    code, text = command(world, "--output", "json")
    [answer] = json.loads(text)
    assert (code, answer["stale"], [one["key"] for one in answer["incidents"]]) == (
        1,
        False,
        ["gap/kafka-1/orders/0-0/100"],
    )


def test_closed_ones_only_when_asked_for(world: World) -> None:
    world.put_index(entry("orders", 0, 100, gaps=[gap(100, 150)]))
    watch(world.deployment, CLUSTER, utc_now())
    world.put_index(entry("orders", 0, 200))
    watch(world.deployment, CLUSTER, utc_now() + timedelta(seconds=1))
    assert command(world)[0] == 0
    assert "gap" not in command(world)[1]
    assert "gap: kafka-1/orders" in command(world, "--closed")[1]


def test_a_watch_that_does_not_look_is_a_failure(world: World) -> None:
    code, text = command(world)
    assert (code, "does the DAG tidemark_watch run?" in text) == (1, True)
    watch(world.deployment, CLUSTER, utc_now() - timedelta(minutes=11))
    assert command(world)[0] == 1
    watch(world.deployment, CLUSTER, utc_now())
    assert command(world)[0] == 0
