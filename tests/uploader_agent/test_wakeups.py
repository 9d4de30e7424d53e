"""Nothing waits for an event alone: what is lost, late or dead is made up for by another look, or is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from inotify_simple import Event, INotify, flags
from structlog import get_logger

from tests.support.waiting import HUNG, wait_until
from tests.uploader_agent.fakes import T, World, records
from tests.uploader_agent.test_run import NEVER, running, stored_is, watermark_is
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.backoff import Backoff
from tidemark.formats.keys import TopicPartition
from uploader_agent import agent as agent_module
from uploader_agent import agent as loop
from uploader_agent.broker.admin import Leader, Led, Offsets
from uploader_agent.disk.watcher import DirectoryWatcher, Heard, Watcher
from uploader_agent.observability.health import QUESTION_LIMIT, Health
from uploader_agent.observability.log_config import ErrorDeduplicator
from uploader_agent.observability.metrics import Metrics
from uploader_agent.runtime import Worker
from uploader_agent.scheduling.workers import PartitionJob, Timers, UploadQueue, UploadWorkers
from uploader_agent.upload.local_run import SealRun
from uploader_agent.watermark_index import IndexPublisher


def test_a_tail_is_offered_again_by_the_scan(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer that would look again when it is quiet is lost."""
    monkeypatch.setattr(Timers, "add", lambda *_: None)
    world.disk.partition().segment(0, records(0, 50))
    world.metadata.default_high = 50
    with running(world, Watcher(), scan_interval="50ms", metadata_interval=NEVER, tail_after="1s"):
        world.store.await_put(lambda: stored_is(world, 50))


def test_a_tail_has_its_timer_though_other_work_goes_first(world: World) -> None:
    """No scan, no poll and no event: only the timer can tell, and it was set while a rotated segment was to go."""
    world.disk.partition().fill(0, end=100).segment(100, records(100, 130))
    world.metadata.default_high = 130
    with running(world, Watcher(), scan_interval=NEVER, metadata_interval=NEVER, tail_after="2s"):
        world.store.await_put(lambda: stored_is(world, 130))


def test_a_shorter_tail_after_counts_at_once(world: World) -> None:
    world.disk.partition().segment(0, records(0, 50))
    world.metadata.default_high = 50
    never = {"scan_interval": NEVER, "metadata_interval": NEVER}
    with running(world, Watcher(), **never, tail_after=NEVER) as agent:
        wait_until(lambda: T in agent.components.timers._times, what="the timer of the tail")
        shorter = world.settings(tail_after="1s")
        agent.soon(lambda: agent.reconfigure(shorter, "agent.yaml"))
        world.store.await_put(lambda: stored_is(world, 50))


@pytest.mark.parametrize("error", [RuntimeError, KeyError])
def test_whatever_the_former_index_meets_the_agent_uploads(
    world: World, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    world.disk.partition().fill(0, end=100)

    def read(_: IndexPublisher) -> Mapping[TopicPartition, Any]:
        raise error("told so")

    monkeypatch.setattr(IndexPublisher, "read", read)
    with running(world, Watcher()) as agent:
        world.store.await_put(lambda: watermark_is(world, 100))
        world.store.await_put(lambda: world.control.index(1) in world.store.puts)
        assert agent.health.trouble() is None


def test_a_former_index_that_is_never_read_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.disk.partition().fill(0, end=100)
    ends = threading.Event()

    def read(_: IndexPublisher) -> Mapping[TopicPartition, Any]:
        ends.wait(HUNG)
        return {}

    monkeypatch.setattr(IndexPublisher, "read", read)
    monkeypatch.setattr(loop, "_INDEX_LIMIT", 0.2)
    with running(world, Watcher(), scan_interval="50ms"):
        world.store.await_put(lambda: watermark_is(world, 100))
        ends.set()


def test_a_tail_goes_by_the_checkpoint_while_the_broker_hangs_and_is_said_to(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "_BROKER_LIMIT", 0.5)
    monkeypatch.setattr(loop, "_BROKER_PATIENCE", 0.1)
    partition = world.disk.partition().segment(0, records(0, 50))
    world.metadata.default_high = 50
    hangs, ends = threading.Event(), threading.Event()
    real = world.metadata.offsets

    def offsets(led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        if hangs.is_set():
            ends.wait(HUNG)
        return real(led)

    world.metadata.offsets = offsets  # type: ignore[method-assign]
    intervals = {"scan_interval": "50ms", "metadata_interval": NEVER, "tail_after": "1s"}
    with running(world, Watcher(), **intervals) as agent:
        world.store.await_put(lambda: stored_is(world, 50))
        assert agent.metrics.broker_reachable._value.get() == 1
        hangs.set()
        (world.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 80\n")
        partition.segment(0, records(0, 80))
        world.store.await_put(lambda: watermark_is(world, 80))
        wait_until(lambda: agent.metrics.broker_reachable._value.get() == 0, what="the broker to be unreachable")
        ends.set()


def test_after_an_overflow_a_directory_that_was_made_again_is_watched(tmp_path: Path) -> None:
    folder, inotify, overflows = tmp_path / "orders-0", INotify(), [False]
    real = inotify.read

    def read(timeout: int | None = None) -> list[Event]:
        """What is there is lost once, as by the kernel when nobody reads for long."""
        events: list[Event] = real(timeout)
        if overflows.pop():
            events = [Event(-1, flags.Q_OVERFLOW, 0, "")]
        overflows.append(False)
        return events

    inotify.read = read
    folder.mkdir()
    with closing(DirectoryWatcher(inotify)) as watcher:
        watcher.watch([folder])
        watcher.wait(0)
        overflows[0] = True
        folder.rename(tmp_path / "orders-0.f00-delete")
        folder.mkdir()
        assert watcher.wait(HUNG) == Heard(frozenset({folder}), leaders=True)
        watcher.watch([folder])
        assert watcher.wait(HUNG).folders == {folder}, "what was made before the watch is looked at"
        (folder / f"{0:020d}.log").touch()
        assert watcher.wait(HUNG).folders == {folder}


def test_a_partition_is_looked_at_again_only_when_its_job_has_ended(world: World) -> None:
    """If it were before, the same job that is planned then would be taken for the one that is running."""
    seen: list[int] = []
    looked = threading.Event()
    queue: UploadQueue[TopicPartition, PartitionJob] = UploadQueue(1)

    def revisit(_: TopicPartition, __: float) -> None:
        seen.append(queue.running())
        looked.set()

    settings, metrics, backoff = world.settings().upload, Metrics(), Backoff(0, 0)
    health, repeats = Health(60, timedelta(minutes=1)), ErrorDeduplicator(get_logger(), timedelta(minutes=1))
    with world.agent() as agent:
        world.disk.partition().fill(0, end=100)
        agent.refresh()
        partition = agent.leadership.partitions[T]
        UploadWorkers(queue, settings, backoff, metrics, health, revisit, repeats).start()
        queue.replace(T, [PartitionJob(partition, "survey")])
        assert looked.wait(HUNG)
        looked.clear()
        queue.replace(T, [PartitionJob(partition, SealRun(7, 8, 7, 8))])  # there is no such segment
        assert looked.wait(HUNG)
        queue.close()
    assert seen == [0, 0]


def ended(name: str) -> threading.Thread:
    thread = threading.Thread(target=lambda: None, name=name)
    thread.start()
    thread.join()
    return thread


def test_a_thread_that_has_ended_is_not_healthy() -> None:
    health = Health(60, timedelta(minutes=1))
    health.watch("index", threading.Thread(target=lambda: None))
    assert health.trouble() is None, "it was not started yet"
    health.watch("upload-0", ended("upload-0"))
    assert "upload-0 have ended" in str(health.trouble())
    health.stopping()
    assert health.trouble() is None


WORKERS: dict[str, Callable[[TestedAgent], Worker]] = {
    "metadata": lambda agent: agent.poller.worker,
    "index": lambda agent: agent.index.worker,
    "packs": lambda agent: agent.components.packs.all[0].worker,
    "fill": lambda agent: agent.components.filler.worker,
}


@pytest.mark.parametrize("name", WORKERS)
def test_the_agents_own_threads_are_watched(world: World, name: str) -> None:
    with running(world, Watcher()) as agent:
        wait_until(lambda: agent.health.ready, what="ready")
        assert {
            "metadata",
            "index",
            "packs",
            "fill",
            "upload-0",
            "upload-1",
            "upload-2",
        } == agent.health._threads.keys()
        assert agent.health.trouble() is None
        assert agent.health._threads[name] is WORKERS[name](agent)
        agent.health.watch(name, ended(name))
        assert f"{name} have ended" in str(agent.health.trouble())


def test_no_thread_ends_before_health_knows_of_the_stop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(world, Watcher()) as agent:
        stopping, told = agent.components.stopping, []
        end = stopping.set

        def end_and_look() -> None:
            end()
            agent.health.watch("fill", ended("fill"))
            told.append(agent.health.trouble())

        monkeypatch.setattr(stopping, "set", end_and_look)
    assert told
    assert set(told) == {None}


def test_a_question_that_stays_open_is_not_healthy() -> None:
    open_for = [QUESTION_LIMIT]
    health = Health(3600, timedelta(hours=1), question_open_for=lambda: open_for[0])
    assert health.trouble() is None
    open_for[0] += 1
    assert "has not answered a question for 61 s" in str(health.trouble())


def test_the_pollers_open_question_is_the_healths(world: World) -> None:
    opened, ends = threading.Event(), threading.Event()

    def leaders(wanted: Collection[TopicPartition], *, everything: bool = False) -> dict[TopicPartition, Leader]:
        opened.set()
        ends.wait(HUNG)
        return dict.fromkeys(wanted, Leader(2, Led(3, None)))

    world.metadata.leaders = leaders  # type: ignore[method-assign]
    with running(world, Watcher()) as agent:
        assert opened.wait(HUNG)
        wait_until(lambda: agent.health._question_open_for() > 0, what="an open question")
        ends.set()
        wait_until(lambda: agent.health._question_open_for() == 0, what="the answer")


def test_a_bell_that_was_closed_may_be_rung(tmp_path: Path) -> None:
    """A worker may end after the loop has: by then the pipe's number may be that of another file."""
    watcher = Watcher()
    watcher.close()
    with (tmp_path / "file").open("wb") as one, (tmp_path / "other").open("wb") as two:
        watcher.wake()
        assert one.tell() + two.tell() == 0
    assert [(tmp_path / name).stat().st_size for name in ("file", "other")] == [0, 0]
