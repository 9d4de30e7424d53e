"""Three brokers with Kafka's own remote tier: elections, unclean ones, and restarts while segments are tiered."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer

from tests.support.kafka import KafkaCluster
from tests.support.waiting import HUNG, wait_until
from tests.uploader_agent.faults.cluster import create, describe, high_watermark
from tests.uploader_agent.real import SMALL, Deployment
from tests.uploader_agent.test_remote_tier_real import TIERED, read, tier_settings
from tidemark import TieredConsumer
from tidemark.storage import Storage
from tidemark.store import LocalStore
from uploader_agent.disk.log_dirs import find_segments

TOPIC = "elected"


@pytest.fixture
def cluster(starts_kafka: None, tmp_path: Path) -> Iterator[KafkaCluster]:
    common = {
        **tier_settings("4.3.1", tmp_path / "tier"),
        "broker.session.timeout.ms": "6000",
        "offsets.topic.replication.factor": "1",
        "replica.lag.time.max.ms": "2000",
    }
    on = {"remote.log.storage.system.enable": "true"}
    with KafkaCluster(tmp_path / "kafka", brokers=3, common=common, controller=on) as made:
        yield made


class Trial:
    """A topic with three replicas, an agent on each broker, and what happens to them."""

    def __init__(self, cluster: KafkaCluster, root: Path, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.store = LocalStore(root / "raw")
        settings = {**SMALL["4.3.1"], **TIERED, "unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        create(cluster, TOPIC, [[1, 2, 3]], **{name.replace(".", "_"): value for name, value in settings.items()})
        self.agents: list[Deployment] = []
        for broker in cluster.brokers:
            folder = root / f"agent-{broker.node_id}"
            folder.mkdir()
            properties = {"properties": str(broker.properties_path)}
            agent = Deployment(folder, cluster, self.store, "", TOPIC, broker=properties, fetch_segment=40_000)
            self.agents.append(agent)
        self.sent = 0

    @property
    def leader(self) -> int:
        return int(describe(self.cluster, TOPIC)[0].leader)

    def send(self, count: int) -> None:
        """Send records that the leader alone acknowledges: an unclean election loses some."""
        producer = Producer(
            {"bootstrap.servers": self.cluster.bootstrap, "batch.num.messages": 10, "acks": 1, "log_level": 0}
        )
        failures: list[object] = []
        for _ in range(count):
            self.sent += 1
            value = b"%d:" % self.sent + self.rng.randbytes(300)
            producer.produce(TOPIC, value, partition=0, on_delivery=lambda error, _: failures.append(error))
        assert producer.flush(60) == 0
        assert {*failures} == {None}

    def upload(self) -> None:
        """Let the agent of each running broker upload once."""
        for broker, agent in zip(self.cluster.brokers, self.agents, strict=True):
            if broker.running:
                agent.run("upload-once", {})

    def await_led(self) -> None:
        """Wait until a running broker leads, and answers for the log."""
        running = {broker.node_id for broker in self.cluster.brokers if broker.running}
        wait_until(lambda: self.leader in running, what="a leader", timeout=HUNG)
        assert high_watermark(self.cluster, TOPIC, 0) is not None

    def restart_leader(self) -> None:
        """A clean election, while segments are tiered."""
        broker = self.cluster.brokers[self.leader - 1]
        broker.kill()
        self.await_led()
        self.send(60)
        broker.start()

    def elect_uncleanly(self) -> None:
        """A follower that lacks the newest records leads once the others are gone."""
        leader = self.leader
        behind, other = (broker for broker in self.cluster.brokers if broker.node_id != leader)
        behind.kill()
        self.send(120)
        other.kill()
        self.send(120)
        self.cluster.brokers[leader - 1].kill()
        behind.start()
        self.await_led()
        self.send(120)
        for broker in (other, self.cluster.brokers[leader - 1]):
            broker.start()

    def await_local_retention(self) -> None:
        """Wait until most has left the leader's disk."""

        def left() -> bool:
            log_dirs = self.cluster.brokers[self.leader - 1].log_dirs
            starts = [find_segments(path / f"{TOPIC}-0") for path in log_dirs if (path / f"{TOPIC}-0").is_dir()]
            end = high_watermark(self.cluster, TOPIC, 0) or 0
            return any(found and found[0].base_offset > end - 100 for found in starts)

        wait_until(left, what="segments to leave the disk", timeout=HUNG)


@pytest.mark.full
@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed{seed}") for seed in range(3)])
def test_elections_and_restarts_while_segments_are_tiered(cluster: KafkaCluster, tmp_path: Path, seed: int) -> None:
    """In the end a consumer of the store alone gets what Kafka's gets, and nothing is missing."""
    trial = Trial(cluster, tmp_path, seed)
    trial.send(200)
    steps = [trial.restart_leader, trial.elect_uncleanly, trial.await_local_retention, trial.upload]
    for _ in range(6):
        trial.rng.choice(steps)()
        trial.await_led()
        trial.send(60)
        if trial.rng.random() < 0.5:
            trial.upload()
    wait_until(lambda: len(describe(cluster, TOPIC)[0].isrs) == 3, what="all replicas in sync", timeout=HUNG)
    trial.await_local_retention()
    for _ in range(2):
        trial.upload()
    agent = trial.agents[trial.leader - 1]
    watermark = agent.watermark()[1]
    assert watermark.gaps == ()
    plain = KafkaConsumer(bootstrap_servers=cluster.bootstrap)
    storage = Storage.at(trial.store.url, cluster.cluster_id)
    with (
        closing(plain),
        TieredConsumer(bootstrap_servers=cluster.bootstrap, mode="REMOTE_ONLY", storage=storage) as ours,
    ):
        expected = read(plain, TOPIC, watermark.start_offset, watermark.next_offset)
        assert read(ours, TOPIC, watermark.start_offset, watermark.next_offset) == expected
    assert watermark.start_offset == 0
    assert watermark.next_offset > 300
