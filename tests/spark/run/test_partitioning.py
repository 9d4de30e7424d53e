"""Tables with partitions beside ``dt``: after any jobs, each row lies in the folder that its record says, and once."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.spark.audit.test_audit import audited
from tests.spark.compaction.test_compaction import delta_rows
from tests.spark.convert.test_parsers import json_parser
from tests.spark.inline import Inline
from tests.spark.live.live_world import LiveWorld
from tests.spark.mirror.catalogs import duck_rows, iceberg, listed
from tests.spark.rebuild.rebuilds import changed, compared
from tests.spark.retention.test_table import drop
from tests.spark.run.test_repair import repair
from tests.spark.run.test_runs import rebuild
from tests.spark.run.test_truncation import cut_at_six, epochs
from tests.spark.test_vacuum import OLDER, age_all
from tests.spark.world import World, in_process
from tests.tidemark.kafka_log.build import T0, Record, batch, simple
from tidemark.errors import ConfigError
from tidemark.formats.table.partitioning import NULL, folder_name, partition_values
from tidemark.planning import plan_compaction, plan_rebuild, plan_replay, write_plan
from tidemark.table.delta_table import live_files
from tidemark_spark.audit.worker import landed_rows
from tidemark_spark.cli import land_live
from tidemark_spark.convert import date_partitioner
from tidemark_spark.convert.partition_columns import hours_of
from tidemark_spark.run.driver import run
from tidemark_spark.run.vacuum import vacuum

ZONE = ZoneInfo("Europe/Vienna")
HOUR = 3_600_000
CHANGES = (datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2025, 10, 26, 1, tzinfo=UTC))
"""When the clocks of Vienna skip 02:00, and when they repeat it."""

ODD = "50% /Côte d'Ivoire=[*?]"
LISTED = ("AT", ODD, "01")
COUNTRY = json_parser("{name: country, type: string}", "{name: test, type: boolean}", "{name: day, type: date}")
BY_COUNTRY = f"{{column: country, values: {json.dumps(LISTED)}}}"
KINDS = {
    "hour": "[dt, hour]",
    "country": f"[dt, {BY_COUNTRY}]",
    "both": f"[dt, hour, {BY_COUNTRY}]",
    "types": "[dt, test, {column: day, values: [2026-01-01, 2026-01-02]}]",
}
SHARED = ("time_zone: Europe/Vienna", COUNTRY)


def settings(kind: str, *more: str) -> tuple[str, ...]:
    return (f"partition_by: {KINDS.get(kind, kind)}", *SHARED, *more)


class Sent(NamedTuple):
    """What a record says of its row; ``time`` is in milliseconds."""

    time: int
    country: str | None
    test: bool | None
    day: str | None

    @property
    def local(self) -> datetime:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self.time)).astimezone(ZONE)

    @property
    def dt(self) -> str:
        return self.local.date().isoformat()

    def folder(self, names: list[str]) -> dict[str, str | None]:
        """The values of the partition columns ``names``."""
        test = None if self.test is None else str(self.test).lower()
        values = {"dt": self.dt, "hour": str(self.local.hour), "country": self.country, "test": test, "day": self.day}
        return {name: values[name] for name in names}

    def record(self, delta: int) -> Record:
        fields = {"country": self.country, "test": self.test, "day": self.day}
        return Record(delta, self.time, b"k", json.dumps({k: v for k, v in fields.items() if v is not None}).encode())


@dataclass
class Oracle:
    """What was sent, by partition in the order of offsets, and which rows the table must have."""

    world: World
    rng: random.Random
    names: list[str]
    listed: set[str | None]
    sent: dict[int, list[Sent]] = field(default_factory=dict)

    def send(self) -> None:
        for partition in self.rng.sample((0, 1), self.rng.randint(1, 2)):
            before = self.sent.setdefault(partition, [])
            fresh = [self._record() for _ in range(self.rng.randint(1, 40))]
            self.world.raw.segment([batch(len(before), [one.record(i) for i, one in enumerate(fresh)])], partition)
            before += fresh

    def _record(self) -> Sent:
        change = round(self.rng.choice(CHANGES).timestamp() * 1000)
        time = change + self.rng.randrange(-26 * HOUR, 26 * HOUR) if self.rng.random() < 0.5 else change
        time += self.rng.choice((-HOUR, -1, 0, 1, HOUR - 1, HOUR))
        country = self.rng.choice((*LISTED, None, "XX", NULL, ""))
        days = ("2026-01-01", "2026-01-02", None)
        return Sent(time, country, self.rng.choice((True, False, None)), self.rng.choice(days))

    def check(self) -> None:
        """The rows of the table, the values of their folders, and what Delta's readers are told."""
        self.world.check()
        by_country = "country" in self.names
        wanted = {
            (partition, offset): one
            for partition, all_sent in self.sent.items()
            for offset, one in enumerate(all_sent)
            if not by_country or one.country in self.listed
        }
        delta = DeltaTable(self.world.table.url)
        assert delta.metadata().partition_columns == self.names
        found: set[tuple[int, int]] = set()
        for file in live_files(delta):
            values = partition_values(file.path)
            for row in self.world.read(file.path).to_pylist():
                at = row["kafka_partition"], row["kafka_offset"]
                assert wanted[at].folder(self.names) == values, (at, file.path)
                assert row["dt"].isoformat() == wanted[at].dt
                found.add(at)
        assert found == set(wanted)
        for row in delta_rows(self.world):
            one = wanted[row["kafka_partition"], row["kafka_offset"]]
            assert row["country"] == one.country
            assert row.get("hour", one.local.hour) == one.local.hour
        assert audited(self.world).findings == ()


def carried_out(world: World, plan: Any) -> None:
    write_plan(world.table, plan)
    assert run(world.table, plan, in_process).status == ("empty" if plan.empty else "landed")


def steps(oracle: Oracle, rng: random.Random) -> Iterator[str]:
    """Jobs in a random order."""
    while True:
        world = oracle.world
        step = rng.choice(("land", "land", "compact", "rebuild", "whole", "delete", "replay"))
        dates = [dt for dt, state in world.ledger.dates.items() if state.rows]
        if step == "land" or not dates:
            oracle.send()
            world.land()
        elif step == "compact":
            carried_out(world, plan_compaction(world.table, files=2))
        elif step == "rebuild":
            rebuild(world, rng.choice(dates))
        elif step == "whole":
            carried_out(world, plan_rebuild(world.table, None))
        elif step == "delete":
            DeltaTable(world.table.url).delete(f"kafka_offset >= {rng.randrange(40)}")
            assert repair(world).status in {"landed", "empty"}
        else:
            plan = plan_replay(world.table)
            write_plan(world.table, plan)
            assert run(world.table, plan, in_process).rows == 0
        yield step


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
def test_random_jobs_leave_each_row_in_its_folder(kind: str, tmp_path: Path, rng: random.Random, full: bool) -> None:
    world = World(tmp_path, *settings(kind))
    names = [one.column for one in world.table.topic.partition_by]
    oracle = Oracle(world, rng, names, {*LISTED, None})
    for number, _ in zip(range(40 if full else 3), steps(oracle, rng), strict=False):
        oracle.check()
        if number % 3 == 2:
            listed(world)
            _check_iceberg(world, names)
    age_all(world, OLDER)
    vacuum(world.table)
    oracle.check()
    if kind in {"country", "both"}:  # a value that is listed now: what was refused for it lands
        wider = KINDS[kind].replace('["AT"', '["XX", "AT"')
        oracle.world, oracle.listed = changed(world, f"partition_by: {wider}", *SHARED), {*LISTED, None, "XX"}
        plan = plan_replay(oracle.world.table)
        write_plan(oracle.world.table, plan)
        run(oracle.world.table, plan, in_process)
        oracle.check()


def _check_iceberg(world: World, names: list[str]) -> None:
    """The catalog's partitions are those of the folders, and DuckDB and pyiceberg find rows by them."""
    table = iceberg(world)
    assert [one.name for one in table.spec().fields] == names
    rows = delta_rows(world)
    assert len(duck_rows(world)) == len(rows)
    by_path = {one["file_path"].rpartition("/")[2]: one["partition"] for one in table.inspect.files().to_pylist()}
    for file in live_files(DeltaTable(world.table.url)):
        partition = by_path[file.path.rpartition("/")[2]]
        texts = {
            name: None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in partition.items()
        }
        assert texts == partition_values(file.path)
    if "country" in names:
        wanted = [row for row in rows if row["country"] == ODD]
        quoted = ODD.replace("'", "''")
        scan = table.scan(row_filter=f"country = '{quoted}'")
        assert scan.to_arrow().num_rows == len(wanted)
        read = {task.file.file_path.rpartition("/")[2] for task in scan.plan_files()}
        assert read == {name for name, partition in by_path.items() if partition["country"] == ODD}


def test_both_hours_of_an_autumn_night_have_the_same_folder(tmp_path: Path) -> None:
    world = World(tmp_path, *settings("hour"))
    change = round(CHANGES[1].timestamp() * 1000)
    world.raw.segment([batch(0, [Record(i, change + (i - 2) * HOUR, b"", b"{}") for i in range(4)])])
    assert world.land().files == 3
    assert [(row["dt"], row["hour"]) for row in world.rows()] == [("2025-10-26", one) for one in (1, 2, 2, 3)]


def test_live_landings_sort_rows_too(tmp_path: Path) -> None:
    live = LiveWorld(tmp_path, "orders", "clicks", more=["partition_by: [dt, hour]"])
    for one in live.topics.values():
        one.raw.segment([batch(0, [Record(i, T0 + i * HOUR) for i in range(3)])])
    live.due()
    assert land_live.main(["--topics", str(live.topics_file), "--cluster", "east"], Inline()) == 0
    assert live.statuses() == {"orders": "landed", "clicks": "landed"}
    for one in live.topics.values():
        one.check()
        found = live_files(DeltaTable(one.table.url))
        assert [partition_values(file.path)["hour"] for file in found] == ["2", "3", "4"]


def test_an_election_takes_rows_out_of_their_folders(tmp_path: Path) -> None:
    world = World(tmp_path, "partition_by: [dt, hour]")
    cut_at_six(world)
    world.land()
    assert epochs(world)[:6] == [3] * 6
    assert world.ledger.by_partition[0, 0].branch == 1
    assert {partition_values(one.path)["hour"] for one in live_files(DeltaTable(world.table.url))} == {"2"}
    assert audited(world).findings == ()


def test_retention_takes_all_folders_of_a_date(tmp_path: Path) -> None:
    world = World(tmp_path, "partition_by: [dt, hour]", "retention: {table: 30d, apply: true}")
    times = [T0 + hour * HOUR for hour in (0, 1, 2, 24 * 40)]
    world.raw.segment([batch(0, [Record(i, time) for i, time in enumerate(times)])])
    world.land()
    drop(world)
    assert [one.dt for one in live_files(DeltaTable(world.table.url))] == ["2026-03-14"]
    age_all(world, OLDER)
    assert len(vacuum(world.table).removed) == 3


@pytest.mark.parametrize("misfits", ["quarantine", "land"])
def test_a_value_that_is_not_listed_is_a_misfit(misfits: str, tmp_path: Path) -> None:
    parser = json_parser("{name: country, type: string}", more=f", misfits: {misfits}")
    world = World(tmp_path, f"partition_by: {KINDS['country']}", parser)
    world.raw.segment([batch(0, [Sent(T0, one, None, None).record(i) for i, one in enumerate(("AT", "XX"))])])
    result = world.land()
    if misfits == "land":
        assert [row["country"] for row in world.rows()] == ["AT", None]
        assert result.unknown == {"country": 1}
        folders = [partition_values(one.path) for one in live_files(DeltaTable(world.table.url))]
        assert [one["country"] for one in folders] == ["AT", None]
    else:
        [refused] = world.quarantine()
        assert refused["reason"] == "country: 'XX' is not one of the values that partition_by lists"
    assert audited(world).findings == ()


def test_rows_in_a_wrong_folder_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit compares the column with raw, and the folder with the column."""
    world = World(tmp_path, *settings("hour"))
    world.raw.segment([batch(0, [Record(0, T0, b"", b"{}")])])
    with monkeypatch.context() as patch:
        patch.setattr(date_partitioner, "hours_of", lambda local: hours_of(local) + 1)  # a bug
        world.land()
    [file] = live_files(DeltaTable(world.table.url))
    [found] = audited(world).findings
    assert (found.kind, found.detail) == ("columns_differ", "column hour has other values than raw gives")
    body = world.table.store.get(f"{world.table.keys.root}/{file.path}").body
    assert "hour=4" in file.path
    with pytest.raises(ValueError, match="it has rows with hour = 4, and lies in hour=3"):
        list(landed_rows(body, file.path.replace("hour=4", "hour=3")))


def test_a_comparison_tells_which_rows_change_their_hour(tmp_path: Path) -> None:
    world = World(tmp_path, *settings("hour"))
    world.raw.segment([batch(0, [Record(0, T0, b"", b"{}")])])
    world.land()
    assert compared(world).differences == ()
    other = changed(world, "partition_by: [dt, hour]", "time_zone: UTC", COUNTRY)
    [differing] = compared(other).differences
    assert differing.changed == {"hour": 1}


def test_a_table_cannot_be_partitioned_in_another_way(tmp_path: Path) -> None:
    world = World(tmp_path, *settings("hour"))
    world.raw.segment([simple(0)])
    world.raw.publish()
    plan = world.plan()
    run(world.table, plan, in_process)
    world.raw.segment([simple(3)])
    world.raw.publish()
    for other in ("[dt]", "[dt, hour, test]"):
        there = changed(world, *settings(other))
        with pytest.raises(ConfigError, match=r"partition_by: the table is partitioned by dt, hour, and not by dt"):
            run(there.table, there.plan(), in_process)
    assert world.ledger.n == 1


@pytest.mark.parametrize(
    ("by", "rule"),
    [
        ("[hour, dt]", "must begin with dt"),
        ("[dt, dt]", "must begin with dt"),
        ("[dt, hour, Hour]", "each column may be named once"),
        ("[dt, kafka_partition]", "must be dt, hour or a column of the parser"),
        ("[dt, {column: hour, values: [1]}]", "takes no values"),
        ("[dt, {column: country, values: [NO]}]", "write text in quotes"),
        ("[dt, {column: country, values: ['']}]", "read it as null"),
        ("[dt, {column: country, values: [AT, AT]}]", "listed once"),
        (f"[dt, hour, {{column: id, values: {list(range(41))}}}]", "up to 1008 partitions"),
    ],
)
def test_settings_that_no_table_can_have_are_refused(by: str, rule: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rule):
        World(tmp_path, f"partition_by: {by}")


@pytest.mark.parametrize(
    ("by", "rule"),
    [
        ("[dt, region]", "region: is not a column of the parser, which has: id, price, hour, at"),
        ("[dt, hour]", "the parser has a column hour; give that another name"),
        ("[dt, id]", "id: needs values"),
        ("[dt, price]", "price: is double; a partition column must be a string, an integer, a boolean or a date"),
        ("[dt, at]", "a partition column must be"),
        ("[dt, {column: id, values: ['01']}]", "'01' is not a value of int8: is written 1"),
        ("[dt, {column: id, values: [200]}]", "'200' is not a value of int8"),
        ("[dt, {column: id, values: [x]}]", "'x' is not a value of int8"),
    ],
)
def test_columns_that_make_no_folders_are_refused_by_name(by: str, rule: str, tmp_path: Path) -> None:
    columns = "{name: id, type: int8}", "{name: price, type: double}", "{name: hour, type: int32}"
    parser = json_parser(*columns, "{name: at, type: timestamp(ms)}")
    world = World(tmp_path, f"partition_by: {by}", parser)
    world.raw.segment([simple(0)])
    world.raw.publish()
    with pytest.raises(ConfigError, match=rule):
        run(world.table, world.plan(), in_process)


@pytest.mark.parametrize("text", ["null", "NULL", "nUlL"])
def test_the_text_null_is_no_null_to_duckdb(text: str, tmp_path: Path) -> None:
    """DuckDB 1.5.5 takes the plain folder for null."""
    folder = tmp_path / folder_name("country", text)
    folder.mkdir()
    pq.write_table(pa.table({"x": [1]}), folder / "0.parquet")
    query = f"SELECT country FROM read_parquet('{tmp_path}/*/*.parquet', hive_partitioning = true)"  # noqa: S608 - ours
    assert duckdb.connect().execute(query).fetchall() == [(text,)]
    assert partition_values(f"{folder.name}/0.parquet") == {"country": text}
