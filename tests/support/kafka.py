"""Kafka clusters on this machine: 4.3.1 in KRaft mode, 3.9.2 with ZooKeeper.

A cluster is ready when an admin call to each broker names that broker. Brokers can be stopped, killed and started
again one by one. With KRaft one broker is also the controller; two or more have a controller of their own, so
that every broker may die. Replication factors of the internal topics are 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from kafka.admin import KafkaAdminClient, NewTopic

from tests.support.kafka_broker import SMALL_JVM, START_SECONDS, TINY_JVM, Broker, KafkaVersion, connect, kafka_program
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
        controller: Mapping[str, str] | None = None,
        jvm: Sequence[str] = SMALL_JVM,
        cluster_id: str | None = None,
    ) -> None:
        """Nothing is started yet.

        ``common`` overrides properties of all brokers, ``per_broker`` those of a node id; ``log_dirs`` is the number
        of log directories of each; ``separate_controller`` defaults to True for more than one broker. With the
        ``cluster_id`` of brokers that were here before, they go on from what they have on disk.
        """
        self.version = version
        self._root = root.resolve()
        self._cluster_id = cluster_id or new_cluster_id()
        self.zookeeper: str | None = None
        self.coordinator: ManagedProcess | None = None
        """ZooKeeper, or a controller of its own."""
        self._quorum: Quorum | None = None
        if version.startswith("3."):
            self._prepare_zookeeper(free_port())
        else:
            separate = brokers > 1 if separate_controller is None else separate_controller
            self._quorum = Quorum(free_port(), broker=not separate)
            if separate:
                self._prepare_controller(self._quorum, controller or {})
        self._log_dirs, self._jvm = log_dirs, jvm
        self._common, self._per_broker = common or {}, per_broker or {}
        self.brokers = [self._broker(node_id) for node_id in range(1, brokers + 1)]

    def add_broker(self) -> Broker:
        """Start one more broker, with the next node id, and wait until it serves; it has no partition yet."""
        broker = self._broker(len(self.brokers) + 1)
        self.brokers.append(broker)
        if self._quorum is not None:
            self._format()
        broker.start()
        return broker

    def _broker(self, node_id: int) -> Broker:
        folder, port = self._root / f"broker-{node_id}", free_port()
        places = [folder / f"data-{i}" for i in range(1, self._log_dirs + 1)]
        own = self._per_broker.get(node_id, {})
        properties = {**self._base(node_id, port, places), **self._common, **own}
        return Broker(folder, self.version, self._jvm, node_id, port, properties)

    def _base(self, node_id: int, port: int, places: Sequence[Path]) -> Properties:
        if self._quorum is not None:
            return self._quorum.broker_properties(node_id, port, places)
        return zookeeper_broker_properties(f"{self.zookeeper}", node_id, port, places)

    def _prepare_zookeeper(self, port: int) -> None:
        folder = self._root / "zookeeper"
        self.zookeeper = f"{HOST}:{port}"
        write_properties(folder / "zoo.cfg", zookeeper_properties(folder / "data", port))
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        self.coordinator = kafka_program("zookeeper", self.version, folder, TINY_JVM, main, folder / "zoo.cfg")

    def _prepare_controller(self, quorum: Quorum, own: Mapping[str, str]) -> None:
        folder = self._root / "controller"
        write_properties(folder / "server.properties", {**quorum.controller_properties(folder / "data"), **own})
        self.coordinator = kafka_program(
            "controller", self.version, folder, SMALL_JVM, "kafka.Kafka", folder / "server.properties"
        )

    def start(self) -> Self:
        """Start everything, brokers side by side, and wait until all serve; on failure nothing is left running."""
        try:
            if self._quorum is not None:
                self._format()
            if self.coordinator is not None:
                self.coordinator.start()
            if self.zookeeper is not None:
                self._await_zookeeper()
            for broker in self.brokers:
                broker.start(wait=False)
            for broker in self.brokers:
                broker.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the brokers, then what coordinates them."""
        for broker in self.brokers:
            broker.stop()
        if self.coordinator is not None:
            self.coordinator.stop()

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers, running or not."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def cluster_id(self) -> str:
        """The id that the brokers carry in ``meta.properties``."""
        return read_properties(self.brokers[0].log_dirs[0] / "meta.properties")["cluster.id"]

    def records(self) -> list[ProcessRecord]:
        """The running processes, for another process to stop."""
        processes = [broker.process for broker in self.brokers]
        if self.coordinator is not None:
            processes.append(self.coordinator)
        return [process.record() for process in processes if process.running]

    @contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        """An admin client to whichever broker answers."""
        with connect(self.bootstrap) as client:
            yield client

    def create_topic(
        self, name: str, *, partitions: int = 1, replication: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until every running broker knows a leader for each of its partitions."""
        with self.admin() as admin:
            admin.create_topics([NewTopic(name, partitions, replication, topic_configs=dict(config or {}))])
        for broker in self.brokers:
            if broker.running:
                led = f"topic {name} to be led, as broker {broker.node_id} sees it"
                wait_until(lambda at=broker.bootstrap: len(leaders(at, name)) == partitions, what=led)  # type: ignore[misc]

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until no broker lists it; its files go later."""
        with self.admin() as admin:
            admin.delete_topics([name])
            wait_until(lambda: name not in admin.list_topics(), what=f"topic {name} to be gone")

    def leaders(self, name: str) -> dict[int, int]:
        """Node id of the leader by partition; partitions without one are left out."""
        return leaders(self.bootstrap, name)

    def _format(self) -> None:
        """Give every KRaft node its cluster id, side by side; nodes that have theirs keep it."""
        files = [broker.properties_path for broker in self.brokers]
        for broker in self.brokers:
            write_properties(broker.properties_path, broker.properties)
        if self.coordinator is not None:
            files.append(self._root / "controller" / "server.properties")
        arguments = ("kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", self._cluster_id, "-c")
        tools = [
            kafka_program("format", self.version, file.parent, TINY_JVM, *arguments, file).start() for file in files
        ]
        for tool in tools:
            if tool.wait(START_SECONDS) != 0:
                raise ProcessFailed(f"formatting failed\n{tool.log_tail()}")

    def _await_zookeeper(self) -> None:
        assert self.zookeeper is not None
        assert self.coordinator is not None
        port = int(self.zookeeper.rpartition(":")[2])
        self.coordinator.wait_until(lambda: not is_free(port))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    """Node id of the leader by partition of a topic, as the broker at ``bootstrap`` sees it."""
    with connect(bootstrap) as admin:
        [found] = admin.describe_topics([topic])
    return {part["partition_index"]: part["leader_id"] for part in found["partitions"] if part["leader_id"] >= 0}
