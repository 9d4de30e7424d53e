"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.deployment import SmallDeployment
from tests.support.kafka import KafkaCluster
from tests.support.s3 import S3Server
from tidemark.store.clients import forget_clients


@pytest.fixture
def small(
    kafka: KafkaCluster, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SmallDeployment]:
    """A deployment of two topics on the session's servers."""
    for name, value in s3_server.env().items():
        monkeypatch.setenv(name, value)
    forget_clients()
    mark = uuid.uuid4().hex[:8]
    topics = (f"plain-{mark}", f"transactional-{mark}")
    yield SmallDeployment(tmp_path, kafka, s3_server, mark, topics)
    forget_clients()
