"""Every alert provoked for real: a broker, its agent, Spark, an S3 server, Airflow, and people's servers at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from tests.end_to_end.deployment import SmallDeployment
from tests.support.airflow import AirflowStack, with_times
from tests.support.paths import ROOT
from tests.support.process import ManagedProcess, ProcessFailed
from tests.support.receivers import HookServer, SmtpServer, alert_env
from tests.support.s3 import ADMIN, allow
from tests.support.spark import spark_submit
from tests.support.tuned_agent import tuned_agent
from tests.support.waiting import wait_until
from tidemark.endpoints import resolver_of
from tidemark.formats.keys import ControlKeys, PartitionKeys
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex, merge
from tidemark.store import Store, open_store
from tidemark.table.delta_table import committed_ledger, live_files, open_delta

WATCH = "tidemark_watch"
SMALL = {"segment.bytes": str(1 << 20)}
POISONED, LOST, HELD = range(3)
"""Partitions: one gets records that the parser refuses, one loses an object, and of one nothing may be uploaded."""


class Provoked:
    """The deployment with what it takes to break and to mend it."""

    def __init__(self, small: SmallDeployment, folder: Path) -> None:
        self.small, self.topic, self.idle = small, *small.topics
        self.folder, self._restricted = folder, f"restricted-{small.prefix}"
        self.settings: dict[str, Any] = yaml.safe_load(small.topics_file.read_text())
        self.parse(required=True)
        self.producer = Producer({"bootstrap.servers": small.kafka.bootstrap, "batch.size": 200_000})

    def parse(self, *, required: bool) -> None:
        columns = [{"name": "id", "type": "int64", "required": required}]
        self.settings["topics"] = [
            {"topic": self.topic, "parser": {"kind": "json", "columns": columns}},
            {"topic": self.idle},
        ]
        self.small.topics_file.write_text(yaml.safe_dump(self.settings))

    def send(self, topic: str, partition: int, count: int, value: str = '{"id": 1}') -> None:
        for _ in range(count):
            self.producer.produce(topic, value=value.ljust(20_000).encode(), partition=partition)
        assert self.producer.flush(60) == 0

    @property
    def raw(self) -> Store:
        deployment = self.small.deployment
        return open_store(resolver_of(deployment.raw).default().store, deployment.store)

    def keys(self, partition: int) -> PartitionKeys:
        endpoint = resolver_of(self.small.deployment.raw).resolve("test", self.topic, partition)
        return PartitionKeys(endpoint, "test", self.topic, partition)

    def entries(self) -> dict[int, IndexEntry]:
        """What the agent says of the topic."""
        default = resolver_of(self.small.deployment.raw).default()
        found = [info.key for info in self.raw.list(ControlKeys(default.prefix, "test").indexes)]
        indexes = (WatermarkIndex.from_bytes(self.raw.get(key).body, key) for key in found)
        return {at.partition: entry for at, entry in merge(indexes).items() if at.topic == self.topic}

    def uploaded(self, *partitions: int) -> bool:
        """Whether all is sealed or packed."""
        found = self.entries()
        return all(one in found and found[one].stored_end == found[one].log_end_offset > 0 for one in partitions)

    def agent(self, *, restricted: bool) -> ManagedProcess:
        env = self.small.s3.env(self._restricted if restricted else ADMIN) | {"PATH": "/usr/bin:/bin"}
        tuning = {"scan_interval": "1s", "index_interval": "500ms", "index_idle_interval": "5s"}
        command: list[str | Path] = [*tuned_agent(tuning), "run", "--config", self.small.agent_file]
        return ManagedProcess("agent", command, cwd=ROOT, log=self.folder / f"agent-{restricted}.log", env=env)

    def restrict(self) -> None:
        """A user that may write everything but the partition HELD."""
        folders = [self.keys(one).folder for one in (POISONED, LOST)] + [f"{self.small.prefix}/_*"]
        idle = resolver_of(self.small.deployment.raw).resolve("test", self.idle, 0)
        folders.append(PartitionKeys(idle, "test", self.idle, 0).folder)
        writable = [f"arn:aws:s3:::raw/{folder}*" for folder in folders]
        self.small.s3.add_user(
            self._restricted,
            [
                allow(["s3:GetObject", "s3:ListBucket"], ["arn:aws:s3:::raw", "arn:aws:s3:::raw/*"]),
                allow(["s3:PutObject", "s3:DeleteObject"], writable),
            ],
        )

    def audit(self) -> bool:
        """Have the audit job look at the topic's first date; whether it passed."""
        job, dt = ROOT / "spark" / "jobs" / "audit.py", min(committed_ledger(self.small.table(self.topic)).dates)
        arguments = ("--topics", self.small.topics_file, "--topic", self.topic, "--dt", dt)
        try:
            spark_submit(job, *arguments, env=self.small.s3.env())
        except ProcessFailed:
            return False
        return True

    def lose_a_segment(self) -> tuple[int, int]:
        """Remove the first segment that has not landed of the partition LOST; its first offset and the next one's."""
        keys, landed = self.keys(LOST), committed_ledger(self.small.table(self.topic)).by_partition[0, LOST].next_offset
        objects = [(keys.segment_of(info.key), info.key) for info in self.raw.list(keys.folder)]
        bases = sorted({at[0].base for at, _ in objects if at is not None and at[0].base >= landed})
        for at, key in objects:
            if at is not None and at[0].base == bases[0]:
                self.raw.delete(key)
        return bases[0], bases[1]


@pytest.fixture
def provoked(small: SmallDeployment, tmp_path: Path) -> Provoked:
    return Provoked(small, tmp_path)


@pytest.fixture
def smtp() -> Iterator[SmtpServer]:
    with SmtpServer() as server:
        yield server


@pytest.fixture
def hook() -> Iterator[HookServer]:
    with HookServer() as server:
        yield server


@pytest.fixture
def dags(tmp_path: Path) -> Path:
    """The watch alone, for which something is late, or gone, sooner: what else Airflow does, the test does itself."""
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "watch.py").write_text(with_times((ROOT / "dags" / "watch.py").read_text(), late=5, gone=20))
    return folder


@pytest.fixture
def airflow(
    starts_airflow: None, provoked: Provoked, smtp: SmtpServer, hook: HookServer, dags: Path, tmp_path: Path
) -> Iterator[AirflowStack]:
    env = provoked.small.s3.env() | {
        "AIRFLOW__TIDEMARK__TOPICS": str(provoked.small.topics_file),
        **alert_env(smtp, hook),
    }
    with AirflowStack(tmp_path / "airflow", dags=dags, plugins=ROOT / "plugins", env=env) as stack:
        stack.client.wait_for_dag(WATCH)
        yield stack


def look(airflow: AirflowStack) -> None:
    """Have the watch look once; between its looks it is paused, so that each stage is seen as a whole."""
    airflow.client.unpause(WATCH)
    run = airflow.client.trigger(WATCH)
    assert airflow.client.wait_for_run(WATCH, run) == "success"
    airflow.client.pause(WATCH)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_every_alert_is_provoked_received_once_and_closed_when_mended(
    provoked: Provoked, airflow: AirflowStack, smtp: SmtpServer, hook: HookServer
) -> None:
    topic, small = provoked.topic, provoked.small
    small.kafka.create_topic(topic, partitions=3, config=SMALL)
    small.kafka.create_topic(provoked.idle, partitions=1, config=SMALL)
    provoked.send(provoked.idle, 0, 10)
    for partition in (POISONED, LOST):
        provoked.send(topic, partition, 100)
    provoked.restrict()

    with provoked.agent(restricted=True):
        wait_until(lambda: provoked.uploaded(POISONED, LOST), what="the first records to be uploaded")
        for one in small.topics:
            assert small.job("ingest", one)["status"] == "landed"
        look(airflow)
        look(airflow)
        assert hook.told == [], "nothing is wrong yet"

        provoked.send(topic, POISONED, 50, '{"id": null}')
        provoked.send(topic, LOST, 300)
        provoked.send(topic, HELD, 300)
        wait_until(lambda: provoked.uploaded(POISONED, LOST), what="more to be uploaded")
        wait_until(lambda: _is_held(provoked), what="a segment to be held back")
        first, after = provoked.lose_a_segment()
        assert small.job("ingest", topic)["quarantined"] == 50
        provoked.send(topic, POISONED, 100)
        wait_until(lambda: provoked.uploaded(POISONED), what="what is late to be uploaded")
        delta = open_delta(small.table(topic))
        assert delta is not None
        file = f"{small.table(topic).keys.root}/{live_files(delta)[0].path}"
        bytes_of_file = small.table(topic).store.get(file).body
        small.table(topic).store.delete(file)
        assert not provoked.audit()
        dt = min(committed_ledger(small.table(topic)).dates)
        wanted = {
            f"gap/test/{topic}/0-{LOST}/{first}",
            f"stuck/test/{topic}/0-{HELD}",
            f"late/test/{topic}",
            f"quarantine/test/{topic}",
            f"audit/test/{topic}/{dt}",
        }
        wait_until(lambda: _look(airflow, hook, wanted), what=f"all of {wanted} to be told of")
    broker = small.kafka.brokers[0].node_id
    wanted.add(f"agent_gone/test/{broker}")
    wait_until(lambda: _look(airflow, hook, wanted), what="the agent to be missed")
    assert Counter(hook.told) == {(key, "opened"): 1 for key in wanted}

    with provoked.agent(restricted=False):
        done = small.agent("reupload", topic, str(LOST), "--from", str(first), "--to", str(after))
        assert done.returncode == 0, done.stderr
        wait_until(lambda: provoked.uploaded(0, 1, 2), what="what was held back to be uploaded")
        small.table(topic).store.put(file, bytes_of_file)
        assert small.job("ingest", topic)["status"] == "landed"
        provoked.parse(required=False)
        assert small.job("replay", topic)["status"] == "landed"
        assert provoked.audit()
        look(airflow)

    assert Counter(hook.told) == {(key, status): 1 for key in wanted for status in ("opened", "closed")}
    assert Counter(smtp.subjects) == {str(body["subject"]): 1 for body in hook.bodies}
    assert not [one for body in hook.bodies for one in body["incidents"] if one["topic"] == provoked.idle]


def _is_held(provoked: Provoked) -> bool:
    entry = provoked.entries().get(HELD)
    return entry is not None and (entry.active_base_offset or 0) > entry.next_offset


def _look(airflow: AirflowStack, hook: HookServer, wanted: set[str]) -> bool:
    look(airflow)
    return wanted <= {key for key, _ in hook.told}
