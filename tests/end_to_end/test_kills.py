"""The whole path under load while its processes are killed at seeded points: exact tables, and nothing is stuck.

SIGKILL for the triggerer, the scheduler (whose workers live on beside the next one's), a task with its worker (whose
spark-submit lives on beside the retry), and Spark's driver.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from signal import SIGKILL

import psutil
import pytest
from confluent_kafka import Producer

from tests.end_to_end.deployment import SmallDeployment
from tests.end_to_end.rows import consumed, landed
from tests.end_to_end.test_whole_path import SMALL, send
from tests.support.airflow import AirflowStack
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT
from tests.support.pipeline import pipeline_env
from tests.support.s3 import S3Server
from tests.support.waiting import wait_until, working_beside
from tidemark.formats.table.ledger import Ledger, Published
from tidemark.table.delta_table import TopicTable, committed_ledger

TOPICS = 3
PARTITIONS = 2
PER_ROUND = 600
TIMES = 2
KINDS = ("triggerer", "scheduler", "worker", "driver")
# Recovery as in production, only sooner.
SOONER = {
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
}


@pytest.fixture
def small(kafka: KafkaCluster, s3_server: S3Server, tmp_path: Path, mark: str) -> SmallDeployment:
    """A deployment of several topics."""
    topics = tuple(f"killed-{number}-{mark}" for number in range(TOPICS))
    # Under load, segments come as they are rotated: a tail that grows while a run reads it makes the run stale.
    return SmallDeployment(tmp_path, kafka, s3_server, mark, topics, tail_after="5s")


@pytest.fixture
def airflow(starts_airflow: None, small: SmallDeployment, tmp_path: Path) -> Iterator[AirflowStack]:
    env = small.s3.env() | pipeline_env(small.topics_file, tmp_path / "spark-conf", scan_seconds=1) | SOONER
    dags = [dag_of(topic) for topic in small.topics]
    with AirflowStack(
        tmp_path / "airflow", dags=ROOT / "dags", plugins=ROOT / "plugins", env=env, unpaused=dags
    ) as stack:
        yield stack


def dag_of(topic: str) -> str:
    return f"tidemark_ingest__test__{topic}"


class Killer:
    """Kills processes of one deployment, and starts again what a service manager would."""

    def __init__(self, airflow: AirflowStack, topics_file: Path, rng: random.Random) -> None:
        self._airflow = airflow
        self._topics_file = str(topics_file)
        self._rng = rng
        self._left: list[psutil.Process] = []
        self.struck: Counter[str] = Counter()

    def strike(self, kind: str) -> None:
        """Kill one of a kind: of those that work for a job, as soon as there is a job."""
        if kind in {"triggerer", "scheduler"}:
            self._restart(kind)
        else:
            wait_until(lambda: self._kill(kind), what=f"a job with a {kind} to kill", interval=0.2)
        self.struck[kind] += 1
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} killed: {kind}\n")

    def end(self) -> None:
        """Kill what outlived its scheduler."""
        for process in self._left:
            if process.is_running():
                process.kill()

    def _restart(self, kind: str) -> None:
        component = self._airflow.component(kind)
        if kind == "scheduler":
            self._left += psutil.Process(component.pid).children(recursive=True)
            component.send(SIGKILL)
            component.wait(30)
        else:
            component.kill()
        component.start()

    def _kill(self, kind: str) -> bool:
        jobs = self._jobs()
        if not jobs:
            return False
        job = self._rng.choice(jobs)
        family = [job, *job.children(recursive=True)]
        if kind == "driver":
            self._rng.choice(family).kill()
            return True
        self._left += family
        for process in job.parents()[:2]:
            process.kill()
        return True

    def _jobs(self) -> list[psutil.Process]:
        """The topmost processes of all jobs that run: each has the topics file among its arguments."""
        found = {
            process.pid: process
            for process in psutil.process_iter(["cmdline"])
            if self._topics_file in (process.info["cmdline"] or ())
        }
        return [process for process in found.values() if process.ppid() not in found]


@contextmanager
def load(small: SmallDeployment, seed: int) -> Iterator[None]:
    """Sends records to all topics, one of them in transactions of which a third are aborted, until it is left."""

    def produce(ended: threading.Event) -> None:
        rng = random.Random(seed)
        base = {"bootstrap.servers": small.kafka.bootstrap, "linger.ms": 20}
        *plain, transactional = small.topics
        producer = Producer(base)
        transactions = Producer({**base, "transactional.id": transactional})
        transactions.init_transactions()
        for number in itertools.count():
            for topic in plain:
                send(producer, topic, rng, PER_ROUND, PARTITIONS)
            transactions.begin_transaction()
            send(transactions, transactional, rng, PER_ROUND, PARTITIONS)
            if number % 3 == 0:
                transactions.abort_transaction()
            else:
                transactions.commit_transaction()
            if ended.wait(2):
                return

    with working_beside(produce):
        yield


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_tables_are_exact_and_nothing_is_stuck_whatever_is_killed(
    small: SmallDeployment, airflow: AirflowStack, rng: random.Random
) -> None:
    for topic in small.topics:
        small.kafka.create_topic(topic, partitions=PARTITIONS, config=SMALL)
    killer = Killer(airflow, small.topics_file, rng)
    began = time.monotonic()
    try:
        with small.running_agent():
            with load(small, rng.randrange(1 << 32)):
                wait_until(
                    lambda: any(committed_ledger(small.table(topic)).rows for topic in small.topics),
                    what="the first rows to land",
                )
                for kind in rng.sample(KINDS * TIMES, len(KINDS) * TIMES):
                    killer.strike(kind)
                    time.sleep(rng.uniform(1, 10))
            expected = {topic: consumed(small.kafka.bootstrap, topic) for topic in small.topics}
            for topic, rows in expected.items():
                all_landed = partial(has_rows, small.table(topic), len(rows))
                wait_until(all_landed, timeout=600, what=f"all of {topic} to land", interval=1)
            sys.stdout.write(f"{dict(killer.struck)}, all landed after {time.monotonic() - began:.0f} s\n")
            for topic in small.topics:
                at_rest = partial(is_at_rest, airflow, topic)
                wait_until(at_rest, what=f"{topic} to wait", interval=1)
    finally:
        killer.end()
    for topic, rows in expected.items():
        found = landed(small.table(topic))
        assert len(found) == len(set(found)), f"{topic}: rows landed twice"
        assert set(found) == rows
        check_events(airflow, small.table(topic))


def has_rows(table: TopicTable, count: int) -> bool:
    """Whether so many rows have landed, or more."""
    return committed_ledger(table).rows >= count


def is_at_rest(airflow: AirflowStack, topic: str) -> bool:
    """Whether the newest run of the topic's DAG waits, and all before it have ended."""
    dag = dag_of(topic)
    newest, *before = airflow.client.runs(dag)
    waits = {task["task_id"]: task["state"] for task in airflow.client.task_instances(dag, newest["dag_run_id"])}
    return waits["wait_and_plan"] == "deferred" and all(run["state"] in {"success", "failed"} for run in before)


def check_events(airflow: AirflowStack, table: TopicTable) -> None:
    """Each commit that changed a date is told of by an event that is at least as new, and the pointer has passed it."""
    events = airflow.client.get("/assets/events", source_dag_id=dag_of(table.topic.topic), order_by="-timestamp")
    told: dict[str, int] = {}
    for event in events["asset_events"]:
        dt, n = str(event["partition_key"]), int(event["extra"]["ledger"])
        told[dt] = max(n, told.get(dt, 0))
    newest = committed_ledger(table)
    attempts = []
    ledger: Ledger | None = newest
    while ledger is not None:
        assert all(told[dt] >= ledger.n for dt in ledger.dates_changed), (ledger.n, ledger.dates_changed, told)
        attempts.append(ledger.attempt)
        parent = ledger.parent
        key = table.keys.ledger(parent.n, parent.attempt) if parent else ""
        ledger = Ledger.from_bytes(table.store.get(key).body, key) if parent else None
    assert len(attempts) == len(set(attempts)), "an attempt landed twice"
    published = Published.from_bytes(table.store.get(table.keys.published).body, table.keys.published)
    assert published.n == newest.n
