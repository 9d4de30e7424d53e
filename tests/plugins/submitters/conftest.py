"""Fixtures of the platforms that run jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.submitters.platform_server import Platform
from tidemark_airflow.submitters import waiting


@pytest.fixture
def platform() -> Iterator[Platform]:
    """It answers 404 at first."""
    with Platform() as made:
        yield made


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform is the connection ``platform``, and is asked without pauses."""
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.0)
    for name, value in (
        ("JOB_TEMPLATE", str(tmp_path / "job.yaml")),
        ("REMOTE_JOBS", "s3://code/jobs/"),
        ("REMOTE_TOPICS", "/there/topics.yaml"),
        ("SPARK_CONN_ID", "platform"),
    ):
        monkeypatch.setenv(f"AIRFLOW__TIDEMARK__{name}", value)
