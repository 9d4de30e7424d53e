"""Tails as segments: what a head's chain holds behind the seals, on the lineage that counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidemark.formats.packing import CONTROL
from tests.tidemark.raw.test_packs import Tail
from tidemark.errors import FormatError, StoreError
from tidemark.formats.keys import Endpoint, PartitionKeys
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.raw.byte_ranges import ranges_of
from tidemark.raw.packs import TailRanges
from tidemark.raw.segments import Segment, cover
from tidemark.storage import PartitionStore

LINEAGE = Lineage(((3, 0),))


@pytest.fixture
def tail(tmp_path: Path) -> Tail:
    found = Tail(tmp_path)
    for end in (1100, 1200, 1260):
        found.pack(end)
    return found


def keys_of(tail: Tail) -> PartitionKeys:
    return PartitionKeys(Endpoint(tail.store.url, CONTROL.prefix, 0), CONTROL.cluster, "orders", 17)


def segments(tail: Tail, end_of_seals: int, lineage: Lineage = LINEAGE) -> list[Segment]:
    def failed(error: FormatError | StoreError) -> None:
        raise error

    packed = TailRanges(PartitionStore(tail.store, keys_of(tail)))
    return packed.segments([tail.entry()], lineage, end_of_seals, failed)


def test_ranges_are_read_where_they_lie_in_their_packs(tail: Tail) -> None:
    found = segments(tail, 1150)
    pieces, hole = cover(found, LINEAGE, Intervals([(1150, 1300)]))
    assert hole == (1260, 1300)
    ranges = [one for piece in pieces for one in ranges_of(piece, [])]
    assert [(one.from_offset, one.to_offset) for one in ranges] == [(1150, 1200), (1200, 1260)]
    bodies = [tail.store.get_range(one.key, one.start, one.end) for one in ranges]
    assert bodies == [b"1200", b"1260"], "the bytes behind the other partition's"


def test_a_tail_counts_up_to_where_it_leaves_the_lineage(tail: Tail) -> None:
    newer = Lineage(((3, 0), (5, 1180)))
    found = segments(tail, 1150, newer)
    pieces, _ = cover(found, newer, Intervals([(1150, 1300)]))
    assert [(piece.start, piece.end) for piece in pieces] == [(1150, 1180)]


def test_a_range_tells_of_its_own_transactions(tail: Tail) -> None:
    aborts = [{"producer_id": 8, "first_offset": 1261, "last_offset": 1270}]
    tail.pack(1280, aborts=aborts)
    *_, last = segments(tail, 1150)
    assert [(one.producer_id, one.first_offset, one.last_offset) for one in last.aborted] == [(8, 1261, 1270)]


def test_a_range_has_the_lineage_of_its_batches(tail: Tail) -> None:
    """The entry's own begins at the end of the seals, and says nothing of what lies below."""
    tail.pack(1300, epochs=[(2, 1265), (3, 1280)])
    tail.pack(1310, epochs=[(-1, 1300)])
    found = segments(tail, 1260)
    assert [one.lineage.entries for one in found] == [((2, 1260), (3, 1280)), ()]
    cut = Lineage(((2, 0), (4, 1270)))
    pieces, _ = cover(found, cut, Intervals([(1260, 1300)]))
    assert [(piece.start, piece.end) for piece in pieces] == [(1260, 1270)]
