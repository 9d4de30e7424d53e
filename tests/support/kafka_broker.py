"""One Kafka broker: its process, its properties file, and how to tell that it serves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kazoo.client import KazooClient

from tests.support import class_data
from tests.support.jars import class_path
from tests.support.java import java
from tests.support.kafka_config import Properties, write_properties
from tests.support.ports import HOST, is_free
from tests.support.process import ManagedProcess
from tests.support.waiting import wait_until

KafkaVersion = Literal["4.3.1", "3.9.2"]
SMALL_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
TINY_JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
START_SECONDS = 90.0


def kafka_program(
    name: str, version: KafkaVersion, folder: Path, jvm: Sequence[str], *arguments: str | Path
) -> ManagedProcess:
    """A Java program from Kafka's jars, logging warnings to ``<name>.log``."""
    logging = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")
    command = [
        java(),
        *jvm,
        *class_data.options(f"kafka-{version}"),
        *logging,
        "-cp",
        class_path(f"kafka-{version}"),
        *arguments,
    ]
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
        self.process = kafka_program(f"broker-{node_id}", version, folder, jvm, "kafka.Kafka", self.properties_path)

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
        self.process.wait_until(lambda: self.node_id in self._members())

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
                return {broker["broker_id"] for broker in admin.describe_cluster()["brokers"]}
        except KafkaError:
            return set()  # still starting; the log's tail is shown if it never comes up

    def _await_expired_session(self) -> None:
        """A broker refuses to start while ZooKeeper still holds the session of its killed predecessor."""
        zookeeper = self.properties.get("zookeeper.connect")
        if zookeeper is None:
            return
        client = KazooClient(hosts=zookeeper)
        client.start(timeout=START_SECONDS)
        try:
            gone = f"ZooKeeper's session of the former broker {self.node_id} to end"
            wait_until(lambda: client.exists(f"/brokers/ids/{self.node_id}") is None, what=gone)
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
