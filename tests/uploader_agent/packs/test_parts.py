"""What is known of ranges, and which of them a seal holds."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.tidemark.kafka_log.build import simple
from tests.uploader_agent.fakes import records
from tidemark.formats.raw.manifest import PackedPart
from tidemark.kafka_log import Lineage, scan_batches
from uploader_agent.disk.segment_files import opened
from uploader_agent.packs.broker_head import KnownRanges, Unsealed
from uploader_agent.stored.watermark import tails
from uploader_agent.upload.local_run import PartsOfRun

NOW = datetime(2026, 11, 23, 6, 19, 9, 120_000, UTC)


def part(first: int, end: int, data: bytes) -> PackedPart:
    return PackedPart(first=first, next=end, crc32c=f"{crc32c(data):08x}", shipped_at=NOW)


def ranged(first: int, end: int, minutes: int = 0) -> PackedPart:
    return PackedPart(first=first, next=end, crc32c=f"{first:08x}", shipped_at=NOW + timedelta(minutes=minutes))


def parts_of(
    tmp_path: Path, base: int, data: bytes, packed: list[PackedPart], end: int
) -> tuple[list[PackedPart], list[PackedPart]]:
    path = tmp_path / "log"
    path.write_bytes(data)
    parts = PartsOfRun(packed, base)
    for header in scan_batches([data], "log", base):
        parts.add(header)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        log = opened("log", descriptor)
        return [*parts.equal(log)], parts.differing(log, end)
    finally:
        os.close(descriptor)


def test_a_seal_lists_the_ranges_that_lie_in_it_with_the_same_bytes(tmp_path: Path) -> None:
    """Not those of other bytes, nor those that begin before it or end after it."""
    inside = [part(20, 40, records(20, 40)), part(40, 50, records(40, 50)), part(20, 60, records(20, 60))]
    other = part(30, 40, records(30, 40, value="other"))
    around = [part(10, 30, records(10, 30)), part(50, 70, records(50, 70))]
    equal, differing = parts_of(tmp_path, 20, records(20, 60), [*inside, other, *around], 60)
    assert sorted(equal, key=lambda one: (one.first, one.next)) == sorted(inside, key=lambda one: (one.first, one.next))
    assert differing == [around[0], other, around[1]], "nobody has compared what only reaches into the run"


def test_a_range_may_begin_where_compaction_has_left_no_batch(tmp_path: Path) -> None:
    data = simple(0, 10) + simple(30, 10)
    equal, differing = parts_of(tmp_path, 0, data, [part(0, 10, simple(0, 10)), part(10, 40, simple(30, 10))], 40)
    assert ([(one.first, one.next) for one in equal], differing) == ([(0, 10), (10, 40)], [])


def test_batches_that_compaction_has_removed_since_differ(tmp_path: Path) -> None:
    packed = [part(0, 20, records(0, 20)), part(20, 40, records(20, 40))]
    equal, differing = parts_of(tmp_path, 0, records(0, 10) + records(20, 50), packed, 50)
    assert (equal, differing) == ([packed[1]], [packed[0]])


@pytest.mark.parametrize("left", [records(0, 20), b""], ids=["the end", "all"])
def test_a_run_whose_end_compaction_has_emptied_differs(tmp_path: Path, left: bytes) -> None:
    """It accounts for the offsets up to the next segment, whatever its last batch is."""
    packed = [part(0, 20, records(0, 20)), part(20, 40, records(20, 40)), part(50, 60, records(50, 60))]
    equal, differing = parts_of(tmp_path, 0, left, packed, 50)
    assert (equal, differing) == (packed[: 1 if left else 0], packed[1 if left else 0 : 2])


def test_known_ranges_are_kept_in_few_bytes_until_they_are_sealed() -> None:
    known = KnownRanges(10)
    for number in range(3):
        known = known.followed_by(ranged(10 + 10 * number, 20 + 10 * number, number), 10)
    assert [(one.first, one.next, one.shipped_at) for one in known.parts()] == [
        (10, 20, NOW),
        (20, 30, NOW + timedelta(minutes=1)),
        (30, 40, NOW + timedelta(minutes=2)),
    ]
    assert known.unsealed == Unsealed(3, 30, NOW)
    known = known.above(35)
    assert [(one.first, one.next) for one in known.parts()] == [(30, 40)]
    assert known.unsealed.plus(Unsealed(2, 5, NOW)) == Unsealed(3, 15, NOW)


def test_offset_wm_lists_who_may_have_packed_until_the_end_of_the_epoch_is_sealed() -> None:
    lineage = Lineage(((3, 0), (5, 100)))
    assert tails([(3, 1)], (5, 2), lineage, 99) == ((3, 1), (5, 2))
    assert tails([(3, 1), (4, 7)], (5, 2), lineage, 100) == ((5, 2),), "epoch 4 has written nothing on this lineage"
    assert tails([(3, 1), (5, 2)], None, lineage, 100) == ((5, 2),), "a topic without freshness any more"
    many = [(4, broker) for broker in range(64)]
    assert tails(many, (5, 2), lineage, 99) == tuple(many), "there is no room for this leadership"
