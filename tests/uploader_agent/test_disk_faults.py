"""A disk of the broker fails, as a whole or one folder of it, once or until it is mended: everything else goes on.

The faults are drawn: any call of the operating system, any error, any number of it.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.uploader_agent.disk.failing_calls import ERRORS, KINDS, FailingCalls
from tests.uploader_agent.fakes import ID, T, World, records
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import DiskFault, WatermarkIndex
from uploader_agent import agent as agent_module
from uploader_agent.broker.admin import Led
from uploader_agent.broker.broker_dirs import BrokerDirs
from uploader_agent.broker.properties import read_broker
from uploader_agent.components import Components
from uploader_agent.disk.locks import DirectoryLocks
from uploader_agent.disk.watcher import DirectoryWatcher
from uploader_agent.partitions import disk_faults

ALL = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 0)]
QUICK = {"scan_interval": "50ms", "metadata_interval": "50ms", "index": {"min_interval": "50ms"}}


class Broker:
    """A broker with two log directories, the first partition on the second; its files, and what its log ends at."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World(root, log_dirs=2)
        self.properties = root / "server.properties"
        self.name(*self.world.disk.log_dirs)
        self.partitions = {tp: self.world.disk.partition(tp, log_dir=tp == T) for tp in ALL}
        self.world.metadata.leads = {tp: Led(3, ID) for tp in ALL}
        self.end = 0
        self.calls = FailingCalls(self.world.disk.log_dirs[0].parent)
        monkeypatch.setattr(disk_faults, "PATIENCE", 0.05)
        for name in ("_OVERVIEW_INTERVAL", "_MEASURE_INTERVAL"):
            monkeypatch.setattr(agent_module, name, 0.05)
        for partition in self.partitions.values():
            partition.segment(0, b"")

    def name(self, *log_dirs: Path, node: int = 1) -> None:
        """Write the broker's own file."""
        named = ",".join(map(str, log_dirs))
        self.properties.write_text(f"process.roles=broker\nnode.id={node}\nlog.dirs={named}\n")

    def append(self, *only: TopicPartition) -> None:
        """Fill a segment of each partition, and roll it."""
        for tp in only or ALL:
            self.partitions[tp].segment(self.end, records(self.end, self.end + 20)).roll(self.end + 20)
        if not only:
            self.end += 20

    @contextmanager
    def agent(self, *, locks: bool = True) -> Iterator[TestedAgent]:
        """An agent as the command line makes one, in a thread."""
        world = self.world
        with ExitStack() as stack:
            held = stack.enter_context(DirectoryLocks())
            watcher = stack.enter_context(closing(DirectoryWatcher()))
            broker = read_broker(self.properties)
            log_dirs = BrokerDirs(self.properties, broker, locks=held if locks else None)
            made = Components(
                world.settings(**QUICK), broker, world.metadata, lambda _: world.store, watcher, log_dirs=log_dirs
            )
            yield stack.enter_context(TestedAgent(made).running())

    def await_stored(self, *only: TopicPartition) -> None:
        for tp in only or ALL:
            wait_until(lambda tp=tp: self._end_of(tp) >= self.end, what=f"{tp} to be stored up to {self.end}")  # type: ignore[misc]

    def _end_of(self, tp: TopicPartition) -> int:
        if self.world.keys(tp).watermark not in self.world.store.puts:
            return -1
        return self.world.watermark(tp)[1].next_offset

    def check_whole(self) -> None:
        """All is stored as it was, and nothing was ever called lost."""
        for tp, partition in self.partitions.items():
            assert self.world.watermark(tp)[1].gaps == ()
            for base in range(0, self.end, 20):
                assert self.world.stored(base, tp=tp) == partition.log(base).read_bytes(), f"{tp} {base}"

    def index(self) -> WatermarkIndex:
        key = self.world.control.index(self.world.broker.node_id)
        return WatermarkIndex.from_bytes(self.world.store.inner.get(key).body, key)


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(tmp_path, monkeypatch)


def metric(agent: TestedAgent, name: str) -> float | None:
    return agent.metrics.registry.get_sample_value(f"tidemark_agent_{name}")


@pytest.mark.parametrize("kind", KINDS)
def test_no_call_that_fails_ends_the_agent(broker: Broker, rng: random.Random, kind: str) -> None:
    """One fault after another, each somewhere in what the agent does for the next segment; then a start with it."""
    with broker.calls.patched() as calls:
        with broker.agent() as agent:
            for _ in range(8):
                calls.nth(rng.choice(ERRORS), kind, rng.randint(1, 12))
                broker.append()
                broker.await_stored()
                calls.heal()
            wait_until(lambda: agent.health.trouble() is None, what="the agent to be healthy")
        for _ in range(4):
            calls.nth(rng.choice(ERRORS), kind, rng.randint(1, 30))
            broker.append()
            with broker.agent() as agent:
                broker.await_stored()
                calls.heal()
                wait_until(lambda: agent.health.trouble() is None, what="the agent to be healthy")
    broker.check_whole()


@pytest.mark.parametrize("what", ["log directory", "folder", "file"])
@pytest.mark.parametrize("begun", [True, False], ids=["later", "at the start"])
@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
def test_what_fails_fails_alone_and_is_taken_up_again(
    broker: Broker, rng: random.Random, code: int, what: str, *, begun: bool
) -> None:
    if (what, code) == ("file", errno.ENOENT):
        pytest.skip("is a file that retention has taken, or that there never was")
    failing, others = broker.partitions[T], [tp for tp in ALL if tp != T]
    file = rng.choice([failing.log(20).name, "leader-epoch-checkpoint", "partition.metadata"])
    place = {"log directory": failing.folder.parent, "folder": failing.folder, "file": failing.folder / file}[what]
    broker.append()
    with broker.calls.patched() as calls, ExitStack() as stack:
        if begun:
            agent = stack.enter_context(broker.agent())
            broker.await_stored()
        calls.below(code, place)
        broker.append()
        if not begun:
            agent = stack.enter_context(broker.agent())
        broker.await_stored(*others)
        told = str(place) if what == "log directory" else str(T)
        wait_until(lambda: told in str(agent.health.trouble()), what="the fault to be told as unhealthy")
        wait_until(
            lambda: any(_names(fault, told) for fault in broker.index().disk_faults), what="the index to tell it"
        )
        assert metric(agent, "log_dirs_unreadable") == (what == "log directory")
        wait_until(lambda: metric(agent, "logs_unreadable") == 1, what="the partition to be counted")
        assert T in {wait.tp for wait in agent.waits()}
        assert bool(agent.waiting()["log_dirs"]) == (what == "log directory")
        broker.append()
        broker.await_stored(*others)
        calls.heal()
        broker.await_stored()
        wait_until(lambda: agent.health.trouble() is None, what="the agent to be healthy")
        wait_until(lambda: not broker.index().disk_faults, what="the index to tell nothing")
        assert (metric(agent, "log_dirs_unreadable"), metric(agent, "logs_unreadable")) == (0, 0)
    broker.check_whole()


def _names(fault: DiskFault, told: str) -> bool:
    return told in {fault.path, f"{fault.topic}-{fault.partition}"}
