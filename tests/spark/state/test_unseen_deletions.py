"""Offsets that compaction had removed before they were stored count, unless the agent was in time for a deletion."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.spark.state.replay import advance, status_of
from tests.spark.world import World
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.table.state_ledger import StateLedger
from tidemark.table.state_table import StateTable

HOURS = timedelta(hours=1)


def segment(
    world: World,
    first: int,
    last: int,
    partition: int = 0,
    *,
    reaches: int | None = None,
    retention_hours: int | None = None,
) -> None:
    """A compacted segment with a record at ``last`` alone, of the offsets from ``first`` on.

    At its upload, the log reached up to ``reaches``, or to the segment's own end.
    """
    log = batch(last, [Record(0, T0, b"k%d" % last, b"v")])
    key = world.raw.segment([log], partition, base=first, compacted=True)
    name = key.removesuffix(".log") + ".manifest.json"
    manifest = SegmentManifest.load(world.raw.store, name)
    end = last + 1 if reaches is None else reaches
    kept = None if retention_hours is None else retention_hours * 3_600_000
    changed = manifest.model_copy(update={"high_watermark": end, "delete_retention_ms": kept})
    world.raw.store.put(name, changed.to_bytes())


def ledger_of(world: World) -> StateLedger:
    ledger = StateTable.open(world.table).committed()
    assert ledger is not None
    return ledger


def landed(world: World) -> int:
    world.land()
    result = advance(world)
    assert result.uncertain == status_of(world).uncertain == ledger_of(world).uncertain
    return result.uncertain


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "state: {}")


def test_an_agent_that_was_in_time_leaves_no_doubt(world: World) -> None:
    for first in (0, 10, 20):
        segment(world, first, first + 9)
        assert landed(world) == 0
        world.raw.now += 22 * HOURS


def test_an_agent_that_was_late_may_have_missed_deletions(world: World) -> None:
    segment(world, 0, 9)
    assert landed(world) == 0
    world.raw.now += 25 * HOURS
    segment(world, 10, 19)
    assert landed(world) == 9, "all but the record that is there"
    segment(world, 20, 29)
    assert landed(world) == 9, "the next one was in time"
    assert [through.uncertain for through in ledger_of(world).through] == [9]
    assert advance(world, rebuild=True).uncertain == 9, "a table that is read again tells no more"


def test_a_log_that_is_stored_for_the_first_time_has_no_older_records_anywhere(world: World) -> None:
    """It may be as old as it likes; while the agent stores it, the log grows, and the cleaner goes on."""
    for first in (0, 10, 20):
        segment(world, first, first + 9, reaches=1000)
    assert landed(world) == 0
    world.raw.now += 25 * HOURS
    segment(world, 30, 39, reaches=1000)
    assert landed(world) == 9, "a deletion there may have taken a record that was stored before"


def test_offsets_above_the_log_at_the_last_upload_are_newer_than_that(world: World) -> None:
    """The segment before was stored while the log ended within the next one."""
    segment(world, 0, 9)
    world.raw.now += 48 * HOURS
    segment(world, 10, 19, reaches=25)
    world.raw.now += 20 * HOURS
    segment(world, 20, 29)
    assert landed(world) == 18, "of the second and the third segment"
    before = ledger_of(world)
    segment(world, 30, 39)
    assert landed(world) == before.uncertain


@pytest.mark.parametrize(
    ("setting", "stated", "uncertain"),
    [("", 7 * 24, 0), ("delete_retention: 7d", 24, 0), ("", None, 9), ("delete_retention: 1d", 7 * 24, 9)],
)
def test_the_topics_own_delete_retention_counts(
    tmp_path: Path, setting: str, stated: int | None, uncertain: int
) -> None:
    """As the manifest states it, in hours here, unless the settings do."""
    world = World(tmp_path, f"state: {{{setting}}}")
    segment(world, 0, 9)
    assert landed(world) == 0
    world.raw.now += 5 * 24 * HOURS
    segment(world, 10, 19, retention_hours=stated)
    assert landed(world) == uncertain


def test_a_topic_may_keep_deletions_for_ever(world: World) -> None:
    segment(world, 0, 9)
    assert landed(world) == 0
    world.raw.now += 900 * 24 * HOURS
    segment(world, 10, 19, retention_hours=2_562_047_788_015)
    assert landed(world) == 0


def test_partitions_are_judged_one_by_one(world: World) -> None:
    segment(world, 0, 9)
    segment(world, 0, 9, 1)
    assert landed(world) == 0
    world.raw.now += 48 * HOURS
    segment(world, 10, 19, 1)
    assert landed(world) == 9
    assert [through.uncertain for through in ledger_of(world).through] == [0, 9]


@pytest.mark.parametrize("remove", ["before", "own"])
def test_without_the_manifests_nothing_is_certain(world: World, remove: str) -> None:
    """Raw's retention has removed them before the state began."""
    segment(world, 0, 9)
    segment(world, 10, 19)
    world.land()
    for info in list(world.raw.store.list("")):
        if info.key.endswith(".manifest.json") and ("00010." in info.key) is (remove == "own"):
            world.raw.store.delete(info.key)
    assert advance(world).uncertain == (9 if remove == "own" else 18)


@pytest.mark.parametrize(("late", "uncertain"), [(22 * HOURS, 0), (26 * HOURS, 9)])
def test_a_packed_log_was_there_up_to_the_last_commit(
    world: World, late: timedelta, uncertain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the ledger, all records from before that time had landed; the segments alone leave doubts."""
    segment(world, 0, 9)
    assert landed(world) == 0
    world.raw.now += 240 * HOURS
    reached = world.raw.now
    from tidemark.planning import state

    monkeypatch.setattr(state, "_reached", lambda *_: {(0, 0): reached})
    world.raw.now += late
    segment(world, 10, 19)
    assert landed(world) == uncertain
