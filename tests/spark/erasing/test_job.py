"""The commands and the job together: a request, its approval, a dry run, and the pass."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from typing_extensions import override

from tests.spark.erasing.masked import killed
from tests.spark.erasing.test_erased_rows import landed
from tests.spark.inline import Inline
from tests.spark.run.test_truncation import FUNCTION
from tests.spark.test_vacuum import Died, as_of
from tests.spark.world import World
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.cli.app import app
from tidemark.erasure.reports import ErasureReport
from tidemark.erasure.secret import VARIABLE
from tidemark.raw_topic import RawTopic
from tidemark_spark.erasing import lake
from tidemark_spark.jobs.running import run_job

SECRET = "one-secret-that-is-long-enough-for-the-tests"
NEW_SECRET = "another-secret-that-is-long-enough-as-well"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    landed(world)
    monkeypatch.setenv(VARIABLE, SECRET)
    return world


def said(world: World, *words: str, given: str = "", who: str = "ada", code: int = 0) -> dict[str, object]:
    """What the command says in JSON, run by the user ``who``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("getpass.getuser", lambda: who)
        arguments = ["erase", *words, "--topics", str(world.topics_file), "--output", "json"]
        result = CliRunner().invoke(app, arguments, input=given)
    assert result.exit_code == code, result.output
    answer: dict[str, object] = json.loads(result.stdout)
    return answer


def job(world: World, *words: str, code: int = 0) -> None:
    assert run_job("erase", ["--topics", str(world.topics_file), *words], Inline()) == code


def reported(capsys: pytest.CaptureFixture[str]) -> ErasureReport:
    return ErasureReport.from_bytes(capsys.readouterr().out.splitlines()[-1].encode(), "standard output")


def ask(world: World, *keys: str) -> str:
    given = "\n".join(keys)
    return str(said(world, "request", "--topic", "orders", "--reason", "DSR-1", "--by", "ada", given=given)["id"])


def test_a_request_goes_from_the_command_to_the_report(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    name = ask(world, "a0", "b1", "nobody@example.com")
    before = world.rows()
    job(world, "--dry-run", "--json")
    [found] = reported(capsys).requests
    assert (found.id, found.status, found.records) == (name, "found", {"table": 6})
    assert found.dates == {"2026-02-02": 3, "2026-02-03": 3}
    job(world, "--json")
    [waits] = reported(capsys).requests
    assert (waits.status, waits.detail) == ("waiting", "nobody has approved it")
    assert world.rows() == before
    said(world, "approve", name, "--by", "grace", "--records", "6", "--yes", who="grace")
    job(world, "--json")
    report = reported(capsys)
    assert (report.masked, report.rows) == (6, 6)
    assert [row for row in before if row["kafka_key"] not in {b"a0", b"b1"}] == world.rows()
    job(world, "--json")
    assert reported(capsys).requests == (), "it is done"
    assert not [path for path in world.topics_file.parent.rglob("*.json") if "nobody@" in path.read_text()]


def test_a_withdrawn_request_is_not_carried_out(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    name, before = ask(world, "a0"), world.rows()
    said(world, "approve", name, "--by", "grace", "--yes", who="grace")
    said(world, "withdraw", name, "--by", "ada", "--reason", "a wrong person")
    for words in (("--dry-run",), ()):
        job(world, *words, "--json")
        report = reported(capsys)
        assert (report.requests, report.searched, report.masked) == ((), {}, 0)
    assert world.rows() == before


def test_a_pass_that_finds_more_than_was_approved_is_refused(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    name = ask(world, "a0", "b1")
    said(world, "approve", name, "--by", "grace", "--records", "4", "--yes", who="grace")
    before = world.rows()
    job(world, "--json", code=1)
    [refused] = reported(capsys).requests
    assert (refused.status, refused.detail) == (
        "refused",
        "6 records, and its approval allows 4: ask again, and approve with --records 6",
    )
    assert world.rows() == before


def test_records_after_the_request_stay(world: World) -> None:
    name = ask(world, "a0")
    said(world, "approve", name, "--by", "grace", "--records", "9", "--yes", who="grace")
    world.raw.segment([batch(18, [Record(0, T0, b"a0", b"back again")])])
    world.land()
    job(world)
    assert [row["kafka_offset"] for row in world.rows() if row["kafka_key"] == b"a0"] == [18]


def test_without_a_request_no_secret_is_needed_and_with_one_it_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(VARIABLE)
    job(world)
    monkeypatch.setenv(VARIABLE, SECRET)
    name = ask(world, "a0")
    monkeypatch.setenv(VARIABLE, NEW_SECRET)
    job(world, "--dry-run", code=2)
    assert name in capsys.readouterr().err


class Idle(Inline):
    """Spark, which must not be needed."""

    @override
    def on_each(self, work: object, common: object, tasks: Sequence[Any]) -> Any:
        assert not tasks, "Spark was started"
        return []


def test_what_no_task_could_compare_is_found_before_spark_starts(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing secret, and a column that the parser has no more, or of another type."""
    name = ask(world, "a0")
    arguments = ["--topics", str(world.topics_file), "--dry-run"]
    for secret, rule in (("", "is not set"), (NEW_SECRET, name)):
        monkeypatch.setenv(VARIABLE, secret)
        assert run_job("erase", arguments, Idle()) == 2
        assert rule in capsys.readouterr().err
    monkeypatch.setenv(VARIABLE, SECRET)
    said(world, "withdraw", name, "--by", "ada", "--reason", "it was to test")
    made = World(world.topics_file.parent, "parser: {kind: json, columns: [{name: v, type: int64}]}")
    words = ("--topic", "orders", "--reason", "DSR-1", "--by", "ada", "--column", "v")
    said(made, "request", *words, given="5")
    for columns, rule in (("name: w, type: int64", "there is no column v"), ("name: v, type: double", "is double")):
        World(world.topics_file.parent, f"parser: {{kind: json, columns: [{{{columns}}}]}}")
        assert run_job("erase", arguments, Idle()) == 2
        assert rule in capsys.readouterr().err


def test_records_that_another_request_has_masked_count_for_none(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are found as long as something holds them, and were approved before: else each weekly pass would fail."""
    first = ask(world, "a0")
    said(world, "approve", first, "--by", "grace", "--records", "9", "--yes", who="grace")
    with killed(3), pytest.raises(Died):
        job(world)
    assert RawTopic(world.table).mask_numbers(), "the masks count, and all records are there"
    second = ask(world, "a0", "b1")
    said(world, "approve", second, "--by", "grace", "--records", "3", "--yes", who="grace")
    capsys.readouterr()
    job(world, "--json")
    outcomes = {each.id: (each.status, sum(each.records.values())) for each in reported(capsys).requests}
    assert outcomes == {first: ("erased", 3), second: ("erased", 3)}
    assert {row["kafka_key"] for row in world.rows()} & {b"a0", b"b1"} == set()


def test_a_secret_is_rotated_while_a_request_is_open(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one is put first, the old one kept until its request is closed: both requests are carried out."""
    older = ask(world, "a0")
    monkeypatch.setenv(VARIABLE, f"{NEW_SECRET} {SECRET}")
    for name in (older, ask(world, "b1")):
        said(world, "approve", name, "--by", "grace", "--records", "9", "--yes", who="grace")
    job(world)
    assert not {row["kafka_key"] for row in world.rows()} & {b"a0", b"b1"}
    monkeypatch.setenv(VARIABLE, NEW_SECRET)
    later = ask(world, "a2")
    said(world, "approve", later, "--by", "grace", "--records", "9", "--yes", who="grace")
    job(world)
    assert b"a2" not in {row["kafka_key"] for row in world.rows()}


def test_a_request_waits_for_records_that_are_not_uploaded_yet(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.raw.segment([batch(18, [Record(0, T0, b"a0", b"in an active segment")])])
    world.raw.partition().next_offset = 18  # the index knows its high watermark, and the store does not have it
    world.raw.publish()
    name = ask(world, "a0")
    said(world, "approve", name, "--by", "grace", "--records", "9", "--yes", who="grace")
    job(world, "--json")
    [waits] = reported(capsys).requests
    assert waits.detail == "partition 0 has landed up to 18, and the request goes to 19"
    world.raw.partition().next_offset = None
    world.land()
    job(world)
    assert [row for row in world.rows() if row["kafka_key"] == b"a0"] == []


def test_a_request_is_done_once_nothing_of_it_is_left(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    name = ask(world, "a2")
    said(world, "approve", name, "--by", "grace", "--records", "9", "--yes", who="grace")

    def state() -> object:
        found: Any = said(world, "status", name)
        return found[0]["topics"][0]["state"]

    assert state() == "approved"
    job(world)
    text = capsys.readouterr().out
    assert "raw: 2 objects left: they hold erased records, or may" in text
    assert "agents continue from segment 12" in text
    assert state() == "hidden"
    for partition in (0, 1):
        world.raw.segment([batch(18, [Record(0, T0, b"z", b"v")])], partition)
    world.land()
    job(world)
    text = capsys.readouterr().out
    assert "raw: 2 segments lost 3 records, 2 old ones deleted" in text
    assert "lake: 3 objects left" in text
    for days in (1, 2):
        assert state() == "hidden"
        with as_of(world, timedelta(days=days, minutes=days)):
            job(world)
    assert state() == "erased"


def test_where_a_store_does_not_tell_what_it_keeps_a_person_says_that_it_is_nothing(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake, "versioned", lambda _: None)
    name = ask(world, "nobody")
    said(world, "approve", name, "--by", "grace", "--yes", who="grace")
    job(world)
    assert "do not tell what they keep" in capsys.readouterr().out
    world.raw.segment([batch(18, [Record(0, T0, b"z", b"v")])])
    world.land()
    job(world, "--json")
    [note] = reported(capsys).raw.remaining
    found: Any = said(world, "status", name)
    assert found[0]["topics"][0]["state"] == "hidden"
    assert world.raw.store.get(note.key).body.decode().splitlines() == [
        world.table.store.url,
        world.raw.store.url,
    ]
    world.raw.store.delete(note.key)
    job(world)
    found = said(world, "status", name)
    assert found[0]["topics"][0]["state"] == "erased"


def test_a_hole_in_raw_stops_the_search_instead_of_hiding_what_lies_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)
    world = World(tmp_path, FUNCTION)
    batches = [batch(at, [Record(0, T0, b"a%d" % at, b"bad")]) for at in range(3)]  # refused, so raw is searched
    key = world.raw.segment(batches)
    world.land()
    ask(world, "a2")
    job(world, "--dry-run", "--json")
    assert reported(capsys).requests[0].records == {"raw": 1}
    world.raw.replace_log(key, batches[0] + batches[2] + batch(3, [Record(0, T0, b"a3", b"bad")]))
    job(world, "--dry-run", code=1)
    assert "no batch holds offsets 1 to 1" in capsys.readouterr().err
