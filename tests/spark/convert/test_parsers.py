"""Parsers in the pipeline: columns in the table, refused rows, and what rebuilds and replays make of both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from tests.spark.inline import Inline
from tests.spark.world import World, in_process, never
from tests.tidemark.backfill.test_request import checked
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, simple, transactional, with_records
from tests.tidemark.parsers.test_avro import V1, V2, encoded, framed
from tidemark.backfill.preview import Preview
from tidemark.backfill.report import BackfillReport
from tidemark.backfill.report_tables import sections
from tidemark.errors import ConfigError, ContinuityError
from tidemark.formats.table.plan import RunPlan, RunResult
from tidemark.planning import plan_rebuild, plan_replay, write_plan
from tidemark.table.delta_table import open_delta
from tidemark_spark.jobs.running import run_job
from tidemark_spark.run import commit, delta_log
from tidemark_spark.run.driver import run

DAY = 86_400_000
ID = "{name: id, type: int64}"
NAME = "{name: name, type: string, path: user.name}"


def json_parser(*columns: str, more: str = "") -> str:
    return f"parser: {{kind: json, columns: [{', '.join(columns)}]{more}}}"


def function_parser(name: str) -> str:
    columns = "[{name: size, type: int32}]"
    return f"parser: {{kind: function, function: 'tests.spark.convert.parsing:{name}', columns: {columns}}}"


def records(*values: bytes | None, at: Sequence[int] = ()) -> list[Record]:
    """A record for each value, with these times or all with T0."""
    times = list(at) or [T0] * len(values)
    return [Record(i, times[i], b"k%d" % i, value, [("h", b"x")]) for i, value in enumerate(values)]


def again(world: World, plan: RunPlan) -> RunResult:
    """Carry out a rebuild or a replay, and check that all is exact."""
    write_plan(world.table, plan)
    result = run(world.table, plan, in_process)
    world.check()
    return result


def refused(world: World) -> dict[int, str]:
    """Reasons by offset, of the rows of quarantine that hold."""
    return {row["kafka_offset"]: row["reason"] for row in world.quarantine()}


def column(world: World, name: str) -> dict[int, Any]:
    return {row["kafka_offset"]: row[name] for row in world.rows()}


def test_parsed_columns_stand_beside_kafkas_and_bad_rows_in_quarantine(tmp_path: Path) -> None:
    world = World(tmp_path, json_parser(ID, NAME, "{name: tags, type: 'list<string>'}"))
    good = {"id": 1, "user": {"name": "Zoë"}, "tags": ["a", None]}
    world.raw.segment([batch(0, records(json.dumps(good).encode(), b"{", None, b'{"id":"x"}', b'{"id":5}'))])
    result = world.land()
    assert (result.rows, result.quarantined) == (3, 2)
    [first, tombstone, last] = world.rows()
    assert list(first)[-4:] == ["id", "name", "tags", "dt"]
    assert (first["id"], first["name"], first["tags"]) == (1, "Zoë", ["a", None])
    assert (tombstone["kafka_value"], tombstone["id"], last["id"]) == (None, None, 5)
    assert world.classes() == {"landed": 3, "quarantined": 2}
    [one, other] = sorted(world.quarantine(), key=lambda row: row["kafka_offset"])
    assert (one["kafka_value"], one["kafka_key"], one["kafka_headers"]) == (b"{", b"k1", [{"key": "h", "value": b"x"}])
    assert (one["parser"], one["timestamp_ms"]) == ("json/1", T0)
    assert (other["reason"], other["kafka_offset"]) == ("id: is text, not a whole number", 3)
    types = {field.name: str(field.type) for field in DeltaTable(world.table.url).schema().fields}
    assert types["id"] == 'PrimitiveType("long")'


def test_the_date_is_that_of_the_event_in_the_topics_time_zone(tmp_path: Path) -> None:
    event = json_parser("{name: at, type: int64}", more=", event_time: {field: at, unit: s}")
    world = World(tmp_path, "time_zone: Europe/Vienna", event)
    noon = round(datetime(2026, 2, 2, 12, tzinfo=UTC).timestamp())
    late = round(datetime(2026, 2, 2, 23, 30, tzinfo=UTC).timestamp())
    events = [noon, late, 5, 1 << 60, noon + 400 * 86_400, None, noon, noon, noon, 5]
    values = [json.dumps({"at": at}).encode() for at in events]
    times = [T0, T0, T0, T0, T0, T0 + DAY, -1, 1 << 62, 1_000, 1_000]
    world.raw.segment([batch(0, records(*values, at=times))])
    world.land()
    assert column(world, "dt") == {0: "2026-02-02", 1: "2026-02-03", 5: "2026-02-03", 6: "2026-02-02", 8: "2026-02-02"}
    assert refused(world) == {
        2: "its event time is before the earliest",
        3: "its event time is too far after the upload of its segment",
        4: "its event time is too far after the upload of its segment",
        7: "its timestamp is outside the years 1 to 9999, which an event time does not correct",
        9: "its event time is before the earliest",
    }
    dates = {row["dt"] and row["dt"].isoformat(): row["rows"] for row in world.holding() if row["class"] != "landed"}
    assert dates == {"2026-02-02": 3, None: 2}  # by the record's own time, where that is sane


def test_a_new_column_is_added_and_older_files_are_null_in_it(tmp_path: Path) -> None:
    before = World(tmp_path, json_parser(ID))
    before.raw.segment([batch(0, records(b'{"id":1}'))])
    before.land()
    world = World(tmp_path, json_parser(ID, NAME, "{name: money, type: 'decimal(9,2)'}"))
    world.raw = before.raw
    world.raw.segment([batch(1, records(b'{"id":2,"user":{"name":"a"},"money":1.5}'))])
    world.land()
    delta = DeltaTable(world.table.url)
    assert delta.version() == 3  # creation, a commit, the columns, and the data's
    expected = [(1, None), (2, "a")]
    assert (
        sorted(zip(*(delta.to_pyarrow_table().column(name).to_pylist() for name in ("id", "name")), strict=True))
        == expected
    )
    path = f"{tmp_path}/lake/orders/dt=*/*.parquet"
    found = duckdb.read_parquet(path, union_by_name=True).project("id, name").order("id").fetchall()
    assert found == expected
    world.raw.segment([batch(2, records(b'{"id":3}'))])
    world.land()
    assert DeltaTable(world.table.url).version() == 4


def test_a_lost_reply_to_a_new_column_and_a_rival_that_adds_it_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = World(tmp_path, json_parser(ID))
    before.raw.segment([batch(0, records(b'{"id":1}'))])
    before.land()
    world = World(tmp_path, json_parser(ID, NAME))
    world.raw = before.raw
    world.raw.segment([batch(1, records(b'{"id":2}'))])
    real, left = delta_log.add_columns, [2]

    def losing(lake: Any, table: Any, **_: Any) -> bool:
        rival = open_delta(lake)
        assert rival is not None
        if left[0] == 2:
            real(lake, rival)  # somebody else was quicker
        left[0] -= 1
        if left[0] >= 0:
            real(lake, table)
            raise OSError("planted: the reply was lost")
        return real(lake, table)

    monkeypatch.setattr(commit, "add_columns", losing)
    assert world.land().status == "landed"
    names = [field.name for field in DeltaTable(world.table.url).schema().fields]
    assert names.count("name") == 1


@pytest.mark.parametrize(
    ("parser", "message"),
    [
        (
            json_parser("{name: id, type: string}"),
            r"column id is long in the table, and string by the parser: .*another name",
        ),
        (json_parser(NAME), "the table has a column id, but the parser does not"),
        (json_parser("{name: iD, type: int64}"), "column iD: the table has id, which engines do not tell apart"),
        ("parser: {kind: bytes}", "the table has a column id, but the parser does not"),
    ],
)
def test_another_change_of_columns_is_refused_before_anything_is_written(
    tmp_path: Path, parser: str, message: str
) -> None:
    before = World(tmp_path, json_parser(ID))
    before.raw.segment([batch(0, records(b'{"id":1}'))])
    before.land()
    before.raw.segment([batch(1, records(b'{"id":2}'))])
    before.raw.publish()
    changed = World(tmp_path, parser)
    plan = changed.plan()
    files = {one.key for one in changed.table.store.list("")}

    with pytest.raises(ConfigError, match=message):
        run(changed.table, plan, never)
    told = changed.table.keys.deployment.unread("orders")
    assert {one.key for one in changed.table.store.list("")} - {told} == files
    assert before.land().rows == 1


def test_a_schema_that_evolves_in_the_midst_of_a_segment_is_read_into_the_tables(tmp_path: Path) -> None:
    (tmp_path / "ids").mkdir()
    (tmp_path / "orders.avsc").write_text(json.dumps(V2))
    for number, schema in ((1, V1), (2, V2)):
        (tmp_path / "ids" / f"{number}.avsc").write_text(json.dumps(schema))
    world = World(tmp_path, "parser: {kind: avro, schema: orders.avsc, framing: confluent, schemas: ids}")
    older = [framed(1, encoded(V1, {"a": number, "gone": "x"})) for number in range(3)]
    newer = [framed(2, encoded(V2, {"a": 1 << 40, "b": f"{number}"})) for number in range(3)]
    unknown = [framed(3, encoded(V2, {"a": 1, "b": None}))]
    # In the midst of a batch, of the batches of a segment, and back: an old producer goes on.
    world.raw.segment(
        [batch(0, records(*older, *newer)), batch(6, records(*newer), "zstd"), batch(9, records(*older, *unknown))]
    )
    assert (world.land().rows, set(refused(world))) == (12, {12})
    assert list(column(world, "a").values()) == [0, 1, 2, *[1 << 40] * 6, 0, 1, 2]
    assert list(column(world, "b").values()) == [None] * 3 + ["0", "1", "2"] * 2 + [None] * 3


def test_a_parser_may_leave_rows_out(tmp_path: Path) -> None:
    world = World(tmp_path, function_parser("sizes"))
    world.raw.segment([batch(0, records(b"a", b"", None, b"abc", b"", b"ab")), transactional(6, 7, 2)])
    world.raw.segment([marker(8, 7, commit=False)], aborted=[(7, 6, 8)])
    world.land()
    assert column(world, "size") == {0: 1, 2: None, 5: 2}
    assert world.classes() == {"landed": 3, "quarantined": 1, "filtered": 2, "aborted": 2, "transaction_marker": 1}


def test_a_rebuild_with_another_parser_gives_each_offset_its_new_class(tmp_path: Path) -> None:
    values = (b"a", b"", None, b"abc", b"", b"ab")
    times = [T0, T0, T0, T0, T0 + DAY, T0 + DAY]
    strict = World(tmp_path, function_parser("sizes"))
    strict.raw.segment([batch(0, records(*values, at=times))])
    strict.raw.segment([batch(6, records(b"abc", b"z", at=[T0 + DAY, T0 + DAY]))], 1, base=6)
    strict.raw.partition(1).start_offset = 6
    strict.land()
    first = strict.classes(), strict.rows()
    lenient = World(tmp_path, function_parser("all_sizes"))
    lenient.raw = strict.raw
    assert again(lenient, plan_rebuild(lenient.table, ["2026-02-02"])).rows == 4
    assert lenient.classes() == {"landed": 5, "filtered": 1}  # offset 4 is of the next date
    assert column(lenient, "size") == {0: 1, 1: 0, 2: None, 3: 3, 5: 2, 7: 1}
    again(lenient, plan_rebuild(lenient.table, ["2026-02-03"]))
    assert (lenient.classes(), lenient.classes(1)["landed"]) == ({"landed": 6}, 2)
    assert lenient.quarantine() == []
    again(strict, plan_rebuild(strict.table, ["2026-02-02", "2026-02-03"]))  # and back
    assert (strict.classes(), strict.rows()) == first
    assert refused(strict) == {3: "three bytes", 6: "three bytes"}


def test_a_date_of_refused_rows_alone_can_be_rebuilt(tmp_path: Path) -> None:
    world = World(tmp_path, function_parser("sizes"))
    world.raw.segment([batch(0, records(b"abc", b""))])
    assert world.land().rows == 0
    lenient = World(tmp_path, function_parser("all_sizes"))
    lenient.raw = world.raw
    assert again(lenient, plan_rebuild(lenient.table, ["2026-02-02"])).rows == 2
    again(world, plan_rebuild(world.table, ["2026-02-02"]))
    assert (world.rows(), world.classes()) == ([], {"quarantined": 1, "filtered": 1})


def test_a_rebuild_that_would_move_refused_rows_to_another_date_is_refused(tmp_path: Path) -> None:
    text = World(tmp_path, json_parser("{name: at, type: timestamp(ms)}", more=", event_time: {field: at}"))
    text.raw.segment([batch(0, records(*(b'{"at":%d}' % at for at in (T0, T0 + DAY, T0)), b'{"at":"x"}'))])
    text.land()
    world = World(tmp_path, json_parser("{name: at, type: timestamp(ms), path: none}"))
    world.raw = text.raw
    with pytest.raises(ContinuityError, match=r"rebuild.py --extend"):
        run(world.table, plan_rebuild(world.table, ["2026-02-02"]), in_process)
    assert again(world, plan_rebuild(world.table, ["2026-02-02", "2026-02-03"])).rows == 4
    assert set(column(world, "dt").values()) == {"2026-02-02"}


def replayable(tmp_path: Path) -> tuple[World, World]:
    """A table with refused rows of two dates and of none, and the world in which two of them pass."""
    world = World(tmp_path, json_parser(ID))
    values = (b'{"id":1}', b'{"id":2.0}', b"{", b'{"id":4.0}', b'{"id":5}', b'{"id":6}')
    times = [T0, T0, T0, T0 + DAY, T0, -1]
    lying = with_records(simple(8), b"\xff" * 40)
    world.raw.segment(
        [batch(0, records(*values, at=times)), batch(6, records(b'{"id":7.0}', b"x", at=[-1, 1 << 62])), lying]
    )
    world.land()
    assert refused(world).keys() == {1, 2, 3, 5, 6, 7, 8}
    mended = World(tmp_path, json_parser("{name: id, type: int64, path: none}"))
    mended.raw = world.raw
    return world, mended


def test_a_replay_lands_what_passes_now(tmp_path: Path) -> None:
    world, mended = replayable(tmp_path)
    before = world.rows()
    for key in world.raw.store.list(""):
        world.raw.store.delete(key.key)  # raw is not needed
    result = again(mended, plan_replay(mended.table))
    assert (result.status, result.rows, result.dates) == ("landed", 2, ("2026-02-02", "2026-02-03"))
    assert {row["kafka_offset"]: row["dt"] for row in mended.rows()} == {
        0: "2026-02-02",
        1: "2026-02-02",
        3: "2026-02-03",
        4: "2026-02-02",
    }
    assert [row for row in mended.rows() if row["kafka_offset"] in {0, 4}] == before
    assert mended.rows()[1]["kafka_headers"] == [{"key": "h", "value": b"x"}]
    held = {row["kafka_offset"]: row for row in mended.quarantine()}
    assert held.keys() == {2, 5, 6, 7, 8}
    assert (held[7]["timestamp_ms"], held[8]["next_offset"]) == (1 << 62, 11)
    assert mended.classes() == {"landed": 4, "quarantined": 7}
    assert plan_replay(mended.table, ["2026-02-03"]).empty
    assert again(mended, plan_replay(mended.table)).status == "empty"  # nothing more passes, and all stays as it is


def test_a_replay_leaves_a_time_that_microseconds_cannot_hold_as_it_is(tmp_path: Path) -> None:
    world = World(tmp_path)
    stamps = [-(2**63), 2**63 - 1]
    world.raw.segment([batch(2 * i, records(b"a", b"b", at=[stamp, stamp])) for i, stamp in enumerate(stamps)])
    world.land()
    before = world.quarantine()
    assert {row["timestamp_ms"] for row in before} == set(stamps)
    assert again(world, plan_replay(world.table, None)).status == "empty"
    assert world.quarantine() == before


def test_a_replay_of_one_date_and_of_rows_without_a_date(tmp_path: Path) -> None:
    _, mended = replayable(tmp_path)
    assert again(mended, plan_replay(mended.table, ["2026-02-03"])).dates == ("2026-02-03",)
    early = World(
        tmp_path, "sane_timestamps: {earliest: 1969-12-01}", json_parser("{name: id, type: int64, path: none}")
    )
    early.raw = mended.raw
    result = again(early, plan_replay(early.table, [""]))
    assert (result.rows, result.dates) == (2, ("1969-12-31",))
    assert refused(early).keys() == {1, 2, 7, 8}
    assert again(early, plan_rebuild(early.table, ["1969-12-31"])).rows == 2  # from raw, too, these are its rows


def test_of_a_replay_and_a_rebuild_of_the_same_rows_one_lands(tmp_path: Path) -> None:
    _, mended = replayable(tmp_path)
    plans = [
        plan_replay(mended.table),
        plan_replay(mended.table, ["2026-02-02"]),
        plan_rebuild(mended.table, ["2026-02-02"]),
    ]
    other = plan_replay(mended.table, ["2026-02-03"])
    assert [again(mended, plan).status for plan in [other, plans[1], plans[0], plans[2]]] == [
        "landed",
        "landed",
        "stale",
        "stale",
    ]
    assert again(mended, other).status == "landed"  # once, and that is told again


def test_an_ingest_beside_a_replay_keeps_its_own_refused_rows(tmp_path: Path) -> None:
    _, mended = replayable(tmp_path)
    plan = plan_replay(mended.table)
    mended.raw.segment([batch(11, records(b"x", b"{}"))])
    mended.land()
    assert again(mended, plan).status == "landed"
    assert refused(mended).keys() == {2, 5, 6, 7, 8, 11}


def test_late_rows_of_a_replay_reopen_their_date(tmp_path: Path) -> None:
    _, mended = replayable(tmp_path)
    again(mended, plan_replay(mended.table, ["2026-02-02"]))
    assert mended.ledger.kind == "replay"
    assert mended.ledger.superseded == {"2026-02-02": 2}
    assert mended.ledger.rows == 3


def test_the_command_line_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, mended = replayable(tmp_path)
    name = ["--topics", str(mended.topics_file), "--topic", "orders"]
    assert run_job("replay", [*name, "--dt", "yesterday"]) == 2
    assert "--dt: 'yesterday' is neither a date such as 2026-11-20, nor none\n" in capsys.readouterr().err
    assert run_job("replay", [*name, "--dt", "none", "--dry-run"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [one["dt"] for one in json.loads(last)["dates"]] == [""]
    shown = Preview.from_bytes(last.encode(), "the dry run")
    assert (sum(reason.records for reason in shown.reasons), shown.reasons_of) == (6, 1)
    assert all(any(one.reason in line for line in lines) for one in shown.reasons)
    assert "the record has no timestamp" in [one.reason for one in shown.reasons]
    [request] = checked(mode="replay")
    report = BackfillReport(request, shown, None, None, None, None)
    [table] = [part for part in sections(report) if part.title == "Why records were refused"]
    assert [row[0] for row in table.rows] == [str(one.records) for one in shown.reasons]
    assert run_job("replay", [*name, "--dt", "2026-02-03"], Inline()) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 1
    mended.check()


def test_two_runs_with_a_parser_give_the_same_bytes(tmp_path: Path) -> None:
    bodies = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        world, _ = replayable(tmp_path / name)
        folder = Path(world.table.url.removeprefix("file://")).parent
        files = sorted(folder.rglob("*.parquet"))
        wanted = [path for path in files if "_tidemark" not in path.parts and "quarantine" not in str(path)]
        bodies.append([path.read_bytes() for path in wanted])
    assert bodies[0] == bodies[1]
    assert len(bodies[0]) == 1
