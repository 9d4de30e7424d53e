"""State tables equal the tables of a real PostgreSQL, whose changes Debezium's own connector brings into Kafka."""

# ruff: noqa: S608 - queries are of this file's own names and random numbers
from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from kafka import KafkaConsumer, TopicPartition

from tests.end_to_end.deployment import SmallDeployment
from tests.spark.state.replay import LEAF
from tests.spark.world import in_process
from tests.support.connect import connect
from tests.support.kafka import KafkaCluster
from tests.support.postgres import Postgres, PostgresNotFound
from tests.support.process import ManagedProcess
from tests.support.s3 import S3Server
from tests.support.waiting import wait_until
from tidemark.table.delta_table import TopicTable
from tidemark.table.state_table import StateTable
from tidemark_spark.state.run import StateResult, run_state

TABLES = ("customers", "documents")
COLUMNS = ("id", "name", "amount", "at", "note")
DEFINITIONS = "id bigint PRIMARY KEY, name text, amount numeric(9,2), at timestamptz, note text"
TYPES = ("int64", "string", "decimal(9,2)", "timestamp(iso8601)", "string")
UNAVAILABLE = "__debezium_unavailable_value"
IDS = range(1, 16)


Rows = dict[int, tuple[Any, ...]]
"""Rows by ``id``."""


class Feed(NamedTuple):
    """A topic of Debezium: the source's table, and whether values carry their schema."""

    connector: str
    table: str
    schemas: bool


FEEDS = (Feed("bare", "customers", False), Feed("bare", "documents", False), Feed("wrapped", "customers", True))


class Source:
    """A PostgreSQL with two tables, and two connectors that capture them; ``mark`` is in the topics' names."""

    def __init__(self, postgres: Postgres, small: SmallDeployment, mark: str) -> None:
        self.postgres, self._small, self._mark = postgres, small, mark
        self._folder = small.folder / "connect"
        for table, identity in (("customers", "FULL"), ("documents", "DEFAULT")):
            postgres.execute(
                f"CREATE TABLE {table} ({DEFINITIONS})",
                f"ALTER TABLE {table} REPLICA IDENTITY {identity}",
                f"ALTER TABLE {table} ALTER note SET STORAGE EXTERNAL",  # out of line, uncompressed
            )

    def connectors(self, *, flushed: bool = True) -> ManagedProcess:
        """Kafka Connect with both connectors; unless ``flushed``, their positions are not stored until they stop."""
        converter = "org.apache.kafka.connect.json.JsonConverter"
        worker = {
            "key.converter": converter,
            "value.converter": converter,
            "offset.flush.interval.ms": "500" if flushed else "3600000",
        }
        properties = [
            {
                **self.postgres.connector,
                "name": name,
                "topic.prefix": f"{name}-{self._mark}",
                "slot.name": name,
                "publication.name": name,
                "publication.autocreate.mode": "filtered",
                "table.include.list": ",".join(f"public.{feed.table}" for feed in FEEDS if feed.connector == name),
                "decimal.handling.mode": "string",
                "tombstones.on.delete": str(not schemas).lower(),
                "key.converter.schemas.enable": str(schemas).lower(),
                "value.converter.schemas.enable": str(schemas).lower(),
                "key.converter": converter,
                "value.converter": converter,
            }
            for name, schemas in (("bare", False), ("wrapped", True))
        ]
        return connect("connect-debezium", self._folder, self._small.kafka.bootstrap, worker, properties)

    def forget_positions(self) -> None:
        """Delete the positions of the connectors, which then begin with a snapshot."""
        (self._folder / "offsets").unlink()

    def change(self, rng: random.Random, transactions: int = 12) -> None:
        """Random inserts, updates and deletions, in transactions of several."""
        for table in TABLES:
            there = {id_ for (id_,) in self.postgres.rows(f"SELECT id FROM {table}")}
            for _ in range(transactions):
                statements = [_change(table, there, rng) for _ in range(rng.randint(1, 4))]
                self.postgres.execute(*statements)

    def delete_and_insert(self, rng: random.Random) -> None:
        """Insert a key, delete it and insert it again in one transaction, for a new key and one that is there."""
        for table in TABLES:
            self.postgres.execute(f"DELETE FROM {table} WHERE id IN (100, 101)", _insert(table, 101, rng))
            for id_ in (100, 101):
                self.postgres.execute(
                    *([_insert(table, id_, rng)] if id_ == 100 else []),
                    f"DELETE FROM {table} WHERE id = {id_}",
                    _insert(table, id_, rng),
                )

    def await_stored(self) -> None:
        """Wait until Kafka has all changes until now, and the connectors have stored that."""
        active = "SELECT count(*) FROM pg_replication_slots WHERE active"  # from the end of a first snapshot on
        wait_until(lambda: self.postgres.rows(active) == [(2,)], what="both connectors to follow the log")
        [(end,)] = self.postgres.rows("SELECT pg_current_wal_lsn()")
        for _ in range(2):  # a connector confirms the transaction before its last one
            self.postgres.execute(*(f"UPDATE {table} SET name = name WHERE id = 0" for table in TABLES))
        behind = f"SELECT count(*) FROM pg_replication_slots WHERE confirmed_flush_lsn >= '{end}'"
        wait_until(lambda: self.postgres.rows(behind) == [(2,)], what="both connectors to confirm all changes")

    def rows(self, table: str) -> Rows:
        """The rows of a table by ``id``."""
        return {row[0]: row for row in self.postgres.rows(f"SELECT {', '.join(COLUMNS)} FROM {table}")}


def _insert(table: str, id_: int, rng: random.Random) -> str:
    note = "NULL" if rng.random() < 0.3 else f"'{rng.randbytes(rng.choice((5, 4000))).hex()}'"
    amount = rng.choice(("NULL", f"{rng.randrange(10**6) / 100}"))
    return f"INSERT INTO {table} VALUES ({id_}, 'n{rng.randrange(1000)}', {amount}, clock_timestamp(), {note})"


def _change(table: str, there: set[int], rng: random.Random) -> str:
    """A statement on one of IDS; ``there`` are those that have a row, before and after it."""
    id_ = rng.choice(IDS)
    if id_ not in there:
        there.add(id_)
        return _insert(table, id_, rng)
    if rng.random() < 0.4:
        there.remove(id_)
        return f"DELETE FROM {table} WHERE id = {id_}"
    return f"UPDATE {table} SET name = 'u{rng.randrange(1000)}', at = clock_timestamp() WHERE id = {id_}"


def topic_of(feed: Feed, mark: str) -> str:
    return f"{feed.connector}-{mark}.public.{feed.table}"


def settings_of(feed: Feed) -> dict[str, Any]:
    """The settings that docs/state.md names: a column ``op``, and columns of the fields of ``after``."""
    payload = "payload." if feed.schemas else ""
    columns = [{"name": "op", "type": "string", "path": f"{payload}op"}]
    columns += [
        {"name": name, "type": kind, "path": f"{payload}after.{name}"}
        for name, kind in zip(COLUMNS, TYPES, strict=True)
    ]
    table = f"{feed.connector}_{feed.table}"
    return {
        "table": table,
        "state": {"table": f"{table}_now", "envelope": "debezium"},
        "parser": {"kind": "json", "columns": columns},
    }


@pytest.fixture
def postgres(starts_other: None) -> Iterator[Postgres]:
    try:
        server = Postgres()
    except PostgresNotFound as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def small(kafka: KafkaCluster, s3_server: S3Server, tmp_path: Path, mark: str) -> SmallDeployment:
    """A deployment of the topics of FEEDS."""
    settings = {topic_of(feed, mark): settings_of(feed) for feed in FEEDS}
    for topic in settings:
        kafka.create_topic(topic, partitions=3)
    return SmallDeployment(tmp_path, kafka, s3_server, mark, tuple(settings), settings=settings)


def advance(small: SmallDeployment, topic: str) -> StateResult:
    """Land what is uploaded, and bring the state to it."""
    assert small.land(topic).status in {"landed", "empty"}
    return run_state(StateTable.open(small.table(topic)), in_process, leaf=LEAF)


def read(table: TopicTable, url: str, columns: Sequence[str]) -> pa.Table:
    """Columns of the Delta table at ``url``."""
    return DeltaTable(url, storage_options=table.delta_options).to_pyarrow_table(columns=list(columns))


def state_of(small: SmallDeployment, topic: str) -> Rows:
    """The rows of a state table by ``id``, each once."""
    table = small.table(topic)
    rows = read(table, StateTable.open(table).url, COLUMNS).to_pylist()
    found = {row["id"]: tuple(row[name] for name in COLUMNS) for row in rows}
    assert len(found) == len(rows)
    return found


def check(small: SmallDeployment, source: Source, mark: str, *, vanished: Mapping[str, Rows] = {}) -> None:
    """Each state equals its table in the source, and has the ``vanished`` rows, but for notes that are unavailable."""
    small.upload()
    for feed in FEEDS:
        advance(small, topic_of(feed, mark))
        found, wanted = state_of(small, topic_of(feed, mark)), source.rows(feed.table)
        wanted |= vanished.get(feed.table, {})
        if feed.table == "documents":  # its replica identity does not tell values out of line that stay
            unknown = {id_ for id_, row in found.items() if row[-1] == UNAVAILABLE}
            wanted = {id_: (*row[:-1], UNAVAILABLE) if id_ in unknown else row for id_, row in wanted.items()}
        assert found == wanted, feed


def events(small: SmallDeployment, topic: str) -> list[tuple[str, int]]:
    """The operation and the position in the source's log of each of Debezium's events, as they were landed."""
    table = small.table(topic)
    values = read(table, table.url, ["kafka_value"])["kafka_value"].to_pylist()
    told = [json.loads(value) for value in values if value is not None]
    return [(event["op"], event["source"]["lsn"]) for event in (change.get("payload", change) for change in told)]


def sent(small: SmallDeployment) -> Counter[str]:
    """Records that each topic has."""
    consumer = KafkaConsumer(bootstrap_servers=small.kafka.bootstrap)
    try:
        ends = consumer.end_offsets([TopicPartition(topic, number) for topic in small.topics for number in range(3)])
    finally:
        consumer.close()
    counted: Counter[str] = Counter()
    for partition, end in ends.items():
        counted[partition.topic] += end
    return counted


@pytest.mark.full
def test_states_equal_the_tables_of_a_postgres(
    postgres: Postgres, small: SmallDeployment, mark: str, rng: random.Random
) -> None:
    source = Source(postgres, small, mark)
    for table in TABLES:
        postgres.execute(f"INSERT INTO {table} VALUES (0, 'zero', 0, now(), '{rng.randbytes(4000).hex()}')")
    source.change(rng)
    with source.connectors():
        source.change(rng)
        source.delete_and_insert(rng)
        source.await_stored()
    check(small, source, mark)

    before = sent(small)
    with source.connectors(flushed=False) as process:
        source.change(rng)
        process.wait_until(lambda: len(sent(small) - before) == len(FEEDS), what="to send changes of each table")
        process.kill()
    with source.connectors():
        source.change(rng)
        source.await_stored()
    check(small, source, mark)
    for topic in small.topics:
        repeated = Counter(event for event in events(small, topic) if event[0] != "r")
        assert max(repeated.values()) > 1, f"{topic}: nothing was sent again"

    snapshot = Counter(op for op, _ in events(small, small.topics[0]))["r"]
    source.forget_positions()
    vanished = {table: {101: source.rows(table)[101]} for table in TABLES}
    for table in TABLES:  # no connector sees these two
        postgres.execute(f"UPDATE {table} SET name = 'unseen' WHERE id = 0", f"DELETE FROM {table} WHERE id = 101")
    with source.connectors():
        source.await_stored()
        source.change(rng)
        source.await_stored()
    check(small, source, mark, vanished=vanished)
    again = Counter(op for op, _ in events(small, small.topics[0]))["r"]
    assert again > snapshot > 0, "a second snapshot"
    assert state_of(small, small.topics[0])[0][1] == "unseen"
    assert any(row[-1] == UNAVAILABLE for row in state_of(small, small.topics[1]).values())
