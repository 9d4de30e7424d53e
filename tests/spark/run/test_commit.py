"""The publish protocol: racing writers that are killed, lost replies, and the store's refusals."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.run.racer import PARTITIONS, PRELOADED, ingest, race
from tests.spark.world import Acting, World, in_process
from tests.support.s3 import S3Server
from tests.support.waiting import wait_until
from tests.tidemark.kafka_log.build import simple
from tidemark.errors import PublishError, StaleRun, UnknownOutcome
from tidemark.formats.table.plan import SegmentTask
from tidemark.table.delta_table import live_files
from tidemark_spark.kinds.registry import kind_of
from tidemark_spark.model import Job, Outcome
from tidemark_spark.run import commit as publish
from tidemark_spark.run import delta_log, driver

KINDS = ("ingest", "ingest", "elect", "rebuild", "compact")


@pytest.mark.timeout(1800)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("place", ["directory", pytest.param("s3", marks=pytest.mark.s3)])
def test_racing_writers_that_are_killed_leave_an_exact_table(
    place: str, request: pytest.FixtureRequest, tmp_path: Path, rng: random.Random, full: bool
) -> None:
    urls = {"raw": f"file://{tmp_path}/raw", "lake": f"file://{tmp_path}/lake"}
    environment: dict[str, str] = {}
    if place == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        environment = server.env()
        urls = {"raw": f"s3://raw/{tmp_path.name}", "lake": f"s3://lake/{tmp_path.name}"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        world = World(tmp_path, **urls)
        kills = _race(world, urls, environment, rng, commits=400 if full else 12)
        world.check()
        ledger = world.ledger
        for partition in range(PARTITIONS):
            state = ledger.by_partition.get((0, partition))
            assert world.offsets(partition) == list(range(state.next_offset if state else 0))
        assert kills > 5
        assert any(state.branch for state in ledger.partitions)
        assert len(ledger.landed) == len(set(ledger.landed)) == ledger.n


def _race(world: World, urls: dict[str, str], environment: dict[str, str], rng: random.Random, commits: int) -> int:
    """Processes of all KINDS, of which one is killed every now and then and replaced; returns how many were.

    Each kill waits for a commit, so that the table grows however slow the machine is. At last, what a race of fewer
    kinds may have kept from landing, a truncation, has the table to itself.
    """
    root = world.topics_file.parent
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)

    def start(kind: str) -> multiprocessing.process.BaseProcess:
        arguments = (kind, rng.getrandbits(32), root, urls["raw"], urls["lake"], environment)
        process = context.Process(target=race, args=arguments, daemon=True)
        process.start()
        return process

    processes = [(kind, start(kind)) for kind in KINDS]
    kills = n = 0
    while kills < 6 or n < commits:
        wait_until(lambda: world.ledger.n > n, what=f"commit {n + 1}")  # noqa: B023 - called here
        time.sleep(rng.uniform(0, 0.5))  # a kill is to come at any point of what the others do
        n = world.ledger.n
        at = rng.randrange(len(processes))
        kind, process = processes[at]
        _kill(process)
        kills += 1
        processes[at] = kind, start(kind)
    for kind, process in processes:
        if kind != "elect":
            _kill(process)
    wait_until(lambda: any(state.branch for state in world.ledger.partitions), what="a truncation")
    for kind, process in processes:
        if kind == "elect":
            _kill(process)
    return kills


def _kill(process: multiprocessing.process.BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL  # it was at work, and did not end by an error of its own


def test_a_lost_reply_to_a_commit_that_landed_is_found_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _lose(monkeypatch, after=True, times=1)
    world.raw.segment([simple(0)])
    assert world.land().status == "landed"
    assert world.ledger.n == 1


def test_a_zombie_beside_its_retry_lands_once(world: World) -> None:
    """A scheduler takes a driver for dead and runs its attempt again; both write the same files, and commit at once."""
    world.raw.segment([simple(0), simple(3, 3, "zstd")])
    world.raw.segment([simple(0)], 1)
    world.raw.publish()
    plan = world.plan()
    both = threading.Barrier(2, timeout=60)

    @Acting
    def together(work: Any, job: Job, tasks: Sequence[SegmentTask]) -> list[Outcome]:
        both.wait()
        outcomes = in_process.on_each(work, job, tasks)
        both.wait()
        return outcomes

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: driver.run(world.table, plan, together), range(2)))
    assert [(one.status, one.rows, one.files) for one in results] == [("landed", 9, 2)] * 2
    world.check()
    assert (world.ledger.n, world.ledger.landed) == (1, (plan.attempt,))


def test_a_zombie_that_its_retry_has_overtaken_changes_nothing(world: World) -> None:
    world.raw.segment([simple(0)])
    world.raw.publish()
    plan = world.plan()

    @Acting
    def overtaken(work: Any, job: Job, tasks: Sequence[SegmentTask]) -> list[Outcome]:
        outcomes = in_process.on_each(work, job, tasks)
        assert driver.run(world.table, plan, in_process).status == "landed"
        world.raw.segment([simple(3)])
        assert world.land().rows == 3
        return outcomes

    assert driver.run(world.table, plan, overtaken).status == "landed"
    world.check()
    assert (world.ledger.n, world.next_offset()) == (2, 6)


def test_a_commit_that_was_lost_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _lose(monkeypatch, after=False, times=3)
    world.raw.segment([simple(0)])
    assert world.land().status == "landed"
    assert world.ledger.n == 1


def test_a_run_gives_up_when_nothing_helps_and_may_go_on_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "TRIES", 3)
    _lose(monkeypatch, after=False, times=3)
    world.raw.segment([simple(0)])
    world.raw.publish()
    plan = world.plan()
    with pytest.raises(PublishError, match="3 tries"):
        driver.run(world.table, plan, in_process)
    assert world.ledger.n == 0
    assert driver.run(world.table, plan, in_process).status == "landed"
    world.check()


def test_a_run_whose_raw_changed_between_two_tries_is_stale(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "TRIES", 1)
    _lose(monkeypatch, after=False, times=1)
    world.raw.segment([simple(0)])
    world.raw.segment([simple(0)], 1)
    world.raw.publish()
    plan = world.plan()
    with pytest.raises(PublishError):
        driver.run(world.table, plan, in_process)
    world.raw.segment([simple(0, 3, "gzip"), simple(3)], base=0)
    assert driver.run(world.table, plan, in_process).status == "stale"
    assert world.ledger.n == 0
    assert world.land().rows == 9


def test_a_table_has_the_settings_that_the_protocol_needs(world: World) -> None:
    world.raw.segment([simple(0)])
    world.land()
    configuration = DeltaTable(world.table.url).metadata().configuration
    assert configuration == {
        "delta.checkpointInterval": "100",
        "delta.logRetentionDuration": "interval 2 days",
        "delta.dataSkippingStatsColumns": "kafka_partition,kafka_offset,kafka_timestamp",
    }


def test_a_table_that_is_opened_each_minute_has_checkpoints_more_often(tmp_path: Path) -> None:
    world = World(tmp_path, "freshness: 60s")
    world.raw.segment([simple(0)])
    world.land()
    assert DeltaTable(world.table.url).metadata().configuration["delta.checkpointInterval"] == "5"


def test_both_transactions_survive_a_checkpoint(world: World) -> None:
    rng = random.Random(1)
    for _ in range(3):
        ingest(world.table, rng)
    before = world.ledger
    delta = DeltaTable(world.table.url)
    delta.create_checkpoint()
    delta.cleanup_metadata()
    assert world.ledger == before
    ingest(world.table, rng)
    world.check()
    assert world.ledger.n == before.n + 1


def test_a_plan_for_offsets_that_have_landed_is_stale(world: World) -> None:
    world.raw.segment([simple(0)])
    world.raw.publish()
    plan = world.plan()
    world.land()
    live = live_files(DeltaTable(world.table.url))
    with pytest.raises(StaleRun, match="continues at 3"):
        kind_of(world.table, plan).check_fresh(world.ledger, live)


def _lose(monkeypatch: pytest.MonkeyPatch, *, after: bool, times: int) -> None:
    """The first ``times`` commits answer nothing, after or before they took effect."""
    real: Callable[..., None] = delta_log.commit
    left = [times]

    def commit(*arguments: object) -> None:
        if after or not left[0]:
            real(*arguments)
        if left[0]:
            left[0] -= 1
            raise UnknownOutcome("table", "planted")

    monkeypatch.setattr(publish, "commit", commit)
