"""Real brokers are restored from a backup while the store is ahead: each acknowledged record is stored, or told."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.kafka import KafkaCluster
from tests.support.ports import free_port
from tests.support.waiting import HUNG, wait_until
from tests.uploader_agent.real import SMALL, Deployment, Load
from tidemark.errors import NotFound
from tidemark.formats.raw.head import Head
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from tidemark.store import LocalStore

PROMPT = {
    "scan_interval": "200ms",
    "metadata_interval": "200ms",
    "index_interval": "200ms",
    "index_idle_interval": "1s",
    "freshness": {".*": "3s"},
}


class Backup:
    """Copies of directories, taken and put back while their programs are stopped."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def take(self, *folders: Path) -> None:
        for folder in folders:
            shutil.copytree(folder, self._copy(folder))

    def put_back(self, *folders: Path) -> None:
        for folder in folders:
            shutil.rmtree(folder)
            shutil.copytree(self._copy(folder), folder)

    def _copy(self, folder: Path) -> Path:
        return self._place / folder.relative_to(folder.parents[1]).as_posix().replace("/", "_")


class Restored:
    """A cluster, an agent on each broker, and a store with sealed and packed offsets beyond a backup of the cluster."""

    def __init__(self, root: Path, cluster: KafkaCluster) -> None:
        self.store = LocalStore(root / "store")
        self.cluster = cluster
        self.topic = f"restored-{uuid.uuid4().hex[:8]}"
        self.ports = [free_port() for _ in cluster.brokers]
        self.agents: list[Deployment] = []
        for number, (broker, port) in enumerate(zip(cluster.brokers, self.ports, strict=True), 1):
            folder = root / f"agent-{number}"
            folder.mkdir()
            own = {"broker": {"properties": str(broker.properties_path)}, "http": {"port": port}}
            self.agents.append(Deployment(folder, cluster, self.store, "", self.topic, **PROMPT, **own))
        self.running: list[subprocess.Popen[bytes]] = []
        cluster.create_topic(self.topic, replication=len(cluster.brokers), config=SMALL["4.3.1"])
        self.backup = Backup(root / "backup")

    @property
    def metadata(self) -> list[Path]:
        """The controller's directory, if it has one of its own."""
        assert self.cluster.coordinator is not None
        return [self.cluster.brokers[0].log_dirs[0].parents[1] / "controller" / "data"]

    def disks(self, *numbers: int) -> list[Path]:
        return [self.cluster.brokers[number].log_dirs[0] for number in numbers]

    def start_agents(self) -> None:
        self.running = [agent.start("run", {}) for agent in self.agents]

    def stop_agents(self) -> None:
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            process.wait(HUNG)
        self.running = []

    def while_stopped(self, action: Callable[[], None]) -> None:
        self.cluster.stop()
        try:
            action()
        finally:
            self._start_brokers()

    def _start_brokers(self) -> None:
        if self.cluster.coordinator is not None:
            self.cluster.coordinator.start()
        for broker in self.cluster.brokers:
            broker.start(wait=False)
        for broker in self.cluster.brokers:
            broker.wait_ready()

    def await_stored(self, end: int) -> None:
        """Wait until seals and packs reach ``end``, and some of it is packed and not sealed."""

        def reached() -> bool:
            try:
                sealed = self.agents[0].watermark()[1].next_offset
            except NotFound:
                return False
            return sealed < end == max([sealed, *self._packed_ends()])

        wait_until(reached, what=f"the store to reach {end}")

    def _packed_ends(self) -> list[int]:
        heads = self.store.list(self.agents[0].control.heads)
        return [
            entry.tail_end for one in heads for entry in Head.from_bytes(self.store.get(one.key).body, one.key).entries
        ]

    def lost(self, load: Load) -> list[int]:
        """The offsets of acknowledged records that are in no object."""
        keys = (one.key for one in self.store.list("") if re.search(r"\.(log(-r?\d+)*|pack)$", one.key))
        bodies = [self.store.get(key).body for key in keys]
        return [offset for offset, value in load.acknowledged[0].items() if not any(value in body for body in bodies)]

    def entries(self) -> list[IndexEntry]:
        indexes = [one.key for one in self.store.list(self.agents[0].control.indexes)]
        return [one for key in indexes for one in WatermarkIndex.from_bytes(self.store.get(key).body, key).entries]

    def told(self) -> bool:
        """Whether an index and the health of an agent tell of another history."""
        return any(one.other_history for one in self.entries()) and any(self._unhealthy(port) for port in self.ports)

    @staticmethod
    def _unhealthy(port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/healthy", timeout=5):
                return False
        except urllib.error.HTTPError as error:
            return b"another history than the stored one" in error.read()
        except OSError:
            return False


KINDS = {
    "all, of one broker": (1, False),
    "the disk": (1, True),
    "the metadata": (1, True),
    "disk and metadata": (1, True),
    "one disk of three": (3, True),
    "all of three": (3, True),
}
OFTEN = {("all, of one broker", "up"), ("all, of one broker", "down")}


@pytest.mark.parametrize(
    ("kind", "agent"),
    [
        pytest.param(kind, agent, marks=[] if (kind, agent) in OFTEN else pytest.mark.full)
        for kind in KINDS
        for agent in ("up", "down")
    ],
)
def test_what_a_restored_cluster_acknowledges_is_stored_or_told(
    starts_kafka: None, tmp_path: Path, kind: str, agent: str, request: pytest.FixtureRequest
) -> None:
    brokers, separate = KINDS[kind]
    with ExitStack() as stack:
        if separate:
            cluster = KafkaCluster(tmp_path / "kafka", brokers=brokers, separate_controller=True)
            here = Restored(tmp_path, stack.enter_context(cluster))
        else:
            here = Restored(tmp_path, request.getfixturevalue("kafka_disk"))
        stack.callback(here.stop_agents)
        all_brokers = range(brokers)
        everything = [*here.disks(*all_brokers), *(here.metadata if separate else [])]
        load = Load(here.cluster, here.topic, acks="all")
        load.send(60)
        here.while_stopped(lambda: here.backup.take(*everything))
        here.start_agents()
        load.send(200)
        end = 1 + max(load.acknowledged[0])
        here.await_stored(end)
        if agent == "down":
            here.stop_agents()
        back = {
            "all, of one broker": everything,
            "the disk": here.disks(0),
            "the metadata": here.metadata if separate else [],
            "disk and metadata": everything,
            "one disk of three": here.disks(1) if brokers == 3 else [],
            "all of three": everything,
        }[kind]
        here.while_stopped(lambda: here.backup.put_back(*back))
        if agent == "down":
            here.start_agents()
        after = Load(here.cluster, here.topic, acks="all")
        after.send(120)
        wait_until(lambda: here.told() or not here.lost(after), what="all to be stored, or told")
        lost = here.lost(after)
        told = next((one.other_history for one in here.entries() if one.other_history), None)
        if told is not None:
            assert told.at <= min(load.acknowledged[0].keys() - set(range(60)))
            assert told.at < told.stored_end <= end
        else:
            assert not lost
