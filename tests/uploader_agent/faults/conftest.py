"""Two clusters of three brokers, each started when it is first asked for, and a store that tests may kill.

Tests kill and freeze their brokers, move leaders between them, and tamper with their disks: one broker will not do. The
clusters stop after this folder's tests: even idle, four JVMs take a tenth of a core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import KafkaCluster
from tests.support.s3 import S3Server
from tests.uploader_agent.faults.cluster import three_brokers
from tests.uploader_agent.faults.fleet import Fleet
from tidemark.store import Store, StoreOptions, open_store

MakeFleet = Callable[..., Fleet]


@pytest.fixture(scope="package")
def kraft3(starts_kafka: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers of 4.3.1 and a controller; leave all brokers running."""
    with three_brokers(tmp_path_factory.mktemp("kraft3"), "4.3.1") as cluster:
        yield cluster


@pytest.fixture(scope="package")
def zookeeper3(starts_kafka: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers of 3.9.2 and a ZooKeeper; leave all brokers running."""
    with three_brokers(tmp_path_factory.mktemp("zookeeper3"), "3.9.2") as cluster:
        yield cluster


@pytest.fixture(scope="package")
def s3(starts_s3: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server of our own, which keeps every version of a raw object; leave it running."""
    with S3Server(tmp_path_factory.mktemp("s3-faults"), versioned=["raw"]) as server:
        yield server


@pytest.fixture
def raw(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name, value in s3.env().items():
        monkeypatch.setenv(name, value)
    return open_store("s3://raw", StoreOptions(endpoint_url=s3.endpoint, path_style=True))


@pytest.fixture
def make_fleet(starts_kafka: None, tmp_path: Path, s3: S3Server, raw: Store) -> MakeFleet:
    """``make_fleet(cluster, prefix, topics, **settings)``."""

    def make(cluster: KafkaCluster, prefix: str, topics: list[str], **settings: Any) -> Fleet:
        return Fleet(tmp_path / f"fleet-{prefix}", cluster, s3, raw, prefix, topics, **settings)

    return make
