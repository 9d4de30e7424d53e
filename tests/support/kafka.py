"""Kafka clusters on this machine: 4.3.1 in KRaft mode, 3.9.2 with ZooKeeper.

A cluster is ready when an admin call to each broker names that broker. Brokers can be stopped, killed and started
again one by one. With KRaft one broker is also the controller; two or more have a controller of their own, so
that every broker may die. Replication factors of the internal topics are 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError
from kazoo.client import KazooClient

from tests.support.jars import class_path
from tests.support.java import java
from tests.support.kafka_config import (
    Properties,
    Quorum,
    new_cluster_id,
    read_properties,
    write_properties,
    zookeeper_broker_properties,
    zookeeper_properties,
)
from tests.support.ports import HOST, free_port, is_free
from tests.support.process import ManagedProcess, ProcessFailed, ProcessRecord
from tests.support.waiting import wait_until

KafkaVersion = Literal["4.3.1", "3.9.2"]
SMALL_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_TINY_JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_START_SECONDS = 90.0


def _jvm(name: str, version: KafkaVersion, folder: Path, jvm: Sequence[str], *arguments: str | Path) -> ManagedProcess:
    """A Java program of Kafka's jars, logging warnings to ``<name>.log``."""
    logging = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")
    command = [java(), *jvm, *logging, "-cp", class_path(f"kafka-{version}"), *arguments]
    return ManagedProcess(name, command, log=folder / f"{name}.log", cwd=folder)


class Broker:
    """One broker. Change ``properties`` and :meth:`restart` to reconfigure it."""

    def __init__(
        self, folder: Path, version: KafkaVersion, jvm: Sequence[str], node_id: int, port: int, properties: Properties
    ) -> None:
        """For :class:`KafkaCluster`."""
        self.node_id = node_id
        self.port = port
        self.bootstrap = f"{HOST}:{port}"
        self.properties = properties
        self.properties_path = folder / "server.properties"
        folder.mkdir(parents=True, exist_ok=True)
        self.process = _jvm(f"broker-{node_id}", version, folder, jvm, "kafka.Kafka", self.properties_path)

    @property
    def log_dirs(self) -> list[Path]:
        """Where its partitions lie."""
        return [Path(path) for path in self.properties["log.dirs"].split(",")]

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self.process.running

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it serves unless told not to."""
        write_properties(self.properties_path, self.properties)
        self._await_expired_session()
        self.process.start()
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the broker answers an admin call and names itself a member of the cluster."""
        self.process.wait_until(lambda: self.node_id in self._members(), timeout=_START_SECONDS)

    def stop(self) -> None:
        """Clean stop, as by the service manager."""
        self.process.stop()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def restart(self) -> None:
        """Clean stop if it runs, then start and wait."""
        self.stop()
        self.start()

    def _members(self) -> set[int]:
        if is_free(self.port):
            return set()  # nobody listens yet: spare the client its own retries
        try:
            with connect(self.bootstrap) as admin:
                return {broker["node_id"] for broker in admin.describe_cluster()["brokers"]}
        except KafkaError:
            return set()  # still starting; the log's tail is shown if it never comes up

    def _await_expired_session(self) -> None:
        """A broker refuses to start while ZooKeeper still holds the session of its killed predecessor."""
        zookeeper = self.properties.get("zookeeper.connect")
        if zookeeper is None:
            return
        client = KazooClient(hosts=zookeeper)
        client.start(timeout=_START_SECONDS)
        try:
            gone = f"ZooKeeper's session of the former broker {self.node_id} to end"
            wait_until(lambda: client.exists(f"/brokers/ids/{self.node_id}") is None, timeout=60, what=gone)
        finally:
            client.stop()
            client.close()


@contextmanager
def connect(bootstrap: str) -> Iterator[KafkaAdminClient]:
    """An admin client that is closed afterwards."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=10_000)
    try:
        yield admin
    finally:
        admin.close()


class KafkaCluster:
    """A cluster under ``root``; usable with ``with``. ``brokers[i]`` has node id ``i + 1``."""

    def __init__(
        self,
        root: Path,
        *,
        version: KafkaVersion = "4.3.1",
        brokers: int = 1,
        log_dirs: int = 1,
        separate_controller: bool | None = None,
        common: Mapping[str, str] | None = None,
        per_broker: Mapping[int, Mapping[str, str]] | None = None,
        jvm: Sequence[str] = SMALL_JVM,
    ) -> None:
        """Nothing is started yet.

        ``common`` overrides properties of all brokers, ``per_broker`` those of a node id; ``log_dirs`` is the number
        of log directories of each; ``separate_controller`` defaults to True for more than one broker.
        """
        self.version = version
        self._root = root.resolve()
        self._cluster_id = new_cluster_id()
        self.zookeeper: str | None = None
        self._coordinator: ManagedProcess | None = None  # ZooKeeper, or a controller of its own
        self._quorum: Quorum | None = None
        if version.startswith("3."):
            self._prepare_zookeeper(free_port())
        else:
            separate = brokers > 1 if separate_controller is None else separate_controller
            self._quorum = Quorum(free_port(), broker=not separate)
            if separate:
                self._prepare_controller(self._quorum)
        self.brokers: list[Broker] = []
        for node_id in range(1, brokers + 1):
            folder, port = self._root / f"broker-{node_id}", free_port()
            places = [folder / f"data-{i}" for i in range(1, log_dirs + 1)]
            properties = {**self._base(node_id, port, places), **(common or {}), **(per_broker or {}).get(node_id, {})}
            self.brokers.append(Broker(folder, version, jvm, node_id, port, properties))

    def _base(self, node_id: int, port: int, places: Sequence[Path]) -> Properties:
        if self._quorum is not None:
            return self._quorum.broker_properties(node_id, port, places)
        return zookeeper_broker_properties(f"{self.zookeeper}", node_id, port, places)

    def _prepare_zookeeper(self, port: int) -> None:
        folder = self._root / "zookeeper"
        self.zookeeper = f"{HOST}:{port}"
        write_properties(folder / "zoo.cfg", zookeeper_properties(folder / "data", port))
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        self._coordinator = _jvm("zookeeper", self.version, folder, _TINY_JVM, main, folder / "zoo.cfg")

    def _prepare_controller(self, quorum: Quorum) -> None:
        folder = self._root / "controller"
        write_properties(folder / "server.properties", quorum.controller_properties(folder / "data"))
        self._coordinator = _jvm(
            "controller", self.version, folder, SMALL_JVM, "kafka.Kafka", folder / "server.properties"
        )
