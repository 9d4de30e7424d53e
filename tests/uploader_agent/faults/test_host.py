"""What the host does to an agent: events that are lost, directories it may not write, a clock that jumps."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kafka import KafkaCluster
from tests.support.waiting import HUNG, wait_until
from tests.uploader_agent.faults.cluster import create, folder
from tests.uploader_agent.faults.conftest import MakeFleet
from tests.uploader_agent.faults.fleet import Fleet, FleetAgent, as_user, assert_exact
from tests.uploader_agent.faults.load import Book, send

SMALL = {"internal_segment_bytes": "32768"}
NOBODY = 65534
QUEUE = Path("/proc/sys/fs/inotify/max_queued_events")


def prepare(make_fleet: MakeFleet, cluster: KafkaCluster, topic: str, **settings: object) -> tuple[Fleet, FleetAgent]:
    """A topic that broker 1 leads, and its agent."""
    create(cluster, topic, [[1, 2, 3]], **SMALL)
    fleet = make_fleet(cluster, topic, [topic], nodes=[1], **settings)
    return fleet, fleet.agents[1]


def test_events_overflow(kraft3: KafkaCluster, make_fleet: MakeFleet) -> None:
    """The kernel drops what comes after its queue is full; nothing but the overflow itself can have told the agent."""
    book = Book()
    fleet, agent = prepare(make_fleet, kraft3, "overflow", scan_interval="1d", metadata_interval="1d")
    with fleet.running():
        send(kraft3, "overflow", book, 200)
        fleet.await_rotated("overflow")
        agent.send(signal.SIGSTOP)
        wait_until(lambda: agent.frozen, what="the agent to be frozen")
        for number in range(int(QUEUE.read_text()) + 1):
            noise = agent.broker.log_dirs[0] / f"noise-{number % 2}.tmp"
            noise.touch()
            noise.unlink()
        send(kraft3, "overflow", book, 300)
        agent.send(signal.SIGCONT)
        fleet.await_rotated("overflow")
        fleet.settle()
    assert_exact(fleet.judge("overflow", book), f"{QUEUE.read_text().strip()} events and one more")


@pytest.mark.full
def test_events_are_missed(kraft3: KafkaCluster, make_fleet: MakeFleet) -> None:
    """Without inotify the scan finds the same."""
    book = Book()
    fleet, agent = prepare(make_fleet, kraft3, "missed", scan_interval="500ms")
    with fleet.running(start=False):
        agent.start(plan=agent.plan(deaf=True))
        agent.await_started()
        for _ in range(3):
            send(kraft3, "missed", book, 150)
            fleet.await_rotated("missed")
        fleet.settle()
    assert_exact(fleet.judge("missed", book), "no event at all")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start an agent as somebody else")
def test_directories_that_must_not_be_written(kraft3: KafkaCluster, make_fleet: MakeFleet) -> None:
    """The agent is nobody: it may read the log directories and nothing more; of its own directory it is told."""
    tried = subprocess.run([*as_user(NOBODY), sys.executable, "-c", ""], check=False, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"nobody cannot execute {sys.executable} at all: {tried.stderr.strip()}")
    book = Book()
    fleet, agent = prepare(make_fleet, kraft3, "readonly")
    send(kraft3, "readonly", book, 300)
    place = folder(agent.broker, "readonly", 0)
    before = listing(place)
    agent.config.touch()
    open_to_all(place.parent, agent.config)
    state = Path(agent.settings["state_dir"])
    agent.start(user=NOBODY)
    assert agent.process.wait(HUNG) == 1
    assert str(state) in agent.text(), "it does not say which directory"
    state.mkdir()
    agent.notes.touch()
    for own in (state, agent.notes):
        os.chown(own, NOBODY, NOBODY)
    agent.start(user=NOBODY)
    try:
        fleet.await_rotated("readonly")
        assert listing(place) == before
    finally:
        agent.process.stop()
    fleet.settle()
    assert_exact(fleet.judge("readonly", book), "as nobody")


def listing(place: Path) -> dict[str, tuple[int, int]]:
    """The segments' files, their sizes and times."""
    files = [path for path in place.iterdir() if path.suffix in {".log", ".index", ".timeindex", ".snapshot"}]
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def open_to_all(*places: Path) -> None:
    """Let everybody read these and what is in them, and pass through what lies above them."""
    for place in places:
        for path in [place, *place.parents, *place.rglob("*")]:
            if path.stat().st_uid == os.getuid() and path != Path("/"):
                path.chmod(stat.S_IMODE(path.stat().st_mode) | (0o055 if path.is_dir() else 0o044))


@pytest.mark.parametrize("hours", [6, pytest.param(-6, marks=pytest.mark.full)])
def test_clock_jumps(kraft3: KafkaCluster, make_fleet: MakeFleet, hours: int) -> None:
    """The store refuses what was signed hours away from its own time; when the clock is right again, work goes on."""
    topic, book = f"clock{hours}", Book()
    fleet, agent = prepare(make_fleet, kraft3, topic)
    with fleet.running(start=False):
        agent.start(plan=agent.plan(clock=str(agent.clock)))
        send(kraft3, topic, book, 200)
        fleet.await_rotated(topic)
        agent.clock.write_text(str(3600 * hours))
        send(kraft3, topic, book, 200)
        wait_until(lambda: "RequestTimeTooSkewed" in agent.text(), what="the store to refuse")
        agent.clock.write_text("0")
        fleet.await_rotated(topic)
        send(kraft3, topic, book, 100)
        fleet.await_rotated(topic)
        fleet.settle()
    assert_exact(fleet.judge(topic, book), f"{hours} hours and back")
