"""All parts on this machine: S3 server, Kafka broker, agent, Airflow, each on free ports of 127.0.0.1.

What was started is recorded in ``.tidemark/demo/processes.json``, so that ``make down`` can stop exactly that.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from http import HTTPStatus
from http.client import HTTPConnection

import yaml

from demo import streams
from demo.steps import Steps
from tests.support.airflow import AirflowStack
from tests.support.jars import fetch
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT, STATE, env_bin
from tests.support.pipeline import pipeline_env
from tests.support.ports import HOST, free_port
from tests.support.process import ManagedProcess, ProcessRecord
from tests.support.s3 import S3Server
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
        self._airflow: Future[None] | None = None
        self.deployment: Deployment = load_topics(TOPICS)
        self.s3 = S3Server(HOME / "s3")
        os.environ.update(self.s3.env())  # for boto3, delta-rs and Spark in this process and its children
        self.kafka = KafkaCluster(HOME / "kafka")
        self.airflow = AirflowStack(
            HOME / "airflow",
            dags=ROOT / "dags",
            plugins=ROOT / "plugins",
            parallelism=4,
            env=pipeline_env(TOPICS, HOME / "spark", scan_seconds=2),
            unpaused=[
                *(f"tidemark_ingest__{one.cluster}__{one.topic}" for one in self.deployment.topics),
                *("tidemark_watch", "tidemark_backfill"),
            ],
        )
        self._agent_port = free_port()
        self.agent = ManagedProcess(
            "agent",
            [env_bin("agent", "tidemark-agent"), "run", "--config", HOME / "agent.yaml"],
            log=HOME / "agent.log",
        )

    def start(self) -> None:
        """Start everything, side by side where it can be; returns when the agent runs, while Airflow still starts."""
        self._in_turn("Kafka's jars are there", lambda: fetch("kafka-4.3.1"))
        pool = ThreadPoolExecutor(3)
        s3 = pool.submit(self._in_turn, f"S3 server ready at {self.s3.endpoint}", self.s3.start)
        kafka = pool.submit(self._in_turn, "Kafka 4.3.1 broker ready", self.kafka.start)
        self._airflow = pool.submit(self._in_turn, f"Airflow ready at {self.airflow.url}", self.airflow.start)
        pool.shutdown(wait=False)
        s3.result()
        kafka.result()
        self._in_turn("topics created", lambda: streams.create_topics(self.kafka))
        self._write_agent_file()
        self._in_turn("agent running beside the broker", self._start_agent)

    def await_airflow(self) -> None:
        """Wait until Airflow is ready; all processes are recorded then."""
        if self._airflow is not None:
            self._airflow.result()
        records = [*reversed(self.airflow.records()), self.agent.record(), *self.kafka.records(), self.s3.record()]
        _RECORDS.write_text(json.dumps([asdict(record) for record in records]))

    def stop(self) -> None:
        """Stop what was started, Airflow first, so that nothing fails loudly on the way."""
        wait([self._airflow] if self._airflow else [])
        self._in_turn("Airflow stopped", self.airflow.stop)
        self._in_turn("agent, Kafka and S3 server stopped", self._stop_servers)
        _RECORDS.unlink(missing_ok=True)

    def _stop_servers(self) -> None:
        self.agent.stop()
        self.kafka.stop()
        self.s3.stop()

    def logs(self) -> str:
        """Where to look when something fails."""
        return (
            f"logs: {HOME.relative_to(ROOT)}/agent.log, kafka/broker-1/, s3/s3.log, airflow/logs/ (one folder per DAG)"
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
        connection = HTTPConnection(HOST, self._agent_port, timeout=2)
        try:
            connection.request("GET", "/-/ready")
            return connection.getresponse().status == HTTPStatus.OK
        except OSError:
            return False  # not listening yet
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
