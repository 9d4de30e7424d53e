"""All parts on this machine: S3 server, Kafka brokers, agents, Spark, Airflow, each on free ports of 127.0.0.1.

Spark is a Connect server shared by all topics: a driver for each run would start a JVM for each.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import yaml

from demo import processes, streams
from demo.processes import HOME
from demo.steps import Steps
from tests.support.airflow import AirflowStack, import_early
from tests.support.jars import fetch
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT, env_bin, env_python
from tests.support.pipeline import pipeline_env
from tests.support.ports import HOST, free_port
from tests.support.process import ManagedProcess, ProcessFailed
from tests.support.s3 import S3Server, allow
from tests.support.spark import ConnectServer, spark_home
from tests.support.waiting import HUNG, wait_until
from tidemark.topics import Deployment, load_topics

LIVE_DAG = "tidemark_live__demo"
_APPROVER = "grace"
_TOPICS = ROOT / "demo" / "topics.yaml"
_BROKERS = 2


class Stack:
    """The parts; nothing runs before :meth:`start`. With ``fetch`` the agents read no broker's disk."""

    def __init__(self, steps: Steps, *, fetch: bool = False) -> None:
        processes.check_ended()
        shutil.rmtree(HOME, ignore_errors=True)
        HOME.mkdir(parents=True)
        self._steps = steps
        self._starting: list[Future[None]] = []
        self._topics = Path(shutil.copy(_TOPICS, HOME))
        self.deployment: Deployment = load_topics(self._topics)
        self.s3 = S3Server(HOME / "s3", users={_APPROVER: _approves(self.deployment)})
        os.environ.update(self.s3.env())  # for boto3, delta-rs and Spark in this process and its children
        self.kafka = KafkaCluster(HOME / "kafka", brokers=_BROKERS)
        self._dags = [
            LIVE_DAG,
            *(f"tidemark_ingest__{topic.cluster}__{topic.topic}" for topic in self.deployment.topics),
        ]
        self._token = secrets.token_urlsafe()
        self.spark = ConnectServer(HOME / "spark", token=self._token)
        # Spark sends a token without TLS only to this name.
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
                **pipeline_env(self._topics, HOME / "spark-conf", scan_seconds=2),
                "AIRFLOW__TIDEMARK__STARTS_PAUSED": "False",  # an added topic lands as well
                "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection),
            },
            unpaused=self._dags,
        )
        import_early(HOME / "airflow")
        self._fetch = fetch
        self.agents = [DemoAgent(number) for number in range(1, _BROKERS + 1)]
        self._restart: Future[None] | None = None
        self._recording = threading.Lock()

    def start(self) -> None:
        """Start everything, concurrently if possible."""
        pool = ThreadPoolExecutor(3)
        self._starting = [
            pool.submit(self._start_storage),
            pool.submit(self._start_airflow),
            pool.submit(self._start_spark, f"sc://localhost:{self.spark.port}/;token={self._token}"),
        ]
        pool.shutdown(wait=False)
        for starting in self._starting:
            starting.result()

    def record(self) -> None:
        """Record the running processes for ``make down``: brokers before their controller, else they do not end."""
        servers = [self.spark.process, *(agent.process for agent in self.agents)]
        with self._recording:
            running = [server.record() for server in servers if server.running]
            store = [self.s3.record()] if self.s3.process.running else []
            processes.record([*reversed(self.airflow.records()), *running, *self.kafka.records(), *store])

    def stop(self) -> None:
        """End all parts at once: the next demo starts from nothing."""
        wait([*self._starting, *([self._restart] if self._restart else [])])
        self._in_turn("all ended", self._kill)
        processes.forget()

    def variables(self) -> dict[str, str]:
        """Environment variables with which Tidemark's, Kafka's, AWS's and Spark's tools reach the servers."""
        return {
            **self.s3.env(),
            "AWS_ALLOW_HTTP": "true",  # without it, delta-rs and Polars refuse a server without TLS
            "KAFKA": self.kafka.bootstrap,
            "SPARK_CONF_DIR": str(HOME / "spark-conf"),
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": HOST,
            "PYSPARK_PYTHON": str(env_python("spark")),
            "TIDEMARK_AIRFLOW_TOKEN": self.airflow.client.token,
            "TIDEMARK_AIRFLOW_URL": self.airflow.url,
            "TIDEMARK_ERASURE_SECRET": secrets.token_urlsafe(32),
            "TIDEMARK_TOPICS": str(self._topics),
        }

    def approver(self) -> dict[str, str]:
        """Those variables that differ in the shell of a second person, who may approve an erasure."""
        return {name: value for name, value in self.s3.env(_APPROVER).items() if "KEY" in name}

    def restart_broker(self) -> None:
        """Restart a broker in the background: the other broker is elected leader of its partitions."""
        pool = ThreadPoolExecutor(1)
        broker = self.kafka.brokers[-1]
        step = f"broker {broker.node_id} restarted while records are sent, which elects new leaders"
        self._restart = pool.submit(self._in_turn, step, broker.restart)
        pool.shutdown(wait=False)

    def agent_waits(self) -> dict[tuple[str, int], str]:
        """The agents' reasons for unstored ends of partitions. Raises OSError if an agent does not answer."""
        waits = [wait for agent in self.agents for wait in agent.waits()]
        return {(wait["topic"], wait["partition"]): wait["reason"] for wait in reversed(waits)}

    def check(self) -> None:
        """Raise :class:`ProcessFailed` if a part has ended by itself."""
        if self._restart is not None and self._restart.done():
            self._restart.result()
        brokers = [broker.process for broker in self.kafka.brokers if self._restart is None or self._restart.done()]
        agents = [agent.process for agent in self.agents]
        for process in [self.s3.process, *brokers, *agents, self.spark.process, *self.airflow.processes]:
            if not process.running:
                raise ProcessFailed(f"{process.name} has ended\n{process.log_tail()}")

    def _start_airflow(self) -> None:
        """Start Airflow, and wait until the topics' DAGs wait for watermarks."""
        self._in_turn(f"Airflow ready at {self.airflow.url}", self.airflow.start)
        waiting = partial(wait_until, self._dags_wait, what="the topics' DAGs to wait for watermarks", interval=0.5)
        self._in_turn("the topics' DAGs wait for watermarks", waiting)

    def _dags_wait(self) -> bool:
        client = self.airflow.client
        states = (
            {task["state"] for run in client.runs(dag) for task in client.task_instances(dag, run["dag_run_id"])}
            for dag in self._dags
        )
        return all("deferred" in of_dag for of_dag in states)

    def _start_spark(self, remote: str) -> None:
        """Start the server and its workers, for which the first conversions would otherwise wait."""
        self._in_turn("Spark Connect server ready", self.spark.start)
        job = ManagedProcess(
            "warm-up",
            [env_python("spark"), ROOT / "spark" / "jobs" / "warm_up.py", "--parser", "bytes", "--parser", "json"],
            log=HOME / "spark" / "warm-up.log",
            env={**os.environ, "SPARK_REMOTE": remote},
        )
        self._in_turn("Spark's workers ready", lambda: job.run(HUNG))

    def _start_storage(self) -> None:
        """Start brokers and S3 server, and then the agents, which need both."""
        self._in_turn(f"S3 server ready at {self.s3.endpoint}", self.s3.start)
        self._in_turn("Kafka's jars are there", lambda: fetch("kafka-4.3.1"))
        self._in_turn(f"{_BROKERS} brokers of Kafka 4.3.1 ready", self.kafka.start)
        self._in_turn("topics created", lambda: streams.create_topics(self.kafka))
        agents = f"{_BROKERS} agents running, which fetch" if self._fetch else "an agent running beside each broker"
        self._in_turn(agents, self.start_agents)

    def _kill(self) -> None:
        """Kill all parts, Airflow first, so that it misses no other part."""
        self.airflow.kill()
        coordinator = [self.kafka.coordinator] if self.kafka.coordinator else []
        brokers = [*(broker.process for broker in self.kafka.brokers), *coordinator]
        rest = [self.spark.process, *(agent.process for agent in self.agents), *brokers, self.s3.process]
        with ThreadPoolExecutor(len(rest)) as pool:
            list(pool.map(ManagedProcess.kill, rest))
        processes.end_job_hosts()

    def logs(self) -> str:
        """The places of the logs."""
        return (
            f"logs: {HOME.relative_to(ROOT)}/agent-1.log, kafka/broker-1/, s3/s3.log, spark/connect.log, "
            "airflow/logs/ (one folder per DAG)"
        )

    def _in_turn(self, step: str, action: Callable[[], object]) -> None:
        with self._steps.step(step):
            action()
        self.record()

    def start_agents(self) -> None:
        """Start the agents, and wait until they are ready."""
        for agent in self.agents:
            agent.start(self.source(agent.number), self.deployment)

    def source(self, number: int) -> dict[str, Any]:
        """The settings by which an agent reads a broker's disk, or is a slot that fetches."""
        if not self._fetch:
            return {"broker": {"properties": str(self.kafka.brokers[number - 1].properties_path)}}
        slot = {"spool": str(HOME / f"spool-{number}"), "slot": number - 1, "slots": _BROKERS}
        return {"fetch": {"bootstrap": self.kafka.bootstrap, **slot}}


def _approves(deployment: Deployment) -> list[dict[str, object]]:
    """What the second person may do: read everything, and write what stands below ``_erasure``."""
    raw = deployment.raw.url.removeprefix("s3://")
    return [
        allow(["s3:GetObject", "s3:ListBucket", "s3:GetBucketVersioning"], ["arn:aws:s3:::*"]),
        allow(["s3:PutObject"], [f"arn:aws:s3:::{raw}/_erasure/*"]),
    ]


def _freshness(deployment: Deployment) -> str:
    """The promise that all topics of the demo share."""
    [freshness] = {topic.freshness for topic in deployment.topics if topic.freshness}
    return f"{freshness.total_seconds():g}s"


class DemoAgent:
    """One of the demo's agents."""

    def __init__(self, number: int) -> None:
        """Nothing is started yet."""
        self.number = number
        self._port = free_port()
        self._config = HOME / f"agent-{number}.yaml"
        self.process = ManagedProcess(
            f"agent-{number}",
            [env_bin("agent", "tidemark-agent"), "run", "--config", self._config],
            log=HOME / f"agent-{number}.log",
        )

    def start(self, source: dict[str, Any], deployment: Deployment) -> None:
        """Start the agent, and wait until it is ready. ``source`` says where it reads."""
        settings = {
            "cluster": "demo",
            **source,
            "raw": deployment.raw.model_dump(mode="json", include={"url", "entropy_bits"}),
            "store": {"region": "us-east-1"},
            "state_dir": str(HOME / f"agent-{self.number}"),
            "freshness": {".*": _freshness(deployment)},  # that of a topic which is added later, too
            "http": {"port": self._port},
        }
        self._config.write_text(yaml.safe_dump(settings))
        self.process.start()
        self.process.wait_until(self._is_ready)

    def waits(self) -> list[dict[str, Any]]:
        """The agent's waits. Raises OSError if it does not answer."""
        partitions: list[dict[str, Any]] = json.loads(self._ask("/waiting")[1])["partitions"]
        return partitions

    def _is_ready(self) -> bool:
        try:
            return self._ask("/-/ready")[0] == HTTPStatus.OK
        except OSError:
            return False  # not listening yet

    def _ask(self, path: str) -> tuple[int, bytes]:
        """Status and body of the answer."""
        connection = HTTPConnection(HOST, self._port, timeout=2)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
