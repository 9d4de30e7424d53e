"""Tombstones and words on gaps that do not hold cost their own partition, which waits, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.world import World
from tests.tidemark.kafka_log.build import simple
from tests.tidemark.remote.test_catalog import bury
from tidemark.raw import tombstones
from tidemark.storage import PartitionStore


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two partitions; nothing is landed."""
    made = World(tmp_path)
    made.raw.segment(simple(0), 1)
    return made


def test_without_a_word_that_holds_a_gap_stays(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.raw.segment(simple(0))
    world.raw.segment(simple(6), base=6)
    world.land()
    assert (world.next_offset(), world.next_offset(1)) == (3, 3)
    world.raw.acknowledge(3, 6)
    [key] = [one.key for one in world.raw.store.list("_acks/")]
    word = world.raw.store.get(key).body
    for forged in (b"{}", word.replace(b'"cluster":"east"', b'"cluster":"west"')):
        world.raw.store.put(key, forged)
        world.raw.segment(simple(world.next_offset(1)), 1)
        world.land()
        assert world.next_offset() == 3
        assert key in caplog.text
    assert world.next_offset(1) == 9
    world.raw.store.put(key, word)
    world.land()
    assert (world.next_offset(), world.classes()["acknowledged"]) == (9, 3)


@pytest.mark.parametrize("holds", [True, False])
def test_what_no_tombstone_holds_for_is_lost_and_not_expired(
    world: World, caplog: pytest.LogCaptureFixture, holds: bool
) -> None:
    """A new table begins where raw does; a name alone does not turn what is missing into what was removed."""
    world.raw.segment(simple(3), base=3)
    bury(world.raw, 0, 3)
    [named] = tombstones.named(PartitionStore(world.raw.store, world.raw.keys()))
    if not holds:
        world.raw.store.put(named.key, b"")
    world.land()
    state = world.ledger.by_partition[0, 0]
    assert world.next_offset(1) == 3
    assert (state.next_offset, world.classes()["expired"]) == ((6, 3) if holds else (0, 0))
    assert [(gap.start, gap.end) for gap in state.gaps] == ([] if holds else [(0, 3)])
    assert (named.key in caplog.text) is not holds
