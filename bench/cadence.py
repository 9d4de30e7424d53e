"""How often many topics land on two cores by a DAG for each, and where the CPU time goes.

Each of some topics gets a small segment as soon as its last one has landed, so that they compete all the while: real
DAGs, tasks and jobs by Spark Connect, stores on the local disk. A cadence of five minutes allows five times as many
topics as there are landings a minute.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from bench.data import HOME
from bench.measure import Row
from bench.stack import connect_env, cpu, of_living, tree
from tests.spark.world import World
from tests.support.airflow import AirflowStack
from tests.support.paths import ROOT, env_python
from tests.support.pipeline import pipeline_env
from tests.support.process import ManagedProcess
from tests.support.raw_builder import RawBuilder
from tests.support.spark import ConnectServer
from tests.support.waiting import wait_until
from tests.tidemark.kafka_log.build import simple
from tidemark.planning import plan_ingest, write_plan
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark.topics import load_topics

TOPICS: Final = 10
SECONDS: Final = 100.0
SCAN_SECONDS: Final = 2.0


class Driven(NamedTuple):
    """A topic, its raw store and its table."""

    name: str
    raw: RawBuilder
    table: TopicTable

    @property
    def n(self) -> int:
        """The number of commits."""
        return committed_ledger(self.table).n

    def upload(self) -> None:
        """One more segment of three records."""
        self.raw.segment([simple(self.raw.partition().end)])
        self.raw.publish()


def measure() -> list[Row]:
    """Start everything, have all topics wait, and let them compete."""
    return [*_measured()]


def _measured() -> Iterator[Row]:
    folder = HOME / "cadence"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "world").mkdir(parents=True)
    world = World(folder / "world", "batch: {age: 0s}")
    topics = _topics(world)
    env = pipeline_env(world.topics_file, folder / "spark-conf", scan_seconds=SCAN_SECONDS)
    env["AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL"] = "30"  # Airflow's default
    dags = [f"tidemark_ingest__east__{one.name}" for one in topics]
    with ConnectServer(folder) as server:
        env |= connect_env(server)
        with AirflowStack(
            folder / "airflow",
            dags=ROOT / "dags",
            plugins=ROOT / "plugins",
            parallelism=8,
            env=env,
            unpaused=dags,
        ) as stack:
            wait_until(lambda: _waiting(stack) == len(dags), what="all to wait", interval=1)
            yield from _compete(topics, (*stack.processes, server.process))
        note = "which is in the scheduler's"
        yield Row("cadence", "CPU of a landing: the job's client", "s", (_client(world, server),), note)


def _topics(world: World) -> list[Driven]:
    names = ["orders", *(f"topic-{number}" for number in range(1, TOPICS))]
    with world.topics_file.open("a") as file:
        file.writelines(f"  - topic: {name}\n    batch: {{age: 0s}}\n" for name in names[1:])
    deployment = load_topics(world.topics_file)
    raws = [world.raw, *(RawBuilder(world.raw.store, topic=names[one], broker=one + 1) for one in range(1, TOPICS))]
    tables = [open_topic_table(deployment, deployment.topic(name)) for name in names]
    return [Driven(*one) for one in zip(names, raws, tables, strict=True)]


def _waiting(stack: AirflowStack) -> int:
    found = stack.client.get("/dags/~/dagRuns/~/taskInstances", state="deferred", limit=100)
    return len(found["task_instances"])


def _compete(topics: Sequence[Driven], processes: Sequence[ManagedProcess]) -> Iterator[Row]:
    before = {one.name: _cpu(one) for one in processes}
    began = time.monotonic()
    commits, waits = {one.name: one.n for one in topics}, dict.fromkeys((one.name for one in topics), began)
    for one in topics:
        one.upload()
    seconds: list[float] = []
    while (now := time.monotonic()) < began + SECONDS:
        for one in topics:
            if (n := one.n) > commits[one.name]:
                seconds.append(now - waits[one.name])
                commits[one.name], waits[one.name] = n, now
                one.upload()
        time.sleep(0.2)
    minutes = (time.monotonic() - began) / 60
    used = {one.name: _cpu(one) - before[one.name] for one in processes}
    landings = len(seconds)
    note = f"{TOPICS} topics that never rest, for {minutes * 60:.0f} s, by Spark Connect"

    def row(name: str, unit: str, *values: float) -> Row:
        return Row("cadence", name, unit, values, note)

    yield row("landings a minute", "", landings / minutes)
    yield row("topics at a cadence of 5 minutes, by that", "", 5 * landings / minutes)
    yield row("watermark to commit, median", "s", statistics.median(seconds))
    yield row("watermark to commit, longest", "s", max(seconds))
    for name, spent in used.items():
        what = f"{name}{', with tasks and jobs' if name == 'scheduler' else ''}"
        yield row(f"CPU of a landing: {what}", "s", spent / landings)
    yield row("CPU of a landing: all", "s", sum(used.values()) / landings)


def _client(world: World, server: ConnectServer) -> float:
    """CPU seconds of the process that a task starts for a job."""
    Driven("orders", world.raw, world.table).upload()
    plan = plan_ingest(world.table)
    write_plan(world.table, plan)
    command = [env_python("spark"), ROOT / "spark" / "jobs" / "ingest.py", "--topics", world.topics_file]
    before = os.times()
    subprocess.run(
        [*map(str, command), "--topic", "orders", "--attempt", str(plan.attempt), "--remote", server.url],
        check=True,
        stdout=sys.stderr,
    )
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _cpu(process: ManagedProcess) -> float:
    return sum(of_living(one, cpu) for one in tree(process))
