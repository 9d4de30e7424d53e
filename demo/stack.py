"""All parts on this machine: S3 server, Kafka broker, agent, Spark, Airflow, each on free ports of 127.0.0.1.

Spark is a Connect server, which all topics share: a driver for each run would start a JVM for each.

What was started is recorded in ``.tidemark/demo/processes.json``, so that ``make down`` can stop exactly that.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any

import yaml

from demo import streams
from demo.steps import Steps
from tests.support.airflow import AirflowStack
from tests.support.jars import fetch
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT, STATE, env_bin, env_python
from tests.support.pipeline import pipeline_env
from tests.support.ports import HOST, free_port
from tests.support.process import ManagedProcess, ProcessFailed, ProcessRecord
from tests.support.s3 import S3Server
from tests.support.spark import ConnectServer
from tests.support.waiting import HUNG, wait_until
from tidemark.topics import Deployment, load_topics

HOME = STATE / "demo"
TOPICS = ROOT / "include" / "topics.yaml"
_RECORDS = HOME / "processes.json"


class AlreadyRunning(RuntimeError):
    """An earlier demo was kept."""


class Stack:
    """The parts; nothing runs before :meth:`start`."""

    def __init__(self, steps: Steps) -> None:
        if any(record.find() for record in recorded()):
            raise AlreadyRunning("an earlier demo is still running: `make down` stops it")
        shutil.rmtree(HOME, ignore_errors=True)
        HOME.mkdir(parents=True)
        self._steps = steps
        self._starting: list[Future[None]] = []
        self.deployment: Deployment = load_topics(TOPICS)
        self.s3 = S3Server(HOME / "s3")
        os.environ.update(self.s3.env())  # for boto3, delta-rs and Spark in this process and its children
        self.kafka = KafkaCluster(HOME / "kafka")
        self._dags = [f"tidemark_ingest__{one.cluster}__{one.topic}" for one in self.deployment.topics]
        self._token = secrets.token_urlsafe()
        self.spark = ConnectServer(HOME / "spark", token=self._token)
        # A token goes without TLS to this name only.
        connection = {
            "conn_type": "spark_connect",
            "host": "localhost",
            "port": self.spark.port,
            "password": self._token,
        }
        self.airflow = AirflowStack(
            HOME / "airflow",
            dags=ROOT / "dags",
            plugins=ROOT / "plugins",
            parallelism=4,
            env={
                **pipeline_env(TOPICS, HOME / "spark-conf", scan_seconds=2),
                "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection),
            },
            unpaused=self._dags,
        )
        self._agent_port = free_port()
        self.agent = ManagedProcess(
            "agent",
            [env_bin("agent", "tidemark-agent"), "run", "--config", HOME / "agent.yaml"],
            log=HOME / "agent.log",
        )

    def start(self) -> None:
        """Start everything, side by side where it can be; all processes are recorded then."""
        pool = ThreadPoolExecutor(3)
        self._starting = [
            pool.submit(self._start_storage),
            pool.submit(self._start_airflow),
            pool.submit(self._start_spark, f"sc://localhost:{self.spark.port}/;token={self._token}"),
        ]
        pool.shutdown(wait=False)
        for one in self._starting:
            one.result()
        servers = [self.spark.process.record(), self.agent.record(), *self.kafka.records(), self.s3.record()]
        records = [*reversed(self.airflow.records()), *servers]
        _RECORDS.write_text(json.dumps([asdict(record) for record in records]))

    def stop(self) -> None:
        """End what was started, at once: the next demo begins with nothing."""
        wait(self._starting)
        self._in_turn("all ended", self._kill)
        _RECORDS.unlink(missing_ok=True)

    def variables(self) -> dict[str, str]:
        """What Tidemark's tools, Kafka's and AWS's need to reach the servers."""
        airflow = {"TIDEMARK_AIRFLOW_URL": self.airflow.url, "TIDEMARK_AIRFLOW_TOKEN": self.airflow.client.token}
        return {**self.s3.env(), **airflow, "TIDEMARK_TOPICS": str(TOPICS), "KAFKA": self.kafka.bootstrap}

    def agent_waits(self) -> dict[tuple[str, int], str]:
        """Why the agent has not stored the end of a partition, in its own words; OSError if it does not answer."""
        _, body = self._ask_agent("/waiting")
        waits: list[dict[str, Any]] = json.loads(body)["partitions"]
        return {(one["topic"], one["partition"]): one["reason"] for one in reversed(waits)}

    def check(self) -> None:
        """Raise :class:`ProcessFailed` if a part has ended by itself."""
        parts = [self.s3.process, *(one.process for one in self.kafka.brokers), self.agent, self.spark.process]
        for process in [*parts, *self.airflow.processes]:
            if not process.running:
                raise ProcessFailed(f"{process.name} has ended\n{process.log_tail()}")

    def _start_airflow(self) -> None:
        """Airflow, and the topics' DAGs up to where they wait for watermarks."""
        self._in_turn(f"Airflow ready at {self.airflow.url}", self.airflow.start)
        waiting = partial(wait_until, self._dags_wait, what="the topics' DAGs to wait for watermarks", interval=0.5)
        self._in_turn("the topics' DAGs wait for watermarks", waiting)

    def _dags_wait(self) -> bool:
        client = self.airflow.client
        states = (
            {task["state"] for run in client.runs(dag) for task in client.task_instances(dag, run["dag_run_id"])}
            for dag in self._dags
        )
        return all("deferred" in one for one in states)

    def _start_spark(self, remote: str) -> None:
        """The server, and its workers, which else the first conversions would wait for."""
        self._in_turn("Spark Connect server ready", self.spark.start)
        job = ManagedProcess(
            "warm-up",
            [env_python("spark"), ROOT / "spark" / "jobs" / "warm_up.py"],
            log=HOME / "spark" / "warm-up.log",
            env={**os.environ, "SPARK_REMOTE": remote},
        )
        self._in_turn("Spark's workers ready", lambda: job.run(HUNG))

    def _start_storage(self) -> None:
        """Broker, S3 server and the agent, which needs both."""
        self._in_turn(f"S3 server ready at {self.s3.endpoint}", self.s3.start)
        self._in_turn("Kafka's jars are there", lambda: fetch("kafka-4.3.1"))
        self._in_turn("Kafka 4.3.1 broker ready", self.kafka.start)
        self._in_turn("topics created", lambda: streams.create_topics(self.kafka))
        self._write_agent_file()
        self._in_turn("agent running beside the broker", self._start_agent)

    def _kill(self) -> None:
        """Airflow first, so that nothing else is missed by it."""
        self.airflow.kill()
        for process in (self.spark.process, self.agent, *(one.process for one in self.kafka.brokers), self.s3.process):
            process.kill()

    def logs(self) -> str:
        """Where to look when something fails."""
        return (
            f"logs: {HOME.relative_to(ROOT)}/agent.log, kafka/broker-1/, s3/s3.log, spark/connect.log, "
            "airflow/logs/ (one folder per DAG)"
        )

    def _in_turn(self, what: str, action: Callable[[], object]) -> None:
        with self._steps.step(what):
            action()

    def _write_agent_file(self) -> None:
        settings = {
            "cluster": "demo",
            "broker": {"properties": str(self.kafka.brokers[0].properties_path)},
            "raw": self.deployment.raw.model_dump(mode="json", include={"url", "entropy_bits"}),
            "store": {"region": "us-east-1"},
            "state_dir": str(HOME / "agent"),
            "tail_after": "5s",
            "scan_interval": "3s",
            "metadata_interval": "2s",
            "index": {"min_interval": "1s"},
            "http": {"port": self._agent_port},
        }
        (HOME / "agent.yaml").write_text(yaml.safe_dump(settings))

    def _start_agent(self) -> None:
        self.agent.start()
        self.agent.wait_until(self._agent_ready)

    def _agent_ready(self) -> bool:
        try:
            return self._ask_agent("/-/ready")[0] == HTTPStatus.OK
        except OSError:
            return False  # not listening yet

    def _ask_agent(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        connection = HTTPConnection(HOST, self._agent_port, timeout=2)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def recorded() -> list[ProcessRecord]:
    """The processes that a kept demo started, in the order in which they are to be stopped."""
    if not _RECORDS.exists():
        return []
    return [ProcessRecord(**item) for item in json.loads(_RECORDS.read_text())]


def down(steps: Steps) -> None:
    """Stop what a kept demo started, and nothing else."""
    for record in recorded():
        was = "stopped" if record.stop() else "had ended already:"
        steps.say(f"{was} {record.name} (pid {record.pid})")
    _RECORDS.unlink(missing_ok=True)
