"""What a landing costs, and where: topics each by their own DAG, and all of a cluster by the live one.

Real DAGs, tasks and jobs by Spark Connect; small segments, and stores on the local disk. A round uploads a segment of
each topic of a cluster, and ends when all have landed and wait again. CPU time is that of processes and of what they
have started; what they take while nothing lands is measured as well, and taken off.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.data import HOME
from bench.measure import Row
from bench.stack import connect_env, cpu, of_living, tree
from tests.support.airflow import AirflowStack
from tests.support.paths import ROOT
from tests.support.pipeline import pipeline_env
from tests.support.process import ManagedProcess
from tests.support.raw_builder import RawBuilder
from tests.support.spark import ConnectServer
from tests.support.waiting import wait_until
from tests.tidemark.kafka_log.build import simple
from tidemark.store import open_store
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark.topics import Deployment, load_topics

ROUNDS: Final = 5
"""Rounds that count, after one that does not."""

SCAN_SECONDS: Final = 2.0
IDLE_SECONDS: Final = 20.0
WAYS: Final[Mapping[str, int]] = {"own5": 5, "live1": 1, "live5": 5, "live20": 20}
"""Clusters, and how many topics they have: with DAGs of their own, or with a live one for all."""


class Driven(NamedTuple):
    """A topic, its raw store and its table."""

    raw: RawBuilder
    table: TopicTable

    def upload(self) -> None:
        """One more segment of three records."""
        self.raw.segment([simple(self.raw.partition().end)])
        self.raw.publish()

    @property
    def landed(self) -> bool:
        """Whether all that was uploaded has."""
        state = committed_ledger(self.table).by_partition.get((0, 0))
        return state is not None and state.next_offset == self.raw.partition().end


def measure() -> list[Row]:
    """All ways, one after the other, on one stack."""
    folder = HOME / "live"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "world").mkdir(parents=True)
    deployment, topics_file = _deployment(folder / "world")
    env = pipeline_env(topics_file, folder / "spark-conf", scan_seconds=SCAN_SECONDS)
    env["AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL"] = "300"  # what is measured is landings
    rows: list[Row] = []
    with ConnectServer(folder) as server:
        env |= connect_env(server)
        with AirflowStack(
            folder / "airflow", dags=ROOT / "dags", plugins=ROOT / "plugins", parallelism=8, env=env
        ) as stack:
            processes = (*stack.processes, server.process)
            for way in WAYS:
                rows += _way(way, _driven(deployment, way), stack, processes)
    return rows


def _deployment(folder: Path) -> tuple[Deployment, Path]:
    for name in ("raw", "lake"):
        (folder / name).mkdir()
    topics = [
        {"topic": f"topic-{number}", "table": f"{way}-{number}", "cluster": way}
        | ({"freshness": "10s"} if way.startswith("live") else {"batch": {"age": "0s"}})
        for way, count in WAYS.items()
        for number in range(count)
    ]
    path = folder / "topics.yaml"
    stores = {"raw": {"url": f"file://{folder}/raw"}, "lake": f"file://{folder}/lake"}
    path.write_text(json.dumps({**stores, "topics": topics}))
    return load_topics(path), path


def _driven(deployment: Deployment, way: str) -> list[Driven]:
    store = open_store(deployment.raw.url)
    topics = [one for one in deployment.topics if one.cluster == way]
    raws = [RawBuilder(store, cluster=way, topic=one.topic, broker=n) for n, one in enumerate(topics, 1)]
    return [Driven(raw, open_topic_table(deployment, one)) for raw, one in zip(raws, topics, strict=True)]


def _way(way: str, topics: Sequence[Driven], stack: AirflowStack, processes: Sequence[ManagedProcess]) -> Iterator[Row]:
    live = way.startswith("live")
    dags = [f"tidemark_live__{way}"] if live else [f"tidemark_ingest__{way}__{one.raw.topic}" for one in topics]
    for dag in dags:
        stack.client.wait_for_dag(dag)
        stack.client.unpause(dag)
    _await_rest(stack, dags)
    _round(topics, stack, dags)
    idle = _idle(processes)
    before = {one.name: _cpu(one) for one in processes}
    began = time.monotonic()
    seconds = [_round(topics, stack, dags) for _ in range(ROUNDS)]
    wall = time.monotonic() - began
    used = {one.name: _cpu(one) - before[one.name] - idle[one.name] * wall for one in processes}
    for dag in dags:
        stack.client.pause(dag)
    landings = ROUNDS * len(topics)
    note = f"{ROUNDS} rounds of a small segment of each topic, 2 cores for all of it"
    name = f"{len(topics)} topics, {'live' if live else 'a DAG for each'}"
    yield Row("live", f"{name}: CPU of a landing", "s", (sum(used.values()) / landings,), note)
    for process, spent in used.items():
        yield Row("live", f"{name}: of that, {_what(process)}", "s", (spent / landings,))
    yield Row("live", f"{name}: upload to the last commit", "s", (statistics.median(seconds),), note)


def _what(process: str) -> str:
    return f"{process}, with tasks and clients" if process == "scheduler" else process


def _round(topics: Sequence[Driven], stack: AirflowStack, dags: Sequence[str]) -> float:
    """Seconds until all have landed; then wait until the next runs wait."""
    began = time.monotonic()
    for one in topics:
        one.upload()
    wait_until(lambda: all(one.landed for one in topics), what="all to land", interval=0.5)
    seconds = time.monotonic() - began
    _await_rest(stack, dags)
    sys.stderr.write(f"{dags[0]}: {seconds:.1f} s\n")
    return seconds


def _await_rest(stack: AirflowStack, dags: Sequence[str]) -> None:
    def rests() -> bool:
        found = stack.client.get("/dags/~/dagRuns/~/taskInstances", state="deferred", limit=100)["task_instances"]
        running = stack.client.get("/dags/~/dagRuns/~/taskInstances", state="running", limit=100)["task_instances"]
        return set(dags) <= {one["dag_id"] for one in found} and not running

    wait_until(rests, what="all to wait", interval=0.5)


def _idle(processes: Sequence[ManagedProcess]) -> dict[str, float]:
    """CPU seconds a second while nothing lands, by process."""
    before = {one.name: _cpu(one) for one in processes}
    time.sleep(IDLE_SECONDS)
    return {one.name: (_cpu(one) - before[one.name]) / IDLE_SECONDS for one in processes}


def _cpu(process: ManagedProcess) -> float:
    return sum(of_living(one, cpu) for one in tree(process))
