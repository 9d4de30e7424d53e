"""Records of the live end as the tier reads them: from packs, several at a time, and from seals once packs are gone."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.support.raw_builder import EPOCH, RawBuilder
from tests.tidemark.kafka_log.build import T0, Record, batch, simple
from tests.tidemark.remote.live import Packing, Range
from tests.tidemark.remote.model import Log, compact
from tests.tidemark.remote.reader import PATIENCE, TP, Reader, records_of
from tests.tidemark.remote.test_catalog_random import grow
from tests.tidemark.remote.test_reading_faults import hurry
from tests.tidemark.remote.test_seals import lineage_of, opened, timed
from tests.tidemark.remote.world import RemoteStore
from tidemark.errors import NotFound, SegmentError
from tidemark.formats.keys import TopicPartition
from tidemark.remote.reader.read_range import read_range

__all__ = ["hurry"]


def store_both(store: RemoteStore, rng: random.Random, *, compacted: bool) -> Log:
    """A random log with transactions and several leaders: in one segment, and in seals with a tail behind them."""
    log = Log("a", [])
    epoch = grow(rng, log, 1)
    log.grow(rng, 60)
    taken = compact(log, rng) if compacted else set()
    log = replace(log, batches=[one for one in log.batches if one.base not in taken])
    batches = [one.raw if one.commits is None else timed(one.raw, rng) for one in log.batches]
    aborted = [(one.producer, one.first, one.last) for one in log.aborts()]
    cuts = sorted(rng.sample(range(1, len(batches)), 20))
    for topic, sealed in (("large", len(batches)), ("packed", cuts[3])):
        raw = store.raw(topic)
        raw.times, raw.index_every = True, 200
        known = raw.partition()
        known.lineage, known.leader_epoch = lineage_of(log), epoch
        end = log.batches[sealed].base if sealed < len(batches) else log.end
        ours = [one for one in aborted if one[2] < end]
        raw.seals(batches[:sealed], cuts[:3] if topic == "packed" else (), aborted=ours, compacted=compacted, end=end)
        if topic == "packed":
            agent = Packing(raw)
            agent.lead(end=end)
            bounds = [*cuts[3:], len(batches)]
            for first, after in pairwise(bounds):
                start, stop = log.batches[first].base, log.batches[after].base if after < len(batches) else log.end
                ended = [one for one in aborted if start <= one[2] < stop]
                agent.pack(Range(batches[first:after], aborted=ended, compacted=compacted))
        raw.publish()
    return log


@pytest.mark.sampled(3)
@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_a_tail_is_read_as_one_large_segment_is(
    remote_store: RemoteStore, rng: random.Random, committed: bool, compacted: bool
) -> None:
    log = store_both(remote_store, rng, compacted=compacted)
    starts = [0, *sorted(rng.sample(range(1, log.end), 4))]
    found = []
    for topic in ("large", "packed"):
        with Reader(remote_store.storage(), committed=committed) as reader:
            tp = TopicPartition(topic, 0)
            found.append([[record._replace(topic="") for record in reader.read(start, tp)] for start in starts])
    assert found[0][0], "nothing to read"
    assert found[0] == found[1]
    parts = [opened(remote_store, topic) for topic in ("large", "packed")]
    assert len({(part.start, part.end(committed=committed)) for part in parts}) == 1
    times = sorted({row.timestamp + near for one in log.batches for row in one.rows for near in (0, 1)})
    for time in rng.sample(times, min(20, len(times))):
        for markers in (True, False):
            assert len({part.offset_for_time(time, committed=committed, markers=markers) for part in parts}) == 1
    rows = [read_range(topic, 0, storage=remote_store.storage())["kafka_value"] for topic in ("large", "packed")]
    assert rows[0] == rows[1]


def test_ranges_of_a_replay_are_asked_for_several_at_a_time(
    local_store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_and_sealed(local_store, ranges=40)
    storage, store = local_store.counted()
    inner, together = store._inner, threading.Barrier(3)

    @contextmanager
    def stream(key: str, *args: Any, **options: Any) -> Any:
        if key.endswith(".pack") and not together.broken:
            try:
                together.wait(PATIENCE / 10)
                together.abort()  # it was shown once
            except threading.BrokenBarrierError:
                pass
        with inner.stream(key, *args, **options) as body:
            store.requests["ranges"] += 1
            yield body

    monkeypatch.setattr(store, "stream", stream, raising=False)
    with Reader(storage, threads=4) as reader:
        assert [one.offset for one in reader.read(0)] == list(range(123))
    assert together.broken
    assert together.n_waiting == 0
    assert store.requests["ranges"] == 41, "one request for each range, and for the seal"


def test_a_follower_reads_one_range_a_tick(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    raw.segment([simple(0)])
    agent = Packing(raw)
    agent.lead()
    raw.publish()
    with Reader(local_store.storage(), refresh_seconds=0.02) as reader:
        assert [one.offset for one in reader.read(0)] == [0, 1, 2]
        for number in range(1, 6):
            before = reader.tier.counters.records
            agent.pack(Range([simple(3 * number)]))
            found: list[int] = []
            while len(found) < 3:
                block = reader.next()
                found += [one.offset for one in records_of(block)] if block is not None else []
            assert found == [3 * number, 3 * number + 1, 3 * number + 2]
            assert reader.tier.counters.records == before + 3


def packed_and_sealed(store: RemoteStore, ranges: int = 9) -> tuple[RawBuilder, Packing]:
    """[0, 3) is sealed, what follows is packed in ranges of three offsets."""
    raw = store.raw()
    raw.segment([simple(0)])
    agent = Packing(raw)
    agent.lead()
    for number in range(1, ranges + 1):
        agent.pack(Range([simple(3 * number)]))
    raw.publish()
    return raw, agent


def test_packs_that_go_while_they_are_read_are_sealed(remote_store: RemoteStore) -> None:
    raw, agent = packed_and_sealed(remote_store)
    with Reader(remote_store.storage()) as reader:
        reader.tier.partition(*TP)  # knows the ranges, and reads none
        raw.segment([simple(3 * number) for number in range(1, 10)])
        agent.sealed()
        raw.publish()
        for key, _ in agent.chain().packs:
            raw.store.delete(key)
        assert [one.offset for one in reader.read(0)] == list(range(30))
        assert reader.tier.counters.retries


def test_a_pack_that_is_gone_and_not_sealed_is_an_error_at_its_offset(local_store: RemoteStore, hurry: None) -> None:
    raw, agent = packed_and_sealed(local_store)
    with Reader(local_store.storage()) as reader:
        reader.tier.partition(*TP)
        raw.store.delete(agent.chain().packs[4][0])
        reader.tier.read(TP, 0)
        read: list[int] = []
        with pytest.raises(NotFound, match=r"\.pack: .*while reading orders-0 at offset 15"):
            read.extend(one.offset for block in reader.blocks() for one in records_of(block))
        assert read == list(range(15))


def test_damaged_bytes_of_a_pack_are_an_error_at_their_offset(local_store: RemoteStore, hurry: None) -> None:
    raw, agent = packed_and_sealed(local_store)
    key = agent.chain().packs[4][0]
    body = bytearray(raw.store.get(key).body)
    body[70] ^= 1
    raw.store.put(key, bytes(body))
    with Reader(local_store.storage()) as reader:
        reader.tier.read(TP, 0)
        read: list[int] = []
        with pytest.raises(SegmentError, match=rf"{key}: at byte 0, offset 15"):
            read.extend(one.offset for block in reader.blocks() for one in records_of(block))
        assert read == list(range(15))
        assert [one.offset for one in reader.read(18)] == list(range(18, 30))


def test_what_was_read_ahead_of_a_tail_that_was_cut_off_is_dropped(local_store: RemoteStore) -> None:
    raw, _ = packed_and_sealed(local_store)
    with Reader(local_store.storage(), refresh_seconds=3600) as reader:
        reader.tier.read(TP, 0)
        first = reader.next()
        assert first is not None
        other = Packing(raw, 6)
        other.lead(lineage=((EPOCH, 0), (EPOCH + 1, 12)), end=12)
        records = [Record(at, T0 + at, b"k", b"other") for at in range(5)]
        other.pack(Range([batch(12, records, leader_epoch=EPOCH + 1)]))
        raw.publish()
        part = reader.tier.partition(*TP)
        assert part is not None
        part._live_end._max_age = 0.0  # the head of the new leader is looked for now
        part.refresh()
        found = records_of(first) + reader.read(first.next_offset)
        assert [one.offset for one in found] == list(range(17))
        assert {one.value for one in found[12:]} == {b"other"}
