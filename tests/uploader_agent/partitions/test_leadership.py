"""What the broker says, how it is believed, and what a change of it leads to."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.waiting import HUNG, wait_until
from tests.uploader_agent.fakes import ID, OTHER_ID, FakeMetadata, T, World, records
from tests.uploader_agent.test_run import NEVER, running, stored_is, watermark_is
from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import Leader, Led, Offsets
from uploader_agent.disk import log_dirs
from uploader_agent.disk.log_dirs import DirectoryListing, PartitionFolder, list_segments
from uploader_agent.disk.watcher import DirectoryWatcher, Heard, Watcher
from uploader_agent.partitions.poller import LeadersAnswer
from uploader_agent.scheduling.workers import Timers

OTHER = TopicPartition("orders", 1)


def asked_more(metadata: FakeMetadata, times: int) -> None:
    wait_until(lambda: metadata.asked > times, what="the broker to be asked again")


def test_a_lower_epoch_is_never_believed(world: World) -> None:
    """A broker that lags tells of a former leadership: under epoch 5 we led, under 6 another broker does."""
    world.disk.partition().fill(0, end=100)
    world.metadata.leads = {T: Led(5, ID)}
    with running(world, Watcher(), scan_interval=NEVER, metadata_interval="10ms") as agent:
        world.store.await_put(lambda: watermark_is(world, 100))
        leads, asked = agent.leadership.partitions[T], world.metadata.asked
        world.metadata.leads = {T: Led(4, ID)}
        asked_more(world.metadata, asked + 2)
        assert agent.leadership.partitions[T] is leads, "it goes on under its own epoch"

        world.metadata.leads, world.metadata.others = {}, {T: Leader(2, Led(6, ID))}
        wait_until(lambda: T not in agent.leadership.partitions, what="the leadership to be given up")
        world.metadata.leads, world.metadata.others, asked = {T: Led(5, ID)}, {}, world.metadata.asked
        asked_more(world.metadata, asked + 2)
        assert T not in agent.leadership.partitions

        world.metadata.leads = {T: Led(7, ID)}
        wait_until(lambda: T in agent.leadership.partitions, what="a later leadership to be believed")


def test_a_partition_is_led_once_the_clean_up_of_its_topic_is_known(world: World) -> None:
    """An answer about everything names it before anybody asks about it, and its directory appears in between."""
    world.metadata.policy = "compact"
    with world.agent() as agent:
        agent.refresh()
        agent.poller.ask_leaders([], everything=True)
        world.disk.partition().fill(0, end=50)
        agent.leadership.look_at_disks()
        for answer in agent.poller.answer_all():
            assert isinstance(answer, LeadersAnswer)
            agent.leadership.learn(answer)
        assert T not in agent.leadership.partitions
        assert [(tp, why) for tp, why in agent.leadership.undecided() if tp == T] == [
            (T, "the broker has not said who leads it")
        ]
        agent.refresh()
        assert agent.leadership.partitions[T].local.log.cleanup.policy == "compact"


def test_another_incarnation_starts_at_a_lower_epoch(world: World) -> None:
    partition = world.disk.partition().fill(0, end=100)
    world.metadata.leads = {T: Led(5, ID)}
    with running(world, DirectoryWatcher(), scan_interval=NEVER, metadata_interval="10ms") as agent:
        world.store.await_put(lambda: watermark_is(world, 100))
        world.metadata.leads = {T: Led(0, OTHER_ID)}
        partition.folder.rename(partition.folder.with_name("orders-0.f00-delete"))
        world.disk.partition(topic_id=OTHER_ID).lineage([(0, 0)]).fill(0, end=50, epoch=0)
        place = f"orders@{OTHER_ID}"
        world.store.await_put(lambda: world.keys(place=place).watermark in world.store.puts)
        assert agent.leadership.partitions[T].led == Led(0, OTHER_ID)


def test_a_directory_that_is_newly_watched_is_looked_at(tmp_path: Path) -> None:
    """Its files may have been made between the last look and the watch: nobody heard of them."""
    with closing(DirectoryWatcher()) as watcher:
        watcher.watch([tmp_path])
        assert watcher.wait(HUNG) == Heard(frozenset({tmp_path}))
        watcher.watch([tmp_path])
        assert watcher.wait(0) == Heard()


def test_an_epoch_file_on_any_replica_is_a_hint(world: World) -> None:
    """Neither poll nor scan is due: Kafka writes ``leader-epoch-checkpoint`` when a leadership begins."""
    world.disk.partition().fill(0, end=100)
    follower = world.disk.partition(OTHER).fill(0, end=50)
    with running(world, DirectoryWatcher(), scan_interval=NEVER, metadata_interval=NEVER) as agent:
        world.store.await_put(lambda: watermark_is(world, 100))
        assert OTHER not in agent.leadership.partitions
        world.metadata.leads[OTHER] = Led(4, ID)
        new = follower.folder / "leader-epoch-checkpoint.tmp"
        new.write_text("0\n2\n3 0\n4 50\n")
        new.rename(follower.folder / "leader-epoch-checkpoint")
        world.store.await_put(lambda: watermark_is(world, 50, OTHER))


def test_checkpoints_of_the_broker_are_no_hints(world: World) -> None:
    """Every 5 s a broker replaces files beside the partitions: that must not make the agent ask."""
    world.disk.partition().fill(0, end=100)
    with running(world, DirectoryWatcher(), scan_interval=NEVER, metadata_interval=NEVER):
        world.store.await_put(lambda: watermark_is(world, 100))
        asked = world.metadata.asked
        new = world.disk.log_dirs[0] / "replication-offset-checkpoint.tmp"
        new.write_text("0\n0\n")
        new.rename(world.disk.log_dirs[0] / "replication-offset-checkpoint")
        (world.disk.log_dirs[0] / "orders-7").mkdir()  # this does
        asked_more(world.metadata, asked)
        asked_more(world.metadata, asked + 1)
        assert world.metadata.asked <= asked + 2, "one question for the directory, and a second one"


def test_moved_to_another_log_directory(tmp_path: Path) -> None:
    """Kafka renames ``-future`` to its name before it renames the old directory: both are there for a moment."""
    world = World(tmp_path, log_dirs=2)
    former = world.disk.partition().fill(0, end=100)
    with running(world, DirectoryWatcher(), scan_interval=NEVER, metadata_interval=NEVER):
        world.store.await_put(lambda: watermark_is(world, 100))
        moved = world.disk.partition(log_dir=1).fill(0, end=100)
        former.folder.rename(former.folder.with_name("orders-0.f00-delete"))
        moved.segment(100, records(100, 200))
        moved.roll(200)
        world.store.await_put(lambda: watermark_is(world, 200))


def test_a_broker_that_hangs_stops_nothing_else(world: World) -> None:
    """While a question has no answer, segments are found and go, by the broker's checkpoint."""
    partition = world.disk.partition().fill(0, end=100)
    world.metadata.default_high = 100
    hangs, ends = threading.Event(), threading.Event()
    real = world.metadata.leaders

    def leaders(wanted: Collection[TopicPartition], *, everything: bool = False) -> dict[TopicPartition, Leader]:
        if hangs.is_set():
            ends.wait(HUNG)
        return real(wanted)

    world.metadata.leaders = leaders  # type: ignore[method-assign]
    with running(world, DirectoryWatcher(), scan_interval=NEVER, metadata_interval="50ms") as agent:
        world.store.await_put(lambda: watermark_is(world, 100))
        hangs.set()
        wait_until(lambda: agent.poller.hangs(0.1), what="a question to hang")
        (world.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 200\n")
        partition.segment(100, records(100, 200)).roll(200)
        world.store.await_put(lambda: watermark_is(world, 200))
        assert agent.poller.hangs(0.1), "it went while the broker still hung"
        assert world.manifest(100).offsets_from == "checkpoint"
        ends.set()


def test_offsets_are_asked_for_where_the_log_has_changed(world: World) -> None:
    asked: list[set[TopicPartition]] = []
    real = world.metadata.offsets

    def offsets(led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        asked.append(set(led))
        return real(led)

    world.metadata.offsets = offsets  # type: ignore[method-assign]
    world.metadata.leads[OTHER] = Led(3, ID)
    world.metadata.default_high = 100
    world.disk.partition().fill(0, end=100)
    changing = world.disk.partition(OTHER).fill(0, end=100)
    with running(world, Watcher(), scan_interval="50ms", metadata_interval="50ms"):
        world.store.await_put(lambda: watermark_is(world, 100) and watermark_is(world, 100, OTHER))
        before, polls = len(asked), world.metadata.asked
        asked_more(world.metadata, polls + 3)
        assert len(asked) == before, "nothing has changed"
        changing.segment(100, records(100, 130))
        wait_until(lambda: len(asked) > before, what="the offsets to be asked for")
        assert asked[before] == {OTHER}


def test_a_quiet_tail_is_noticed_by_time(world: World) -> None:
    """No scan is due for a day: a timer looks again when the tail has been quiet for long enough."""
    world.disk.partition().segment(0, records(0, 50))
    world.metadata.default_high = 50
    with running(world, Watcher(), scan_interval=NEVER, metadata_interval=NEVER, tail_after="1s"):
        world.store.await_put(lambda: stored_is(world, 50))


def test_a_missed_event_is_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_dirs, "_PROMPT", -3600.0)  # no event could have told in time
    partition = world.disk.partition().fill(0, end=100)
    with running(world, Watcher(), scan_interval="50ms", metadata_interval=NEVER) as agent:
        world.store.await_put(lambda: watermark_is(world, 100))
        partition.segment(100, records(100, 200)).roll(200)
        world.store.await_put(lambda: watermark_is(world, 200))
        assert agent.metrics.missed_events._value.get() == 1


def test_a_folder_is_listed_again_only_when_it_changed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = world.disk.partition().fill(0, 100, end=200)
    long_ago = partition.folder.stat().st_mtime - 100

    def age() -> None:
        os.utime(partition.folder, (long_ago, long_ago))

    age()
    listed: list[Path] = []
    folder = PartitionFolder(partition.folder)
    real = list_segments

    def listing(path: Path) -> DirectoryListing:
        listed.append(path)
        return real(path)

    monkeypatch.setattr(log_dirs, "list_segments", listing)
    assert folder.look()
    assert not folder.look()
    assert len(listed) == 1
    partition.segment(200, records(200, 230))
    age()
    before = folder.tail
    assert not folder.look()
    assert folder.tail != before, "the active segment has grown"
    assert (folder.listing.segments[-1].size, len(listed)) == (len(records(200, 230)), 1)
    partition.roll(230)
    assert folder.look()
    assert [one.base_offset for one in folder.listing.segments] == [0, 100, 200, 230]
    assert folder.look(), "what changed just now may change again within the clock's grain"
    partition.folder.rename(partition.folder.with_name("elsewhere"))
    assert folder.look()
    assert (folder.listing.segments, folder.tail) == ([], None)


def test_agenda() -> None:
    agenda: Timers[str] = Timers()
    assert agenda.next_time() == float("inf")
    agenda.add("a", 5.0)
    agenda.add("b", 3.0)
    agenda.add("a", 2.0)
    agenda.add("a", 9.0)
    assert agenda.next_time() == 2.0
    assert agenda.take(1.0) == set()
    assert agenda.take(3.0) == {"a", "b"}
    assert agenda.take(100.0) == set()


@pytest.mark.parametrize("elected", [False, True], ids=["leads still", "another was elected"])
def test_who_leads_without_a_directory_is_told_by_an_answer_about_everything(world: World, *, elected: bool) -> None:
    """And only by that: the other questions are about what is on the disks. It is over once the directory is there."""
    world.disk.partition().fill(0, end=100)
    missing = TopicPartition("orders", 7)
    world.metadata.leads = {T: Led(3, ID), missing: Led(3, ID), TopicPartition("__internal", 0): Led(3, ID)}
    world.metadata.others = {TopicPartition("elsewhere", 0): Leader(2, Led(3, ID))}
    with world.agent() as agent:
        agent.leadership.look_at_disks()
        for everything in (False, True, False):
            agent.poller.ask_leaders({T}, everything=everything)
            [answer] = agent.poller.answer_all()
            assert isinstance(answer, LeadersAnswer)
            agent.leadership.learn(answer)
            assert agent.leadership.absent.keys() == ({missing} if everything or agent.leadership.absent else set())
        assert [*agent.leadership.partitions] == [T]
        assert agent.leadership.absent.keys() == {missing}
        world.disk.partition(missing).fill(0, end=100)
        if elected:
            del world.metadata.leads[missing]
            world.metadata.others[missing] = Leader(2, Led(4, ID))
        agent.leadership.look_at_disks()
        agent.poller.ask_leaders({T, missing})
        [answer] = agent.poller.answer_all()
        assert isinstance(answer, LeadersAnswer)
        agent.leadership.learn(answer)
        assert not agent.leadership.absent
