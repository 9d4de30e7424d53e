"""Fixtures of the tests of what runs inside Airflow."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.plugins.world import World
from tidemark_airflow import publishing, trigger
from tidemark_airflow.outbox import Commit


@pytest.fixture(autouse=True)
def no_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triggers fire at once: no scheduler is there to be given time."""
    monkeypatch.setattr(trigger, "HOLD", timedelta(0))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A deployment with the topic ``orders``, whose topics file is the one that Airflow's side reads."""
    made = World(tmp_path / "world")
    monkeypatch.setenv("TIDEMARK_TOPICS", str(made.topics_file))
    monkeypatch.setenv("TIDEMARK_SCAN_SECONDS", "0.01")
    return made


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> set[Commit]:
    """The commits that Airflow's record of asset events names; a test adds what it would have stored."""
    commits: set[Commit] = set()
    monkeypatch.setattr(publishing, "stored_commits", lambda _: commits)
    return commits
