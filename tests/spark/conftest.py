"""Fixtures of the convert job's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty deployment in a directory."""
    return World(tmp_path)
