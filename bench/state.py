"""State tables: runs over many keys of which few have changed, and queries of the view that is fresher than the state.

The tasks run one after the other in one process of their own, without Spark, on local directories: the rates are of a
core, with the work of the driver, and the memory is that of a worker.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

import duckdb
import yaml
from confluent_kafka import Producer
from deltalake import DeltaTable

from bench.convert import Pooled
from bench.data import BATCH, HOME, upload
from bench.measure import MB, Row, Usage
from tests.support.kafka import KafkaCluster
from tests.support.paths import cache_dir
from tidemark.planning import plan_ingest, write_plan
from tidemark.table.delta_table import TopicTable, open_topic_table
from tidemark.table.state_table import StateTable
from tidemark.table.state_view import state_view
from tidemark.topics import load_topics
from tidemark_spark.run.driver import run
from tidemark_spark.state.run import StateResult, run_state

_PARTITIONS: Final = 4
_DELETED: Final = 0.1
"""The share of changes that delete their key."""
_ROUNDS: Final = 3
_NOON: Final = 1_795_608_000_000
_COLUMNS: Final = {
    "id": "int64",
    "name": "string",
    "mail": "string",
    "country": "string",
    "balance": "double",
    "visits": "int32",
    "active": "boolean",
    "seen": "timestamp(ms)",
}
_BEYOND: Final = "beyond what it has loaded"
_SUMS: Final = "SELECT country, count(*), sum(visits) FROM ({}) GROUP BY ALL ORDER BY ALL"
_REPLAY: Final = """
SELECT * FROM records WHERE kafka_key IS NOT NULL QUALIFY row_number() OVER (
  PARTITION BY kafka_key ORDER BY kafka_incarnation DESC, kafka_timestamp DESC, kafka_partition DESC, kafka_offset DESC
) = 1 AND kafka_value IS NOT NULL
"""


class History(NamedTuple):
    """A topic: ``keys`` with ``versions`` records each, then stages of changes of ``changed`` random keys."""

    keys: int
    versions: int
    changed: int
    stages: int

    @property
    def name(self) -> str:
        """The topic's name."""
        return f"state-{self.keys}-{self.versions}-{self.changed}"

    def numbers(self, stage: int) -> Iterator[int]:
        """The keys of the records of a stage; the first has all versions."""
        if stage:
            rng = random.Random(stage)  # noqa: S311 - the data must be repeatable
            yield from (rng.randrange(self.keys) for _ in range(self.changed))
        else:
            for _ in range(self.versions):
                yield from range(self.keys)


def measure(keys: int) -> list[Row]:
    """The figures: runs over a topic of many ``keys``, queries of one with many versions of a tenth of them."""
    with _worker() as worker:
        many_keys, many_versions = History(keys, 1, keys // 100, _ROUNDS), History(keys // 10, 6, keys // 1000, 1)
        return _runs(worker, many_keys) + _queries(worker, many_versions)


class _Worker(Pooled):
    """A process that carries out all tasks of a state."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        super().__init__(pool)
        self._loaded = pool.submit(_memory, "VmRSS").result()

    def land(self, history: History, stage: int) -> TopicTable:
        """The topic's table, with all stages to ``stage`` landed."""
        table = _table(history, stage)
        while not (plan := plan_ingest(table)).empty:
            write_plan(table, plan)
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:  # whose memory is not the state's
                run(table, plan, Pooled(pool), first=True)
        return table

    def advance(self, table: TopicTable) -> tuple[StateResult, Usage]:
        """A run of the state, with its cost in this process and the worker; sampling both would cost as much again."""
        cpu, started = self._cpu(), time.perf_counter()
        result = run_state(StateTable.open(table), self)
        return result, Usage(time.perf_counter() - started, self._cpu() - cpu, 0)

    def _cpu(self) -> float:
        return time.process_time() + self.pool.submit(time.process_time).result()

    def peak(self) -> float:
        """The largest memory of the process beyond what it had loaded when it began, in MB."""
        return (self.pool.submit(_memory, "VmHWM").result() - self._loaded) / MB


@contextmanager
def _worker() -> Iterator[_Worker]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield _Worker(pool)


def _memory(name: str) -> int:
    """Memory of this process by a line of its status; the kernel's ru_maxrss would count its parent's, too."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) << 10


def _runs(worker: _Worker, history: History) -> list[Row]:
    table = worker.land(history, 0)
    result, usage = worker.advance(table)
    note = f"{result.rows:,} keys, {result.leaves} leaves"
    rows = [Row("state", "from all rows", "million rows/CPU-s", (result.rows / 1e6 / usage.cpu,), note)]
    rows.append(Row("state", "from all rows: peak memory of a worker", "MB", (worker.peak(),), _BEYOND))
    rates: list[float] = []
    peaks: list[float] = []
    idle: list[float] = []
    for stage in range(1, history.stages + 1):
        table = worker.land(history, stage)
        with _worker() as fresh:
            result, usage = fresh.advance(table)
            peaks.append(fresh.peak())
        rates.append(result.rows / 1e6 / usage.cpu)
        nothing, waited = worker.advance(table)
        if (result.kind, nothing.status) != ("merge", "empty"):
            raise RuntimeError(f"{table.url}: {result}, {nothing}")
        idle.append(waited.wall)
    changed = f"{result.changed:,} keys changed, {result.leaves} leaves"
    return [
        *rows,
        Row("state", "1 % of the keys changed", "million rows of the state/CPU-s", tuple(rates), changed),
        Row("state", "1 % changed: peak memory of a worker", "MB", tuple(peaks), _BEYOND),
        Row("state", "nothing changed", "s", tuple(idle), "no commit"),
    ]


def _queries(worker: _Worker, history: History) -> list[Row]:
    """A sum over all keys by DuckDB: by the view, with a tail of 1 %, and by the topic's table alone."""
    worker.advance(worker.land(history, 0))
    table = worker.land(history, 1)
    state = StateTable.open(table)
    connection = duckdb.connect(config={"threads": 1})
    for name, url in (("records", table.url), ("now", state.url)):
        connection.execute(f"CREATE VIEW {name} AS FROM read_parquet({DeltaTable(url).file_uris()})")
    queries = {"the view": state_view(state, "duckdb", "records", "now"), "the topic's table": _REPLAY}
    found = [connection.execute(_SUMS.format(query)).fetchall() for query in queries.values()]
    if found[0] != found[1]:
        raise RuntimeError(f"{state.url}: the view gives other sums than the topic's table: {found}")
    note = f"{history.keys * history.versions:,} records of {history.keys:,} keys; 1 % changed since"
    return [
        Row("state", f"query of {name}", "CPU-s", tuple(_cpu(connection, query) for _ in range(_ROUNDS)), note)
        for name, query in queries.items()
    ]


def _cpu(connection: duckdb.DuckDBPyConnection, query: str) -> float:
    before = time.process_time()
    connection.execute(_SUMS.format(query)).fetchall()
    return time.process_time() - before


def _table(history: History, stage: int) -> TopicTable:
    """The topic's table over the raw store that has the stages to ``stage``."""
    columns = [{"name": name, "type": kind} for name, kind in _COLUMNS.items()]
    topic = {"topic": history.name, "state": {}, "parser": {"kind": "json", "columns": columns}}
    content = {
        "cluster": "bench",
        "raw": {"url": f"file://{_raw(history)}/{stage}"},
        "lake": f"file://{HOME}/state-lake",
        "topics": [topic],
    }
    path = HOME / f"{history.name}-{stage}.yaml"
    path.write_text(yaml.safe_dump(content))
    deployment = load_topics(path)
    return open_topic_table(deployment, deployment.topics[0])


def _raw(history: History) -> Path:
    """The raw stores of a topic, one for each stage, from the user's cache; produced first if they are missing."""
    folder = cache_dir() / "bench" / history.name
    if folder.exists():
        return folder
    making = folder.with_suffix(".making")
    shutil.rmtree(making, ignore_errors=True)
    with KafkaCluster(HOME / f"{history.name}-kafka", common={"log.roll.ms": str(10**12)}) as cluster:
        cluster.create_topic(history.name, partitions=_PARTITIONS, config={"segment.bytes": str(256 << 20)})
        for stage in range(history.stages + 1):
            _produce(cluster.bootstrap, history, stage)
            if stage:
                shutil.copytree(making / str(stage - 1), making / str(stage), copy_function=os.link)
            upload(cluster, f"file://{making}/{stage}", [history.name])
    making.rename(folder)
    return folder


def _produce(bootstrap: str, history: History, stage: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd", **BATCH})
    rng = random.Random(stage)  # noqa: S311 - the data must be repeatable
    pool = [_value(rng) for _ in range(10_000)]
    for sent, number in enumerate(history.numbers(stage)):
        if sent % 1000 == 0:
            while len(producer) > 50_000:
                producer.poll(0.05)
            producer.poll(0)
        deletes = stage and rng.random() < _DELETED
        value = None if deletes else b'{"id":%d,%s' % (number, rng.choice(pool))
        at = _NOON + stage * 1_000_000 + sent // 1000
        producer.produce(history.name, value, b"customer-%d" % number, number % _PARTITIONS, timestamp=at)
    if left := producer.flush(120):
        raise TimeoutError(f"{left} records of {history.name} were not acknowledged")


def _value(rng: random.Random) -> bytes:
    """A customer without the beginning, which has the number."""
    name = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=12))
    customer = {
        "name": name,
        "mail": f"{name}@example.org",
        "country": rng.choice(("AT", "CH", "DE", "FR", "IT")),
        "balance": round(rng.random() * 1000, 2),
        "visits": rng.randrange(1000),
        "active": rng.random() < 0.8,
        "seen": _NOON + rng.randrange(10**9),
    }
    return json.dumps(customer, separators=(",", ":")).encode()[1:]
