from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.plugins.world import entry
from tidemark.brokersets.settings import load_brokersets
from tidemark.cli.app import app
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.watermark_index import WatermarkIndex
from tidemark.store import LocalStore
from tidemark.timestamps import utc_now

TOPICS = """
raw: {url: 'file://ROOT/raw'}
lake: 'file://ROOT/lake'
cluster: east
topics: [{topic: orders}]
"""
BROKERSETS = """
clusters:
  east:
    zones: {az1: [1], az2: [2], az3: [3]}
    brokersets:
      a: {brokers: [1-3], capacity: 1KiB}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Three brokers that lead a partition each, of 1,000 bytes a second for the first, and none for others."""
    for name in ("raw", "lake"):
        (tmp_path / name).mkdir()
    (tmp_path / "topics.yaml").write_text(TOPICS.replace("ROOT", str(tmp_path)))
    (tmp_path / "brokersets.yaml").write_text(BROKERSETS)
    store, now = LocalStore(tmp_path / "raw"), utc_now()
    for broker in (1, 2, 3):
        found = entry(partition=broker - 1, next_offset=0, log_end=100 if broker == 1 else 0, bytes_per_offset=1000.0)
        active = {
            "active_base_offset": 0,
            "active_first_timestamp": int((now - timedelta(seconds=100)).timestamp() * 1000),
            "observed_at": now,
            "high_watermark": found.log_end_offset,
        }
        index = WatermarkIndex(
            cluster="east", broker=broker, agent_version="1", written_at=now, entries=(found.model_copy(update=active),)
        )
        store.put(f"{ControlKeys('', 'east').indexes}{broker}.json", index.to_bytes())
    return tmp_path


def test_a_file_that_is_missing_is_said_to_be_optional(place: Path) -> None:
    (place / "brokersets.yaml").unlink()
    code, text = command(place, "show")
    assert code != 0
    assert "brokersets.yaml: does not exist. A brokersets file is optional" in text
    example = yaml.safe_load(text.split("`")[1])
    (place / "brokersets.yaml").write_text(yaml.safe_dump(example))
    assert [one.name for one in load_brokersets(place / "brokersets.yaml").of_cluster("prod")] == ["small"]


def command(place: Path, *arguments: str) -> tuple[int, str]:
    environment = {"TIDEMARK_TOPICS": str(place / "topics.yaml"), "TIDEMARK_BROKERSETS": str(place / "brokersets.yaml")}
    done = CliRunner().invoke(app, ["brokersets", *arguments], env=environment)
    return done.exit_code, done.output or str(done.exception)


def test_the_load_is_shown_today_and_without_each_broker(place: Path) -> None:
    code, text = command(place, "show", "--output", "json")
    [found] = json.loads(text)["brokersets"]
    assert code == 0
    assert found["rate"] == pytest.approx(1000, rel=0.1)
    assert (found["lag"], found["partitions"], found["failover"]) == (100, 3, "even")
    assert found["without"]["1"]["rate"] == pytest.approx(500, rel=0.1)
    assert found["without"]["1"]["lag"] == 50
    assert found["brokers"]["1"]["lag"] == 100
    assert found["worst"]["busiest"] == 1
    code, text = command(place, "show")
    lines = [line.split() for line in text.splitlines()]
    assert ["a", "2", "0.00", "0", "0", "1", "0.00", "100", "0"] in lines, "a line for each broker"


def test_an_exceeded_capacity_exits_with_1(place: Path) -> None:
    (place / "brokersets.yaml").write_text(BROKERSETS.replace("1KiB", "900"))
    code, text = command(place, "show")
    assert code == 1
    assert "IS EXCEEDED" in text
    assert "replicas are not known" in text


def test_a_topic_is_placed(place: Path) -> None:
    asked = ("place", "orders", "--brokerset", "a", "--partitions", "3", "--stride", "1")
    code, text = command(place, *asked)
    assert (code, [one["replicas"] for one in json.loads(text)["partitions"]]) == (0, [[1, 3, 2], [2, 1, 3], [3, 2, 1]])
    assert command(place, *asked, "--for", "kafka-topics") == (0, "1:3:2,2:1:3,3:2:1\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("place", "or/ders", "--brokerset", "a", "--partitions", "3"), "the topic: "),
        (("place", "orders", "--brokerset", "b", "--partitions", "3"), "has no b; there is a"),
        (("place", "orders", "--brokerset", "a", "--partitions", "4"), "brokerset a: partitions: must be a multiple"),
        (("show", "--over", "soon"), "--over: must be a number with a unit"),
    ],
)
def test_what_is_wrong_is_refused(place: Path, arguments: tuple[str, ...], told: str) -> None:
    code, text = command(place, *arguments)
    assert code != 0
    assert told in text
