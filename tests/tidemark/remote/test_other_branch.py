"""Segments of two branches under one base offset, and objects that are not what their manifest describes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.raw_builder import RawBuilder
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, simple, transactional
from tests.tidemark.remote.reader import TP, Reader, records_of
from tests.tidemark.remote.test_reading_faults import hurry, interfered
from tests.tidemark.remote.world import RemoteStore
from tidemark.errors import PreconditionFailed
from tidemark.formats.keys import SegmentName
from tidemark.remote.topics import RemoteTopics

__all__ = ["hurry"]

COUNT = 40
"""Batches of the first segment."""

EPOCH = 5
"""The leader epoch of the other branch."""


@pytest.fixture(autouse=True)
def small(hurry: None) -> None:
    """Small ranges, and short pauses."""


def data(base: int, word: str = "value", epoch: int = 3) -> bytes:
    """A batch of three records, each a millisecond later than the one before."""
    records = [Record(one, T0 + base + one, b"k", f"{word}-{base + one}".encode()) for one in range(3)]
    return batch(base, records, leader_epoch=epoch)


BATCHES = [data(3 * number) for number in range(60)]
OTHERS = [data(3 * number, "other", EPOCH) for number in range(60)]


def stored(store: RemoteStore) -> RawBuilder:
    """[0, 120) in a segment with indexes, [120, 180) in another."""
    raw = store.raw()
    raw.index_every, raw.times = 300, True
    raw.segment(BATCHES[:COUNT])
    raw.segment(BATCHES[COUNT:])
    raw.publish()
    return raw


def overwritten(raw: RawBuilder, batches: list[bytes]) -> str:
    """Somebody has written other bytes over the log of the segment at 0; its key."""
    key = raw.keys().segment(SegmentName(0), "log")
    raw.store.put(key, b"".join(batches))
    return key


def elected(raw: RawBuilder) -> None:
    """All is of the other branch."""
    known = raw.partition()
    known.lineage, known.leader_epoch = ((EPOCH, 0),), EPOCH
    raw.segment(OTHERS[:COUNT], base=0)
    raw.segment(OTHERS[COUNT:], base=120)
    raw.publish()


def offsets(records: list[Any]) -> list[int]:
    return [one.offset for one in records]


@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_reader_goes_on_on_its_branch_until_it_learns_of_the_next(remote_store: RemoteStore, at: int) -> None:
    raw = stored(remote_store)
    with Reader(interfered(remote_store, at, lambda: elected(raw))) as reader:
        found = reader.read(0)
        assert offsets(found) == list(range(180))
        words = [one.value.partition(b"-")[0] for one in found]
        assert words == sorted(words, reverse=True), "values, then others"
        assert not reader.tier.counters.retries
    with Reader(remote_store.storage()) as reader:
        assert {one.value.partition(b"-")[0] for one in reader.read(0)} == {b"other"}


def test_a_segment_of_a_branch_that_offset_wm_does_not_have_counts_for_nobody(local_store: RemoteStore) -> None:
    """A leader states its epoch before it seals anything: such a segment is of one that was deposed."""
    raw = stored(local_store)
    raw.segment(OTHERS[:COUNT], base=0, lineage=((EPOCH, 0),))
    with Reader(local_store.storage(), on_gap="raise") as reader:
        found = reader.read(0)
    assert offsets(found) == list(range(180))
    assert {one.value.partition(b"-")[0] for one in found} == {b"value"}


@pytest.mark.parametrize("batches", [OTHERS, OTHERS[:10], OTHERS[:COUNT]], ids=["longer", "shorter", "as long"])
@pytest.mark.parametrize("at", [1, 4])
def test_a_log_that_is_not_what_its_manifest_describes_is_refused(
    local_store: RemoteStore, batches: list[bytes], at: int
) -> None:
    refuses(local_store, batches, at)


def test_such_a_log_is_refused_of_an_s3_server(s3_store: RemoteStore) -> None:
    refuses(s3_store, OTHERS, 4)


def refuses(store: RemoteStore, batches: list[bytes], at: int) -> None:
    raw = stored(store)
    key = raw.keys().segment(SegmentName(0), "log")
    read: list[int] = []
    with Reader(interfered(store, at, lambda: overwritten(raw, batches))) as reader:
        reader.tier.read(TP, 0)
        with pytest.raises(PreconditionFailed, match=rf"{key}: .*; while reading orders-0 at offset"):
            read.extend(one.offset for block in reader.blocks() for one in records_of(block))
        assert read == list(range(len(read)))
        assert len(read) < 120
        assert offsets(reader.read(120)) == list(range(120, 180)), "what is not touched can be read"


def test_a_repair_is_waited_for(local_store: RemoteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only while ranges are read: also where the first byte of an offset is looked for."""
    raw = stored(local_store)
    overwritten(raw, OTHERS[:COUNT])
    storage, counting = local_store.counted()
    inner, looks = counting._inner, 0

    def get(key: str, **options: Any) -> Any:
        nonlocal looks
        if key.endswith(f"{0:020d}.manifest.json"):
            looks += 1
            if looks == 5:
                raw.segment(BATCHES[:COUNT], base=0)
        return inner.get(key, **options)

    monkeypatch.setattr(counting, "get", get, raising=False)
    with Reader(storage) as reader:
        assert [one.value for one in reader.read(100)[:20]] == [f"value-{at}".encode() for at in range(100, 120)]
    assert looks >= 5


@pytest.mark.parametrize("markers", [True, False])
def test_times_in_a_log_that_its_manifest_does_not_describe_are_refused(
    local_store: RemoteStore, markers: bool
) -> None:
    raw = stored(local_store)
    key = overwritten(raw, OTHERS)
    part = RemoteTopics(local_store.storage()).partition("orders", 0)
    assert part is not None
    with pytest.raises(PreconditionFailed, match=key):
        part.offset_for_time(T0 + 58, markers=markers)
    elected(raw)
    part.refresh()
    found = part.offset_for_time(T0 + 58, markers=markers)
    assert found is not None
    assert (found.offset, found.leader_epoch) == (58, EPOCH)


@pytest.mark.parametrize("more", [b"", b"x"], ids=["as long", "longer"])
def test_aborts_that_the_manifest_does_not_describe_are_refused(local_store: RemoteStore, more: bytes) -> None:
    """A ``.txnindex`` decides about records of earlier segments, whose logs nobody has replaced."""
    raw = local_store.raw()
    raw.segment([transactional(0, 7, 3), transactional(3, 8, 3)])
    raw.segment([simple(6, 1), marker(7, 7, commit=False)], aborted=[(7, 0, 7)])
    raw.segment([marker(8, 8, commit=True), simple(9, 1)])
    raw.publish()
    path = raw.keys().segment(SegmentName(6), "txnindex")
    listed = raw.store.get(path).body
    foreign = b"".join(one.to_bytes(8) for one in (8, 3, 7, 8))
    raw.store.put(path, listed[:2] + foreign if not more else listed + listed[:2] + foreign)
    with Reader(local_store.storage()) as reader:
        with pytest.raises(PreconditionFailed, match=rf"{path}: is not the version that its manifest describes"):
            reader.read(0)
        raw.store.put(path, listed)
        assert offsets(reader.read(0)) == [3, 4, 5, 6, 9]
