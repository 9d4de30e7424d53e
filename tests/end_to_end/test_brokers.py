"""Brokers come and go, with an agent beside each: docs/operations.md, Adding and removing brokers, step by step."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.end_to_end.deployment import SmallDeployment
from tests.end_to_end.rows import consumed, landed
from tests.end_to_end.test_recovery import stored
from tests.end_to_end.test_whole_path import SMALL, plain
from tests.support.kafka import KafkaCluster
from tests.support.s3 import S3Server
from tests.support.waiting import wait_until, working_beside
from tests.uploader_agent.faults.cluster import await_leader, create, elect_preferred, high_watermark, reassign
from tidemark.formats.keys import ControlKeys
from tidemark.monitoring import deployment_conditions
from tidemark.monitoring.incident_store import watch
from tidemark.monitoring.incidents import Incident
from tidemark.raw_topic import RawTopic
from tidemark.table.delta_table import committed_ledger
from tidemark.timestamps import utc_now

pytestmark = pytest.mark.full

PARTITIONS = 3


@pytest.fixture(autouse=True)
def silent_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent is gone once it was silent for so long: its index is written every second here."""
    monkeypatch.setattr(deployment_conditions, "AGENT_GONE", timedelta(seconds=5))


@pytest.fixture
def cluster(starts_kafka: None, tmp_path: Path) -> Iterator[KafkaCluster]:
    """Two brokers and a controller of a test's own: it adds a broker, and stops one for good."""
    with KafkaCluster(tmp_path / "kafka", brokers=2, common={"auto.leader.rebalance.enable": "false"}) as cluster:
        yield cluster


@contextmanager
def producing(cluster: KafkaCluster, topic: str, rng: random.Random) -> Iterator[None]:
    """Records are sent in bursts while the block runs."""

    def produce(ended: threading.Event) -> None:
        while not ended.wait(1):
            plain(cluster.bootstrap, topic, rng.choice(["zstd", "lz4", "gzip"]), rng)

    with working_beside(produce):
        yield


class Operated:
    """The deployment as its operator sees it: ``beside`` gives the agent of a broker."""

    def __init__(self, folder: Path, cluster: KafkaCluster, s3: S3Server, mark: str) -> None:
        self.topic = f"moved-{mark}"
        self._folder, self._cluster, self._s3, self._mark = folder, cluster, s3, mark
        self.first = self.beside(1)

    def beside(self, broker: int) -> SmallDeployment:
        folder = self._folder / f"agent-{broker}"
        folder.mkdir()
        return SmallDeployment(
            folder,
            self._cluster,
            self._s3,
            self._mark,
            (self.topic,),
            broker=broker,
            tail_after="10m",
            settings={self.topic: {"freshness": "10s"}},
            agent_settings={
                "freshness": {".*": "10s"},
                "metadata_interval": "1s",
                "index_interval": "500ms",
                "index_idle_interval": "1s",
            },
        )

    @property
    def raw(self) -> RawTopic:
        return RawTopic(self.first.table(self.topic))

    @property
    def control(self) -> ControlKeys:
        return ControlKeys(self._mark, "test")

    def land(self) -> None:
        """Land what is stored now: more comes meanwhile."""
        assert self.first.land(self.topic).status in {"landed", "empty"}

    def stored(self) -> int:
        """The offsets that seals and packs have."""
        return sum(entry.least_stored_end for entry in self.raw.entries.values())

    def appended(self) -> int:
        """The offsets that Kafka has."""
        return sum(high_watermark(self._cluster, self.topic, number) or 0 for number in range(PARTITIONS))

    def tails_of(self, broker: int) -> list[int]:
        """Partitions whose ``offset.wm`` still leads to packs of a broker."""
        raw = self.raw
        assert len(raw.incarnations) == 1
        parts = [raw.partition((0, number)) for number in range(PARTITIONS)]
        marks = {part.keys.partition: raw.watermark(part) for part in parts}
        return [number for number, mark in marks.items() if mark and broker in {writer for _, writer in mark.tails}]

    def incidents(self) -> list[Incident]:
        """The open ones, as the watch finds them now."""
        return [each for each in watch(self.first.deployment, "test", utc_now()).incidents if each.open]

    def await_no_incident(self) -> None:
        last = list[Incident]()

        def closed() -> bool:
            last[:] = self.incidents()
            return not last

        try:
            wait_until(closed, what="all incidents to close", interval=1)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {[each.title for each in last]}") from error

    def settle(self) -> None:
        """Wait until all records have landed, and no incident is open, for longer than an agent may be silent."""
        wait_until(lambda: self.stored() == self.appended(), what="all to be stored")
        while self.first.land(self.topic).status == "landed":
            pass
        self.await_no_incident()

    def led_by(self, agent: SmallDeployment) -> list[str]:
        answer = agent.agent("leaders", "--output", "json")
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.splitlines()


def test_a_broker_is_added_and_an_old_one_removed(
    cluster: KafkaCluster, s3_server: S3Server, mark: str, tmp_path: Path, rng: random.Random
) -> None:
    deployment = Operated(tmp_path, cluster, s3_server, mark)
    topic, first, second = deployment.topic, deployment.first, deployment.beside(2)
    create(cluster, topic, [[1, 2], [2, 1], [1, 2]], segment_bytes=SMALL["segment.bytes"])
    with ExitStack() as agents:
        leaving, staying = (agents.enter_context(each.running_agent()) for each in (first, second))
        with producing(cluster, topic, rng):
            staying.wait_until(lambda: deployment.stored() > 6_000, what="packs and seals")
            deployment.land()
            assert deployment.tails_of(1), "broker 1 has packed nothing: the test would show little"

            cluster.add_broker()
            third = deployment.beside(3)
            coming = agents.enter_context(third.running_agent())
            for partition, replicas in enumerate([[3, 2], [2, 3], [3, 2]]):
                reassign(cluster, topic, partition, replicas)
                elect_preferred(cluster, topic, partition)
                await_leader(cluster, topic, replicas[0], partition)
            leaving.wait_until(lambda: not deployment.led_by(first), what="leads nothing")
            leaving.stop()
            cluster.brokers[0].stop()
            coming.wait_until(lambda: len(deployment.led_by(third)) == 2, what="leads two partitions")
            coming.wait_until(lambda: not deployment.tails_of(1), what="has sealed what broker 1 had packed")
            deployment.land()
        deployment.settle()

        client = s3_server.client()
        for key in (deployment.control.index(1), deployment.control.head(1)):
            client.delete_object(Bucket="raw", Key=key)
        plain(cluster.bootstrap, topic, "zstd", rng)
        deployment.settle()
        for agent in (second, third):
            verified = agent.agent("verify", "--deep")
            assert verified.returncode == 0, verified.stdout

    table = first.table(topic)
    rows = landed(table)
    assert len(rows) == len(set(rows))
    assert set(rows) == consumed(cluster.bootstrap, topic)
    assert [state.gaps for state in committed_ledger(table).partitions] == [()] * PARTITIONS


def test_a_broker_without_other_replicas_gives_all_before_it_goes(small: SmallDeployment, rng: random.Random) -> None:
    """Its agent has packed some; no ``upload-once`` runs beside it."""
    topic, agent_settings = small.topics[0], {"freshness": {".*": "10s"}}
    small.kafka.create_topic(topic, partitions=PARTITIONS)
    deployment = replace(small, tail_after="10m", agent_settings=agent_settings)
    plain(small.kafka.bootstrap, topic, "zstd", rng)
    with deployment.running_agent() as agent:
        agent.wait_until(lambda: stored(deployment, topic) == 6_000, what="packs")
        refused = deployment.agent("upload-once", "--tails")
        assert refused.returncode != 0
        assert "another agent uses this directory; stop it first" in refused.stderr
        plain(small.kafka.bootstrap, topic, "lz4", rng)
    done = deployment.agent("upload-once", "--tails")
    assert done.returncode == 0, done.stderr
    entries = RawTopic(deployment.table(topic)).entries.values()
    assert sum(entry.next_offset for entry in entries) == 12_000, "all is sealed"
    assert deployment.land(topic).status == "landed"
    assert set(landed(deployment.table(topic))) == consumed(small.kafka.bootstrap, topic)
