from __future__ import annotations

from pathlib import Path

import pytest

from tests.uploader_agent.fakes import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
