"""Past dates leave the table: what goes, what stays, and that every offset of theirs still has one class."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.convert.test_parsers import function_parser
from tests.spark.run.test_truncation import branch
from tests.spark.test_vacuum import OLDER, age_all, exists, why
from tests.spark.world import World, in_process
from tests.support.raw_builder import EPOCH
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.cli.continuity import continuity_of
from tidemark.errors import ConfigError, ContinuityError
from tidemark.formats.keys import SegmentName
from tidemark.formats.table.steps import DataFile
from tidemark.planning import dates_to_close, plan_rebuild, plan_replay, write_plan
from tidemark.planning.maintenance.retention import RetentionReport, plan_retain, reviewed
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark_spark.jobs.retain import retain
from tidemark_spark.jobs.running import run_job
from tidemark_spark.kinds.kind import TableChange
from tidemark_spark.kinds.registry import kind_of
from tidemark_spark.run.commit import rebased
from tidemark_spark.run.driver import run

PAST, ALSO, KEPT = "2026-02-02", "2026-02-05", "2026-03-14"
DAY = 86_400_000
NOW, LATER = datetime(2026, 3, 6, 12, tzinfo=UTC), datetime(2026, 3, 9, 12, tzinfo=UTC)
"""When ``PAST`` is past, and when ``ALSO`` is as well."""
OPTED_IN = "retention: {table: 30d, apply: true}"


def records(*days: int, values: dict[int, bytes] | None = None) -> list[Record]:
    """A record for each day after ``PAST``; the parser refuses values of 3 bytes and leaves empty ones out."""
    return [Record(i, T0 + day * DAY, b"k", (values or {}).get(i, b"four")) for i, day in enumerate(days)]


def made(tmp_path: Path, *settings: str) -> World:
    """Three dates in the same segments of two partitions; of ``PAST`` a row was refused, and one filtered."""
    world = World(tmp_path, *(settings or (OPTED_IN, function_parser("sizes"))))
    world.raw.segment([batch(0, records(0, 3, 40, 0, 0, 0, values={4: b"bad", 5: b""}))])
    world.raw.segment([batch(0, records(40, 0, 0))], 1)
    world.land()
    return world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return made(tmp_path)


def reported(world: World, at: datetime, **options: bool) -> RetentionReport:
    return retain(world.table, "table", at, "ada", **options)


def drop(world: World, at: datetime = NOW) -> RetentionReport:
    """A report, and a day later what it allows."""
    reported(world, at - timedelta(days=1), dry_run=True)
    found = reported(world, at)
    world.check()
    return found


def states(world: World) -> dict[str, str]:
    return {dt: one.state for dt, one in world.ledger.dates.items()}


def late(world: World) -> None:
    """Two more rows of ``PAST`` land."""
    world.raw.segment([batch(6, records(0, 0))])
    world.land()


def test_a_past_date_goes_and_each_of_its_offsets_keeps_a_class(world: World) -> None:
    rows = [row for row in world.rows() if row["dt"] != PAST]
    assert world.classes() == {"landed": 4, "quarantined": 1, "filtered": 1}
    report = drop(world)
    [goes] = report.dates
    assert (goes.dt, goes.rows, goes.files, goes.aside, goes.removed) == (PAST, 4, 2, 2, True)
    assert world.rows() == rows
    assert world.quarantine() == []
    assert world.classes() == {"landed": 2, "expired": 4}
    assert world.classes(1) == {"landed": 1, "expired": 2}
    found = continuity_of(world.table, [PAST, ALSO])
    assert found["sound"]
    assert [one["expired"] for one in found["dates"][0]["partitions"]] == [4, 2]
    assert (world.ledger.kind, states(world)[PAST], world.ledger.dates[PAST].rows) == ("retain", "expired", 0)
    assert reported(world, NOW).dates == ()
    assert drop(world, LATER).dates[0].dt == ALSO


def test_raw_proves_what_was_taken_and_where_it_is_gone_the_evidence_proves_the_rest(world: World) -> None:
    drop(world)
    report = audited(world)
    assert report.passed, report.text()
    assert [one.expired for one in report.partitions] == [4, 2]
    assert "4 that retention took from the table" in report.text()
    assert audited(world, PAST).passed
    assert audited(world, ALSO).passed
    for extension in ("log", "manifest.json"):
        world.raw.store.delete(world.raw.keys(1).segment(SegmentName(0), extension))
    report = audited(world)
    assert report.passed, report.text()
    assert report.partitions[1].by_evidence == ((0, 3),)


def test_raw_that_differs_from_what_was_taken_is_found(world: World) -> None:
    drop(world)
    world.raw.replace_log(
        world.raw.keys(1).segment(SegmentName(0), "log"), batch(0, records(40, 0, 0, values={1: b"next"}))
    )
    assert [one.kind for one in audited(world).findings] == ["evidence_differs"]


def test_nothing_goes_before_a_report_that_is_a_day_old_named_it(world: World) -> None:
    before = world.rows()
    first = reported(world, NOW - timedelta(hours=23))
    assert [(one.dt, one.removed) for one in first.dates] == [(PAST, False)]
    assert not reported(world, NOW).dates[0].removed
    assert world.rows() == before
    # The newest one that is a day old counts: it has no ALSO, though the rule would take that as well by now.
    second = reported(world, LATER)
    assert [(one.dt, one.removed) for one in second.dates] == [(PAST, True), (ALSO, False)]
    world.check()
    assert {row["dt"] for row in world.rows()} == {ALSO, KEPT}


@pytest.mark.parametrize("settings", ["retention: {table: 30d}", "retention: {apply: true}", "owner: ada"])
def test_nothing_goes_of_a_topic_that_has_not_opted_in_or_has_no_policy(tmp_path: Path, settings: str) -> None:
    world = made(tmp_path, settings)
    n = world.ledger.n
    report = drop(world)
    assert [one.dt for one in report.dates] == ([PAST] if "table" in settings else [])
    assert not any(one.removed for one in report.dates)
    assert world.ledger.n == n
    assert reviewed(world.table, "table", NOW + timedelta(days=1)) is not None, "what would go is told all the same"


def test_a_date_ends_in_the_topics_zone(tmp_path: Path) -> None:
    world = made(tmp_path, OPTED_IN, "time_zone: Pacific/Kiritimati")  # 14 hours ahead
    end = datetime(2026, 2, 2, 10, tzinfo=UTC) + timedelta(days=30)  # records are of 02:40 UTC
    assert plan_retain(world.table, end - timedelta(seconds=1))[1] == []
    assert [one.dt for one in plan_retain(world.table, end)[1]] == [PAST]


def test_late_rows_of_a_past_date_land_are_counted_and_go_with_the_next(world: World) -> None:
    drop(world)
    late(world)
    day = world.ledger.dates[PAST]
    assert (day.state, day.rows, day.late_rows) == ("reopened", 2, 2)
    assert world.classes()["expired"] == 4
    assert plan_rebuild(world.table, [PAST]).removes, "what is there can be made again"
    assert drop(world, LATER).dates[0].rows == 2
    day = world.ledger.dates[PAST]
    assert (day.state, day.rows, day.late_rows) == ("expired", 0, 2)
    assert world.classes()["expired"] == 4 + 2 + 1


def test_rows_that_a_rebuild_moves_to_an_expired_date_reopen_it(world: World) -> None:
    drop(world)
    file = DataFile("dt=2026-02-02/x.parquet", 1, 3, date.fromisoformat(PAST), 0, 0, 2, 0, 0)
    live = EffectiveEvidence.of(world.table).files
    ledger = rebased(
        kind_of(world.table, plan_rebuild(world.table, [ALSO])), world.ledger, TableChange((file,), (), ()), live
    )
    assert (ledger.dates[PAST].state, ledger.dates[PAST].rows, ledger.dates[PAST].late_rows) == ("reopened", 3, 3)


def test_a_branch_that_is_left_lands_again_what_had_expired_below_the_cut(tmp_path: Path) -> None:
    """A file lies across the cut, and the rows that expired lie across that file's first offset."""
    world = World(tmp_path, OPTED_IN)
    world.raw.segment([batch(0, records(0, 40)), batch(2, records(0, 40))])
    world.land()
    drop(world)
    assert world.classes() == {"landed": 2, "expired": 2}
    branch(world, (EPOCH, 0), (5, 3))
    world.raw.segment([batch(3, records(40, 0, 0), leader_epoch=5)], base=3)
    world.land()
    assert world.classes() == {"landed": 6}
    assert (states(world)[PAST], world.ledger.dates[PAST].rows) == ("reopened", 4)
    assert continuity_of(world.table)["sound"]
    drop(world, LATER)
    assert world.classes() == {"landed": 2, "expired": 4}
    assert continuity_of(world.table)["sound"]
    assert audited(world).passed


def test_all_dates_that_are_left_are_made_again_beside_what_retention_took(world: World) -> None:
    drop(world)
    before = world.rows()
    plan = plan_rebuild(world.table, None)
    write_plan(world.table, plan)
    assert (plan.leaves, run(world.table, plan, in_process).status) == ((PAST,), "landed")
    world.check()
    assert world.rows() == before
    assert states(world)[PAST] == "expired"
    assert audited(world).passed


def test_a_date_of_which_all_was_refused_expires_as_well(tmp_path: Path) -> None:
    world = World(tmp_path, OPTED_IN, function_parser("sizes"))
    world.raw.segment([batch(0, records(0, 40))])
    world.land()
    mended = World(tmp_path, OPTED_IN, function_parser("none"))
    plan = plan_rebuild(mended.table, [PAST])
    write_plan(mended.table, plan)
    assert run(mended.table, plan, in_process).rows == 0
    assert (states(mended)[PAST], len(mended.quarantine())) == ("open", 1)
    drop(mended)
    assert (states(mended)[PAST], len(mended.quarantine())) == ("expired", 0)
    assert mended.classes() == {"landed": 1, "expired": 1}


def test_rows_that_land_while_a_date_goes_stay(world: World) -> None:
    plan, _ = plan_retain(world.table, NOW)
    write_plan(world.table, plan)
    late(world)
    assert run(world.table, plan, in_process).status == "landed"
    world.check()
    assert (states(world)[PAST], world.ledger.dates[PAST].rows) == ("open", 2)


def test_a_rebuild_and_a_retention_of_the_same_date_exclude_each_other(world: World) -> None:
    plan, _ = plan_retain(world.table, NOW)
    rebuilt = plan_rebuild(world.table, [PAST])
    for one in (plan, rebuilt):
        write_plan(world.table, one)
    assert run(world.table, rebuilt, in_process).status == "landed"
    assert run(world.table, plan, in_process).status == "stale"
    drop(world)
    with pytest.raises(ConfigError, match=r"retention took 2026-02-02 from file:"):
        plan_rebuild(world.table, [PAST, ALSO])
    assert plan_replay(world.table).empty, "its refused rows went with it"


def test_the_mark_of_a_closed_date_goes_and_it_is_never_closed_again(world: World) -> None:
    world.raw.observed_at = datetime(2026, 11, 20, tzinfo=UTC)
    world.raw.publish()
    run(world.table, world.plan(), in_process)
    mark = world.table.keys.success(PAST)
    assert states(world)[PAST] == "final"
    assert exists(world, mark)
    drop(world)
    assert not exists(world, mark)
    assert exists(world, world.table.keys.success(ALSO))
    assert PAST not in dates_to_close(world.table, world.ledger)


def test_the_files_stay_for_readers_of_older_versions_and_go_with_the_clean_up(world: World) -> None:
    before = {one.key for one in world.table.store.list("orders") if f"dt={PAST}/" in one.key}
    drop(world)
    assert all(exists(world, key) for key in before)
    assert why(world) == {}
    age_all(world, OLDER)
    assert why(world) == dict.fromkeys(before, "replaced")
    world.check()


def test_files_that_the_evidence_does_not_know_are_not_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EffectiveEvidence, "of_files", lambda *_: iter(()))
    with pytest.raises(ContinuityError, match=r"has \d rows, but evidence counts 0"):
        drop(world)
    assert {row["dt"] for row in world.rows()} == {PAST, ALSO, KEPT}


def test_the_command_prints_both_reports(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--topics", str(world.topics_file), "--topic", "orders"]
    assert run_job("retain", [*arguments, "--dry-run", "--json", "--by", "ada"]) == 0
    table, raw = map(json.loads, capsys.readouterr().out.splitlines())
    assert (table["subject"], table["by"], table["dry_run"]) == ("table", "ada", True)
    assert [one["dt"] for one in table["dates"]] == [PAST, ALSO, KEPT]
    assert [one["stays"] for one in raw["partitions"]] == ["it is kept for ever"] * 2
    assert run_job("retain", [*arguments, "--only", "table"]) == 0
    text = capsys.readouterr().out
    assert "table is kept for 30 days; reviewed in no report yet" in text
    assert "dt=2026-02-02: past: 4 rows in 2 files" in text
    assert "raw is" not in text
    assert run_job("retain", ["--topics", str(world.topics_file), "--topic", "nothing"]) == 2
