"""A retention of raw that is killed anywhere, or meets others: nothing is lost, and the next run completes it."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.retention.test_raw import (
    NOW,
    OPTED_IN,
    bases,
    buried,
    five,
    of_another_branch,
    remove,
    reported,
    uploaded_again,
)
from tests.spark.test_vacuum import Died
from tests.spark.world import World
from tests.tidemark.kafka_log.build import simple
from tidemark import storage
from tidemark.cli.continuity import continuity_of
from tidemark.errors import PreconditionFailed
from tidemark.formats.keys import SegmentName, TableKeys
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.tombstones import Tombstone
from tidemark.intervals import Interval, Intervals
from tidemark.planning import plan_ingest
from tidemark.raw import objects, tombstones
from tidemark.storage import PartitionStore
from tidemark.store import put_once
from tidemark.store.base import Fetched
from tidemark.store.local import LocalStore
from tidemark_spark.retention import raw


@pytest.fixture
def world(tmp_path: Path) -> World:
    return five(tmp_path)


def killed_at(count: int) -> Callable[..., bool]:
    """The removal of segments, up to the death at the one after ``count``."""
    real, left = objects.remove_segment, [count]

    def removed(*arguments: Any) -> bool:
        left[0] -= 1
        if left[0] < 0:
            raise Died
        return real(*arguments)

    return removed


class DyingStore(LocalStore):
    """Dies before the delete that comes after ``left`` others."""

    left = 0

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        if key.startswith("east/"):
            if DyingStore.left == 0:
                raise Died
            DyingStore.left -= 1
        super().delete(key, if_match=if_match)


@pytest.mark.parametrize("deletes", range(6))
def test_a_retention_that_is_killed_is_completed_by_the_next(
    tmp_path: Path, deletes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, OPTED_IN)
    for base in (0, 3, 6):
        world.raw.segment(simple(base))
    world.land()
    DyingStore.left = deletes
    store = DyingStore(tmp_path / "raw")
    with monkeypatch.context() as patch:
        patch.setattr(storage, "open_store", lambda *_: store)
        with pytest.raises(Died):
            remove(world)
    world.check()
    assert buried(world) == [(0, 6)]
    assert audited(world).passed
    left = bases(world)
    assert 6 in left
    assert (0 in left) is (deletes < 3)
    found = remove(world, NOW + timedelta(days=3))
    assert set(bases(world)) == {6}
    orphans = sum(len(names) for base, names in left.items() if "manifest.json" not in names)
    assert found.leftover == orphans
    assert audited(world).passed


def test_what_a_tombstone_does_not_name_stays(world: World) -> None:
    """Bytes of an agent that has not written the manifest yet, among segments that go."""
    stray = world.raw.keys().segment(SegmentName(4), "log")
    world.raw.store.put(stray, simple(4))
    remove(world)
    assert buried(world) == [(0, 12)]
    assert remove(world, NOW + timedelta(days=3)).leftover == 0
    assert world.raw.store.get(stray).body == simple(4)


def test_what_comes_after_the_tombstone_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """On S3 the same bytes have the same ETag again."""
    remove(world)
    stray = world.raw.keys().segment(SegmentName(3), "log")
    world.raw.store.put(stray, simple(3))
    monkeypatch.setattr(Tombstone, "names", lambda *_: True)
    assert remove(world, NOW + timedelta(days=3)).leftover == 0
    assert world.raw.store.get(stray).body == simple(3)


def test_a_segment_that_is_replaced_meanwhile_stays_and_all_above_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent replaces the log, then the manifest, of a segment that has been judged; two tombstones were due."""
    monkeypatch.setattr(raw, "CHUNK", 2)

    def putting(*arguments: Any) -> str:
        uploaded_again(world)
        return put_once(*arguments)

    monkeypatch.setattr(raw, "put_once", putting)
    found = remove(world)
    assert (found.end, found.removed_to) == (12, 0)
    assert set(bases(world)) == {3, 6, 9, 12}
    assert {"log", "manifest.json", "index"} <= bases(world)[3]


def test_a_log_that_is_replaced_before_its_manifest_is_not_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:

    def putting(*arguments: Any) -> str:
        of_another_branch(world)
        return put_once(*arguments)

    monkeypatch.setattr(raw, "put_once", putting)
    remove(world)
    assert bases(world)[3] == {"log"}, "the agent that replaces it writes its manifest"


def test_a_manifest_that_is_replaced_while_it_is_read_keeps_its_segment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalStore.get

    def get(store: LocalStore, key: str, *, if_match: str | None = None, **options: Any) -> Fetched:
        if key == world.raw.keys().segment(SegmentName(3), "manifest.json") and if_match is not None:
            raise PreconditionFailed(key, "planted")
        return real(store, key, if_match=if_match, **options)

    monkeypatch.setattr(LocalStore, "get", get)
    found = remove(world)
    assert (found.removed_to, found.stays) == (3, "segment 3 stays: its manifest is being replaced")


def test_two_at_once_remove_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reported(world, NOW, dry_run=True)
    once = [True]

    def putting(*arguments: Any) -> str:
        if once.pop() if once else False:
            assert reported(world, NOW + timedelta(days=1)).partitions[0].removed_to == 12
        return put_once(*arguments)

    monkeypatch.setattr(raw, "put_once", putting)
    assert reported(world, NOW + timedelta(days=1, hours=1)).partitions[0].removed_to == 12
    assert set(bases(world)) == {12}
    world.check()


def test_many_segments_have_several_tombstones(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "CHUNK", 2)
    found = remove(world)
    assert (found.segments, found.removed_to) == (4, 12)
    assert buried(world) == [(0, 6), (6, 12)]


@pytest.mark.parametrize("deletes", [4, 7])
def test_a_kill_leaves_no_hole_between_overlapping_segments(
    tmp_path: Path, deletes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[2, 6) goes after [3, 4), which lies in it."""
    world = World(tmp_path, OPTED_IN)
    for base, end in ((0, 2), (2, 6), (3, 4), (6, 9)):
        world.raw.segment([simple(at, 1) for at in range(base, end)], base=base)
    world.land()
    DyingStore.left = deletes
    store = DyingStore(tmp_path / "raw")
    monkeypatch.setattr(storage, "open_store", lambda *_: store)
    with pytest.raises(Died):
        remove(world)
    left = [read_manifest(world, base) for base, names in bases(world).items() if "manifest.json" in names]
    assert len(Intervals(left)) == 1


def test_overlapping_segments_go_together_or_not_at_all(tmp_path: Path) -> None:
    """Leaders roll where they like: [0, 6), [3, 6), [5, 9) and [9, 12)."""
    world = World(tmp_path, OPTED_IN)
    for base, end in ((0, 6), (3, 6), (5, 9)):
        world.raw.segment(simple(base, end - base), base=base)
    world.raw.segment(simple(9))
    world.raw.segment(simple(12))
    world.land()
    world.raw.partition().line1 = 6
    world.raw.publish()
    found = remove(world)
    assert (found.removed_to, found.stays) == (0, "segment 5 stays: agents continue from segment 6")
    world.raw.partition().line1 = 12
    world.raw.publish()
    assert remove(world, NOW + timedelta(days=3)).removed_to == 12


def test_whatever_happens_raw_is_cut_off_at_its_old_end_alone(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments of random sizes that overlap, landed at times, retained at times, killed at times."""
    world = World(tmp_path, "retention: {raw: 1d, apply: true}")
    store = DyingStore(tmp_path / "raw")
    monkeypatch.setattr(storage, "open_store", lambda *_: store)
    for _ in range(40):
        world.raw.now += timedelta(hours=rng.randint(1, 16))
        step = rng.choice(["segment", "segment", "land", "retain"])
        known = world.raw.partition(0)
        if step == "segment" or not known.end:
            base = max(0, known.end - rng.choice([0, 0, 1, 4]))
            # The same records, whatever the segment: that is what leaders share.
            world.raw.segment([simple(at, 1) for at in range(base, known.end + rng.randint(1, 5))], base=base)
        elif step == "land":
            world.land()
        else:
            world.raw.publish()
            DyingStore.left = rng.choice([1, 4, 9, 1 << 30])
            with suppress(Died):
                reported(world, world.raw.now)
        there = [base for base, names in sorted(bases(world).items()) if "manifest.json" in names]
        spans = [read_manifest(world, base) for base in there]
        assert Intervals(spans).parts == (Interval(there[0], known.end),), "no hole"
        removed = tombstones.removed(PartitionStore(world.raw.store, world.raw.keys()))
        assert not removed or removed.parts[-1].end <= world.next_offset()
    DyingStore.left = 1 << 30
    last = world.raw.partition().end
    world.raw.segment(simple(last, 1))
    world.land()
    assert audited(world).passed
    assert (
        remove(world, world.raw.now + timedelta(days=2)).stays
        == f"segment {last} stays: agents continue from segment {last}"
    )
    assert set(bases(world)) == {last}
    assert continuity_of(world.table)["sound"]
    assert audited(world).passed


def read_manifest(world: World, base: int) -> tuple[int, int]:
    """The offsets of the segment at ``base``."""
    key = world.raw.keys().segment(SegmentName(base), "manifest.json")
    return base, SegmentManifest.from_bytes(world.raw.store.get(key).body, key).next_offset


def test_a_new_table_takes_what_a_killed_retention_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(raw, "remove_segment", killed_at(2))
        with pytest.raises(Died):
            remove(world)
    table = world.table._replace(keys=TableKeys("", "east", "orders", "two"))
    [part] = plan_ingest(table).partitions
    assert (part.expired, part.start, part.end) == (((0, 6),), 6, 15)
