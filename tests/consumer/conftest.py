"""Brokers of both versions, stores of both kinds, and a history to read."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.consumer import history
from tests.consumer.history import History
from tests.consumer.world import Place, World
from tests.support.fixtures import SEED
from tests.support.kafka import KafkaCluster
from tests.support.kafka_broker import KafkaVersion
from tests.support.s3 import S3Server
from tidemark.store import StoreOptions
from tidemark.store.s3.clients import forget_clients


def brokers_of(version: KafkaVersion, request: pytest.FixtureRequest) -> KafkaCluster:
    found: KafkaCluster = request.getfixturevalue("kafka" if version == "4.3.1" else "kafka39")
    return found


@pytest.fixture(scope="session")
def s3_place(s3_server: S3Server) -> Iterator[Place]:
    """A prefix of its own on the S3 server, whose credentials are where boto3 looks for them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.env().items():
            patch.setenv(name, value)
        forget_clients()
        options = StoreOptions(endpoint_url=s3_server.endpoint, region="us-east-1", path_style=True)
        yield Place(f"s3://raw/consumer-{uuid.uuid4().hex}", options, s3_server.env())
    forget_clients()


@pytest.fixture(scope="package")
def made(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> History:
    """A history of four partitions, to be read only."""
    return history.make(kafka, tmp_path_factory.mktemp("history"), random.Random(f"{SEED}:history"))


VERSIONS = ["4.3.1", pytest.param("3.9.2", marks=pytest.mark.full)]
"""Parameters of a fixture or test for each broker version; the older one, with ZooKeeper, in the long run."""


def place_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    """``s3`` or ``local``: the same test over either."""
    if kind == "local":
        return Place(f"file://{folder}/raw")
    shared: Place = request.getfixturevalue("s3_place")
    return Place(f"{shared.url}/{uuid.uuid4().hex}", shared.options, shared.env)


@pytest.fixture(params=["local", pytest.param("s3", marks=[pytest.mark.drawn(0.25), pytest.mark.s3])])
def world(starts_kafka: None, request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A broker and an empty store of either kind; a parameter such as ``s3-3.9.2`` names the broker's version, too."""
    store = request.param.removesuffix("-3.9.2")
    version: KafkaVersion = "4.3.1" if store == request.param else "3.9.2"
    return World(tmp_path, brokers_of(version, request), place_of(store, request, tmp_path))


@pytest.fixture
def local_world(starts_kafka: None, request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A broker, of the version that a parameter may name, and an empty directory: what needs no other store."""
    version: KafkaVersion = request.param if hasattr(request, "param") else "4.3.1"
    return World(tmp_path, brokers_of(version, request), place_of("local", request, tmp_path))
