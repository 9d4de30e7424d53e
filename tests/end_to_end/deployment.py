"""A small deployment on real parts: broker, S3 server, the agent and the Spark job as the processes that they are."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.spark.world import in_process
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT, env_bin
from tests.support.process import ManagedProcess
from tests.support.s3 import S3Server
from tests.support.spark import spark_submit
from tests.support.tuned_agent import split, tuned_agent
from tests.support.waiting import HUNG
from tidemark.formats.table.plan import RunResult
from tidemark.planning import plan_ingest, write_plan
from tidemark.store.s3.clients import forget_clients
from tidemark.table.delta_table import TopicTable, open_topic_table
from tidemark.topics import Deployment, load_topics
from tidemark_spark.run.driver import run

ENTROPY_BITS = 3


@contextmanager
def credentials(s3: S3Server) -> Iterator[None]:
    """The S3 server's credentials in this process's environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.env().items():
            patch.setenv(name, value)
        forget_clients()
        yield
        forget_clients()


@dataclass
class SmallDeployment:
    """Topics of one test: ``prefix`` keeps its objects apart from other tests' on the shared server.

    ``more`` are further topics, as the topics file has them, of which the agent knows nothing. ``settings`` are further
    settings of one of ``topics``, and ``agent_settings`` those of the agent beside ``broker``. ``bucket`` is that of
    raw data, and ``lake`` that of tables.
    """

    folder: Path
    kafka: KafkaCluster
    s3: S3Server
    prefix: str
    topics: tuple[str, ...]
    tail_after: str = "0s"
    more: Sequence[Mapping[str, Any]] = ()
    bucket: str = "raw"
    lake: str = "lake"
    broker: int = 1
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    agent_settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        store = {"endpoint_url": self.s3.endpoint, "region": "us-east-1", "path_style": True}
        raw = {"url": f"s3://{self.bucket}/{self.prefix}", "entropy_bits": ENTROPY_BITS}
        self.topics_file = self._write(
            "topics.yaml",
            {
                "cluster": "test",
                "raw": raw,
                "lake": f"s3://{self.lake}/{self.prefix}",
                "store": store,
                "defaults": {"batch": {"age": "4s"}},  # what an agent finds at its start is one run
                "topics": [{"topic": topic, **self.settings.get(topic, {})} for topic in self.topics]
                + [dict(one) for one in self.more],
            },
        )
        self.agent_file = self._write(
            "agent.yaml",
            {
                "cluster": "test",
                "broker": {"properties": str(self.kafka.brokers[self.broker - 1].properties_path)},
                "raw": raw,
                "store": store,
                "state_dir": str(self.folder / "agent"),
                "include": list(self.topics),
                "tail_after": self.tail_after,
                **split(self.agent_settings)[0],
            },
        )

    def _write(self, name: str, content: dict[str, Any]) -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump(content))
        return path

    @property
    def deployment(self) -> Deployment:
        """The topics file, read."""
        return load_topics(self.topics_file)

    def table(self, topic: str) -> TopicTable:
        """The table of a topic."""
        return open_topic_table(self.deployment, self.deployment.topic(topic))

    def agent(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the agent's command line to its end, in the agent's own environment."""
        command, *rest = arguments
        return subprocess.run(
            [env_bin("agent", "tidemark-agent"), command, "--config", self.agent_file, *rest],
            env=self.s3.env() | {"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=HUNG,
            check=False,
        )

    def running_agent(self, keys: Mapping[str, str] | None = None) -> ManagedProcess:
        """The agent as it runs beside a broker; start it with ``with``. ``keys`` say where its credentials are."""
        tuning = {"scan_interval": "1s", "index_interval": "500ms", **split(self.agent_settings)[1]}
        return ManagedProcess(
            "agent",
            [*tuned_agent(tuning), "run", "--config", self.agent_file],
            cwd=ROOT,
            log=self.folder / "agent.log",
            env={**(self.s3.env() if keys is None else keys), "PATH": "/usr/bin:/bin"},
        )

    def upload(self) -> None:
        """Upload what there is, quiet tails included."""
        done = self.agent("upload-once")
        assert done.returncode == 0, done.stderr

    def job(self, name: str, topic: str, *arguments: str, master: str = "local[2]") -> dict[str, Any]:
        """Run the Spark job of that name for a topic and return its result."""
        job = ROOT / "spark" / "jobs" / f"{name}.py"
        printed = spark_submit(
            job, "--topics", self.topics_file, "--topic", topic, *arguments, master=master, env=self.s3.env()
        )
        result: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
        return result

    def land(self, topic: str) -> RunResult:
        """The same in this process and without Spark, whose start is most of the time of a small run."""
        table = self.table(topic)
        plan = plan_ingest(table)
        if not plan.empty:
            write_plan(table, plan)
        return run(table, plan, in_process)
