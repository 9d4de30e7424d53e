"""Where a call of the operating system fails, what is held stays held, and what is not is held at the next look."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from tests.uploader_agent.disk.failing_calls import ERRORS, KINDS, FailingCalls
from tests.uploader_agent.fakes import World
from tests.uploader_agent.hold.test_hold import BOUNDLESS, held, look, lose, watching, with_links

FAILURES = [code for code in ERRORS if code != errno.ENOENT]
"""Without the one that says that a file is gone."""

SEGMENTS = [(0, 100), (100, 200), (200, 300)]


def open_files(below: Path) -> int:
    """The descriptors of this process of files below a path."""
    files = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum(os.path.realpath(path).startswith(str(below)) for path in files)


@pytest.mark.parametrize("kind", KINDS)
def test_a_look_that_fails_leaves_nothing_undone(world: World, rng: random.Random, kind: str) -> None:
    """Files that retention has taken are found again, and no descriptor is left open."""
    partition = world.disk.partition().fill(0, 100, 200, end=300)
    log_dir = world.disk.log_dirs[0]
    with FailingCalls(log_dir).patched() as calls:
        for number in rng.sample(range(1, 40), 12):
            for retired in (False, True):
                if retired:
                    partition.retire(0)
                with world.agent(hold=BOUNDLESS) as agent:
                    calls.nth(rng.choice(FAILURES), kind, number)
                    look(agent)
                    calls.heal()
                    look(agent)
                    assert held(agent) == SEGMENTS, f"{kind} {number}"
                    agent.hold.close()
                assert open_files(log_dir) == 0, f"{kind} {number}"
            for path in partition.folder.glob("*.deleted"):
                path.rename(path.with_suffix(""))


@pytest.mark.parametrize("kind", ["stat", "open", "scandir", "listdir"])
def test_links_that_cannot_be_read_at_the_start_stay_and_are_read_later(
    world: World, rng: random.Random, kind: str
) -> None:
    """They may be the only copy."""
    partition = world.disk.partition().fill(0, 100, 200, end=300)
    with watching(world, **with_links(world)) as agent:
        assert held(agent) == SEGMENTS
    lose(partition, 0)
    with FailingCalls(world.root / "links").patched() as calls:
        for number in range(1, 9):
            calls.nth(rng.choice(FAILURES), kind, number)
            with world.agent(hold=with_links(world)) as agent:
                calls.heal()
                agent.hold.enforce()
                look(agent)
                assert held(agent) == SEGMENTS, f"{kind} {number}"
