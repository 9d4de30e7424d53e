"""Property files for small brokers: quick to start, quick to roll, retain and checkpoint, and never losing test data.

``log.retention.ms`` is -1 because records with old timestamps would otherwise be deleted at once.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.ports import HOST

Properties = dict[str, str]

COMMON: Properties = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "2000",
    "log.flush.start.offset.checkpoint.interval.ms": "2000",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "2000",
    "log.retention.ms": "-1",
    "num.io.threads": "2",
    "num.network.threads": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
}
QUICK: Properties = {
    "group.min.session.timeout.ms": "1000",
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "300",
    "log.segment.delete.delay.ms": "1000",
}
"""Settings of the brokers that tests share: the cleaner and retention come soon. All else a topic sets for itself."""

_KRAFT: Properties = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
}
_CONTROLLER_ID = 100


@dataclass(frozen=True)
class Quorum:
    """The KRaft controller: its node id and port. ``broker`` is true if it is one process with broker 1."""

    port: int
    broker: bool

    @property
    def node_id(self) -> int:
        """The controller's node id."""
        return 1 if self.broker else _CONTROLLER_ID

    def _common(self) -> Properties:
        return {**_KRAFT, "controller.quorum.voters": f"{self.node_id}@{HOST}:{self.port}"}

    def controller_properties(self, log_dir: Path) -> Properties:
        """A controller in a process of its own."""
        return {
            **self._common(),
            "process.roles": "controller",
            "node.id": str(self.node_id),
            "listeners": f"CONTROLLER://{HOST}:{self.port}",
            "log.dirs": str(log_dir),
        }

    def broker_properties(self, node_id: int, port: int, log_dirs: Sequence[Path]) -> Properties:
        """A broker, which is the controller as well if the quorum says so."""
        combined = self.broker and node_id == self.node_id
        listeners = f"PLAINTEXT://{HOST}:{port}"
        return {
            **COMMON,
            **self._common(),
            "process.roles": "broker,controller" if combined else "broker",
            "node.id": str(node_id),
            "listeners": f"{listeners},CONTROLLER://{HOST}:{self.port}" if combined else listeners,
            "advertised.listeners": listeners,
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": ",".join(map(str, log_dirs)),
        }


def zookeeper_properties(directory: Path, port: int) -> Properties:
    """A ZooKeeper that lets sessions expire within 10 s at most, so that a killed broker is soon missed."""
    return {
        "admin.enableServer": "false",
        "clientPort": str(port),
        "clientPortAddress": HOST,
        "dataDir": str(directory),
        "maxClientCnxns": "0",
        "tickTime": "500",
    }


def zookeeper_broker_properties(zookeeper: str, node_id: int, port: int, log_dirs: Sequence[Path]) -> Properties:
    """A broker of a ZooKeeper cluster."""
    return {
        **COMMON,
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "broker.id": str(node_id),
        "controlled.shutdown.retry.backoff.ms": "500",
        "listeners": f"PLAINTEXT://{HOST}:{port}",
        "log.dirs": ",".join(map(str, log_dirs)),
        "zookeeper.connect": zookeeper,
        "zookeeper.session.timeout.ms": "10000",  # as long as this ZooKeeper allows: a busy machine pauses for seconds
    }


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write a Java property file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


def read_properties(path: Path) -> Properties:
    """Read what :func:`write_properties` or Kafka wrote."""
    lines = (line.strip() for line in path.read_text().splitlines())
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def new_cluster_id() -> str:
    """A cluster id in Kafka's notation: 22 characters of URL-safe Base64 that do not look like an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]).startswith("-"):
        pass
    return text
