"""Erased records: no reader of the remote tier delivers what a mask names, nor anything while masks cannot be read."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from tests.support.erased import erase, index_key
from tests.support.raw_builder import EPOCH, RawBuilder
from tests.support.waiting import wait_until
from tests.tidemark.kafka_log.build import T0, Record, batch, legacy, marker, reseal, simple, transactional
from tests.tidemark.remote.live import Packing, Range
from tests.tidemark.remote.reader import CODECS, TP, Log, Reader, records_of, shape, stored
from tests.tidemark.remote.test_catalog import opened
from tests.tidemark.remote.test_reading import Shrink, ranges
from tests.tidemark.remote.world import Counting, RemoteStore
from tidemark.errors import AccessDenied, FormatError, NotFound, TidemarkError
from tidemark.formats.raw.masks import MaskIndex
from tidemark.remote import RemoteTopics, topics
from tidemark.remote.reader import blocks
from tidemark.remote.reader.read_range import read_range, read_time
from tidemark.restore.records import records_of as restored
from tidemark.storage import Storage

__all__ = ["ranges"]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index is read at each refresh."""
    monkeypatch.setattr(topics, "MASKS_MAX_AGE", 0.0)


def offsets_of(storage: Storage, *, committed: bool = True) -> list[int]:
    with Reader(storage, committed=committed) as reader:
        return [record.offset for record in reader.read(0)]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_erased_records_are_passed_over(
    remote_store: RemoteStore, rng: random.Random, ranges: Shrink, committed: bool, compacted: bool
) -> None:
    raw, log = remote_store.raw(), Log(rng, transactions=True, holes=compacted)
    stored(log, raw, 5, compacted=compacted)
    erased = set(rng.sample(range(log.end), log.end // 3)) | set(range(20, 60))  # some hold no record
    cut = rng.randrange(log.end)
    for part in ({one for one in erased if one < cut}, {one for one in erased if one >= cut}, {1, 2, 3}):
        if part:
            erase(raw, part)
    erased |= {1, 2, 3}
    ranges(700)
    left = [one for one in (log.committed if committed else log.all) if one.offset not in erased]
    with Reader(remote_store.storage(), committed=committed) as reader:
        assert shape(reader.read(0, max_rows=7)) == left
        for start in rng.sample(range(log.end), 5):
            assert shape(reader.read(start)) == [one for one in left if one.offset >= start]
    level: Any = "read_committed" if committed else "read_uncommitted"
    table = read_range("orders", 0, 10, 90, storage=remote_store.storage(), isolation_level=level)
    assert table["kafka_offset"].to_pylist() == [one.offset for one in left if 10 <= one.offset < 90]


@pytest.mark.parametrize("codec", CODECS)
def test_erased_records_of_each_codec(local_store: RemoteStore, rng: random.Random, codec: str) -> None:
    raw, log = local_store.raw(), Log(rng, codecs=(codec,))
    stored(log, raw, 2)
    erased = set(rng.sample(range(log.end), log.end // 2))
    erase(raw, erased)
    with Reader(local_store.storage()) as reader:
        assert shape(reader.read(0)) == [one for one in log.all if one.offset not in erased]


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_formats_are_erased_under_the_epoch_that_they_lack(
    local_store: RemoteStore, magic: int
) -> None:
    raw = local_store.raw()
    raw.segment([legacy(magic, 4 * number, 4, "gzip") for number in range(5)])
    raw.publish()
    erase(raw, [2, 3, 9], epoch=-1)
    erase(raw, [5], epoch=EPOCH)
    assert offsets_of(local_store.storage()) == [one for one in range(20) if one not in {2, 3, 9}]


def test_a_record_of_another_epoch_stays(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    raw.partition().lineage = ((3, 0), (5, 6))
    raw.partition().leader_epoch = 5
    raw.segment([simple(0), simple(3), simple(6, leader_epoch=5), simple(9, leader_epoch=5)])
    raw.publish()
    erase(raw, [1, 7], epoch=3)
    erase(raw, [4, 10], epoch=5)
    assert offsets_of(local_store.storage()) == [0, 2, 3, 4, 5, 6, 7, 8, 9, 11]


def test_masks_of_another_partition_or_incarnation_hide_nothing(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    for partition in (0, 1):
        raw.segment([simple(0)], partition)
    erase(raw, [0], 1)
    raw.publish()
    assert offsets_of(local_store.storage()) == [0, 1, 2]
    erase(raw, [0, 1, 2])
    assert offsets_of(local_store.storage()) == []
    raw.recreate("B" * 22)
    raw.segment([simple(0)])
    raw.publish()
    assert offsets_of(local_store.storage()) == [0, 1, 2]


def test_where_all_is_erased_a_reader_reaches_the_end(
    remote_store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "LIMITS", blocks.LIMITS._replace(rows=4))
    raw = remote_store.raw()
    raw.segment([simple(10 * number, 10) for number in range(3)])
    raw.segment([simple(30, 10), transactional(40, 7, 2), marker(42, 7, commit=True)])
    raw.publish()
    erase(raw, range(42))
    with Reader(remote_store.storage()) as reader:
        assert reader.read(0) == []
        reader.tier.read(TP, 5)
        assert [block.next_offset for block in reader.blocks()][-1] == 43
    assert len(read_range("orders", 0, 3, 41, storage=remote_store.storage())) == 0


def test_the_live_end_is_masked_and_its_seals_too(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0)])
    agent = Packing(raw)
    agent.lead()
    agent.pack(Range([simple(3), simple(6)]))
    agent.pack(Range([transactional(9, 7, 3), marker(12, 7, commit=False)], aborted=[(7, 9, 12)]))
    agent.pack(Range([simple(13)], compacted=True))
    raw.publish()
    erase(raw, [1, 5, 6, 7, 8, 10, 14])
    left = [0, 2, 3, 4, 13, 15]
    assert offsets_of(remote_store.storage()) == left
    assert offsets_of(remote_store.storage(), committed=False) == sorted([*left, 9, 11])
    raw.segment([simple(3), simple(6), transactional(9, 7, 3), marker(12, 7, commit=False)], aborted=[(7, 9, 12)])
    raw.segment([simple(13)])
    agent.sealed()
    raw.publish()
    assert offsets_of(remote_store.storage()) == left


def test_no_byte_of_an_erased_record_is_delivered(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    raw.segment([batch(0, [Record(i, T0, b"key", b"secret" if i in {0, 2, 5} else b"open") for i in range(6)])])
    raw.publish()
    erase(raw, [0, 2, 5])
    with Reader(local_store.storage()) as reader:
        reader.tier.read(TP, 0)
        block = reader.next()
    assert block is not None
    assert block.rows["kafka_value"].to_pylist() == [b"open"] * 3
    assert not any(b"secret" in bytes(buffer) for one in block.rows.columns for buffer in one.buffers() if buffer)


def test_times_beyond_all_columns_stay_beside_an_erased_record(local_store: RemoteStore) -> None:
    raw, times = local_store.raw(), [T0, 1 << 62, 5, (1 << 62) + 7, -(1 << 61)]
    raw.segment([batch(0, [Record(i, time, None, b"") for i, time in enumerate(times)])])
    raw.publish()
    with Reader(local_store.storage()) as reader:
        assert [record.timestamp for record in reader.read(0)] == times
    erase(raw, [1, 2])
    with Reader(local_store.storage()) as reader:
        reader.tier.read(TP, 0)
        block = reader.next()
    assert block is not None
    assert [record.timestamp for record in records_of(block)] == [T0, (1 << 62) + 7, -(1 << 61)]
    assert [record.timestamp for record in restored(block.rows)] == [T0, (1 << 62) + 7, -(1 << 61)]


def test_a_time_is_that_of_a_record_that_is_left(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.times = True
    raw.segment([batch(0, [Record(i, T0 + 10 * i) for i in range(4)])])
    raw.segment(
        [transactional(4, 7, 1), reseal(marker(5, 7, commit=True), base_timestamp=T0 + 40, max_timestamp=T0 + 40)]
    )
    agent = Packing(raw)
    agent.lead()
    agent.pack(Range([batch(6, [Record(i, T0 + 50 + 10 * i) for i in range(2)])]))
    raw.publish()
    erase(raw, [2, 3, 6])
    part = opened(remote_store.storage())

    def at(time: int, *, markers: bool = False) -> tuple[int, int] | None:
        found = part.offset_for_time(T0 + time, markers=markers)
        return None if found is None else (found.offset, found.timestamp - T0)

    assert [at(0), at(10), at(11), at(50), at(61)] == [(0, 0), (1, 10), (7, 60), (7, 60), None]
    assert at(11, markers=True) == (5, 40)
    erase(raw, [7])
    assert opened(remote_store.storage()).offset_for_time(T0 + 50, markers=False) is None


def test_an_interval_has_the_records_that_are_left(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    raw.segment([batch(0, [Record(at, T0 + time) for at, time in enumerate((0, 10, 3, 12, 20, 11, 25, 15))])])
    raw.publish()
    erase(raw, [3, 4])
    storage = local_store.storage()
    for lateness, expected in ((None, [1, 5, 7]), (timedelta(0), [1, 5])):
        found = read_time("orders", T0 + 10, T0 + 20, storage=storage, lateness=lateness)
        assert found["kafka_offset"].to_pylist() == expected


def test_an_index_is_read_once_for_all_partitions_and_a_mask_once(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    for partition in range(5):
        raw.segment([simple(3 * number) for number in range(4)], partition)
        raw.segment([simple(12)], partition)
    raw.publish()
    keys = [erase(raw, [1, 13], partition) for partition in range(4)]
    storage, store = remote_store.counted()
    topics = RemoteTopics(storage)
    for _ in range(2):
        parts = [topics.partition("orders", number) for number in range(5)]
        for part in parts:
            assert part is not None
            part.refresh()
            for at in (0, 12):
                part.next_stretch(at, committed=True)
    assert store.keys.count(index_key(raw)) == 1
    assert [store.keys.count(key) for key in keys] == [1] * 4


def test_without_masks_the_index_is_all_that_is_asked_for(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0)])
    raw.publish()
    storage, store = remote_store.counted()
    assert offsets_of(storage) == [0, 1, 2]
    assert [key for key in store.keys if "_erased" in key] == [index_key(raw)]


@pytest.mark.usefixtures("at_once")
def test_what_is_erased_meanwhile_is_not_delivered_though_it_was_read_ahead(
    local_store: RemoteStore, rng: random.Random
) -> None:
    raw, log = local_store.raw(), Log(rng)
    stored(log, raw, 2)
    with Reader(local_store.storage(), refresh_seconds=3600) as reader:
        reader.tier.read(TP, 0)
        wait_until(lambda: reader.tier._lanes[TP].ended, interval=0.01, what="everything read ahead")
        first = reader.next(max_rows=3)
        assert first is not None
        erased = {0, 5, log.end - 1, *rng.sample(range(log.end), 50)}
        erase(raw, erased)
        part = reader.tier.partition(*TP)
        assert part is not None
        part.refresh()
        rest = [one for block in reader.blocks() for one in shape(records_of(block))]
    given = first.next_offset  # the first batch may have fewer rows than were asked for
    assert rest == [one for one in log.all if one.offset >= given and one.offset not in erased]


@pytest.mark.usefixtures("at_once")
def test_a_reader_follows_the_masks_by_itself(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    raw.segment([simple(0)])
    raw.publish()
    with Reader(local_store.storage(), refresh_seconds=0.02) as reader:
        reader.tier.read(TP, 0)
        assert reader.next(max_rows=1) is not None
        part = reader.tier.partition(*TP)
        assert part is not None
        erase(raw, [1])
        wait_until(lambda: part.basis[1] != (), interval=0.01, what="the masks of the partition")
        assert [one.offset for block in reader.blocks() for one in records_of(block)] == [2]


def test_an_index_counts_for_a_while_and_is_then_read_again(
    local_store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = local_store.raw()
    raw.segment([simple(0)])
    raw.publish()
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    part = opened(local_store.storage())
    erase(raw, [1])
    for later, known in ((29.0, 0), (2.0, 1), (28.0, 1)):
        now += later
        part.refresh()
        assert len(part.basis[1] or ()) == known


def garbage(raw: RawBuilder, _: str) -> None:
    raw.store.put(index_key(raw), b"{")


def of_another_topic(raw: RawBuilder, _: str) -> None:
    raw.store.put(index_key(raw), MaskIndex(cluster=raw.cluster, place="payments").to_bytes())


def without_a_number(raw: RawBuilder, _: str) -> None:
    index = MaskIndex.load(raw.store, index_key(raw))
    later = tuple(mask.model_copy(update={"number": 2}) for mask in index.masks)
    raw.store.put(index_key(raw), index.model_copy(update={"masks": later}).to_bytes())


def no_mask(raw: RawBuilder, key: str) -> None:
    raw.store.delete(key)


def damaged_mask(raw: RawBuilder, key: str) -> None:
    raw.store.put(key, raw.store.get(key).body[:-1])


def other_mask(raw: RawBuilder, key: str) -> None:
    raw.store.put(key, raw.store.get(key).body.replace(b'"count":1', b'"count":2'))


FAULTS = [
    (garbage, FormatError),
    (of_another_topic, FormatError),
    (without_a_number, FormatError),
    (no_mask, NotFound),
    (damaged_mask, FormatError),
    (other_mask, FormatError),
]


@pytest.mark.parametrize(("fault", "error"), FAULTS)
def test_without_its_masks_nothing_of_a_partition_is_delivered(
    local_store: RemoteStore, fault: Any, error: type[TidemarkError]
) -> None:
    raw = local_store.raw()
    raw.segment([simple(0)])
    raw.publish()
    key = erase(raw, [1])
    kept = {one: raw.store.get(one).body for one in (key, index_key(raw))}
    fault(raw, key)
    with pytest.raises(error, match="_erased"):
        read_range("orders", 0, storage=local_store.storage())
    with pytest.raises(error, match="_erased"):
        opened(local_store.storage()).offset_for_time(T0)
    with Reader(local_store.storage()) as reader:
        reader.tier.read(TP, 0)
        with pytest.raises(error, match="_erased"):
            reader.next()
        for one, body in kept.items():
            raw.store.put(one, body)
        assert [record.offset for record in reader.read(0)] == [0, 2]


@contextmanager
def refusing(store: Counting, key: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The store refuses ``key``."""
    inner = store._inner

    def get(asked: str, **options: Any) -> Any:
        if asked == key:
            raise AccessDenied(asked, "no")
        return inner.get(asked, **options)

    with monkeypatch.context() as patch:
        patch.setattr(store, "get", get, raising=False)
        yield


@pytest.mark.usefixtures("at_once")
def test_what_was_read_ahead_is_held_while_the_index_cannot_be_read(
    local_store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = local_store.raw()
    raw.segment([simple(3 * number) for number in range(9)])
    raw.publish()
    agent = Packing(raw)
    agent.lead()
    agent.pack(Range([simple(27)]))
    raw.publish()
    storage, store = local_store.counted()
    with Reader(storage, refresh_seconds=3600) as reader:
        reader.tier.read(TP, 0)
        wait_until(lambda: reader.tier._lanes[TP].ended, interval=0.01, what="everything read ahead")
        assert reader.next(max_rows=2) is not None
        part = reader.tier.partition(*TP)
        assert part is not None
        erase(raw, [4])
        with refusing(store, index_key(raw), monkeypatch):
            with pytest.raises(AccessDenied):
                part.refresh()
            for offset in (2, 28):
                assert part.packed_stretch(offset, committed=True) is None
                reader.tier.read(TP, offset)
                with pytest.raises(AccessDenied, match="_erased"):
                    reader.next()
        assert [record.offset for record in reader.read(2)] == [2, 3, *range(5, 30)]
