"""Dates made again with other settings or code: rows that change their date, and what is shown before."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.audit.test_audit import file_of, key_of
from tests.spark.convert.test_parsers import column, function_parser, records, refused
from tests.spark.inline import Inline
from tests.spark.rebuild.rebuilds import (
    DAYS,
    EVENT,
    HOUR,
    PLAIN,
    bodies_of,
    carry_out,
    changed,
    compared,
    dates_of,
    events,
    failing,
    objects,
    planned_here,
)
from tests.spark.run.test_runs import DAY, rebuild, spread
from tests.spark.world import Acting, World, in_process
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, simple, transactional, with_records
from tidemark.errors import ConfigError, ContinuityError
from tidemark.formats.table.plan import SegmentTask
from tidemark.planning import plan_rebuild, plan_replay, write_plan
from tidemark.table.delta_table import live_files
from tidemark_spark.convert.date_partitioner import LocalDates
from tidemark_spark.jobs.running import run_job
from tidemark_spark.model import Job, Outcome
from tidemark_spark.rebuild.affected_dates import Rebuild
from tidemark_spark.rebuild.preview import preview
from tidemark_spark.run.driver import run


def test_rows_that_a_time_zone_moves_over_midnight_are_refused_or_take_their_dates_along(tmp_path: Path) -> None:
    utc = World(tmp_path)
    midnight = T0 - T0 % DAY
    for day in range(4):  # at 02:00 and at 20:00, which is the next day in Tokyo
        times = [midnight + day * DAY + hour * HOUR for hour in (2, 20)]
        utc.raw.segment([batch(2 * day, [Record(i, time) for i, time in enumerate(times)])])
        utc.land()
    before, ledger = utc.rows(), utc.ledger
    tokyo = changed(utc, "time_zone: Asia/Tokyo")
    stored = objects(tokyo)
    with pytest.raises(ConfigError, match=r"2026-02-04 exchange rows; .* --from 2026-02-03 --to 2026-02-03 --extend"):
        planned_here(tokyo, "2026-02-03", extend=False)
    found = planned_here(tokyo, "2026-02-03")
    assert found.plan.dates == ("2026-02-03", "2026-02-04", "2026-02-05", "2026-02-06")
    assert (objects(tokyo), tokyo.ledger) == (stored, ledger)
    result = carry_out(tokyo, found)
    assert (result.rows, result.dates) == (6, found.plan.dates)
    assert tokyo.ledger.n == ledger.n + 1
    assert dates_of(tokyo) == {
        0: "2026-02-02",
        1: "2026-02-02",  # its dates were not asked for, and keep their rows
        2: "2026-02-03",
        3: "2026-02-04",
        4: "2026-02-04",
        5: "2026-02-05",
        6: "2026-02-05",
        7: "2026-02-06",
    }
    assert [row | {"dt": ""} for row in tokyo.rows()] == [row | {"dt": ""} for row in before]
    assert planned_here(tokyo, "2026-02-03", extend=False).moves is None  # now all settings are the same
    assert carry_out(tokyo, planned_here(tokyo, "2026-02-02")).rows == 3
    assert dates_of(tokyo)[1] == "2026-02-03"


def test_an_event_time_takes_along_just_the_dates_that_exchange_rows(tmp_path: Path) -> None:
    plain = World(tmp_path, PLAIN)
    events(plain, [0, 1], [0, 1, 0], [0, 0], [0])
    plain.land()
    event = changed(plain, EVENT)
    with pytest.raises(ConfigError, match="these dates and 2026-02-03 exchange rows"):
        planned_here(event, "2026-02-02", extend=False)
    found = planned_here(event, "2026-02-02")
    assert found.plan.dates == ("2026-02-02", "2026-02-03", "2026-02-04")  # by way of one to the other
    shown = preview(event.table, found.plan, found.moves)
    assert [(one.dt, one.rows, one.after, one.other_settings) for one in shown.dates] == [
        ("2026-02-02", 2, 1, 2),
        ("2026-02-03", 3, 3, 3),
        ("2026-02-04", 2, 3, 2),
    ]
    assert shown.added == ("2026-02-03", "2026-02-04")
    carry_out(event, found)
    assert dates_of(event) == {
        0: DAYS[1],
        1: DAYS[2],
        2: DAYS[2],
        3: DAYS[3],
        4: DAYS[2],
        5: DAYS[3],
        6: DAYS[3],
        7: DAYS[4],
    }
    configurations = {row["dt"].isoformat(): row["configuration"] for row in event.evidence()}
    assert configurations[DAYS[4]] == plain.table.topic.digest != configurations[DAYS[3]]
    found = planned_here(event, "2026-02-05", extend=False)  # other settings, by which nothing moves
    assert found.moves is not None
    assert found.plan.dates == ("2026-02-05",)
    assert carry_out(event, found).rows == 1


def test_rows_of_one_segment_that_stay_do_not_take_their_date_along(tmp_path: Path) -> None:
    plain = World(tmp_path, PLAIN)
    values = [b'{"at":%d}' % at for at in (T0, T0 + DAY, T0 + 2 * DAY, T0 + 3 * DAY)]
    plain.raw.segment([batch(0, records(*values, at=[T0, T0, T0 + DAY, T0 + 3 * DAY]))])
    plain.land()
    event = changed(plain, EVENT)
    assert planned_here(event, "2026-02-02").plan.dates == ("2026-02-02", "2026-02-03", "2026-02-04")
    assert planned_here(event, "2026-02-05").plan.dates == ("2026-02-05",)


def test_as_many_rows_that_are_others_are_never_committed(tmp_path: Path) -> None:
    plain = World(tmp_path, PLAIN)
    values = [b'{"at":%d}' % at for at in (T0 + DAY, T0, T0)]
    plain.raw.segment([batch(0, records(*values, at=[T0, T0 + DAY, T0]))])
    plain.raw.segment([with_records(simple(0), b"\xff" * 40)], 1)  # what may count by its offsets alone is another's
    plain.land()
    ledger = plain.ledger
    event = changed(plain, EVENT)
    for dates in (["2026-02-02"], ["", "2026-02-02"]):
        with pytest.raises(ContinuityError, match=r"hold [25] rows, and made again [25], or others"):
            run(event.table, plan_rebuild(event.table, dates), in_process)
    assert plain.ledger == ledger


def test_refused_rows_without_a_date_are_made_again_with_the_dates_that_they_come_to(tmp_path: Path) -> None:
    world = World(tmp_path)
    lying = with_records(simple(4), b"\xff" * 40)
    world.raw.segment([batch(0, [Record(0), Record(1, 1000), Record(2, -1), Record(3)]), lying])
    world.land()
    assert refused(world).keys() == {1, 2, 4}
    early = changed(world, "sane_timestamps: {earliest: 1969-01-01}")
    assert planned_here(early, "2026-02-02", extend=False).plan.dates == ("2026-02-02",)
    found = planned_here(early, "1970-01-01")  # nothing lies there yet, and so nothing leads there
    assert found.plan.empty
    found = planned_here(early, "")
    assert found.plan.dates == ("", "1969-12-31", "1970-01-01")
    carry_out(early, found)
    assert dates_of(early) == {0: "2026-02-02", 1: "1970-01-01", 2: "1969-12-31", 3: "2026-02-02"}
    assert refused(early).keys() == {4}
    assert compared(early).differences == ()


def test_a_moved_date_that_an_ingest_overtakes_loses_nothing(tmp_path: Path) -> None:
    plain = World(tmp_path, PLAIN)
    events(plain, [0, 1], [0, 0])
    plain.land()
    event = changed(plain, EVENT)
    found = planned_here(event, "2026-02-02")
    write_plan(event.table, found.plan)

    @Acting
    def overtaken(work: Any, job: Job, tasks: Sequence[SegmentTask]) -> list[Outcome]:
        plain.raw.segment([batch(4, records(b'{"at":%d}' % T0, at=[T0 + DAY]))])
        assert plain.land().dates == ("2026-02-03",)  # a date that the rebuild touches, with the settings of before
        return in_process.on_each(work, job, tasks)

    assert run(event.table, found.plan, overtaken).status == "landed"
    event.check()
    assert dates_of(event) == {0: DAYS[1], 1: DAYS[2], 2: DAYS[2], 3: DAYS[2], 4: DAYS[2]}
    [told] = preview(event.table, plan_rebuild(event.table, ["2026-02-03"]), None).dates
    assert (told.rows, told.other_settings) == (4, 1)
    carry_out(event, planned_here(event, "2026-02-03"))
    assert dates_of(event)[4] == DAYS[1]


def test_of_two_moves_of_the_same_rows_one_lands(tmp_path: Path) -> None:
    plain = World(tmp_path, PLAIN)
    events(plain, [0, 1], [0, 0])
    plain.land()
    event = changed(plain, EVENT)
    found, other = planned_here(event, "2026-02-02"), planned_here(event, "2026-02-03")
    write_plan(event.table, found.plan)

    @Acting
    def overtaken(work: Any, job: Job, tasks: Sequence[SegmentTask]) -> list[Outcome]:
        assert carry_out(event, other).status == "landed"
        return in_process.on_each(work, job, tasks)

    assert run(event.table, found.plan, overtaken).status == "stale"
    event.check()


def test_a_rebuild_that_the_same_attempt_overtakes_has_landed(world: World) -> None:
    spread(world)
    world.land()
    plan = plan_rebuild(world.table, ["2026-02-02"])
    write_plan(world.table, plan)

    @Acting
    def twin(work: Any, job: Job, tasks: Sequence[SegmentTask]) -> list[Outcome]:
        assert run(world.table, plan, in_process).status == "landed"
        return in_process.on_each(work, job, tasks)

    assert run(world.table, plan, twin).status == "landed"
    world.check()


def test_other_code_that_moves_rows_is_refused_without_a_loss_and_extends_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.raw.segment([batch(0, [Record(i, T0 + i * DAY // 2) for i in range(4)])])
    with monkeypatch.context() as patch:
        patch.setattr(LocalDates, "_offset", lambda *_: 12 * HOUR)  # a bug, which is mended thereafter
        world.land()
    before = dates_of(world)
    found = planned_here(world, "2026-02-03", extend=False)
    assert found.moves is None  # the settings are the same, so nobody looked
    with pytest.raises(ContinuityError, match=r"rebuild.py --extend"):
        run(world.table, found.plan, in_process)
    assert dates_of(world) == before
    found = planned_here(world, "2026-02-03")
    assert found.plan.dates == ("2026-02-02", "2026-02-03", "2026-02-04")
    carry_out(world, found)
    assert dates_of(world) != before
    assert compared(world).differences == ()


def test_a_parser_bug_is_fixed_by_backfill_while_ingestion_goes_on(tmp_path: Path) -> None:
    buggy = World(tmp_path, function_parser("sizes"))
    values = (b"a", b"", b"abc", b"abcd")
    for segment in range(3):
        buggy.raw.segment([batch(4 * segment, records(*values, at=[T0 + segment * DAY] * 4))])
    buggy.land()
    fixed = changed(buggy, function_parser("all_sizes"))
    found = planned_here(fixed, "2026-02-02", "2026-02-03", extend=False)
    write_plan(fixed.table, found.plan)

    @Acting
    def meanwhile(work: Any, job: Job, tasks: Sequence[SegmentTask]) -> list[Outcome]:
        buggy.raw.segment([batch(12, records(*values, at=[T0 + DAY] * 4))])
        assert buggy.land().rows == 2
        outcomes = in_process.on_each(work, job, tasks)
        fixed.raw.segment([batch(16, records(*values, at=[T0] * 4))])
        assert fixed.land().rows == 4
        return outcomes

    assert run(fixed.table, found.plan, meanwhile).rows == 8
    fixed.check()
    sizes = {0: 1, 1: 0, 2: 3, 3: 4}
    assert column(fixed, "size") == {
        **{4 * segment + i: size for segment in (0, 1, 4) for i, size in sizes.items()},
        8: 1,
        11: 4,
        12: 1,
        15: 4,  # landed by the buggy one: another date, and the same one after the plan
    }
    assert [(one.dt, one.kind, one.only_after) for one in compared(fixed, DAYS[2]).differences] == [
        ("2026-02-03", "filtered", 0),
        ("2026-02-03", "landed", 2),
        ("2026-02-03", "quarantined", 0),
    ]
    carry_out(fixed, Rebuild(plan_rebuild(fixed.table, None), None))
    assert column(fixed, "size") == {4 * segment + i: size for segment in range(5) for i, size in sizes.items()}
    assert compared(fixed).differences == ()


def test_a_backfill_by_the_same_code_gives_the_bytes_of_the_first_landing(world: World) -> None:
    spread(world)
    world.land()
    world.raw.segment([transactional(22, 7, 2), marker(24, 7, commit=True), simple(25)])
    world.land()
    before = world.rows()
    assert rebuild(world, *DAYS).rows == 39
    assert world.rows() == before
    carry_out(world, Rebuild(plan_rebuild(world.table, None), None))
    assert world.rows() == before
    assert compared(world).differences == ()
    plain = World(world.topics_file.parent / "plain")  # without what no rebuild converts, which files would be cut at
    for segment in range(3):
        plain.raw.segment([batch(9 * segment, [Record(i, T0 + i % 2 * DAY, b"%d" % i) for i in range(9)])])
    plain.land()
    first = bodies_of(plain)
    carry_out(plain, Rebuild(plan_rebuild(plain.table, None), None))
    assert len(first) == 2
    assert bodies_of(plain) == first


def test_a_final_date_stays_final_and_one_that_a_rebuild_makes_is_open(tmp_path: Path) -> None:
    plain = World(tmp_path, PLAIN)
    events(plain, [0, 1])
    plain.land()
    final = plain.ledger.dates[DAYS[1]].model_copy(update={"state": "final"})
    ledger = plain.ledger.model_copy(update={"dates": {DAYS[1]: final}})
    plain.table.store.put(plain.table.keys.ledger(ledger.n, ledger.attempt), ledger.to_bytes())
    event = changed(plain, EVENT)
    carry_out(event, planned_here(event, DAYS[1]))
    found = {dt: (one.state, one.rows, one.late_rows) for dt, one in event.ledger.dates.items()}
    assert found == {DAYS[1]: ("final", 1, 0), DAYS[2]: ("open", 1, 0)}


def test_the_command_line_shows_compares_and_rebuilds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = World(tmp_path, PLAIN)
    events(plain, [0, 1], [0, 0], [0])
    plain.land()
    event = changed(plain, EVENT)
    stored = objects(event)

    def said(*options: str) -> tuple[int, str, str]:
        code = run_job("rebuild", ["--topics", str(event.topics_file), "--topic", "orders", *options], Inline())
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    days = ["--from", DAYS[1], "--to", DAYS[1]]
    code, _, error = said(*days, "--dry-run")
    assert (code, "--from 2026-02-02 --to 2026-02-02 --extend" in error) == (2, True)
    code, out, _ = said(*days, "--extend", "--dry-run")
    shown = json.loads(out.splitlines()[-1])
    assert (code, [one["dt"] for one in shown["dates"]], shown["added"]) == (0, [DAYS[1], DAYS[2]], [DAYS[2]])
    assert (shown["segments"], len(shown["removes"]), shown["tasks"]) == (2, 2, 1)
    assert f"dt={DAYS[1]} (open): 2 rows, 0 quarantined, 0 filtered, in 1 files of " in out
    assert "2 landed with other settings; 1 records afterwards" in out
    assert "offsets 0 to 3, " in out
    code, out, _ = said(*days, "--extend", "--compare")
    assert (code, [one["only_before"] for one in json.loads(out.splitlines()[-1])["differences"]]) == (1, [1, 0])
    assert said("--from", DAYS[3], "--to", DAYS[3], "--compare")[0] == 0
    assert objects(event) == stored
    for wrong in (["--compare"], ["--extend"], ["--all", *days], []):
        assert said(*wrong)[0] == 2
    code, out, _ = said(*days, "--extend")
    assert (code, json.loads(out)["rows"]) == (0, 4)
    event.check()
    code, out, _ = said("--all", "--dry-run")
    assert [one["dt"] for one in json.loads(out.splitlines()[-1])["dates"]] == [DAYS[1], DAYS[2], DAYS[3]]
    code, out, _ = said("--all")
    assert (code, json.loads(out)["rows"]) == (0, 5)
    event.table.store.delete(key_of(event, file_of(event, DAYS[1])))
    assert said("--all", "--compare")[0] == 2  # trouble is no difference


@pytest.mark.parametrize("way", ["rebuild", "extend", "replay"])
def test_batches_that_a_mended_decoder_can_read_land(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    world = World(tmp_path)
    hopeless = with_records(simple(6), b"\xff" * 40)
    world.raw.segment([simple(0), batch(3, [Record(0), Record(1, T0 + DAY), Record(2, -1)]), hopeless, simple(9)])
    world.raw.segment([simple(0)], 1)

    with monkeypatch.context() as patch:
        patch.setattr("tidemark.decode.decode_batches", failing)
        world.land()
    assert world.offsets() == [0, 1, 2, 9, 10, 11]
    assert refused(world).keys() == {3, 6}
    if way == "rebuild":
        found = Rebuild(plan_rebuild(world.table, None), None)
        told = {(one.dt, one.kind): one.only_after for one in compared(world).differences}
        assert told == {("", "quarantined"): 1, (DAYS[1], "landed"): 1, (DAYS[2], "landed"): 1}
    elif way == "extend":
        found = planned_here(world, DAYS[1])
        assert found.plan.dates == ("", DAYS[1], DAYS[2])
    else:
        found = Rebuild(plan_replay(world.table), None)
    assert carry_out(world, found).status == "landed"
    assert world.offsets() == [0, 1, 2, 3, 4, 9, 10, 11]
    assert dates_of(world)[4] == DAYS[2]
    assert refused(world).keys() == {5, 6}
    assert compared(world).differences == ()


def test_a_rebuild_leaves_as_few_files_as_ingest(tmp_path: Path) -> None:
    """The rows of a date do not lie side by side in small segments: between them are other dates and markers."""
    world = World(tmp_path)
    at = 0
    for _ in range(6):
        days = [Record(i, T0 + (i % 3) * DAY) for i in range(6)]
        world.raw.segment([batch(at, days), transactional(at + 6, 7, 2), marker(at + 8, 7, commit=True)])
        at += 9
    world.land()
    before, there = world.rows(), Counter(one.dt for one in live_files(DeltaTable(world.table.url)))
    assert set(there.values()) == {1}
    plan = plan_rebuild(world.table, ["2026-02-03"])
    write_plan(world.table, plan)
    assert run(world.table, plan, in_process).files == 1
    world.check()
    assert world.rows() == before
    assert Counter(one.dt for one in live_files(DeltaTable(world.table.url))) == there
