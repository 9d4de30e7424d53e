"""What readers of the remote tier get: each record once and in order, from wherever they begin."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.waiting import wait_until
from tests.tidemark.kafka_log.build import legacy, marker, simple, transactional
from tests.tidemark.remote.reader import CODECS, TP, Expected, Log, Reader, records_of, shape, stored
from tests.tidemark.remote.world import RemoteStore
from tidemark.errors import GapError, OutOfRange
from tidemark.remote.reader import partition_reader, tier

Shrink = Callable[[int], None]


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Shrink:
    """Make requests small, so that small segments take many."""

    def shrink(size: int) -> None:
        monkeypatch.setattr(partition_reader, "_FIRST_BYTES", size)
        monkeypatch.setattr(tier, "_LEAST_RANGE", size)
        monkeypatch.setattr(tier, "RANGE_BYTES", size)

    return shrink


def after(records: list[Expected], offset: int) -> list[Expected]:
    return [one for one in records if one.offset >= offset]


@pytest.mark.parametrize("committed", [True, False])
def test_every_record_comes_once_and_in_order(
    remote_store: RemoteStore, rng: random.Random, ranges: Shrink, committed: bool
) -> None:
    log = Log(rng, transactions=True)
    stored(log, remote_store.raw(), 5)
    ranges(700)
    with Reader(remote_store.storage(), committed=committed) as reader:
        assert shape(reader.read(0, max_rows=7)) == (log.committed if committed else log.all)


def test_what_waits_for_room_goes_on_when_a_block_was_taken(local_store: RemoteStore, rng: random.Random) -> None:
    """One block at a time fits, those without rows among them; and no look at the catalogue wakes anybody."""
    log = Log(rng, transactions=True)
    stored(log, local_store.raw(), 5)
    with Reader(local_store.storage(), prefetch_bytes=1, refresh_seconds=3600) as reader:
        assert shape(reader.read(0, max_rows=2)) == log.committed


def test_a_part_of_a_block_wakes_no_thread(local_store: RemoteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = local_store.raw()
    raw.segment([simple(0, 5)])
    raw.publish()
    with Reader(local_store.storage()) as reader:
        reader.tier.read(TP, 0)
        wait_until(lambda: reader.tier._lanes[TP].ended, interval=0.01, what="everything read ahead")
        wakes: list[int] = []
        monkeypatch.setattr(reader.tier._workers, "wake", lambda: wakes.append(reader.tier._lanes[TP].position))
        for offset in range(4):
            reader.tier.read(TP, offset)
            assert reader.tier.take(TP, 1) is not None
        assert wakes == []
        assert reader.tier.take(TP, 1) is not None
        assert wakes == [5]


@pytest.mark.parametrize("codec", CODECS)
def test_each_codec_is_read(local_store: RemoteStore, rng: random.Random, codec: str) -> None:
    log = Log(rng, codecs=(codec,))
    stored(log, local_store.raw(), 2)
    with Reader(local_store.storage()) as reader:
        assert shape(reader.read(0)) == log.all


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])
def test_messages_of_old_formats_are_read(local_store: RemoteStore, magic: int, codec: str, ranges: Shrink) -> None:
    raw = local_store.raw()
    raw.segment([legacy(magic, 4 * number, 4, codec) for number in range(20)])
    raw.segment([simple(80, 4), simple(84, 2)])
    raw.publish()
    ranges(150)
    with Reader(local_store.storage()) as reader:
        for start in (0, 3, 5, 79, 81):
            assert [one.offset for one in reader.read(start)] == list(range(start, 86))


def test_compacted_offsets_are_passed_over(remote_store: RemoteStore, rng: random.Random, ranges: Shrink) -> None:
    log = Log(rng, holes=True)
    stored(log, remote_store.raw(), 4, compacted=True)
    ranges(400)
    with Reader(remote_store.storage()) as reader:
        reader.tier.read(TP, 0)
        blocks = list(reader.blocks())
    assert shape([one for block in blocks for one in records_of(block)]) == log.all
    assert blocks[-1].next_offset == log.end


def test_a_batch_larger_than_many_ranges_is_read_whole(local_store: RemoteStore, rng: random.Random) -> None:
    log = Log(rng, codecs=("none",), value_bytes=3 << 20)
    stored(log, local_store.raw(), 1, 8)
    with Reader(local_store.storage(), prefetch_bytes=1) as reader:
        assert shape(reader.read(0)) == log.all


def test_seeks_go_anywhere(remote_store: RemoteStore, rng: random.Random, ranges: Shrink) -> None:
    log = Log(rng, transactions=True, holes=True)
    stored(log, remote_store.raw(), 4, compacted=True)
    ranges(600)
    with Reader(remote_store.storage()) as reader:
        for _ in range(40):
            offset = rng.randrange(log.end)
            reader.tier.read(TP, offset)
            found: list[Expected] = []
            for _ in range(rng.randrange(6)):
                block = reader.next(max_rows=rng.randint(1, 9))
                if block is None:
                    break
                assert block.start == offset
                offset = block.next_offset
                found += shape(records_of(block))
            assert found == after(log.committed, found[0].offset)[: len(found)] if found else True
        middle = rng.randrange(log.end)
        assert shape(reader.read(middle)) == after(log.committed, middle)


def test_a_seek_within_what_is_there_makes_no_request(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    raw.segment([simple(10 * number, 10) for number in range(100)])
    raw.publish()
    storage, counting = local_store.counted()
    with Reader(storage) as reader:
        reader.tier.read(TP, 0)
        assert reader.next(max_rows=3) is not None
        counting.reset()
        for offset in (3, 4, 555, 998):
            reader.tier.read(TP, offset)
            block = reader.next(max_rows=1)
            assert block is not None
            assert block[1:3] == (offset, offset + 1)
        assert reader.read(999)[0].offset == 999
        assert not counting.requests["stream"]


def test_many_partitions_are_read_at_once(remote_store: RemoteStore, rng: random.Random, ranges: Shrink) -> None:
    raw = remote_store.raw()
    for number in range(12):
        raw.segment([simple(3 * at) for at in range(30)], number)
        raw.segment([simple(90 + 3 * at) for at in range(30)], number)
    raw.publish()
    ranges(500)
    tps = [TP._replace(partition=number) for number in range(12)]
    with Reader(remote_store.storage(), threads=3) as reader:
        for tp in tps:
            reader.tier.read(tp, 0)
        found: dict[int, list[int]] = {tp.partition: [] for tp in tps}
        waiting = list(tps)
        while waiting:
            tp = rng.choice(waiting)
            block = reader.next(tp)
            if block is None:
                waiting.remove(tp)
            else:
                found[tp.partition] += [one.offset for one in records_of(block, tp)]
    assert all(offsets == list(range(180)) for offsets in found.values())


def test_what_lands_later_is_found(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0)])
    raw.publish()
    with Reader(remote_store.storage(), refresh_seconds=0.05) as reader:
        assert len(reader.read(0)) == 3
        assert reader.tier.at_end(TP)
        raw.segment([simple(3)])
        raw.publish()
        while (block := reader.next()) is None:
            continue
        assert [one.offset for one in records_of(block)] == [3, 4, 5]


def test_an_open_transaction_ends_what_is_committed(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    raw.segment([simple(0), transactional(3, 7, 2), simple(5)])
    raw.publish()
    with Reader(local_store.storage(), refresh_seconds=0.05) as reader:
        assert [one.offset for one in reader.read(0)] == [0, 1, 2]
        raw.segment([marker(8, 7, commit=False)], aborted=[(7, 3, 8)])
        raw.publish()
        found: list[int] = []
        while len(found) < 3:
            block = reader.next()
            found += [one.offset for one in records_of(block)] if block is not None else []
        assert found == [5, 6, 7]


def test_a_gap_is_an_error_at_its_offset_and_can_be_skipped(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0)])
    raw.segment([simple(10)], base=10)
    known = raw.partition()
    known.next_offset = 3
    known.gaps.append(raw.gap(3, 10, "failed_disk"))
    raw.publish()
    with Reader(remote_store.storage()) as reader:
        reader.tier.read(TP, 0)
        block = reader.next()
        assert block is not None
        assert block.next_offset == 3
        with pytest.raises(GapError, match=r"orders-0: offsets 3 to 9 are missing \(failed_disk\)"):
            reader.next()


def test_an_offset_that_retention_took_is_out_of_range(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    raw.partition().start_offset = 5
    raw.segment([simple(5)], base=5)
    raw.publish()
    with Reader(local_store.storage()) as reader:
        reader.tier.read(TP, 2)
        with pytest.raises(OutOfRange):
            reader.next()
        assert [one.offset for one in reader.read(5)] == [5, 6, 7]


def test_what_was_read_ahead_of_another_branch_is_dropped(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(3 * number) for number in range(40)])
    raw.publish()
    with Reader(remote_store.storage(), refresh_seconds=0.05) as reader:
        partition = reader.tier.partition(*TP)
        assert partition is not None
        reader.tier.read(TP, 0)
        block = reader.next(max_rows=30)
        assert block is not None
        assert block.next_offset == 30
        known = raw.partition()
        known.lineage, known.leader_epoch = ((3, 0), (5, 60)), 5
        raw.segment([simple(60 + 2 * number, 2, leader_epoch=5) for number in range(40)], base=60)
        raw.publish()
        wait_until(lambda: partition.branch > 0, what="the other branch to be seen")
        found: list[tuple[int, int]] = []
        while not found or found[-1][0] < 139:
            block = reader.next()
            found += [(one.offset, one.leader_epoch) for one in records_of(block)] if block is not None else []
    assert found == [(offset, 3 if offset < 60 else 5) for offset in range(30, 140)]


def test_without_a_thread_nothing_would_come(local_store: RemoteStore) -> None:
    with pytest.raises(ValueError, match="at least one thread"):
        tier.RemoteTier(local_store.storage(), committed=False, threads=0)
