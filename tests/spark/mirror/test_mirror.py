"""What catalogs list after every kind of commit: the rows of the Delta log, each once, as several readers see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.table import Table

from tests.spark.compaction.test_compaction import merge, piecemeal
from tests.spark.convert.test_parsers import again, column, function_parser, json_parser, records, replayable
from tests.spark.inline import Inline
from tests.spark.mirror.catalogs import (
    NAME,
    delta_rows,
    duck_rows,
    iceberg,
    listed,
    mirrored,
    reader,
    settings_of,
    sql_catalog,
)
from tests.spark.rebuild.rebuilds import changed
from tests.spark.retention.test_table import drop, made
from tests.spark.run.test_truncation import cut_at_six, elect, ten
from tests.spark.run.test_widening import VALUES
from tests.spark.world import World
from tests.tidemark.kafka_log.build import T0, batch, simple
from tidemark.errors import MirrorError, TableTampered
from tidemark.planning import plan_rebuild, plan_replay
from tidemark.table.delta_table import open_delta
from tidemark_spark.jobs.running import run_job
from tidemark_spark.mirror.listed_table import ListedTable
from tidemark_spark.mirror.mirror import KEPT, KEPT_SNAPSHOTS, check_mirror, mirror
from tidemark_spark.run.delta_log import add_columns

DAY = 86_400_000
pytestmark = [pytest.mark.usefixtures("kind"), pytest.mark.sampled(1)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def operations(world: World) -> list[str]:
    return [str(one.summary.operation.value) for one in iceberg(world).snapshots() if one.summary]


def versions(world: World) -> list[int]:
    """The versions that the snapshots list, in order."""
    found = [one.summary["tidemark.delta-version"] for one in iceberg(world).snapshots() if one.summary]
    return [int(str(one)) for one in found]


def test_nothing_is_listed_before_anything_has_landed(world: World) -> None:
    assert listed(world) is None
    assert not mirrored(world).load()


def test_each_commit_becomes_a_snapshot_that_names_it(world: World) -> None:
    piecemeal(world, 1)
    first = listed(world)
    piecemeal_more(world)
    second = listed(world)
    assert first
    assert second
    assert first.identifier == "kafka.orders"
    assert (second.ledger_n, second.delta_version) == (world.ledger.n, DeltaTable(world.table.url).version())
    assert second.snapshot_id != first.snapshot_id
    assert operations(world) == ["append", "append"]
    snapshot = iceberg(world).current_snapshot()
    assert snapshot
    assert snapshot.summary
    assert snapshot.summary["tidemark.attempt"] == str(world.ledger.attempt)
    again_ = listed(world)
    assert again_
    assert again_.model_copy(update={"at": second.at}) == second, "nothing new, no snapshot"


NAMES = (
    *("http.method", "a.b.c", ".x", "x.", "a..b", "größe", "日本", "😀", "1st", "a-b", "a:b", "a'b", 'a"b', "a`b"),
    *("a/b", "a\\\\b", "a%b", "a<b>", "a[b]", "a#b", "$path", "UPPER", "select", "element", "_file", "_pos", "x" * 255),
)


def named(*names: str) -> str:
    return json_parser(*(f'{{name: "{name}", type: string, path: [v{at}]}}' for at, name in enumerate(names)))


def test_columns_of_any_name_are_listed(tmp_path: Path) -> None:
    """From the first commit on, and if they are added later."""
    names = [name.replace('"', '\\"') for name in NAMES]
    world = World(tmp_path)
    raw = world.raw
    for count in (2, len(names)):
        world = World(tmp_path, named(*names[:count]))
        world.raw = raw
        world.raw.segment([batch(world.raw.partition().end, records(b'{"v0":"x","v1":"y","v9":"z"}'))])
        world.land()
        listed(world)
    [old, new] = delta_rows(world)
    assert (old["http.method"], new["http.method"]) == ("x", "x")
    found = iceberg(world).scan().to_arrow().column_names
    assert [name for name in found if name != "dt" and not name.startswith("kafka_")] == [
        name.replace("\\\\", "\\") for name in NAMES
    ]


def piecemeal_more(world: World) -> None:
    world.raw.segment([batch(6, records(b"a", b"b", at=[T0, T0 + 3 * DAY]))])
    world.land()


def test_commits_that_were_missed_follow_in_order(world: World) -> None:
    piecemeal(world, 1)
    listed(world)
    for base in (6, 8, 10):
        world.raw.segment([batch(base, records(b"a", b"b"))])
        world.land()
    listed(world)
    first, *others = versions(world)
    assert others == [first + 1, first + 2, first + 3]


def test_a_table_with_a_history_is_listed_as_it_is(world: World) -> None:
    piecemeal(world)
    listed(world)
    assert len(versions(world)) == 1


def test_a_mirror_that_lags_behind_the_log_lists_the_difference(tmp_path: Path) -> None:
    world = World(tmp_path)
    piecemeal(world, 2)
    listed(world)
    merge(world)
    piecemeal_at(world, 12)
    for entry in (tmp_path / "lake/orders/_delta_log").glob("*.json"):
        if int(entry.stem) == versions(world)[0] + 1:
            DeltaTable(world.table.url).create_checkpoint()
            entry.unlink()
    listed(world)
    assert len(versions(world)) == 2


def piecemeal_at(world: World, base: int) -> None:
    world.raw.segment([batch(base, records(b"x"))])
    world.land()


def test_a_compaction_replaces_files_and_no_row_changes(tmp_path: Path) -> None:
    world = World(tmp_path)
    piecemeal(world)
    listed(world)
    before = delta_rows(world)
    merge(world)
    listed(world)
    assert delta_rows(world) == before
    assert operations(world) == ["append", "overwrite"]


def test_a_rebuild_replaces_dates(tmp_path: Path) -> None:
    world = World(tmp_path, function_parser("sizes"))
    world.raw.segment([batch(0, records(b"four", b"four", b"bad", at=[T0, T0 + DAY, T0]))])
    world.land()
    listed(world)
    assert again(world, plan_rebuild(world.table, ["2026-02-03"])).status == "landed"
    listed(world)
    assert operations(world) == ["append", "overwrite"]


def test_a_replay_adds_rows(tmp_path: Path) -> None:
    world, mended = replayable(tmp_path)
    listed(world)
    assert again(mended, plan_replay(mended.table)).rows == 2
    listed(mended)


def test_retention_removes_dates(tmp_path: Path) -> None:
    world = made(tmp_path)
    listed(world)
    drop(world)
    listed(world)
    assert "2026-02-02" not in {str(row["dt"]) for row in iceberg(world).scan().to_arrow().to_pylist()}


def test_an_election_takes_rows_away_and_brings_others(world: World) -> None:
    ten(world)
    listed(world)
    elect(world)
    world.land()
    listed(world)
    assert operations(world) == ["append", "overwrite"]


def test_elections_that_were_missed(world: World) -> None:
    cut_at_six(world)
    world.land()
    world.raw.segment([simple(14, leader_epoch=5)])
    world.land()
    listed(world)


def test_columns_that_come_later_have_their_ids_in_new_files(tmp_path: Path) -> None:
    world = World(tmp_path, json_parser("{name: id, type: int32}"))
    world.raw.segment([batch(0, records(b'{"id":1}', b'{"id":2,"tags":["x"]}'))])
    world.land()
    listed(world)
    more = ("{name: id, type: int32}", "{name: tags, type: 'list<string>'}", "{name: at, type: timestamp(ms)}")
    later = changed(world, json_parser(*more))
    later.raw.segment([batch(2, records(b'{"id":3,"tags":["y",null],"at":1}'))])
    later.land()
    listed(later)
    ids = {field.name: field.field_id for field in iceberg(later).schema().fields}
    assert ids == {name: number for name, number in later.ledger.field_ids.items() if "." not in name}
    assert {"dt": 1, **ids} == ids
    newest = next(path for path in DeltaTable(later.table.url).file_uris() if "_0_2_2_" in path)
    assert leaf_ids(newest) == later.ledger.field_ids, "columns, and what is within them"
    rows = duck_rows(later, "id, tags, dt::VARCHAR")
    assert [row[:2] for row in rows] == [(1, None), (2, None), (3, ["y", None])]


COLUMNS = ("{name: id, type: int32}", "{name: x, type: string}", "{name: y, type: double}")


def grown(tmp_path: Path) -> Iterator[World]:
    """A table that gets a column after another, with rows in between."""
    world = World(tmp_path, json_parser(*COLUMNS[:1]))
    for number in range(6):
        world = changed(world, json_parser(*COLUMNS[: number // 2 + 1]))
        world.raw.segment([batch(number, records(b'{"id":1,"x":"a","y":0.5}'))])
        world.land()
        yield world


def test_columns_that_were_missed_one_after_the_other(tmp_path: Path) -> None:
    for number, world in enumerate(grown(tmp_path)):
        if number in {0, 5}:
            listed(world)
    assert len(versions(world)) == 6


def test_a_table_that_had_got_columns_before(tmp_path: Path) -> None:
    *_, world = grown(tmp_path)
    listed(world)
    assert [field.name for field in iceberg(world).schema().fields if field.name != "dt"][-2:] == ["x", "y"]


def test_a_column_without_rows_yet_waits_for_the_next_commit(tmp_path: Path) -> None:
    world = World(tmp_path, json_parser(*COLUMNS[:1]))
    world.raw.segment([batch(0, records(b'{"id":1}'))])
    world.land()
    later = changed(world, json_parser(*COLUMNS[:2]))
    delta = open_delta(later.table)
    assert delta is not None
    assert add_columns(later.table, delta), "then the run dies"
    mirror(ListedTable(later.table), settings_of(later), mirrored(later))
    assert "x" not in iceberg(later).schema().column_names
    later.raw.segment([batch(1, records(b'{"id":2,"x":"b"}'))])
    later.land()
    listed(later)


def leaf_ids(path: str) -> dict[str, int]:
    """The id of each column of a file and of what is within, by path."""
    found: dict[str, int] = {}

    def walk(field: Any, path: str) -> None:
        found[path] = int(field.metadata[b"PARQUET:field_id"])
        kind = field.type
        if isinstance(kind, pa.ListType):
            walk(kind.value_field, f"{path}.element")
        elif isinstance(kind, pa.StructType):
            for one in kind:
                walk(one, f"{path}.{one.name}")

    for one in pq.read_schema(path.removeprefix("file://")):
        walk(one, one.name)
    return found


def test_wider_columns(tmp_path: Path, kind: str) -> None:
    narrow = json_parser("{name: id, type: int32}", "{name: x, type: float}", "{name: n, type: 'list<int32>'}")
    world = World(tmp_path, narrow)
    world.raw.segment([batch(0, records(b'{"id":1,"x":0.5,"n":[1]}', b'{"id":8589934592}', b"{"))])
    world.land()
    listed(world)
    wide = changed(world, narrow.replace("int32", "int64").replace("float", "double"))
    assert again(wide, plan_rebuild(wide.table, None)).status == "landed"
    if kind == "hive":  # as its servers are by default
        with pytest.raises(MirrorError, match=r"hive\.metastore\.disallow\.incompatible\.col\.type\.changes"):
            listed(wide)
        return
    listed(wide)
    assert column(wide, "id") == {0: 1, 1: 8589934592}


def test_a_type_that_iceberg_cannot_widen_is_told(tmp_path: Path) -> None:
    narrow = json_parser("{name: id, type: int32}", "{name: d, type: 'decimal(5,2)'}")
    world = World(tmp_path, narrow)
    world.raw.segment([batch(0, records(*VALUES))])
    world.land()
    listed(world)
    wide = changed(world, narrow.replace("5,2", "9,3"))
    assert again(wide, plan_rebuild(wide.table, None)).status == "landed"
    with pytest.raises(MirrorError, match=r"column d of kafka\.orders is decimal\(5, 2\), which Iceberg cannot make"):
        listed(wide)
    reader(settings_of(wide)).drop_table(NAME)
    listed(wide)


def test_every_type_and_null_is_read_alike(tmp_path: Path) -> None:
    kinds = ("boolean", "int8", "int16", "int32", "int64", "float", "double", "string", "binary", "date", "json")
    names = [f"{{name: c_{kind}, type: {kind}}}" for kind in kinds if kind != "binary"]
    names += ["{name: d9, type: 'decimal(9,2)'}", "{name: d38, type: 'decimal(38,6)'}"]
    names += ["{name: ll, type: 'list<list<int64>>'}", "{name: t, type: timestamp(iso8601)}"]
    world = World(tmp_path, json_parser(*names))
    full = (
        b'{"c_boolean":true,"c_int8":-3,"c_int16":300,"c_int32":1,"c_int64":2,"c_float":0.5,"c_double":1e300,'
        b'"c_string":"\xc3\xa9","c_date":"2026-01-02","c_json":{"a":[1]},"d9":1.25,"d38":12345678901234567890.5,'
        b'"ll":[[1,2],[],null],"t":"2026-01-01T00:00:00.000001Z"}'
    )
    world.raw.segment([batch(0, records(full, b"{}", b""))])
    world.land()
    listed(world)
    assert len(duck_rows(world)) == len(delta_rows(world))
    wanted = [(row["c_int8"], row["c_int16"], row["d9"], row["d38"], row["ll"]) for row in delta_rows(world)]
    assert duck_rows(world, "c_int8, c_int16, d9, d38, ll") == wanted


def test_readers_prune_by_date_and_by_offset(world: World) -> None:
    piecemeal(world)
    listed(world)
    table = iceberg(world)
    assert len(list(table.scan(row_filter="dt = '2026-02-03'").plan_files())) == 6
    assert len(list(table.scan(row_filter="kafka_partition = 1 and kafka_offset < 6").plan_files())) == 2
    assert table.scan(row_filter="kafka_timestamp > '2026-02-03T23:00:00+00:00'").to_arrow().num_rows == 0


def test_a_snapshot_of_somebody_else_is_replaced_by_what_the_table_has(world: World) -> None:
    piecemeal(world, 1)
    listed(world)
    table = iceberg(world)
    table.delete("dt = '2026-02-03'")
    assert len(iceberg(world).scan().to_arrow()) < len(delta_rows(world))
    listed(world)


def test_a_catalog_that_was_rolled_back_is_brought_up_to_date(world: World) -> None:
    piecemeal(world, 1)
    listed(world)
    before = iceberg(world).current_snapshot()
    piecemeal_more(world)
    listed(world)
    assert before is not None
    iceberg(world).manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    listed(world)


def test_a_table_of_the_same_name_that_is_somebody_elses_is_left_alone(world: World) -> None:
    piecemeal(world, 1)
    catalog = reader(settings_of(world))
    catalog.create_namespace("kafka")
    catalog.create_table("kafka.orders", pa.schema([("a", pa.int32())]))
    with pytest.raises(MirrorError, match="name another namespace"):
        listed(world)
    catalog.drop_table("kafka.orders")
    catalog.create_table("kafka.orders", pa.schema([("a", pa.int32())]), location=f"{world.table.url}/elsewhere")
    with pytest.raises(MirrorError, match="was not made by Tidemark"):
        listed(world)


def test_what_a_stranger_did_to_the_table_is_not_listed(world: World) -> None:
    piecemeal(world, 1)
    listed(world)
    before = iceberg(world).scan().to_arrow().num_rows
    DeltaTable(world.table.url).delete("kafka_partition = 1")
    with pytest.raises(TableTampered, match="another program"):
        listed(world)
    assert iceberg(world).scan().to_arrow().num_rows == before


def test_old_snapshots_are_forgotten_and_their_metadata_go(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        world.raw.segment([batch(2 * number, records(b"a", b"b"))])
        world.land()
        listed(world)
    for name, value in (("KEPT_SNAPSHOTS", 2), ("_SLACK", 1)):
        monkeypatch.setattr(f"tidemark_spark.mirror.mirror.{name}", value)
    assert KEPT_SNAPSHOTS > 2
    age(monkeypatch, world, hours=2)
    folder = tmp_path / "lake/orders/_iceberg/local"
    there = len(list(folder.iterdir()))
    listed(world)
    assert len(iceberg(world).snapshots()) == 3, "two, and the one that replaced what was forgotten"
    assert len(list(folder.iterdir())) > there, "what a reader may still need stays for two days"
    age(monkeypatch, world, hours=50)
    piecemeal_at(world, 8)
    listed(world)
    assert len(list(folder.iterdir())) < there + 6
    assert KEPT.days == 1


def age(monkeypatch: pytest.MonkeyPatch, world: World, hours: int) -> None:
    """Let the store's clock run ahead."""
    from datetime import timedelta

    store = world.table.store
    now = store.now()
    monkeypatch.setattr(type(store), "now", lambda _: now + timedelta(hours=hours))


def audited(world: World) -> list[tuple[str, str]]:
    """What an audit finds of the catalog."""
    settings = settings_of(world)
    return [(one.kind, one.detail) for one in check_mirror(world.table, settings, mirrored(world, settings))]


def test_an_audit_finds_what_a_catalog_lists_otherwise(world: World) -> None:
    piecemeal(world, 1)
    assert audited(world) == [], "not listed yet"
    listed(world)
    piecemeal_more(world)
    assert audited(world) == [], "behind, and right about the version that it lists"
    listed(world)
    table = iceberg(world)
    entry = next(one for one in table.scan().plan_files()).file
    summary = {name: value for name, value in summary_of(table).items() if name.startswith("tidemark.")}
    with (
        table.transaction() as transaction
    ):  # as a broken mirror would: a file is gone, and its snapshot says otherwise
        update = transaction.update_snapshot(snapshot_properties=summary)
        with update.overwrite() as snapshot:
            snapshot.delete_data_file(entry)
    [(kind, detail)] = audited(world)
    assert kind == "catalog_differs"
    assert "is not listed, and 0 more" in detail
    iceberg(world).delete("dt = '2026-02-03'")
    assert [detail for _, detail in audited(world)] == [
        "kafka.orders in catalog local: its current snapshot is not Tidemark's"
    ]


def summary_of(table: Table) -> dict[str, str]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return {name: str(value) for name, value in snapshot.summary.model_dump().items()}


def test_the_audit_command_tells_of_catalogs(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    piecemeal(world, 1)
    listed(world)
    text = world.topics_file.read_text()
    uri = f"sqlite:///{world.topics_file}/below/a/file.db"
    here, away = settings_of(world), sql_catalog(world.topics_file.parent, name="away", uri=uri)
    lines = [f"  - {one.model_dump_json(exclude_none=True, exclude={'keep'})}" for one in (here, away)]
    world.topics_file.write_text(text.replace("topics:", "\n".join(["catalogs:", *lines, "topics:"])))
    arguments = ["--topics", str(world.topics_file), "--topic", "orders"]
    assert run_job("audit", arguments, Inline()) == 0
    assert "orders: not compared with catalog away: catalog away: " in capsys.readouterr().err
    iceberg(world).delete("dt = '2026-02-03'")
    assert run_job("audit", arguments, Inline()) == 1
    assert "catalog_differs" in capsys.readouterr().out
