"""A watermark index that cannot be read costs its broker alone: in the triggerer's scan, and on the page."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.plugins.world import CLUSTER, World, entry
from tests.support.bad_objects import BODIES, refused, spoil
from tidemark_airflow.triggers.index_scanner import IndexScanner, Scan, Source
from tidemark_airflow.triggers.readiness import WatermarkRow
from tidemark_airflow.web.packed_indexes import PackedIndexes

__all__ = ["refused"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two brokers lead a partition of one topic each."""
    found = World(tmp_path / "world", "orders", "clicks")
    found.put_index(entry("orders", 0, 5), broker=1)
    found.put_index(entry("clicks", 0, 7), broker=2)
    return found


def offsets(scan: Scan) -> dict[str, int]:
    rows = (row for rows in scan.topics.values() for row in rows)
    return {mark.topic: mark.next_offset for mark in map(WatermarkRow._make, rows)}


def ends(indexes: PackedIndexes) -> dict[str, int]:
    topics = ("orders", "clicks")
    return {topic: led.entry.next_offset for topic in topics for led in indexes.leaders_of(topic).values()}


@pytest.mark.parametrize("what", BODIES)
@pytest.mark.parametrize("seen_before", [True, False])
def test_the_scan_goes_on_with_the_other_brokers(
    world: World, what: str, seen_before: bool, caplog: pytest.LogCaptureFixture
) -> None:
    scanner = IndexScanner(Source.of(world.deployment, CLUSTER, 1))
    if seen_before:
        scanner.scan()
    spoil(world.root / "raw", world.control.index(1), what)
    world.put_index(entry("clicks", 0, 9), broker=2)
    with caplog.at_level(logging.ERROR):
        scan = [scanner.scan() for _ in range(3)][-1]
    assert scan.failing_since is None
    assert offsets(scan) == {"clicks": 9, **({"orders": 5} if seen_before else {})}
    assert [record for record in caplog.records if world.control.index(1) in record.message] == caplog.records[:1]
    world.put_index(entry("orders", 0, 6), broker=1)
    assert offsets(scanner.scan()) == {"clicks": 9, "orders": 6}


def test_the_scan_goes_on_where_the_store_does_not_give_one_index(world: World, refused: set[str]) -> None:
    scanner = IndexScanner(Source.of(world.deployment, CLUSTER, 1))
    refused.add(world.control.index(1))
    scan = scanner.scan()
    assert (scan.failing_since, offsets(scan)) == (None, {"clicks": 7})
    refused.add(world.control.index(2))
    world.put_index(entry("clicks", 0, 8), broker=2)
    scan = scanner.scan()
    assert "not with this key" in scan.failure, "none can be read: it is the store"
    assert offsets(scan) == {"clicks": 7}
    refused.clear()
    assert offsets(scanner.scan()) == {"clicks": 8, "orders": 5}


def test_what_was_read_before_the_store_failed_is_not_forgotten(world: World, refused: set[str]) -> None:
    """A broker's index goes, in the very scan in which no other can be read: its topic is without it thereafter."""
    scanner = IndexScanner(Source.of(world.deployment, CLUSTER, 1))
    scanner.scan()
    world.raw.delete(world.control.index(1))
    world.put_index(entry("clicks", 0, 8), broker=2)
    refused.add(world.control.index(2))
    assert scanner.scan().failing_since is not None
    refused.clear()
    assert offsets(scanner.scan()) == {"clicks": 8}


@pytest.mark.parametrize("what", BODIES)
@pytest.mark.parametrize("seen_before", [True, False])
def test_the_page_goes_on_with_the_other_brokers(world: World, what: str, seen_before: bool) -> None:
    indexes = PackedIndexes(world.deployment, CLUSTER)
    if seen_before:
        indexes.look()
    spoil(world.root / "raw", world.control.index(1), what)
    world.put_index(entry("clicks", 0, 9), broker=2)
    indexes.look()
    found = ends(indexes)
    assert found == {"clicks": 9, **({"orders": 5} if seen_before else {})}
    assert world.control.index(1) in indexes.failure_of("orders")
    if seen_before:
        assert indexes.failure_of("clicks") == "", "that broker leads none of this topic"
    world.put_index(entry("orders", 0, 6), broker=1)
    indexes.look()
    assert (ends(indexes), indexes.failure_of("orders")) == ({"clicks": 9, "orders": 6}, "")


def test_the_page_goes_on_where_the_store_does_not_give_one_index(world: World, refused: set[str]) -> None:
    indexes = PackedIndexes(world.deployment, CLUSTER)
    refused.add(world.control.index(1))
    indexes.look()
    assert ends(indexes) == {"clicks": 7}
    assert "not with this key" in indexes.failure_of("orders")
    refused.clear()
    indexes.look()
    assert (ends(indexes), indexes.failure_of("orders")) == ({"clicks": 7, "orders": 5}, "")
