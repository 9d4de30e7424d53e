"""``tidemark versions``: what the parts state in the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.plugins.world import CLUSTER, LONG_AGO, World, commit, state
from tidemark.cli.app import app
from tidemark.formats.raw.watermark_index import WatermarkIndex
from tidemark.formats.table.statuses import ScanStatus
from tidemark.store import open_store


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "orders", "clicks")


def shown(world: World, *arguments: str) -> list[tuple[str, str, str | None]]:
    """Part, name and version of each row."""
    done = CliRunner().invoke(app, ["versions", "--topics", str(world.topics_file), "-o", "json", *arguments])
    assert done.exit_code == 0, done.output
    return [(row["part"], row["name"], row["version"]) for row in json.loads(done.output)]


def put_index(world: World, broker: int, version: str) -> None:
    index = WatermarkIndex(cluster=CLUSTER, broker=broker, agent_version=version, written_at=LONG_AGO)
    world.raw.put(world.control.index(broker), index.to_bytes())


def put_scan(world: World, version: str) -> None:
    key = world.deployment.deployment_keys(CLUSTER).scan
    status = ScanStatus(cluster=CLUSTER, at=LONG_AGO, version=version)
    open_store(world.deployment.lake_store).put(key, status.to_bytes())


def test_each_part_has_the_version_that_it_stated_last(world: World) -> None:
    put_index(world, 10, "1.4.0")
    put_index(world, 9, "1.5.0")
    put_scan(world, "1.5.1")
    commit(world.table("orders"), state(0, 3), version="1.3.0")
    assert shown(world) == [
        ("agent", "9", "1.5.0"),
        ("agent", "10", "1.4.0"),
        ("triggerer", CLUSTER, "1.5.1"),
        ("jobs", "orders", "1.3.0"),
        ("jobs", "clicks", None),
    ]
    text = CliRunner().invoke(app, ["versions", "--topics", str(world.topics_file)]).output.splitlines()
    assert text[0].split() == ["CLUSTER", "PART", "NAME", "VERSION", "AT"]
    assert text[1].split() == [CLUSTER, "agent", "9", "1.5.0", "2026-01-01T00:00:00Z"]
    assert text[-1].split() == [CLUSTER, "jobs", "clicks", "-", "-"]


def test_before_anything_has_run_and_after_0_1_0_nothing_is_stated(world: World) -> None:
    unstated = [("triggerer", CLUSTER, None), ("jobs", "orders", None), ("jobs", "clicks", None)]
    assert shown(world) == unstated
    put_scan(world, "")
    commit(world.table("orders"), state(0, 3))
    assert shown(world) == unstated


def test_an_index_that_cannot_be_read_leaves_the_others(world: World) -> None:
    put_index(world, 1, "1.4.0")
    world.raw.put(world.control.index(2), b'{"format":2,"needs":"2.0"}')
    assert shown(world)[:2] == [("agent", "1", "1.4.0"), ("agent", "2", None)]
    text = CliRunner().invoke(app, ["versions", "--topics", str(world.topics_file)]).output
    assert "install Tidemark 2.0 or newer" in text.splitlines()[2]


def test_an_unknown_cluster_is_refused(world: World) -> None:
    done = CliRunner().invoke(app, ["versions", "--topics", str(world.topics_file), "--cluster", "kafka-2"])
    assert "no topic belongs to a cluster kafka-2" in str(done.exception)
