from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.support.kafka import KafkaCluster
from tests.support.kafka_config import QUICK
from tests.uploader_agent.fakes import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(scope="package")
def public_place() -> Iterator[Path]:
    """A directory that other users may pass through: pytest's own may be entered by their owner alone."""
    with tempfile.TemporaryDirectory(prefix="tidemark-agent-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture(scope="package")
def kafka_disk(starts_kafka: None, public_place: Path) -> Iterator[KafkaCluster]:
    """Kafka 4.3.1, one broker whose files tests give to another group or restore from a copy; leave it running.

    ``kafka`` is not for that: a restore would take other tests' topics back, and no other user may reach its files.
    """
    with KafkaCluster(public_place / "kafka", common=QUICK) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def plain_logs() -> Iterator[None]:
    """Undo what a command line of this process has set up: it logs to a stream that pytest has closed since."""
    yield
    structlog.reset_defaults()
