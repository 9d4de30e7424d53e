"""For how long nothing was packed of what is to be, by a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from tests.uploader_agent.observability.test_health import Clock
from tidemark.formats.keys import TopicPartition
from uploader_agent.packing.packer import Backlog
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import Runtime


@dataclass
class Waiting:
    """What a backlog asks of a partition."""

    tp: TopicPartition
    high_watermark: int | None = 10
    stored_end: int = 0


class World(Runtime):
    """A backlog, by a clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.backlog = Backlog("s3://raw/_heads/east/1.json", self)

    def monotonic(self) -> float:
        return self.clock()

    def add(self, *partitions: Waiting) -> None:
        self.backlog.add(cast("list[LedPartition]", partitions))

    def packed(self, partition: Waiting) -> None:
        self.backlog.packed(cast("LedPartition", partition))

    def seconds(self, passed: int) -> float | None:
        """What it says after so many seconds more."""
        self.clock.now += passed
        found = self.backlog.stalled()
        return found.seconds if found is not None else None

    def words(self) -> str:
        """What it says now."""
        found = self.backlog.stalled()
        assert found is not None
        return found.words


@pytest.fixture
def world() -> World:
    return World()


def partition(number: int) -> Waiting:
    return Waiting(TopicPartition("orders", number))


def test_it_counts_from_when_something_was_to_be_packed(world: World) -> None:
    assert world.seconds(1000) is None
    world.add(partition(0))
    assert world.seconds(600) == 600
    world.add(partition(0), partition(1))
    assert world.seconds(10) == 610


def test_whatever_is_packed_counts_for_all(world: World) -> None:
    first, second = partition(0), partition(1)
    world.add(first, second)
    world.clock.now += 600
    world.packed(first)
    assert world.seconds(10) == 10
    world.backlog.forget(second.tp)
    assert world.seconds(600) is None


def test_what_a_former_leadership_is_done_with_waits_still(world: World) -> None:
    former, later = partition(0), partition(0)
    world.add(former)
    world.backlog.forget(former.tp)
    world.add(later)
    world.packed(former)
    assert world.seconds(10) == 10
    world.packed(later)
    assert world.seconds(10) is None


def test_what_seals_have_waits_no_more(world: World) -> None:
    """And what comes later has not waited since then."""
    first = partition(0)
    world.add(first)
    world.clock.now += 600
    first.stored_end = 10
    assert world.seconds(0) is None
    world.add(partition(1))
    assert world.seconds(10) == 10


def test_it_names_the_head_and_the_last_failure(world: World) -> None:
    world.add(partition(0), partition(1))
    world.backlog.failed(ValueError("first"))
    world.backlog.failed(ValueError("last"))
    world.clock.now += 700
    assert world.words() == (
        "nothing was packed for 700 s beside s3://raw/_heads/east/1.json, though 2 partitions wait to be packed; "
        "the last failure: ValueError: last"
    )
    world.packed(partition(0))
    world.clock.now += 700
    assert "ValueError" not in world.words()
