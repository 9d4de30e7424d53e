"""Upgrades from an earlier version to this one and back, part by part: the same rows, classes and hashes as without.

Which earlier version it is, see ``tests.support.earlier``. Agents and jobs are the installed programs, on real brokers
and a real S3 server; the jobs' tasks run in the job's process, but for those of the test of Spark's workers.
"""

from __future__ import annotations

import json
import random
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from tests.end_to_end.deployment import credentials
from tests.end_to_end.rows import consumed, landed
from tests.end_to_end.test_recovery import sums
from tests.end_to_end.test_whole_path import SMALL, plain
from tests.support.earlier import Earlier, earlier, renamed
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT, env_bin
from tests.support.process import ProcessFailed
from tests.support.s3 import S3Server
from tests.support.spark import spark_submit
from tests.support.waiting import HUNG
from tidemark.installation import VERSION
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark.topics import load_topics

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]

Version = Literal["old", "new"]
Step = tuple[Version, Version, Version]
"""The versions of the two brokers' agents, and of the pipeline."""

OLD: Step = ("old", "old", "old")
NEW: Step = ("new", "new", "new")
ORDERS: dict[str, Sequence[Step]] = {
    "agents first, one broker at a time": [OLD, ("new", "old", "old"), ("new", "new", "old"), NEW],
    "pipeline first": [OLD, ("old", "old", "new"), ("old", "new", "new"), NEW],
    "all at once, and back": [OLD, NEW, OLD],
    "agents, and back": [OLD, ("new", "new", "old"), OLD],
    "pipeline, and back": [OLD, ("old", "old", "new"), OLD, NEW],
}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Earlier:
    return earlier(tmp_path_factory.mktemp("earlier"), "agent", "spark")


@pytest.fixture(scope="module")
def brokers(starts_kafka: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Two brokers, because their agents are upgraded one after the other."""
    with KafkaCluster(tmp_path_factory.mktemp("brokers"), brokers=2) as cluster:
        yield cluster


@dataclass
class Parts:
    """A topic on two brokers, whose agents and jobs are of either version."""

    folder: Path
    kafka: KafkaCluster
    s3: S3Server
    before: Earlier
    mark: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def __post_init__(self) -> None:
        self.topic = f"upgraded-{self.mark}"
        store = {"endpoint_url": self.s3.endpoint, "region": "us-east-1", "path_style": True}
        (self.folder / "path").mkdir()
        (self.folder / "path" / "tests").symlink_to(ROOT / "tests")  # and nothing else of the checkout
        self._shared = {"cluster": "test", "raw": {"url": f"s3://raw/{self.mark}"}, "store": store}

    def topics(self, lake: str) -> Path:
        """A topics file with a lake of its own."""
        topics = {**self._shared, "lake": f"s3://lake/{self.mark}-{lake}", "topics": [{"topic": self.topic}]}
        return self._written(f"{lake}.yaml", topics)

    def table(self, lake: str) -> TopicTable:
        deployment = load_topics(self.topics(lake))
        return open_topic_table(deployment, deployment.topics[0])

    def upload(self, broker: int, version: Version) -> None:
        """Upload what the broker has, by its agent in ``version``."""
        properties = str(self.kafka.brokers[broker].properties_path)
        own = {"broker": {"properties": properties}, "state_dir": str(self.folder / f"agent-{broker}")}
        file = self._written(
            f"agent-{broker}.yaml", {**self._shared, **own, "include": [self.topic], "tail_after": "0s"}
        )
        agent = env_bin("agent", "tidemark-agent")
        self._ran(
            [agent if version == "new" else self.before.program("agent", agent.name), "upload-once", "--config", file]
        )

    def land(self, version: Version, lake: str = "upgraded") -> str:
        """Land what is stored, by the job of ``version``; returns its status."""
        new = version == "new"
        python = env_bin("spark", "python") if new else self.before.program("spark", "python")
        job = (ROOT / "spark" / "jobs" if new else self.before.jobs) / "ingest.py"
        topics = self.topics(lake)
        printed = self._ran([python, "-m", "tests.spark.inline", job, "--topics", topics, "--topic", self.topic])
        status: str = json.loads(printed.splitlines()[-1])["status"]
        assert status in {"landed", "empty"}
        return status

    def _ran(self, command: Sequence[str | Path]) -> str:
        env = self.s3.env() | {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(self.folder / "path"),
            "HOME": str(Path.home()),
        }
        done = subprocess.run(
            command, env=env, cwd=self.folder, capture_output=True, text=True, timeout=HUNG, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _written(self, name: str, content: dict[str, Any]) -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump(content))
        return path


@pytest.fixture
def parts(tmp_path: Path, brokers: KafkaCluster, s3_server: S3Server, before: Earlier) -> Iterator[Parts]:
    with credentials(s3_server):
        yield Parts(tmp_path, brokers, s3_server, before)


@pytest.mark.parametrize("order", ORDERS)
def test_each_order_of_upgrades_gives_what_one_version_gives(parts: Parts, order: str, rng: random.Random) -> None:
    bootstrap, topic = parts.kafka.bootstrap, parts.topic
    parts.kafka.create_topic(topic, partitions=3, config=SMALL)
    for *agents, pipeline in ORDERS[order]:
        plain(bootstrap, topic, rng.choice(["zstd", "lz4", "gzip"]), rng)
        for broker, version in enumerate(agents):
            parts.upload(broker, version)
        parts.land(pipeline)
    while parts.land(pipeline) == "landed":  # also closes the dates
        pass
    upgraded = parts.table("upgraded")
    rows = landed(upgraded)
    assert len(rows) == len(set(rows)) == committed_ledger(upgraded).rows
    assert set(rows) == consumed(bootstrap, topic)
    assert [line for line in parts.before.opened() if "/tests/" not in line] == [], "the earlier version is whole"
    while parts.land("new", "new") == "landed":
        pass
    assert sums(parts.table("new")).keys() == sums(upgraded).keys()
    assert sums(parts.table("new")) == sums(upgraded), f"{parts.before.origin} and this tree differ"


def test_a_job_whose_workers_have_another_version_lands_nothing(parts: Parts, rng: random.Random) -> None:
    """By a real driver and real workers. From 1.0.0 on workers say why; the next run, after the exchange, lands."""
    parts.kafka.create_topic(parts.topic, partitions=3, config=SMALL)
    plain(parts.kafka.bootstrap, parts.topic, "zstd", rng)
    for broker in range(2):
        parts.upload(broker, "new")
    job = (ROOT / "spark" / "jobs" / "ingest.py", "--topics", parts.topics("new"), "--topic", parts.topic)
    other = renamed(parts.folder / "other", "0.0.1", "spark")
    for workers, message in [
        (parts.before, "ended with code"),
        (other, f"this worker has version 0.0.1, and the driver {VERSION}"),
    ]:
        with pytest.raises(ProcessFailed, match=message):
            spark_submit(*job, env={**parts.s3.env(), "PYSPARK_PYTHON": str(workers.program("spark", "python"))})
        assert committed_ledger(parts.table("new")).n == 0
    spark_submit(*job, env=parts.s3.env())
    assert set(landed(parts.table("new"))) == consumed(parts.kafka.bootstrap, parts.topic)
