"""A disk of the broker fails, as a whole or one folder of it, once or until it is mended: everything else goes on.

The faults are drawn: any call of the operating system, any error, any number of it.
"""

from __future__ import annotations

import errno
import gc
import json
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.tuned_agent import tuned
from tests.support.waiting import wait_until
from tests.uploader_agent.disk.failing_calls import ERRORS, KINDS, FailingCalls
from tests.uploader_agent.fakes import CLUSTER, ID, OTHER_ID, T, World, records
from tests.uploader_agent.test_run import get
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import DiskFault, WatermarkIndex
from uploader_agent import agent as agent_module
from uploader_agent.broker.admin import Leader, Led
from uploader_agent.broker.properties import BrokerDirs, read_broker
from uploader_agent.cli import start
from uploader_agent.cli.start import await_log_dir
from uploader_agent.components import Components
from uploader_agent.disk.locks import AlreadyRunning, DirectoryLocks
from uploader_agent.disk.watcher import DirectoryWatcher
from uploader_agent.observability.health import PAGES, Notifier
from uploader_agent.partitions import leadership

ALL = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 0)]
QUICK = {"scan_interval": "50ms", "metadata_interval": "50ms", "index_interval": "50ms"}


class Broker:
    """A broker with two log directories, the first partition on the second; its files, and what its log ends at."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World(root, log_dirs=2)
        self.properties = root / "server.properties"
        self.name(*self.world.disk.log_dirs)
        self.partitions = {tp: self.world.disk.partition(tp, log_dir=tp == T) for tp in ALL}
        self.world.metadata.leads = {tp: Led(3, ID) for tp in ALL}
        self.end = 0
        self._ends = dict.fromkeys(ALL, 0)
        self.calls = FailingCalls(self.world.disk.log_dirs[0].parent)
        monkeypatch.setattr(leadership, "PATIENCE", 0.05)
        for name in ("_OVERVIEW_INTERVAL", "_MEASURE_INTERVAL"):
            monkeypatch.setattr(agent_module, name, 0.05)
        for partition in self.partitions.values():
            partition.segment(0, b"")

    def name(self, *log_dirs: Path, node: int = 1) -> None:
        """Write the broker's own file."""
        named = ",".join(map(str, log_dirs))
        self.properties.write_text(f"process.roles=broker\nnode.id={node}\nlog.dirs={named}\n")

    def append(self, *only: TopicPartition) -> None:
        """Fill a segment of each partition, and roll it; where it was filled before, it stays as it is."""
        for tp in only or ALL:
            if self._ends[tp] > self.end:
                continue
            self._ends[tp] = self.end + 20
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
            surroundings = world.settings(), broker, world.metadata, lambda _: world.store, watcher
            made = Components(*surroundings, log_dirs=log_dirs, tuning=tuned(QUICK))
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
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    yield Broker(tmp_path, monkeypatch)
    gc.unfreeze()  # an agent freezes what it has once it measures


def metric(agent: TestedAgent, name: str) -> float | None:
    return agent.metrics.registry.get_sample_value(f"tidemark_agent_{name}")


@pytest.mark.parametrize("kind", KINDS)
def test_no_call_that_fails_ends_the_agent(broker: Broker, rng: random.Random, kind: str, *, full: bool) -> None:
    """One fault after another, each somewhere in what the agent does for the next segment; then a start with it."""
    with broker.calls.patched() as calls:
        with broker.agent() as agent:
            for _ in range(16 if full else 4):
                calls.nth(rng.choice(ERRORS), kind, rng.randint(1, 12))
                broker.append()
                broker.await_stored()
                calls.heal()
            wait_until(lambda: agent.health.trouble() is None, what="the agent to be healthy")
        for _ in range(8 if full else 2):
            calls.nth(rng.choice(ERRORS), kind, rng.randint(1, 30))
            broker.append()
            with broker.agent() as agent:
                broker.await_stored()
                calls.heal()
                wait_until(lambda: agent.health.trouble() is None, what="the agent to be healthy")
    broker.check_whole()


WHAT = pytest.mark.parametrize("what", ["log directory", "folder", "file"])
BEGUN = pytest.mark.parametrize("begun", [True, False], ids=["later", "at the start"])


@WHAT
@BEGUN
def test_what_fails_fails_alone_and_is_taken_up_again(
    broker: Broker, rng: random.Random, what: str, *, begun: bool
) -> None:
    fail_and_mend(broker, rng, rng.choice(ERRORS), what, begun=begun)


@pytest.mark.full
@WHAT
@BEGUN
@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
def test_what_fails_by_any_error_fails_alone(
    broker: Broker, rng: random.Random, code: int, what: str, *, begun: bool
) -> None:
    fail_and_mend(broker, rng, code, what, begun=begun)


def fail_and_mend(broker: Broker, rng: random.Random, code: int, what: str, *, begun: bool) -> None:
    """``what`` of a partition fails from the start on or later; it is told, nothing else waits, and it goes on."""
    if (what, code) == ("file", errno.ENOENT):
        what = "folder"  # a file is one that retention has taken, or that there never was
    failing, others = broker.partitions[T], [tp for tp in ALL if tp != T]
    file = rng.choice([failing.log(20).name, "leader-epoch-checkpoint", "partition.metadata"])
    place = {"log directory": failing.folder.parent, "folder": failing.folder, "file": failing.folder / file}[what]
    broker.append()
    with broker.calls.patched() as calls, ExitStack() as stack:
        agent = stack.enter_context(broker.agent()) if begun else None
        if begun:
            broker.await_stored()
        calls.below(code, place)
        broker.append()
        agent = agent or stack.enter_context(broker.agent())
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


def test_a_segment_that_cannot_be_listed_is_not_a_gap(broker: Broker) -> None:
    broker.append()
    broker.append()
    with broker.calls.patched() as calls:
        calls.below(errno.EIO, broker.partitions[T].log(0))
        agent = broker.world.once()
        assert "Input/output error" in str(agent.leadership.partitions[T].fault)
        assert broker.world.keys().watermark not in broker.world.store.puts
        calls.heal()
        broker.world.once()
    broker.check_whole()


@pytest.mark.parametrize("leaves", ["nothing", "an empty place", "a file", "another broker's disk", "a damaged file"])
@pytest.mark.parametrize("begun", [True, False], ids=["later", "at the start"])
def test_a_disk_that_is_away_stays_known(broker: Broker, leaves: str, *, begun: bool) -> None:
    """What its mount point shows meanwhile is not taken for the broker's."""
    log_dir, others = broker.world.disk.log_dirs[1], [tp for tp in ALL if tp != T]
    broker.append()
    with ExitStack() as stack:
        agent = stack.enter_context(broker.agent()) if begun else None
        if begun:
            broker.await_stored()
        away = log_dir.rename(log_dir.with_name("away"))
        if leaves == "a file":
            log_dir.touch()
        elif leaves != "nothing":
            log_dir.mkdir()
        if leaves == "another broker's disk":
            (log_dir / "meta.properties").write_text(f"version=1\nnode.id=7\ncluster.id={CLUSTER}\n")
            (log_dir / str(T)).mkdir()
        elif leaves == "a damaged file":
            (log_dir / "meta.properties").write_bytes(b"version=1\n\xff\x00")
        agent = agent or stack.enter_context(broker.agent())
        broker.append(*others)
        wait_until(lambda: str(log_dir) in str(agent.health.trouble()), what="the agent to be unhealthy")
        assert metric(agent, "log_dirs_unreadable") == 1
        if log_dir.is_dir():
            shutil.rmtree(log_dir)
        log_dir.unlink(missing_ok=True)
        away.rename(log_dir)
        broker.append()
        broker.await_stored()
        wait_until(lambda: agent.health.trouble() is None, what="the agent to be healthy")
        assert metric(agent, "log_dirs_unreadable") == 0
    broker.check_whole()


def test_log_dirs_are_followed(broker: Broker) -> None:
    """One is added, all are moved; the file is rewritten before the broker stops to append to the former place."""
    first, second = broker.world.disk.log_dirs
    broker.name(first)
    with broker.agent() as agent:
        broker.append()
        broker.await_stored(*[tp for tp in ALL if tp != T])
        wait_until(lambda: agent.health.trouble() is not None, what="the partition without a directory to be told")
        broker.name(first, second)
        broker.await_stored()
        wait_until(lambda: agent.health.trouble() is None, what="the agent to be healthy")
        third = second.with_name("data-2")
        broker.name(first, third)
        wait_until(lambda: str(third) in str(agent.health.trouble()), what="the new place to be missed")
        broker.append()
        broker.await_stored()
        second.rename(third)
        broker.partitions[T].folder = third / str(T)
        moved = first.rename(first.with_name("data-3"))
        for tp in ALL[1:]:
            broker.partitions[tp].folder = moved / str(tp)
        broker.name(moved, third)
        broker.append()
        broker.await_stored()
        wait_until(lambda: agent.health.trouble() is None, what="the agent to be healthy")
        assert set(agent.components.log_dirs) == {moved, third}
    broker.check_whole()


@pytest.mark.parametrize("text", ["", "node.id=x\nlisteners=nonsense\n", None])
def test_a_file_that_is_wrong_is_told_and_the_former_one_counts(broker: Broker, text: str | None) -> None:
    before = broker.properties.read_text()
    with broker.agent() as agent:
        broker.properties.unlink() if text is None else broker.properties.write_text(text)
        broker.append()
        broker.await_stored()
        wait_until(lambda: agent.health.trouble() is not None, what="the file to be told as wrong")
        broker.properties.write_text(before)
        wait_until(lambda: agent.health.trouble() is None, what="the agent to be healthy")


@pytest.mark.parametrize("identity", [(5, CLUSTER), (1, "another")])
def test_an_agent_ends_once_its_broker_is_another_one(broker: Broker, identity: tuple[int, str]) -> None:
    """Nothing is read under the former ids; an agent that is started then works for the new ones."""
    node, cluster = identity
    with broker.agent() as agent:
        broker.append()
        broker.await_stored()
        for log_dir in broker.world.disk.log_dirs:
            (log_dir / "meta.properties").write_text(f"version=1\nnode.id={node}\ncluster.id={cluster}\n")
        wait_until(lambda: not agent.components.log_dirs.readable, what="the directories to be left alone")
        broker.name(*broker.world.disk.log_dirs, node=node)
        wait_until(agent.components.stopping.is_set, what="the agent to end")
    assert f"node {node} of the cluster {cluster}" in str(agent.components.log_dirs.replaced)
    assert read_broker(broker.properties).identity == identity


def test_a_directory_that_returns_is_locked_first(broker: Broker) -> None:
    log_dir = broker.world.disk.log_dirs[1]
    away = log_dir.rename(log_dir.with_name("away"))
    broker.append(*ALL[1:])
    with broker.agent() as agent, DirectoryLocks() as other:
        wait_until(lambda: metric(agent, "log_dirs_unreadable") == 1, what="the directory to be missed")
        other.take(away)
        away.rename(log_dir)
        wait_until(lambda: "another agent" in str(agent.health.trouble()), what="the lock to be respected")
        other.close()
        broker.append()
        broker.await_stored()


def test_a_second_agent_is_refused_and_the_first_keeps_no_disk_from_being_unmounted(broker: Broker) -> None:
    log_dir = broker.world.disk.log_dirs[1]
    with broker.agent() as agent:
        with pytest.raises(AlreadyRunning, match="another agent"), broker.agent():
            pass
        away = log_dir.rename(log_dir.with_name("away"))
        wait_until(lambda: metric(agent, "log_dirs_unreadable") == 1, what="the directory to be missed")
        with DirectoryLocks() as other:
            other.take(away)


def test_a_leader_without_a_directory_is_told_and_nothing_else(broker: Broker) -> None:
    """Not what others lead, nor what the settings leave out, nor what has just been created, moved or deleted."""
    missing, excluded = TopicPartition("orders", 2), TopicPartition("__internal", 0)
    elsewhere = {
        TopicPartition("elsewhere", 0): Leader(2, Led(3, ID)),
        TopicPartition("none", 0): Leader(-1, Led(3, ID)),
    }
    broker.world.metadata.others = elsewhere
    broker.world.metadata.leads = {**broker.world.metadata.leads, excluded: Led(3, OTHER_ID)}
    with broker.agent() as agent:
        broker.append()
        broker.await_stored()
        broker.world.metadata.leads = {**broker.world.metadata.leads, missing: Led(3, ID)}
        wait_until(lambda: f"the log of {missing}" in str(agent.health.trouble()), what="it to be told")
        assert agent.components.disk_faults.current[0].rule.startswith("this broker leads it, and none of")
        [fault] = agent.components.disk_faults.current
        assert (fault.topic, fault.partition, fault.path) == ("orders", 2, None)
        broker.partitions[missing] = broker.world.disk.partition(missing).segment(0, b"")
        wait_until(lambda: agent.health.trouble() is None, what="the agent to be healthy")


def test_a_partition_counts_only_after_some_time(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with broker.world.agent() as agent:
        faults, now = agent.components.disk_faults, [1000.0]
        monkeypatch.setattr(faults._runtime, "monotonic", lambda: now[0], raising=False)
        agent.leadership.absent = {T: "told so"}
        agent.leadership.unreadable = {broker.properties: "told so"}
        faults.look()
        assert [fault.path for fault in faults.current] == [str(broker.properties)]
        now[0] += leadership.PATIENCE
        faults.look()
        assert [fault.topic for fault in faults.current] == [None, "orders"]
        assert str(agent.health.trouble()).startswith(f"{broker.properties} cannot be read: told so; and 1 more")
        agent.leadership.absent = {}
        faults.look()
        agent.leadership.absent = {T: "told so"}
        faults.look()
        assert len(faults.current) == 1


def _answers(port: int) -> bool:
    with suppress(OSError):
        return get(port, "/-/healthy")[0] == 503
    return False


def test_an_agent_waits_for_the_first_log_directory(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It neither ends nor says that all is well; its pages say what is missing."""
    monkeypatch.setattr(start, "_TRY_INTERVAL", 0.01)
    port, disk, away = free_port(), broker.world.disk.log_dirs[0].parent, tmp_path / "away"
    disk.rename(away)
    settings = broker.world.settings(broker={"properties": str(broker.properties)}, http={"port": port})
    seen: dict[str, tuple[int, str]] = {}

    def operate() -> None:
        try:
            wait_until(lambda: _answers(port), what="the pages")
            seen.update({page: get(port, page) for page in PAGES})
        finally:
            away.rename(disk)

    with ThreadPoolExecutor(1) as operator:
        operating = operator.submit(operate)
        await_log_dir(settings, Notifier({}))
        operating.result()
    assert {page: status for page, (status, _) in seen.items()} == {
        "/-/alive": 200,
        "/-/healthy": 503,
        "/-/ready": 503,
        "/metrics": 200,
        "/waiting": 200,
    }
    assert "no log directory can be read" in seen["/-/healthy"][1]
    assert "tidemark_agent_log_dirs_unreadable 2.0" in seen["/metrics"][1]
    assert [one["path"] for one in json.loads(seen["/waiting"][1])["log_dirs"]] == [
        *map(str, broker.world.disk.log_dirs)
    ]


def test_a_log_that_cannot_be_read_was_not_seen_to_stay_as_it_was(broker: Broker) -> None:
    """What is appended meanwhile has no age that is known, and the offsets are as old as the last answer."""
    broker.append()
    partition, confirmed_at = broker.partitions[T], datetime.now(UTC) + timedelta(minutes=1)
    broker.world.metadata.default_high = 20
    with broker.calls.patched() as calls, broker.world.agent(freshness={".*": "3s"}) as agent:
        agent.upload_once()
        led = agent.leadership.partitions[T]
        assert led.observation is not None
        assert led.unstored_age(led.looked_at + 5) == 0
        calls.below(errno.EIO, partition.folder)
        partition.segment(20, records(20, 40))
        before = led.looked_at
        led.look()
        assert led.unstored_age(before + 5) == pytest.approx(5, abs=1)
        assert led.held_at(led.observation, confirmed_at) == led.observation.asked_at
        calls.heal()
        led.look()
        assert led.outdated
