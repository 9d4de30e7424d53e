"""Fixtures of the tests of what runs inside Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.plugins.shared_stack import SharedStack
from tests.plugins.submitters.platform_server import Platform
from tests.plugins.world import GATE, World
from tests.support.lineage import LineageServer
from tests.support.receivers import HookServer, SmtpServer
from tidemark_airflow.assets import events
from tidemark_airflow.assets.outbox import Commit
from tidemark_airflow.triggers import watermark

_ON_THE_STACK = (
    "test_airflow_stack.py",
    "test_live_stack.py",
    "test_waiting_stack.py",
    "test_lineage_stack.py",
    "test_monitor_stack.py",
    "test_onboarding_stack.py",
    "test_erasure_stack.py",
    "test_page_browser.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on the shared Airflow come last, one after the other: it runs for no longer than they do."""
    items.sort(key=lambda item: _ON_THE_STACK.index(item.path.name) if item.path.name in _ON_THE_STACK else -1)


@pytest.fixture(scope="session")
def smtp() -> Iterator[SmtpServer]:
    """Where the shared Airflow sends mail."""
    with SmtpServer() as server:
        yield server


@pytest.fixture(scope="session")
def hook() -> Iterator[HookServer]:
    """The web hook that the shared Airflow tells."""
    with HookServer() as server:
        yield server


@pytest.fixture(scope="session")
def lineage() -> Iterator[LineageServer]:
    """Where the shared Airflow sends OpenLineage events."""
    with LineageServer() as server:
        yield server


@pytest.fixture(scope="session")
def remote() -> Iterator[Platform]:
    """The platform that runs the jobs of one DAG of the shared Airflow."""
    with Platform() as platform:
        yield platform


@pytest.fixture(scope="session")
def stack(
    starts_airflow: None,
    smtp: SmtpServer,
    hook: HookServer,
    lineage: LineageServer,
    remote: Platform,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SharedStack]:
    """The shared Airflow, all DAGs paused. Leave it with all components running, and your DAGs paused."""
    with SharedStack(tmp_path_factory.mktemp("stack"), smtp, hook, lineage, remote) as running:
        yield running


@pytest.fixture(autouse=True)
def no_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triggers fire at once: no scheduler is there to be given time."""
    monkeypatch.setattr(watermark, "HOLD", timedelta(0))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A deployment with the topic ``orders``, whose topics file is the one that Airflow's side reads."""
    made = World(tmp_path / "world")
    monkeypatch.setenv("AIRFLOW__TIDEMARK__TOPICS", str(made.topics_file))
    monkeypatch.setenv("AIRFLOW__TIDEMARK__SCAN_SECONDS", "0.01")
    return made


@pytest.fixture
def gate(world: World) -> Iterator[Path]:
    """A closed gate, at which jobs wait until it is removed."""
    gate = world.root / GATE
    gate.touch()
    yield gate
    for path in gate.parent.glob(f"{GATE}*"):
        path.unlink()


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> set[Commit]:
    """The commits that Airflow's record of asset events names; a test adds what it would have stored."""
    commits: set[Commit] = set()
    monkeypatch.setattr(events, "stored_commits", lambda _: commits)
    return commits
