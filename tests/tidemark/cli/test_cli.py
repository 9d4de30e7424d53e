"""The operator's commands, as a program: output and exit codes."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.spark.world import World
from tests.support.requests import Requests
from tests.tidemark.kafka_log.build import simple, transactional
from tidemark import cli, installation
from tidemark.store.local import LocalStore


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """(exit code, output, errors) of ``tidemark ARGUMENTS``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tidemark", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.fixture
def landed(tmp_path: Path) -> World:
    """A table with rows, a gap and an open transaction."""
    world = World(tmp_path)
    world.raw.segment([simple(0), simple(5)])
    world.raw.segment([simple(0), transactional(3, 7, 2)], 1)
    world.land()
    return world


def test_files_names_each_live_file_by_its_url(landed: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, _ = call(capsys, "files", "orders", "--topics", landed.topics_file)
    assert code == 0
    urls = output.split()
    assert len(urls) == 2
    assert all(Path(url.removeprefix("file://")).exists() for url in urls)
    assert all(url.startswith(f"{landed.table.url}/dt=2026-02-02/") for url in urls)
    _, output, _ = call(capsys, "files", "orders", "--topics", landed.topics_file, "--output", "json")
    found: list[dict[str, Any]] = json.loads(output)
    assert [(one["url"], one["rows"]) for one in found] == [(url, 3) for url in urls]
    _, output, _ = call(capsys, "files", "orders", "--dt", "2026-02-03", "--topics", landed.topics_file)
    assert output.strip() == ""


def test_files_of_a_table_that_is_not_there_yet_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    world.raw.segment([simple(0)])
    world.raw.publish()
    assert call(capsys, "files", "orders", "--topics", world.topics_file, "--output", "json")[:2] == (0, "[]\n")


def test_status_shows_offsets_gaps_and_dates(landed: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, _ = call(capsys, "status", "orders", "--topics", landed.topics_file)
    assert code == 1
    assert output.splitlines()[1].startswith("GAP: offsets are missing")
    assert output.splitlines()[2:] == [
        "  partition 0: next offset 3",
        "    gap 3 to 5: unknown",
        "  partition 1: next offset 3",
        "    held by producer 7 from 3",
        "  2026-02-02: 6 rows, open",
    ]
    _, output, _ = call(capsys, "status", "orders", "--topics", landed.topics_file, "--output", "json")
    assert json.loads(output)["rows"] == 6


def test_status_without_a_topic_has_a_line_of_each(
    landed: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with landed.topics_file.open("a") as file:
        file.write("  - {topic: clicks, cluster: west}\n")
    keys, ledger = landed.table.keys, landed.ledger
    requests = Requests(monkeypatch)
    code, output, _ = call(capsys, "status", "--topics", landed.topics_file)
    assert requests.gets.count(keys.ledger(ledger.n, ledger.attempt)) == 1
    assert requests.lists.count(f"{keys.root}/_delta_log/") == 1
    assert (code, output.splitlines()) == (
        1,
        [
            f"east/orders: ledger 1, 6 rows in {landed.table.url}: gap",
            f"west/clicks: ledger 0, 0 rows in {landed.table.url.removesuffix('orders')}clicks: unknown",
        ],
    )
    code, output, _ = call(capsys, "status", "--topics", landed.topics_file, "--output", "json", "--cluster", "west")
    [found] = json.loads(output)
    assert (found["topic"], found["rows"]) == ("west/clicks", 0)
    code, _, errors = call(capsys, "status", "--topics", landed.topics_file, "--cluster", "wst")
    assert (code, "no topic belongs to a cluster wst; did you mean west?" in errors) == (2, True)


@pytest.mark.parametrize("command", ["status", "continuity", "files", "quarantine", "lineage"])
def test_a_command_reads_the_log_and_the_ledger_once(
    landed: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    keys, ledger = landed.table.keys, landed.ledger
    requests = Requests(monkeypatch)
    assert call(capsys, command, "orders", "--topics", landed.topics_file)[0] in {0, 1}
    assert requests.lists.count(f"{keys.root}/_delta_log/") == 1
    assert requests.gets.count(f"{keys.root}/_delta_log/{0:020d}.json") == 1
    assert requests.gets.count(keys.ledger(ledger.n, ledger.attempt)) == 1


def test_check_accepts_a_good_file_and_names_what_is_wrong(landed: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, _ = call(capsys, "config", "check", "--topics", landed.topics_file)
    assert (code, output.splitlines()[0]) == (0, f"{landed.topics_file}: 1 topic")
    landed.topics_file.write_text(landed.topics_file.read_text() + "    latenes: 1h\n")
    code, output, errors = call(capsys, "config", "check", "--topics", landed.topics_file)
    assert (code, output) == (2, "")
    assert "topics.orders.latenes" in errors


def test_an_unknown_topic_or_file_is_a_configuration_error(landed: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = call(capsys, "status", "nothing", "--topics", landed.topics_file)
    assert (code, "nothing is not a topic of the file; there is orders" in errors) == (2, True)
    assert "did you mean orders?" in call(capsys, "status", "ordrs", "--topics", landed.topics_file)[2]
    code, _, errors = call(capsys, "status", "orders", "--topics", "/nowhere.yaml")
    assert (code, errors.startswith("/nowhere.yaml: does not exist; name the topics file by --topics or")) == (2, True)
    assert call(capsys, "consume", "ordrs", "--topics", landed.topics_file)[0] == 2


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version")[:2] == (0, f"{version('tidemark-kafka')}\n")


def test_the_help_names_the_commands_that_write(capsys: pytest.CaptureFixture[str]) -> None:
    code, output, _ = call(capsys, "--help")
    erase = "erase approve, erase request, erase withdraw"
    last = "restore, schema dismiss, schema revert, topics add, try and verify-copy"
    writing = f"acknowledge-gap, backfill, {erase}, {last}"
    assert (code, f"Only {writing} write." in " ".join(output.split())) == (0, True)


def test_a_command_that_writes_without_the_mark_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "folder", lambda _: LocalStore(tmp_path).put("key", b""))
    with pytest.raises(AssertionError, match="tidemark paths writes: mark its function"):
        call(capsys, "paths")
