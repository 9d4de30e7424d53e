"""``tidemark acknowledge-gap``, as a program, on what an agent has uploaded; and the agent that takes it in."""

from __future__ import annotations

import getpass
import io
import json
import socket
from pathlib import Path

import pytest

from tests.tidemark.cli.test_cli import call
from tests.uploader_agent.fakes import CLUSTER, World, records
from tests.uploader_agent.repair.test_gap_filler import running
from tests.uploader_agent.repair.test_gaps import with_hole
from tests.uploader_agent.test_agent import no_errors
from tidemark.formats.raw.gaps import Acknowledgement


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Broker 1 leads orders-0 and lacks [100, 200)."""
    world = World(tmp_path)
    with_hole(world)
    world.once()
    return world


@pytest.fixture
def topics(world: World) -> Path:
    """A topics file over the same store."""
    path = world.root / "topics.yaml"
    lake = f"file://{world.root / 'lake'}"
    text = {"raw": {"url": world.store.url}, "lake": lake, "cluster": CLUSTER, "topics": [{"topic": "orders"}]}
    path.write_text(json.dumps(text))
    return path


WORD = ("--by", "ada", "--reason", "disk of broker 1")


def words(world: World) -> list[str]:
    return [info.key for info in world.store.list(world.control.acknowledgements("orders", 0))]


def test_a_running_agent_takes_it_in_and_goes_on(
    world: World, topics: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = world.keys().watermark
    for _ in running(world, scan_interval="20ms"):
        world.store.puts.clear()
        code, output, _ = call(capsys, "acknowledge-gap", "orders", "0", "100", "200", *WORD, "-y", "--topics", topics)
        assert (code, "test-cluster/orders 0: 100 to 200 acknowledged" in output) == (0, True)
        world.store.await_put(lambda: wanted in world.store.puts)
    base, watermark = world.watermark()
    assert (base, watermark.next_offset, watermark.gaps, watermark.ranges_above) == (200, 300, (), ())
    assert [(gap.start, gap.end, gap.reason) for gap in watermark.acknowledged_gaps] == [
        (100, 200, "deleted_before_upload")
    ]


def test_it_is_written_once(world: World, topics: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("acknowledge-gap", "orders", "0", "120", "150", "--topics", topics, "--output", "json", "-y")
    code, output, _ = call(capsys, *command, *WORD)
    first = json.loads(output)
    assert code == 0
    assert (first["from"], first["to"], first["by"], first["reason"], first["new"]) == (
        120,
        150,
        "ada",
        "disk of broker 1",
        True,
    )
    assert first["written_as"].endswith(f"{getpass.getuser()}@{socket.gethostname()}"), "whatever --by says"
    [key] = words(world)
    assert Acknowledgement.from_bytes(world.store.get(key).body, key).by == "ada"
    no_errors(world.once())
    code, output, _ = call(capsys, *command[:-1], *WORD)
    again = json.loads(output)
    assert (code, again) == (0, {**first, "new": False}), "also when the agent has taken it in, and without asking"
    code, _, errors = call(capsys, *command, "--by", "bob", "--reason", "mine")
    assert (code, "ada acknowledged it" in errors) == (1, True)
    assert words(world) == [key]


def test_it_asks_and_shows_what_is_open(
    world: World, topics: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("acknowledge-gap", "orders", "0", "100", "200", *WORD, "--topics", topics)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, output, errors = call(capsys, *command)
    assert (code, output.strip()) == (1, "")
    assert "100 to 200: deleted_before_upload" in errors
    assert words(world) == []
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert call(capsys, *command)[0] == 0
    assert len(words(world)) == 1


@pytest.mark.parametrize(
    ("start", "end", "told"),
    [
        (100, 201, "offsets 200 to 201 are in no open gap. Open gaps: 100 to 200 (deleted_before_upload)"),
        (0, 100, "offsets 0 to 100 are in no open gap"),
        (150, 150, "must be above FROM"),
    ],
)
def test_only_what_is_open_can_be_given_up(
    world: World, topics: Path, capsys: pytest.CaptureFixture[str], start: int, end: int, told: str
) -> None:
    code, _, errors = call(
        capsys, "acknowledge-gap", "orders", "0", str(start), str(end), *WORD, "-y", "--topics", topics
    )
    assert code == 1
    assert told in errors
    assert words(world) == []


def test_what_is_wrong_on_the_command_line(world: World, topics: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        call(capsys, "acknowledge-gap", "orders", "0", "100", "200", "--by", " ", *WORD[2:], "--topics", topics)[0] == 2
    )
    assert call(capsys, "acknowledge-gap", "nothing", "0", "100", "200", *WORD, "-y", "--topics", topics)[0] == 2
    code, _, errors = call(
        capsys, "acknowledge-gap", "orders", "0", "1", "2", *WORD, "-y", "--topics", topics, "--incarnation", "1"
    )
    assert (code, "has incarnations 0 to 0, and not 1" in errors) == (1, True)


def test_a_gap_at_the_very_start_is_known_by_the_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is contiguous, so there is no offset.wm; an acknowledgement makes one."""
    world = World(tmp_path / "start")
    partition = world.disk.partition()
    partition.fill(0, 100, end=200)
    partition.segment(0, b"\xff" + records(0, 100)[1:])
    world.once()
    path = world.root / "topics.yaml"
    text = {
        "raw": {"url": world.store.url},
        "lake": "file:///nowhere",
        "cluster": CLUSTER,
        "topics": [{"topic": "orders"}],
    }
    path.write_text(json.dumps(text))
    assert call(capsys, "acknowledge-gap", "orders", "0", "0", "100", *WORD, "-y", "--topics", path)[0] == 0
    no_errors(world.once())
    base, watermark = world.watermark()
    assert (base, watermark.start_offset, watermark.next_offset) == (100, 0, 200)
