"""Memory is bounded whatever the size of segments, and what is read ahead is bounded over all partitions."""

from __future__ import annotations

import mmap
import random
import struct
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.waiting import wait_until
from tests.tidemark.kafka_log.build import T0, Record, batch, simple
from tests.tidemark.remote.reader import TP, Reader
from tests.tidemark.remote.world import RemoteStore
from tidemark.formats.keys import TopicPartition
from tidemark.remote.reader.tier import RemoteTier

MIB = 1 << 20
MOST = 100 * MIB


def fill(store: RemoteStore, codec: str, size: int) -> int:
    """One segment of ``size`` bytes, with values of a KiB; returns how many records."""
    rng = random.Random(5)  # bytes that compress to about half, the same each time
    values = [bytes(rng.choices(b"0123456789abcdef", k=1024)) for _ in range(500)]
    one = batch(0, [Record(at, T0, b"%d" % at, value) for at, value in enumerate(values)], codec)
    count = size // len(one)
    raw = store.raw()
    raw.segment([struct.pack(">q", 500 * number) + one[8:] for number in range(count)])
    raw.publish()
    return 500 * count


@pytest.mark.parametrize(
    ("codec", "size"),
    [
        ("none", 64 * MIB),
        ("zstd", 64 * MIB),
        pytest.param("none", 1024 * MIB, marks=pytest.mark.full),
        pytest.param("zstd", 1024 * MIB, marks=pytest.mark.full),
    ],
)
def test_memory_is_bounded_whatever_the_size_of_segments(local_store: RemoteStore, codec: str, size: int) -> None:
    expected = fill(local_store, codec, size)
    command = [sys.executable, "-m", "tests.tidemark.remote.peak_of", local_store.url]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    records, peak = map(int, done.stdout.split())
    assert records == expected
    assert peak <= MOST, f"{peak / MIB:.0f} MiB"


def test_what_is_read_ahead_is_bounded_over_all_partitions(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    values = bytes(1 << 10)
    for number in range(4):
        data = [batch(100 * at, [Record(one, T0, None, values) for one in range(100)]) for at in range(40)]
        raw.segment(data, number)  # 4 MiB each
    raw.publish()
    bound = 2 * MIB
    with Reader(local_store.storage(), prefetch_bytes=bound) as reader:
        tps = [TP._replace(partition=number) for number in range(4)]
        for tp in tps:
            reader.tier.read(tp, 0)
        last = -1

        def rests() -> bool:
            nonlocal last
            before, last = last, reader.tier.counters.bytes
            return last == before > 0

        wait_until(rests, what="reading ahead to rest", interval=0.3)
        assert reader.tier.counters.bytes < 10 * MIB  # of 16 MiB in all
        ahead = sum(lane.held + lane.reading.in_flight for lane in reader.tier._lanes.values())
        block = 3 * MIB // 2
        assert ahead <= bound + len(tps) * block
        assert [len(reader.read(0, tp)) for tp in tps] == [4000] * 4


def test_memory_of_ranges_is_used_again(local_store: RemoteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = local_store.raw()
    values = bytes(1 << 20)
    raw.segment([batch(at, [Record(0, T0, None, values)]) for at in range(100)])
    raw.publish()
    made: list[int] = []
    mapped = mmap.mmap

    def counted(descriptor: int, size: int) -> mmap.mmap:
        made.append(size)
        return mapped(descriptor, size)

    monkeypatch.setattr("mmap.mmap", counted)
    with Reader(local_store.storage()) as reader:
        assert len(reader.read(0)) == 100
        assert reader.tier.counters.requests > 12
    assert 0 < len(made) <= 5


def test_checksums_need_not_be_checked(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    data = bytearray(simple(0))
    data[17] ^= 1  # the checksum itself
    key = raw.segment([simple(0)])
    raw.publish()
    raw.replace_log(key, bytes(data))
    with Reader(local_store.storage(), check_crcs=False) as reader:
        assert len(reader.read(0)) == 3


def test_of_many_partitions_each_asks_for_one_range_at_a_time(local_store: RemoteStore) -> None:
    """The share of each is less than the least that is worth a request."""
    raw = local_store.raw()
    parts = 30
    data = [batch(100 * at, [Record(one, T0, None, bytes(1 << 10)) for one in range(100)]) for at in range(12)]
    for number in range(parts):
        raw.segment(data, number)  # 1.2 MiB each
    raw.publish()
    with RemoteTier(local_store.storage(), committed=False, prefetch_bytes=MIB) as tier:
        tps = [TopicPartition("orders", number) for number in range(parts)]
        for tp in tps:
            tier.read(tp, 0)
        most = 0

        def all_have_some() -> bool:
            nonlocal most
            with tier._lock:
                lanes = list(tier._lanes.values())
                most = max([most, *(lane.reading.in_flight for lane in lanes if not lane._running)])
                return all(lane._blocks for lane in lanes)

        wait_until(all_have_some, interval=0.01, what="a block of each partition")
        assert most <= 512 << 10, most
        left = dict.fromkeys(tps, 0)

        def read_all() -> bool:
            for tp in tps:
                while (block := tier.take(tp)) is not None:
                    left[tp] += len(block.rows)
            return set(left.values()) == {1200}

        wait_until(read_all, interval=0.01, what="all records")
