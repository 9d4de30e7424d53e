"""What Pinterest's uploader left: no manifests, overlaps, missing indexes, entropy bits, a stale watermark or none."""

from __future__ import annotations

import random

import pytest

from tests.tidemark.records.build import T0, marker, simple, transactional
from tests.tidemark.remote.model import Log, compact
from tests.tidemark.remote.reading import read
from tests.tidemark.remote.world import RemoteStore
from tidemark.errors import OutOfRange
from tidemark.formats.gaps import Gap
from tidemark.formats.keys import Endpoint, PartitionKeys
from tidemark.remote import OffsetForTime, RemotePartition, RemoteTopics, Storage, Stretch

BITS = 5


class Uploader:
    """Puts logs as the uploader names them, with as few of the other files as it may have managed to."""

    def __init__(self, remote: RemoteStore) -> None:
        """Nothing is there."""
        self.remote = remote
        self.store = remote.store
        self.keys = PartitionKeys(Endpoint(remote.url, remote.prefix, BITS, "pinterest"), "east", "orders", 0)

    def put(self, base: int, *batches: bytes, index: bytes | None = None, times: bytes | None = None) -> None:
        """A segment."""
        self.store.put(self.keys.segment(base, "log"), b"".join(batches))
        for extension, body in (("index", index), ("timeindex", times)):
            if body is not None:
                self.store.put(self.keys.segment(base, extension), body)

    def storage(self) -> Storage:
        """How readers open it."""
        return self.remote.storage(writer="pinterest", entropy_bits=BITS)

    def partition(self) -> RemotePartition:
        """Partition 0, which is there."""
        found = RemoteTopics(self.storage()).partition("orders", 0)
        assert found is not None
        return found


@pytest.fixture
def uploader(remote_store: RemoteStore) -> Uploader:
    """An uploader that has done nothing."""
    return Uploader(remote_store)


def delivered(part: RemotePartition, storage: Storage, start: int, *, committed: bool) -> list[int]:
    """The offsets that a reader gets from ``start`` on."""
    found: list[int] = []
    at = start
    while isinstance(stretch := part.next_stretch(at, committed=committed), Stretch):
        found += [row.offset for row in read(storage, stretch)]
        at = stretch.end
    return found


def test_segments_without_manifests_are_read_and_what_is_new_is_found(uploader: Uploader) -> None:
    uploader.put(0, simple(0), simple(3))
    uploader.put(6, simple(6), index=b"", times=b"")
    part = uploader.partition()
    assert (part.start, part.end(committed=False), part.incarnation, part.topic_id) == (0, 9, 0, None)
    assert delivered(part, uploader.storage(), 1, committed=False) == list(range(1, 9))
    assert part.next_stretch(9, committed=False) is None
    uploader.put(9, simple(9))
    uploader.store.put(uploader.keys.watermark, b"00000000000000000006")
    part.refresh()
    assert delivered(part, uploader.storage(), 8, committed=False) == [8, 9, 10, 11]
    assert part.observed_log_end() is None
    assert part.gap_at(3) is None
    assert part.diverged(5, 3) is None


def test_overlaps_and_compacted_holes_are_passed(uploader: Uploader) -> None:
    uploader.put(0, simple(0), simple(3), simple(6), simple(9))
    uploader.put(6, simple(6))
    uploader.put(20, simple(22))
    part = uploader.partition()
    assert delivered(part, uploader.storage(), 0, committed=False) == [*range(12), 22, 23, 24]
    found = part.next_stretch(13, committed=False)
    assert isinstance(found, Stretch)
    assert found.start == 20


def test_what_was_deleted_at_the_start_is_out_of_range(uploader: Uploader) -> None:
    uploader.put(0, simple(0))
    uploader.put(3, simple(3))
    part = uploader.partition()
    uploader.store.delete(uploader.keys.segment(0, "log"))
    part.refresh()
    assert part.start == 3
    with pytest.raises(OutOfRange, match="from 3 on"):
        part.next_stretch(1, committed=False)


def test_a_log_that_is_replaced_by_a_longer_one_is_looked_at_again(uploader: Uploader) -> None:
    uploader.put(0, simple(0))
    part = uploader.partition()
    before = part.next_stretch(0, committed=False)
    assert isinstance(before, Stretch)
    uploader.put(0, simple(0), simple(3))
    part.invalidate(before.segment)
    after = part.next_stretch(0, committed=False)
    assert isinstance(after, Stretch)
    assert (after.end, after.segment.etag != before.segment.etag) == (6, True)


def test_damaged_bytes_end_what_can_be_read_of_a_segment(uploader: Uploader) -> None:
    damaged = simple(3)
    uploader.put(0, simple(0), damaged[:-1] + bytes([damaged[-1] ^ 1]))
    uploader.put(6, simple(6))
    part = uploader.partition()
    first = part.next_stretch(0, committed=False)
    assert isinstance(first, Stretch)
    assert (first.end, read(uploader.storage(), first)[-1].offset) == (3, 2)
    gap = part.next_stretch(3, committed=False)
    assert isinstance(gap, Gap)
    assert (gap.start, gap.end, gap.reason) == (3, 6, "corrupt")
    assert delivered(part, uploader.storage(), 6, committed=False) == [6, 7, 8]


def test_an_open_transaction_is_held_back_until_its_marker_comes(uploader: Uploader) -> None:
    uploader.put(0, simple(0), transactional(3, 7, 2), transactional(5, 8, 2))
    uploader.put(7, simple(7))
    part = uploader.partition()
    assert delivered(part, uploader.storage(), 0, committed=True) == [0, 1, 2]
    assert part.end(committed=True) == 3
    assert delivered(part, uploader.storage(), 0, committed=False) == list(range(10))
    uploader.put(10, marker(10, 7, commit=False), marker(11, 8, commit=True), simple(12))
    part.refresh()
    assert delivered(part, uploader.storage(), 0, committed=True) == [0, 1, 2, 5, 6, 7, 8, 9, 12, 13, 14]
    assert part.end(committed=True) == 15


def test_partitions_are_found_with_entropy_in_their_keys(uploader: Uploader) -> None:
    uploader.put(0, simple(0))
    other = PartitionKeys(uploader.keys.endpoint, "east", "orders", 3)
    uploader.store.put(other.segment(0, "log"), simple(0))
    topics = RemoteTopics(uploader.storage())
    assert topics.partitions_for_topic("orders") == {0, 3}
    assert topics.partition("orders", 1) is None
    assert topics.partition("orders", 3, "B" * 22) is not None  # the uploader knows no ids: nothing contradicts


@pytest.mark.parametrize("number", range(4))
def test_random_logs(local_store: RemoteStore, rng: random.Random, number: int) -> None:
    """Random boundaries, overlaps, compaction and transactions: what is read, and when it was, by brute force."""
    uploader = Uploader(local_store)
    log = Log("a", [(3, 0)])
    log.grow(rng, 40)
    removed = compact(log, rng) if number % 2 else set()
    for _ in range(2):
        first = 0
        while first < len(log.batches):
            after = min(len(log.batches), first + rng.randint(1, 6))
            kept = [one.raw for one in log.batches[first:after] if one.base not in removed]
            if kept:
                uploader.put(log.batches[first].base, *kept)
            first = after
    part, storage = uploader.partition(), uploader.storage()
    rows = [row for one in log.batches if one.base not in removed for row in one.rows]
    assert delivered(part, storage, 0, committed=False) == [row.offset for row in rows]
    undecided = min([log.end, *(one.first for one in log.transactions() if one.last > log.end)])
    aborted = {
        row.offset
        for one in log.aborts()
        for each in log.batches
        for row in each.rows
        if each.producer == one.producer and one.first <= row.offset <= one.last
    }
    wanted = [row.offset for row in rows if row.offset < undecided and row.offset not in aborted]
    assert delivered(part, storage, 0, committed=True) == wanted
    for _ in range(10):
        time = rng.choice(rows).timestamp + rng.randint(-1, 1)
        found = next((row for row in rows if row.timestamp >= time), None)
        assert part.offset_for_time(time) == (OffsetForTime(found.offset, found.timestamp, 3) if found else None)


def test_a_time_is_found_by_the_time_indexes_that_there_are(uploader: Uploader) -> None:
    uploader.put(0, simple(0), times=(T0 + 2).to_bytes(8, "big") + (2).to_bytes(4, "big"))
    uploader.put(3, simple(3))
    part = uploader.partition()
    assert part.offset_for_time(T0 + 1) == OffsetForTime(1, T0 + 1, 3)
    assert part.offset_for_time(T0 + 3) is None


def test_a_marker_that_an_overlap_repeats_decides_nothing_that_comes_after_it(uploader: Uploader) -> None:
    first = [marker(6, 7, commit=True), simple(7), transactional(10, 7, 2)]
    uploader.put(0, simple(0), transactional(3, 7, 3), *first)
    uploader.put(6, *first, simple(12), marker(15, 7, commit=False), simple(16))
    part = uploader.partition()
    expected = [offset for offset in range(19) if offset not in {6, 10, 11, 15}]
    assert delivered(part, uploader.storage(), 0, committed=True) == expected
    assert delivered(part, uploader.storage(), 7, committed=True) == [one for one in expected if one >= 7]
