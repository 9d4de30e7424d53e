from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.uploader_agent.fakes import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(autouse=True)
def plain_logs() -> Iterator[None]:
    """Undo what a command line of this process has set up: it logs to a stream that pytest has closed since."""
    yield
    structlog.reset_defaults()
