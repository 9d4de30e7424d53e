"""Airflow's own processes and Spark at work: time from a watermark to its commit, cost of a run, and its leftovers.

There is one topic with small segments written by hand, and the stores are on the local disk: orchestration is measured.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from bench.data import HOME
from bench.measure import MB, Row
from tests.spark.world import World
from tests.support.airflow import AirflowStack, import_early
from tests.support.paths import ROOT, env_python
from tests.support.pipeline import pipeline_env
from tests.support.process import ManagedProcess
from tests.support.spark import ConnectServer
from tests.support.waiting import wait_until
from tests.tidemark.kafka_log.build import simple

SCAN_SECONDS: Final = 2.0
ROUNDS: Final = {"spark": 6, "spark_connect": 12}
"""Measured runs for each type of connection, after a warm-up run; and as many runs of a topic at rest."""

RUNS: Final = 2 * sum(ROUNDS.values()) + len(ROUNDS)

REST_SECONDS: Final = 5.0
"""More than ``tidemark_airflow.triggers.watermark.HOLD`` and the handover of a trigger together."""

DAG: Final = "tidemark_ingest__east__orders"
TOKEN: Final = "token-that-nobody-may-find"  # noqa: S105 # opens nothing; the bench checks that it is found nowhere
SECRET: Final = "secret-that-nobody-may-find"  # noqa: S105 # likewise


class LandingTimes(NamedTuple):
    """Seconds from a watermark to the task that converts, and to the commit."""

    starts: float
    committed: float


class Used(NamedTuple):
    """CPU seconds, bytes of the metadata database's used pages, and bytes of logs."""

    cpu: float
    database: int
    logs: int


def measure() -> list[Row]:
    """Figures of spark-submit, then of Spark Connect, on one stack."""
    folder = HOME / "stack"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "world").mkdir(parents=True)
    world = World(folder / "world", "batch: {age: 0s}")
    env = pipeline_env(world.topics_file, folder / "spark-conf", scan_seconds=SCAN_SECONDS)
    del env["AIRFLOW_CONN_SPARK_DEFAULT"]  # stored in the metadata database instead, to be changed between the two
    env["AWS_SECRET_ACCESS_KEY"] = SECRET
    import_early(folder / "airflow")
    rows: list[Row] = []
    with (
        ConnectServer(folder) as server,
        AirflowStack(
            folder / "airflow", dags=ROOT / "dags", plugins=ROOT / "plugins", env=env, unpaused=[DAG]
        ) as stack,
    ):
        began = time.monotonic()
        # DAGs first: while Airflow writes them, SQLite may refuse other writers for longer than they wait.
        wait_until(lambda: _waits(stack), what="the first run to wait", interval=0.5)
        stack.client.post("/connections", _connection("spark", "local[2]"))
        for kind, rounds in ROUNDS.items():
            if kind == "spark_connect":
                # On localhost a token needs no TLS.
                body = _connection(kind, "localhost", port=server.port, password=TOKEN)
                stack.client.patch("/connections/spark_default", body)
            rows += _way(kind, rounds, world, stack, server)
        minutes = (time.monotonic() - began) / 60
        note = f"proportional set size after {minutes:.0f} minutes and {RUNS} runs"
        for process in (*stack.processes, server.process):
            rows.append(Row("orchestration", f"memory: {process.name}", "MB", (_memory(process) / MB,), note))
        rows += _cleaned(stack, world)
        _check_secrets(folder / "airflow")
    return rows


def _way(kind: str, rounds: int, world: World, stack: AirflowStack, server: ConnectServer) -> Iterator[Row]:
    _land(world, stack)
    before = _used(stack, server)
    landings = [_land(world, stack) for _ in range(rounds)]
    used = _used(stack, server)
    rested = [_land(world, stack, rested=True) for _ in range(rounds)]
    way = {"spark": "spark-submit", "spark_connect": "Spark Connect"}[kind]
    aim = {"spark": 30, "spark_connect": 8}[kind]
    note = f"{rounds} runs one after the other, a scan every {SCAN_SECONDS:.0f} s, 2 cores for all of it"

    def row(name: str, unit: str, *values: float, note: str = "") -> Row:
        return Row("orchestration", f"{way}: {name}", unit, values, note)

    yield row("watermark to the converting task", "s", *(landing.starts for landing in landings), note=note)
    yield row("watermark to commit", "s", *(landing.committed for landing in landings), note=note)
    note = f"{rounds} runs, each {REST_SECONDS:.0f} s and up to a scan more after the topic's next run waits"
    yield row("of a topic at rest: to the converting task", "s", *(landing.starts for landing in rested), note=note)
    yield row(f"of a topic at rest: to commit (aim {aim})", "s", *(landing.committed for landing in rested), note=note)
    each = (used.cpu - before.cpu) / rounds
    yield row("CPU of a run", "s", each, note="all of Airflow's processes, and Spark")
    yield row("runs a minute that 2 cores sustain", "", 120 / each, note="computed from that CPU; a DAG for each topic")
    database = (used.database - before.database) / rounds
    yield row("metadata database, a run", "KB", database / 1e3)
    logs = (used.logs - before.logs) / rounds
    yield row("logs, a run", "KB", logs / 1e3)
    note = "100 topics, a run every 5 minutes each"
    yield row("metadata database and logs, a day", "MB", (database + logs) * 28_800 / MB, note=note)


def _land(world: World, stack: AirflowStack, *, rested: bool = False) -> LandingTimes:
    """Store one more segment, and wait until its rows are committed.

    With ``rested``, it comes at a random time between two scans, when the trigger no longer holds back its event.
    """
    if rested:
        time.sleep(REST_SECONDS + random.uniform(0, SCAN_SECONDS))  # noqa: S311
    n = world.ledger.n
    world.raw.segment([simple(world.raw.partition().end)])
    world.raw.publish()
    published, clock = datetime.now(UTC), time.monotonic()
    wait_until(lambda: world.ledger.n > n, what="the commit", interval=0.1)
    committed = time.monotonic() - clock
    started: list[datetime] = []

    def has_ended() -> bool:
        newest = stack.client.get(f"/dags/{DAG}/dagRuns", order_by="-run_after", limit=2)["dag_runs"]
        for run in newest:
            for task in _tasks(stack, run):
                at = task["start_date"] and datetime.fromisoformat(task["start_date"])
                if task["task_id"] == "convert_and_publish" and task["state"] == "success" and at and at > published:
                    started.append(at)
                    return True
        return False

    wait_until(has_ended, what="the run to end", interval=0.5)
    # The next run then waits in its sensor, so that each round starts from rest.
    wait_until(lambda: _waits(stack), what="the next run to wait", interval=0.5)
    landing = LandingTimes((started[0] - published).total_seconds(), committed)
    sys.stderr.write(f"{landing}\n")
    return landing


def _waits(stack: AirflowStack) -> bool:
    newest = stack.client.get(f"/dags/{DAG}/dagRuns", order_by="-run_after", limit=1)["dag_runs"]
    states = [(task["task_id"], task["state"]) for run in newest for task in _tasks(stack, run)]
    return ("wait_and_plan", "deferred") in states


def _tasks(stack: AirflowStack, run: dict[str, Any]) -> list[dict[str, Any]]:
    return stack.client.task_instances(DAG, run["dag_run_id"])


def _connection(kind: str, host: str, **more: object) -> dict[str, object]:
    return {"connection_id": "spark_default", "conn_type": kind, "host": host, **more}


def _tree(process: ManagedProcess) -> list[psutil.Process]:
    """The process with its descendants."""
    root = psutil.Process(process.pid)
    return [root, *root.children(recursive=True)]


def _memory(process: ManagedProcess) -> float:
    return sum(_if_alive(member, lambda alive: float(alive.memory_full_info().pss)) for member in _tree(process))


def _cpu(process: psutil.Process) -> float:
    """CPU seconds of the process and of its ended children."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _if_alive(process: psutil.Process, measure: Callable[[psutil.Process], float]) -> float:
    """``measure`` of the process, or 0 once it has ended."""
    try:
        return measure(process)
    except psutil.NoSuchProcess:
        return 0.0


def _used(stack: AirflowStack, server: ConnectServer) -> Used:
    processes = (*stack.processes, server.process)
    seconds = sum(_if_alive(member, _cpu) for process in processes for member in _tree(process))
    logs = sum(path.stat().st_size for path in (stack.home / "logs").rglob("*.log"))
    return Used(seconds, _pages(stack.home), logs)


@contextmanager
def _database(home: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(f"file:{home / 'airflow.db'}?mode=ro", uri=True)
    try:
        yield connection
    finally:
        connection.close()


def _pages(home: Path) -> int:
    """Bytes of the used pages, whether or not they are still in the write-ahead log."""
    with _database(home) as connection:
        count, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return int((count - free) * size)


def _cleaned(stack: AirflowStack, world: World) -> Iterator[Row]:
    """Run the deployed clean-up over the whole past; the topic's next run then lands as before."""
    before, cutoff = _pages(stack.home), datetime.now(UTC)
    began = time.monotonic()
    env = {**stack.env, "PATH": f"{env_python('airflow').parent}:{stack.env['PATH']}"}
    log = stack.home / "clean.log"
    command: list[str | Path] = [ROOT / "deploy" / "airflow-clean.sh", cutoff.isoformat(timespec="seconds")]
    with ManagedProcess("clean", command, log=log, env=env, cwd=stack.home) as cleaning:
        if (code := cleaning.wait(300)) != 0:
            raise RuntimeError(f"the clean-up ended with {code}\n{cleaning.log_tail()}")
    seconds = time.monotonic() - began
    after = _pages(stack.home)
    landing = _land(world, stack)
    note = f"of {RUNS} runs; the next one landed in {landing.committed:.1f} s"
    yield Row("orchestration", "clean-up: time", "s", (seconds,), note)
    yield Row("orchestration", "clean-up: metadata database before", "MB", (before / MB,))
    yield Row("orchestration", "clean-up: metadata database after", "MB", (after / MB,))


def _check_secrets(home: Path) -> None:
    """Fail if the store's secret or the server's token is in the metadata database, in a log or in another file."""
    for path in (file for file in home.rglob("*") if file.is_file()):
        body = path.read_bytes()
        if found := [secret for secret in (TOKEN, SECRET) if secret.encode() in body]:
            raise RuntimeError(f"{path} has {', '.join(found)}")
