"""Random segments of random branches: the catalogue's answer at every offset is the one that brute force gives."""

from __future__ import annotations

import random

import pytest

from tests.tidemark.remote.model import Log, Model, Row, Stored, compact
from tests.tidemark.remote.reading import read
from tests.tidemark.remote.world import RemoteStore
from tidemark.errors import OutOfRange, PreconditionFailed
from tidemark.formats.raw.gaps import Gap
from tidemark.remote import OffsetForTime, RemotePartition, RemoteTopics, Stretch
from tidemark.storage import Storage


def grow(rng: random.Random, log: Log, epoch: int) -> int:
    """A few leaders, each with some batches; returns the next epoch."""
    for _ in range(rng.randint(1, 3)):
        log.lead(epoch)
        epoch += rng.randint(1, 3)
        log.grow(rng, rng.randint(3, 12))
    return epoch


def upload(rng: random.Random, model: Model, log: Log, share: float, lowest: int = 0) -> None:
    """Runs of batches of ``log`` with random boundaries, a ``share`` of them stored, a few of them damaged."""
    first = lowest
    while first < len(log.batches):
        after = min(len(log.batches), first + rng.randint(1, 6))
        base, end = log.batches[first].base, log.batches[after - 1].end
        there = model.stored.get(base)
        newest = log.lineage
        longer = there is None or there.end < end or (there.end == end and there.log is not log)
        if rng.random() < share and longer and newest:
            damaged = rng.randrange(first, after) if rng.random() < 0.1 and not model.compacted else None
            if there is None or damaged is None:
                model.store(log, first, after, damaged=damaged)
        first = after


def check(storage: Storage, part: RemotePartition, model: Model) -> None:
    """Every offset, read_committed and not."""
    assert part.start == model.start
    assert part.end(committed=False) == model.end
    stable = part.end(committed=True)
    check_stable(part, model, stable)
    present = model.present(model.newest, model.end)
    gaps = model.recorded - model.acknowledged
    for committed, end in ((False, model.end), (True, stable)):
        for offset in range(model.start, model.log.end + 3):
            found = asked(storage, part, offset, committed=committed)
            at = (model.recorded & model.acknowledged).contiguous_from(offset)
            if at in gaps:
                assert isinstance(found, Gap)
                assert (found.start, found.end) in gaps.parts
                continue
            assert part.gap_at(at) is None
            if at >= end:
                assert found is None, (offset, end)
                continue
            assert at in present
            assert isinstance(found, Stretch), (offset, found)
            check_stretch(storage, found, model, at, end, committed=committed)
    if model.start:
        with pytest.raises(OutOfRange):
            part.next_stretch(model.start - 1, committed=False)


def asked(storage: Storage, part: RemotePartition, offset: int, *, committed: bool) -> Stretch | Gap | None:
    """The answer; where it names a segment that was replaced since, the next one, as readers do it."""
    found = part.next_stretch(offset, committed=committed)
    if isinstance(found, Stretch):
        try:
            storage.store(found.segment.store).get(found.segment.key, if_match=found.segment.etag)
        except PreconditionFailed:
            part.invalidate(found.segment)
            return part.next_stretch(offset, committed=committed)
    return found


def check_stretch(storage: Storage, found: Stretch, model: Model, at: int, end: int, *, committed: bool) -> None:
    assert found.start == at < found.end <= end
    assert not model.recorded.clip(found.start, found.end)
    rows = model.rows(found.start, found.end, committed=False)
    got = read(storage, found)
    if not committed:
        assert got == rows
        return
    told = {row: tellers(model, row) for row in rows}
    # Where a marker lies in damaged bytes alone, the segment's .txnindex may or may not be met.
    assert [row for row in rows if row in got] == got
    assert not [row for row in got if any(row_marker < one.readable for one, row_marker in told[row])]
    assert not [row for row in rows if not told[row] and row not in got]


def tellers(model: Model, row: Row) -> list[tuple[Stored, int]]:
    """The segments whose ``.txnindex`` says that a record was aborted, and where its marker lies."""
    producer = next(one.producer for one in model.log.batches if row in one.rows)
    return [
        (stored, one.last)
        for stored in model.stored.values()
        for one in stored.log.aborts()
        if one.producer == producer and one.first <= row.offset <= one.last
        if stored.base <= one.last < stored.end and stored.lineage.epoch_at(one.last) == model.newest.epoch_at(one.last)
    ]


def check_stable(part: RemotePartition, model: Model, stable: int) -> None:
    """Never above what is undecided in truth; just that where all segments with the last offset are live to their end.

    Of one that leaves the lineage behind that offset nobody knows what is open there.
    """
    last = [one for one in model.stored.values() if one.speaks(model.end - 1, model.newest)]
    ends = [
        one.readable for one in last if all(one.speaks(at, model.newest) for at in range(model.end - 1, one.readable))
    ]
    limits = {min([model.end, *(one.first for one in model.log.open_at(end))]) for end in ends}
    assert model.start <= stable <= model.end
    if limits and len(ends) == len(last):
        assert stable in {max(model.start, one) for one in limits}
    assert stable <= max(model.start, min([model.end, *(one.first for one in model.log.open_at(model.log.end))]))


def check_times(part: RemotePartition, model: Model, rng: random.Random) -> None:
    """The first record that is there and late enough, over random times."""
    present = model.present(model.newest, model.end)
    rows = [row for row in model.rows(model.start, model.end, committed=False) if row.offset in present]
    times = [rng.choice(rows).timestamp + rng.randint(-1, 1) for _ in range(15)] if rows else []
    stable = part.end(committed=True)
    for time in times:
        first = next((row for row in rows if row.timestamp >= time), None)
        wanted = OffsetForTime(first.offset, first.timestamp, first.epoch) if first else None
        assert part.offset_for_time(time) == wanted
        assert part.offset_for_time(time, committed=True) == (wanted if first and first.offset < stable else None)


def live(rng: random.Random, remote: RemoteStore) -> None:
    """A partition's life: uploads in steps, holes that are filled or given up, an unclean election, retention."""
    raw = remote.raw()
    raw.index_every, raw.times = 80, True
    log = Log("a", [])
    epoch = grow(rng, log, 1)
    model = Model(raw, log, compacted=rng.random() < 0.3)
    model.removed = compact(log, rng) if model.compacted else set()
    share = rng.choice([0.5, 0.8, 1.0])
    storage = remote.storage()
    part: RemotePartition | None = None
    for step in range(4):
        upload(rng, model, model.log, share)
        if rng.random() < 0.5:
            upload(rng, model, model.log, share / 2)
        model.publish(leader_epoch=epoch, record=rng.random() < 0.7)
        if part is None:
            part = RemoteTopics(storage).partition("orders", 0)
            assert part is not None
        else:
            part.refresh()
        check(storage, part, model)
        check_times(part, model, rng)
        gaps = (model.recorded - model.acknowledged).parts
        if gaps and rng.random() < 0.5:
            gap = rng.choice(gaps)
            raw.acknowledge(*gap)
            model.acknowledged |= type(model.acknowledged)([gap])
        if step == 1 and rng.random() < 0.6 and not model.compacted:
            model.log = model.log.fork("b", rng.randint(1, len(model.log.batches)), epoch)
            epoch += 1
        elif step < 3 and not model.compacted:
            model.log.lead(epoch) if rng.random() < 0.5 else None
        model.log.grow(rng, rng.randint(1, 8)) if not model.compacted else None
        epoch += 1


@pytest.mark.parametrize("number", [*range(3), *(pytest.param(one, marks=pytest.mark.full) for one in range(3, 12))])
def test_random_partitions_in_a_directory(local_store: RemoteStore, rng: random.Random, number: int) -> None:
    live(rng, local_store)


@pytest.mark.drawn(0.25)
def test_a_random_partition_in_a_bucket(s3_store: RemoteStore, rng: random.Random) -> None:
    live(rng, s3_store)


def test_a_dead_branch_decides_nothing_before_the_new_one_is_stored(
    local_store: RemoteStore, rng: random.Random
) -> None:
    """The marker of an open transaction was cut off; the segment that holds it is still the only one there is."""
    log = Log("a", [])
    log.lead(1)
    for producer in (7, -1, -1):
        log._append_data(rng, producer)
    log._append_marker(7, commit=True)
    model = Model(local_store.raw(), log)
    model.store(log, 0, 4)
    model.publish(leader_epoch=1)
    storage = local_store.storage()
    part = RemoteTopics(storage).partition("orders", 0)
    assert part is not None
    assert part.end(committed=True) == log.end
    model.log = log.fork("b", 2, 2)
    model.publish(leader_epoch=2)
    part.refresh()
    assert (part.end(committed=False), part.end(committed=True)) == (model.log.end, 0)
    model.log._append_marker(7, commit=False)
    model.store(model.log, 2, 3)
    model.publish(leader_epoch=2)
    part.refresh()
    assert part.end(committed=True) == model.log.end
    check(storage, part, model)
