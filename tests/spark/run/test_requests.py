"""The requests of a run, on which docs/sizing.md counts: they grow with partitions, segments and tasks as it says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.cost import PerRun
from tests.spark.world import World, in_process
from tests.support.s3 import S3Server
from tests.tidemark.kafka_log.build import simple
from tidemark.store.local import LocalStore
from tidemark.store.s3.store import S3Store
from tidemark_spark.run import commit
from tidemark_spark.run.driver import run

READS, WRITES = ("get", "get_range", "head"), ("put", "list")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests of this process by method, from now on."""
    counts: Counter[str] = Counter()

    def count(name: str) -> None:
        method = getattr(LocalStore, name)

        def counted(store: LocalStore, *arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return method(store, *arguments, **options)

        monkeypatch.setattr(LocalStore, name, counted)

    for name in (*READS, *WRITES):
        count(name)
    return counts


@pytest.mark.parametrize(("partitions", "segments"), [(1, 1), (1, 4), (4, 4)])
def test_the_requests_of_a_run(
    requests: Counter[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, partitions: int, segments: int
) -> None:
    world = World(tmp_path)
    monkeypatch.setattr(commit, "DIRECTORY", "")  # of an object store, for whose files nobody asks again

    def upload() -> None:
        for partition in range(partitions):
            for _ in range(segments):
                world.raw.segment([simple(world.raw.partition(partition).end)], partition)
        world.raw.publish()

    upload()
    world.land()  # which creates the table
    upload()
    requests.clear()
    world.table.log.ledger = None  # a process plans, and another one runs
    plan = world.plan()
    world.table.log.ledger = None
    run(world.table, plan, in_process)
    stored, each = partitions * segments, PerRun()
    assert len(plan.tasks) == partitions, "a task for the segments of a partition"
    assert sum(requests[name] for name in READS) == each.gets(1, partitions, stored, stored)
    assert sum(requests[name] for name in WRITES) == each.puts(1, partitions, partitions)


def test_nobody_asks_an_object_store_for_a_file_that_it_has_answered_to_have(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.env().items():
        monkeypatch.setenv(name, value)
    world = World(tmp_path, raw=f"s3://raw/{tmp_path.name}", lake=f"s3://lake/{tmp_path.name}")
    asked: list[str] = []
    head = S3Store.head

    def noted(store: S3Store, key: str, *arguments: Any, **options: Any) -> Any:
        asked.append(key)
        return head(store, key, *arguments, **options)

    monkeypatch.setattr(S3Store, "head", noted)
    world.raw.segment([simple(0), simple(3, 3)])
    world.raw.publish()
    assert run(world.table, world.plan(), in_process).status == "landed"
    assert not [key for key in asked if key.endswith(".parquet")]
    world.check()
