"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.deployment import SmallDeployment, credentials
from tests.support.kafka import KafkaCluster
from tests.support.s3 import S3Server


@pytest.fixture
def mark(s3_server: S3Server) -> Iterator[str]:
    """What tells this test's topics and objects from others' on the S3 server, whose credentials are in place."""
    with credentials(s3_server):
        yield uuid.uuid4().hex[:8]


@pytest.fixture
def small(starts_spark: None, kafka: KafkaCluster, s3_server: S3Server, tmp_path: Path, mark: str) -> SmallDeployment:
    """A deployment of two topics on the session's servers."""
    return SmallDeployment(tmp_path, kafka, s3_server, mark, (f"plain-{mark}", f"transactional-{mark}"))
