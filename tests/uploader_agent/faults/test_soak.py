"""The soak, short: as `make soak` runs it, with one fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka import KafkaCluster
from tests.support.s3 import S3Server
from tests.uploader_agent.faults.soak import soak
from tidemark.store import Store


@pytest.mark.timeout(900)
def test_short_soak(tmp_path: Path, kraft3: KafkaCluster, s3: S3Server, raw: Store, seed: int, full: bool) -> None:
    assert raw.url == "s3://raw"
    problems = soak(tmp_path, kraft3, s3, 180 if full else 0, seed)
    assert not problems, "\n".join(problems[:30])
