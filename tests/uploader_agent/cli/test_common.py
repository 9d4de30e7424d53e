"""The locks on an agent's directories."""

from __future__ import annotations

import pytest

from tests.uploader_agent.fakes import World
from uploader_agent.disk.locks import AlreadyRunning, lock_directories


def test_second_agent_refuses_to_start(world: World) -> None:
    before = sorted(world.disk.log_dirs[0].rglob("*"))
    with (
        lock_directories([*world.disk.log_dirs, world.root]),
        pytest.raises(AlreadyRunning, match="another agent uses this directory"),
    ):
        lock_directories([world.disk.log_dirs[0]])
    assert sorted(world.disk.log_dirs[0].rglob("*")) == before
    lock_directories(world.disk.log_dirs).close()
