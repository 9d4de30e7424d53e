"""A tail that an agent replaces while a run reads it: gone on with where the planned bytes are there, else left."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.world import World, in_process
from tests.support.s3 import S3Server
from tests.tidemark.records.build import T0, Record, batch, simple
from tidemark.store import Store, StoreOptions, open_store
from tidemark_spark.convert import conversion, segment_reader
from tidemark_spark.run.driver import run

WINDOW = 300
"""Bytes; a batch of three records has about 120."""


class Tail:
    """The tail of partition 0, which grows by a batch of three records at a time."""

    def __init__(self, world: World, batches: int) -> None:
        self.world = world
        self.batches = [simple(3 * number) for number in range(batches)]
        self.upload()
        world.raw.publish()

    def upload(self) -> None:
        self.world.raw.segment(self.batches, base=0, state="provisional")

    def grow(self) -> None:
        self.batches.append(simple(3 * len(self.batches)))
        self.upload()


class Watched:
    """A store that calls ``before(n)`` before the n-th read of a range, from 1."""

    def __init__(self, store: Store, before: Callable[[int], None]) -> None:
        self._store, self._before = store, before
        self.reads = 0

    def get_range(self, key: str, start: int, end: int, *, if_match: str | None = None) -> bytes:
        self.reads += 1
        self._before(self.reads)
        return self._store.get_range(key, start, end, if_match=if_match)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def watch(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> list[Watched]:
    """Have tasks read through a :class:`Watched`, by windows of two batches."""
    made: list[Watched] = []

    def opened(url: str, options: StoreOptions) -> Watched:
        made.append(Watched(open_store(url, options), before))
        return made[-1]

    monkeypatch.setattr(conversion, "open_store", opened)
    monkeypatch.setattr(segment_reader, "WINDOW_BYTES", WINDOW)
    return made


def data(world: World) -> list[bytes]:
    """What the table's files hold."""
    return sorted(one.read_bytes() for one in (world.topics_file.parent / "lake" / "orders").rglob("dt=*/*.parquet"))


def test_a_run_lands_what_it_planned_of_a_tail_that_grows_at_random_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    for number in range(12):
        world, calm = World(tmp_path / f"grows-{number}"), World(tmp_path / f"calm-{number}")
        count = rng.randrange(1, 12)
        tail, _ = Tail(world, count), Tail(calm, count)
        run(calm.table, calm.plan(), in_process)
        at = {1, *rng.sample(range(2, 30), 4)}
        plan = world.plan()
        with monkeypatch.context() as patch:
            watch(patch, lambda n, at=at, tail=tail: tail.grow() if n in at else None)  # type: ignore[misc]
            result = run(world.table, plan, in_process)
        assert len(tail.batches) > count
        assert (result.status, result.rows) == ("landed", 3 * count), (number, at)
        assert data(world) == data(calm) != []
        world.check()
        world.land()
        assert world.offsets() == list(range(3 * len(tail.batches)))


def test_a_tail_that_grows_at_every_read_is_left_after_some_tries(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = Tail(world, 2)
    plan = world.plan()
    stores = watch(monkeypatch, lambda _: tail.grow())
    assert run(world.table, plan, in_process).status == "stale"
    assert [one.reads for one in stores] == [1 + segment_reader.PROOFS]
    monkeypatch.undo()
    assert world.land().rows == 3 * len(tail.batches)


OTHER = batch(0, [Record(one, T0 + one, b"key-%d" % one, b"other-%d" % one) for one in range(3)])
"""As long as the tail's first batch."""


@pytest.mark.parametrize(("keep", "more"), [(6, [simple(18)]), (1, [])], ids=["others", "fewer"])
def test_bytes_that_are_not_those_of_the_plan_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, keep: int, more: list[bytes]
) -> None:
    """Even if only those are others that the task has read already."""
    tail = Tail(world, 6)
    plan = world.plan()

    def replace(number: int) -> None:
        if number == 2:
            tail.batches = [OTHER if more else tail.batches[0], *tail.batches[1:keep], *more]
            tail.upload()

    watch(monkeypatch, replace)
    result = run(world.table, plan, in_process)
    assert (result.status, result.rows) == ("landed", 6), "what the first window held"
    monkeypatch.undo()
    world.check()


def test_a_plan_without_a_checksum_accepts_no_other_version(world: World) -> None:
    tail = Tail(world, 2)
    plan = world.plan()
    bare = [one.model_copy(update={"log_crc32c": ""}) for task in plan.tasks for one in task.ranges]
    [only] = plan.tasks
    tail.grow()
    old = plan.model_copy(update={"tasks": (only.model_copy(update={"ranges": tuple(bare)}),)})
    assert run(world.table, old, in_process).status == "stale"
    assert world.land().rows == 9


def test_versions_of_an_s3_server_are_told_apart_while_an_uploader_goes_on(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.env().items():
        monkeypatch.setenv(name, value)
    store = [f"endpoint_url: '{s3_server.endpoint}'", "path_style: true"]
    mark = tmp_path.name
    world = World(tmp_path, raw=f"s3://raw/growing-{mark}", lake=f"s3://lake/growing-{mark}", store=store)
    tail = Tail(world, 40)
    plan, ended = world.plan(), threading.Event()
    tail.grow()

    def uploads() -> None:
        for _ in range(segment_reader.PROOFS - 1):  # with more, a slow reader may meet another version each time
            if not ended.is_set():
                tail.grow()

    monkeypatch.setattr(segment_reader, "WINDOW_BYTES", 2048)
    uploading = threading.Thread(target=uploads)
    uploading.start()
    try:
        result = run(world.table, plan, in_process)
    finally:
        ended.set()
        uploading.join()
    assert (result.status, result.rows) == ("landed", 120)
    world.check()
    assert world.land().rows == 3 * (len(tail.batches) - 40)
