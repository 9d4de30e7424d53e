"""The view of state and newest records gives what a replay of all records gives, in each engine that runs here."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlglot
from deltalake import DeltaTable
from sqlglot.optimizer.qualify import qualify
from typer.testing import CliRunner

from tests.spark.jobs.programs import Programs
from tests.spark.state.replay import advance, replayed
from tests.spark.state.test_state import AVRO, ENVELOPE, JSON, avro, produce
from tests.spark.world import World
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.cli.app import app
from tidemark.errors import NotFound
from tidemark.table.state_table import StateTable
from tidemark.table.state_view import state_view


def tables(world: World) -> tuple[pa.Table, pa.Table]:
    """All rows of the topic's table, and those of the state table."""
    return DeltaTable(world.table.url).to_pyarrow_table(), DeltaTable(
        StateTable.open(world.table).url
    ).to_pyarrow_table()


def seen(world: World, query: str) -> list[dict[str, Any]]:
    """The rows of ``query`` in DuckDB."""
    connection = duckdb.connect()
    for name, table in zip(("records", "now"), tables(world), strict=True):
        connection.register(name, table)
    rows: list[dict[str, Any]] = connection.execute(query).to_arrow_table().to_pylist()
    return rows


def printed(world: World, engine: str, *more: str) -> str:
    """The command's output."""
    done = CliRunner().invoke(
        app, ["state", "sql", "orders", "--engine", engine, "--topics", str(world.topics_file), *more]
    )
    assert done.exit_code == 0, done.output
    return done.output


NAMES = ("--table", "records", "--state", "now")


def test_the_view_is_a_replay_to_the_newest_commit(tmp_path: Path, rng: random.Random) -> None:
    """Printed anew or not, before and after runs of the state. Keys stay in their partition, as Kafka's do."""
    world = World(tmp_path, "state: {}")
    first = ""
    for turn in range(5):
        for partition in (0, 1):
            records = [
                Record(
                    delta,
                    T0 + rng.randrange(1000),
                    b"%d-%d" % (partition, rng.randrange(9)),
                    rng.choice((b"a", b"b", None)),
                )
                for delta in range(8)
            ]
            world.raw.segment([batch(world.raw.partition(partition).end, records)], partition)
        world.land()
        if turn in {0, 3}:
            advance(world)
        query = printed(world, "duckdb", *NAMES)
        first = first or query
        wanted = {key: row["kafka_value"] for key, row in replayed(world.rows()).items()}
        for text in (query, first):
            rows = seen(world, text)
            assert {row["kafka_key"]: row["kafka_value"] for row in rows} == wanted
            assert len(rows) == len(wanted)


def test_a_moved_key_shows_the_newest_of_its_records(tmp_path: Path) -> None:
    world = World(tmp_path, "state: {}")
    world.raw.segment([batch(0, [Record(0, T0 + 9, b"k", b"old"), Record(1, T0, b"gone", b"old")])])
    world.land()
    advance(world)
    world.raw.segment([batch(0, [Record(0, T0 + 5, b"k", b"older"), Record(1, T0 + 1, b"gone", None)])], 1)
    world.land()
    assert [(row["kafka_key"], row["kafka_value"]) for row in seen(world, printed(world, "duckdb", *NAMES))] == [
        (b"k", b"old")
    ]


def customers(root: Path, parser: str) -> World:
    """Changes of Debezium's: some in the state, others since."""
    (root / "envelope.avsc").write_text(json.dumps(ENVELOPE))
    world = World(root, "state: {envelope: debezium}", parser)

    def changes(*rows: tuple[bytes, str, str | None]) -> None:
        changed = [(key, {"op": op, "after": name and {"id": 1, "name": name}}) for key, op, name in rows]
        encoded = [avro(change) if parser == AVRO else json.dumps(change).encode() for _, change in changed]
        records = [Record(delta, T0, key, encoded[delta]) for delta, (key, _) in enumerate(changed)]
        world.raw.segment([batch(world.raw.partition().end, records)])
        world.land()

    changes((b"1", "c", "Ada"), (b"2", "c", "Bob"), (b"3", "c", "Eve"))
    advance(world)
    changes((b"1", "u", "Ada L."), (b"2", "d", None), (b"9", "m", None), (b"4", "c", "Dan"))
    return world


CUSTOMERS = {b"1": "Ada L.", b"3": "Eve", b"4": "Dan"}


@pytest.mark.parametrize("parser", [JSON, AVRO])
def test_the_view_of_debeziums_envelope(tmp_path: Path, parser: str) -> None:
    world = customers(tmp_path, parser)
    rows = seen(world, printed(world, "duckdb", *NAMES))
    assert {row["kafka_key"]: row["name"] for row in rows} == CUSTOMERS


def resolved(world: World, engine: str) -> str:
    """The view of an engine that does not run here, after its names were looked up by the engine's own rules."""
    text = printed(world, engine, *NAMES)
    stored = str.upper if engine == "snowflake" else str  # it reads a name without quotes in capitals, as columns have
    schema: dict[str, object] = {
        stored(table): {stored(name): "text" for name in rows.schema.names}
        for table, rows in zip(("records", "now"), tables(world), strict=True)
    }
    qualify(sqlglot.parse_one(text, dialect=engine), schema=schema, dialect=engine)
    return text


@pytest.mark.parametrize("engine", ["trino", "snowflake"])
def test_the_view_in_the_sql_of_an_engine_that_does_not_run_here(tmp_path: Path, engine: str) -> None:
    """Its words are that engine's, and translated for DuckDB they give the same rows."""
    world = customers(tmp_path, JSON)
    [query] = sqlglot.transpile(resolved(world, engine), read=engine, write="duckdb")
    rows = [{name.lower(): value for name, value in row.items()} for row in seen(world, query)]
    assert {row["kafka_key"]: row["name"] for row in rows} == CUSTOMERS


@pytest.mark.parametrize("engine", ["trino", "snowflake"])
def test_fields_and_frames_in_the_sql_of_an_engine_that_does_not_run_here(
    tmp_path: Path, rng: random.Random, engine: str
) -> None:
    """DuckDB has no such functions of bytes, and other fields: they are parsed."""
    field = {"trino": '"after"."name" AS "name"', "snowflake": '"AFTER":"name" AS "NAME"'}[engine]
    assert field in resolved(customers(tmp_path, AVRO), engine)
    framed = World(tmp_path / "framed", "state: {framing: confluent}")
    produce(framed, rng)
    framed.land()
    advance(framed)
    assert "substr(newer." in resolved(framed, engine)


@pytest.mark.essential
def test_the_view_on_spark(tmp_path: Path, rng: random.Random, on_spark: Programs) -> None:
    world = World(tmp_path, "state: {}")
    produce(world, rng)
    world.land()
    advance(world)
    produce(world, rng)
    world.land()
    (tmp_path / "query.sql").write_text(printed(world, "spark", *NAMES))
    for name, rows in zip(("records", "now"), tables(world), strict=True):
        pq.write_table(rows, tmp_path / f"{name}.parquet")
    views = [f"{name}={tmp_path}/{name}.parquet" for name in ("records", "now")]
    done = on_spark.run("tests.spark.state.spark_query", [f"{tmp_path}/query.sql", *views])
    assert done.code == 0, done.errors[-3000:]
    wanted = sorted([key.hex(), row["kafka_value"].hex()] for key, row in replayed(world.rows()).items())
    assert json.loads(done.output.splitlines()[-1]) == wanted


def test_engines_get_addresses_or_names(tmp_path: Path, rng: random.Random) -> None:
    world = World(tmp_path, "state: {}")
    with pytest.raises(NotFound, match="has no commit yet"):
        state_view(StateTable.open(world.table), "duckdb")
    produce(world, rng)
    world.land()
    advance(world)
    url = world.table.url
    assert f"FROM delta_scan('{url}')" in printed(world, "duckdb")
    assert f"FROM delta.`{url}_current` kept" in printed(world, "spark")
    assert "FROM orders_current kept" in printed(world, "trino")
    assert "FROM orders\n" in printed(world, "snowflake")
