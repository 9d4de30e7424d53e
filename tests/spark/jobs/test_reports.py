"""Backfills in two steps, as Airflow starts them: a report with a plan, then the plan; and what the report says."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from threading import Event

import pytest

from tests.spark.audit.test_audit import file_of, key_of
from tests.spark.convert.test_parsers import function_parser, records, refused
from tests.spark.inline import Inline
from tests.spark.rebuild.rebuilds import DAYS, EVENT, PLAIN, changed, events
from tests.spark.world import World
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.backfill.preview import (
    MEASURED_RATE,
    START_SECONDS,
    Preview,
    conversion_rate,
    estimated_minutes,
    estimated_requests,
)
from tidemark.backfill.report import BackfillReport, RecordCounts, outcome_of, read_report, write_part
from tidemark.backfill.report_tables import MOST_ROWS, markdown, sections, text
from tidemark.backfill.request import BackfillRequest, Mode
from tidemark.errors import StateStopped
from tidemark.formats.table.plan import RunProgress, RunResult
from tidemark.planning import lost_files, plan_rebuild
from tidemark.table.state_table import StateTable
from tidemark_spark.jobs.running import run_job
from tidemark_spark.model import Job
from tidemark_spark.rebuild.preview import preview
from tidemark_spark.run.progress import watched
from tidemark_spark.state.run import StateResult

NAME = "0123456789abcdef"


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark_spark.cluster.session.spark", lambda *_: Inline())


def job(world: World, name: str, *options: str) -> int:
    """The exit code of the job of that name."""
    return run_job(name, ["--topics", str(world.topics_file), "--topic", "orders", *options])


def asked(world: World, *, mode: Mode = "rebuild", dry_run: bool = False, first: str = DAYS[1]) -> BackfillReport:
    """The report after the request was written, for the dates from ``first`` to the last."""
    request = BackfillRequest(
        cluster="east",
        topic="orders",
        mode=mode,
        first=date.fromisoformat(first),
        last=date.fromisoformat(DAYS[4]),
        extend=False,
        differences=True,
        dry_run=dry_run,
        max_bytes=1 << 30,
        approve_above=1 << 30,
        reason="a | b <i>",
        by="ada",
        run="manual__1",
    )
    write_part(world.table, NAME, "request", request)
    return read_report(world.table, NAME)


def prepared(world: World, name: str, *options: str) -> Preview:
    """What the first step found."""
    assert job(world, name, *options, "--report", NAME) == 0
    found = read_report(world.table, NAME).preview
    assert found is not None
    return found


def carried_out(world: World, found: Preview) -> BackfillReport:
    """The report after the second step."""
    assert job(world, "run_plan", "--plan", found.plan) == 0
    world.check()
    write_part(world.table, NAME, "outcome", outcome_of(world.table, found), found.attempt)
    return read_report(world.table, NAME)


REBUILD = ("rebuild", "--from", DAYS[1], "--to", DAYS[4])


def test_a_rebuild_with_another_parser_says_which_rows_changed(tmp_path: Path) -> None:
    plain = World(tmp_path, function_parser("sizes"))
    plain.raw.segment([batch(0, records(b"a", b"abc", b"xyzw"))])
    plain.land()
    assert refused(plain).keys() == {1}
    fixed = changed(plain, function_parser("all_sizes"))
    assert asked(fixed).state == "looking"
    found = prepared(fixed, *REBUILD)
    [one] = found.dates
    assert (one.rows, one.quarantined, one.other_settings) == (2, 1, 3)
    assert (found.segments, found.tasks, found.reads, found.attempt != 0) == (1, 1, 1, True)
    assert job(fixed, "run_plan", "--plan", found.plan, "--compare", "--report", NAME) == 0
    report = carried_out(fixed, found)

    assert report.state == "landed"
    assert report.comparison is not None
    assert {(one.kind, one.only_before, one.only_after) for one in report.comparison.differences} == {
        ("landed", 0, 1),
        ("quarantined", 1, 0),
    }
    assert report.outcome is not None
    [change] = report.outcome.dates
    assert (change.before, change.after) == (RecordCounts(landed=2, quarantined=1), RecordCounts(landed=3))
    assert report.outcome.ledger_n == fixed.ledger.n
    assert BackfillReport.from_json(json.loads(json.dumps(report.as_json()))) == report


def test_rows_that_move_are_told_date_by_date(tmp_path: Path) -> None:
    plain = World(tmp_path, PLAIN)
    events(plain, [0, 1], [0, 0])
    plain.land()
    event = changed(plain, EVENT)
    asked(event)
    found = prepared(event, *REBUILD)
    assert job(event, "run_plan", "--plan", found.plan, "--compare", "--report", NAME) == 0
    report = carried_out(event, found)

    assert report.outcome is not None
    assert [(one.dt, one.before.landed, one.after.landed) for one in report.outcome.dates] == [
        (DAYS[1], 2, 1),
        (DAYS[2], 2, 3),
    ]
    shown = text(*sections(report))
    assert "2026-02-02  2 → 1" in shown
    assert "Removed" in shown
    assert "+1" in shown


def test_a_dry_run_writes_a_report_and_no_plan(world: World) -> None:
    world.raw.segment([batch(0, [Record(0), Record(1)])])
    world.land()
    attempts = len(list(world.table.store.list(world.table.keys.attempts)))
    asked(world, dry_run=True)
    found = prepared(world, *REBUILD, "--dry-run")

    assert (found.plan, found.attempt, found.empty) == ("", 0, False)
    assert len(list(world.table.store.list(world.table.keys.attempts))) == attempts
    assert read_report(world.table, NAME).state == "dry run"


def test_a_rebuild_is_previewed_and_compared_by_one_job(tmp_path: Path) -> None:
    """What the two jobs told one after the other, of the same plan."""
    plain = World(tmp_path, PLAIN)
    events(plain, [0, 1], [0, 0])
    plain.land()
    event = changed(plain, EVENT)
    asked(event)
    found = prepared(event, *REBUILD, "--compare")
    assert found.plan
    by_one = read_report(event.table, NAME).comparison
    assert by_one is not None
    assert by_one.differences
    assert job(event, "run_plan", "--plan", found.plan, "--compare", "--report", NAME) == 0
    assert read_report(event.table, NAME).comparison == by_one
    assert carried_out(event, found).state == "landed"


@pytest.mark.parametrize(("more", "compares"), [(0, True), (-1, False)])
def test_rows_are_not_compared_if_that_would_read_more_than_allowed(tmp_path: Path, more: int, compares: bool) -> None:
    plain = World(tmp_path, PLAIN)
    events(plain, [0, 1], [0, 0])
    plain.land()
    event = changed(plain, EVENT)
    asked(event)
    size = prepared(event, *REBUILD).bytes
    assert size > 0
    assert prepared(event, *REBUILD, "--compare", "--at-most", str(size + more)).plan
    assert (read_report(event.table, NAME).comparison is not None) is compares


def test_the_run_of_a_plan_makes_the_state_table_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path, "state: {}")
    events(world, [0, 1])
    world.land()
    for _ in range(2):
        asked(world)
        found = prepared(world, *REBUILD)
        assert job(world, "run_plan", "--plan", found.plan, "--state") == 0
        assert StateResult.from_bytes(capsys.readouterr().out.splitlines()[-1].encode(), "output").status == "committed"
        assert job(world, "state") == 0
        assert StateResult.from_bytes(capsys.readouterr().out.splitlines()[-1].encode(), "output").status == "empty"
    state = StateTable.open(world.table).committed()
    assert state is not None
    assert state.of.n == world.ledger.n


def test_a_state_that_cannot_be_made_is_told_and_the_rows_have_landed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, "state: {}")
    events(world, [0, 1])
    world.land()
    asked(world)
    found = prepared(world, *REBUILD)

    def stop(*_: object) -> None:
        raise StateStopped("as the test says")

    monkeypatch.setattr("tidemark_spark.state.run.run_state", stop)
    assert job(world, "run_plan", "--plan", found.plan, "--state") == 0
    assert "the state table: StateStopped: as the test says" in capsys.readouterr().err
    world.check()
    assert outcome_of(world.table, found).status == "landed"


def test_missing_only_is_the_dates_of_which_files_are_lost(tmp_path: Path) -> None:
    world = World(tmp_path, PLAIN)
    events(world, [0, 0], [0], [0])
    world.raw.segment([batch(4, records(b"{", at=[T0 + 3 * 86_400_000]))])
    world.land()
    before = world.rows()
    asked(world, mode="missing")
    world.raw.segment([batch(5, records(b'{"at":1}'))])
    world.raw.publish()
    found = prepared(world, *REBUILD, "--missing")
    assert (found.empty, found.plan, found.waiting) == (True, "", 1)
    report = read_report(world.table, NAME)
    assert report.state == "nothing to do"
    assert "No file of these dates is lost. 1 offsets are uploaded and not landed yet: ingestion lands them." in text(
        *sections(report)
    )

    lost = file_of(world, DAYS[2])
    world.table.store.delete(key_of(world, lost))
    [torn] = [one for one in world.evidence() if one["class"] == "quarantined"]
    world.table.store.delete(f"{world.table.keys.quarantine}/{torn['file']}")
    short = key_of(world, file_of(world, DAYS[1]))
    whole = world.table.store.get(short).body
    world.table.store.put(short, whole[:-1])
    assert set(lost_files(world.table, DAYS)) == {DAYS[1], DAYS[2], DAYS[4]}
    world.table.store.put(short, whole)
    found = prepared(world, *REBUILD, "--missing")
    assert [(one.dt, len(one.lost)) for one in found.dates] == [(DAYS[2], 1), (DAYS[4], 1)]
    report = carried_out(world, found)
    assert world.rows() == before
    assert len(world.quarantine()) == 1
    assert lost_files(world.table, DAYS) == {}
    assert report.state == "landed"


def test_a_replay_says_how_many_refused_rows_land(tmp_path: Path) -> None:
    world = World(tmp_path, function_parser("sizes"))
    world.raw.segment([batch(0, records(b"a", b"abc", b"xyz"))])
    world.land()
    asked(world, mode="replay")
    found = prepared(world, "replay", "--dt", DAYS[1])
    assert job(world, "run_plan", "--plan", found.plan) == 0
    assert outcome_of(world.table, found).status == "empty"  # by the same parser all stay where they are

    mended = changed(world, function_parser("all_sizes"))
    found = prepared(mended, "replay", "--dt", DAYS[1])
    [one] = found.dates
    assert (found.kind, one.quarantined, one.rows, found.reads, found.segments) == ("replay", 2, 0, 1, 1)
    report = carried_out(mended, found)
    assert report.outcome is not None
    [change] = report.outcome.dates
    assert (change.before, change.after) == (RecordCounts(quarantined=2), RecordCounts(landed=2))
    assert "2026-02-02  0 → 2   2 → 0        0         +2" in text(*sections(report))
    assert prepared(mended, "replay", "--dt", DAYS[1]).empty


def test_a_stale_plan_is_told_as_such(world: World) -> None:
    world.raw.segment([batch(0, [Record(0), Record(1)])])
    world.land()
    asked(world)
    first, second = prepared(world, *REBUILD), prepared(world, *REBUILD)
    assert carried_out(world, second).state == "landed"
    assert job(world, "run_plan", "--plan", first.plan) == 0
    assert outcome_of(world.table, first).status == "stale"


@pytest.mark.parametrize(
    "options",
    [
        ["rebuild", "--missing"],
        ["rebuild", "--all", "--from", DAYS[1], "--to", DAYS[2]],
        ["rebuild", "--from", DAYS[2], "--to", DAYS[1]],
        ["run_plan", "--plan", "attempts/1.json", "--report", NAME],
    ],
)
def test_options_that_make_no_sense_together_are_refused(world: World, options: list[str]) -> None:
    assert job(world, *options) == 2


@pytest.mark.parametrize("name", ["../../x", "0123456789ABCDEF", ""])
def test_a_reports_name_is_no_path(world: World, name: str) -> None:
    assert job(world, *REBUILD, "--report", name) == 2


def test_the_estimate_is_by_the_topics_own_rate(world: World) -> None:
    world.raw.segment([batch(0, [Record(0), Record(1)])])
    world.land()
    assert conversion_rate(world.table, world.ledger) == MEASURED_RATE  # so small a run tells nothing
    key = world.table.keys.result(world.ledger.attempt)
    told = RunResult.from_bytes(world.table.store.get(key).body, key)
    told = told.model_copy(update={"bytes_read": 100 << 20, "seconds": {"convert": 2.0}})
    world.table.store.put(key, told.to_bytes())
    assert conversion_rate(world.table, world.ledger) == 50 << 20
    found = preview(world.table, plan_rebuild(world.table, [DAYS[1]]))
    found = found.model_copy(update={"bytes": 3000 << 20, "reads": 188, "writes": 50})
    assert estimated_minutes(found, compares=False, rewrites=True) == pytest.approx((START_SECONDS + 60) / 60)
    assert estimated_minutes(found, compares=True, rewrites=True) == pytest.approx(2 * (START_SECONDS + 60) / 60)
    assert estimated_requests(found, compares=False, rewrites=True) == 238
    assert estimated_requests(found, compares=True, rewrites=False) == 188 + 1
    assert estimated_minutes(found, compares=False, rewrites=False) == 0


def test_text_of_people_and_many_rows_do_no_harm_in_markdown(world: World) -> None:
    world.raw.segment([batch(0, [Record(0), Record(1)])])
    world.land()
    report = asked(world)
    found = prepared(world, *REBUILD)
    report = report._replace(preview=found.model_copy(update={"dates": found.dates * (MOST_ROWS + 7)}))
    shown = markdown(sections(report))

    assert "| Reason | a \\| b \\<i\\> |" in shown
    assert "7 rows more are in the report's JSON" in shown


def test_progress_is_told_while_people_wait(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.raw.segment([batch(0, [Record(0), Record(1)])])
    world.land()
    plan = plan_rebuild(world.table, [DAYS[1]])
    told = Event()
    counts = iter([0, 1, 1, 1, 5])

    def finished() -> int:
        count = next(counts, None)
        if count is None:
            told.set()
        return 9 if count is None else count

    with watched(Job.of(world.table, plan), 4, finished, seconds=0.001):
        assert told.wait(30)
    key = world.table.keys.progress(plan.attempt)
    shown = RunProgress.from_bytes(world.table.store.get(key).body, key)
    assert (shown.done, shown.total, shown.attempt) == (4, 4, plan.attempt)
    moves = ["progress: 1 of 4 tasks, 25 %", "progress: 4 of 4 tasks, 100 %"]
    assert capsys.readouterr().err.splitlines() == moves, "a line only if it moved"

    ingest = plan.model_copy(update={"kind": "ingest", "attempt": 1})
    with watched(Job.of(world.table, ingest), 4, finished, seconds=0.001):
        pass
    assert not list(world.table.store.list(world.table.keys.progress(1)))
