"""A reader that is open while seals are rewritten without erased records goes on with the new ones."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from tests.support.erased import erase, rewrite_seal
from tests.support.raw_builder import RawBuilder
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, simple, transactional
from tests.tidemark.remote.reader import TP, Log, Reader, records_of, shape, stored
from tests.tidemark.remote.test_catalog import opened
from tests.tidemark.remote.test_reading import Shrink, ranges
from tests.tidemark.remote.world import RemoteStore
from tidemark.formats.raw.gaps import Gap
from tidemark.remote import Stretch
from tidemark.remote.reader.read_range import read_range

__all__ = ["ranges"]


def logs(raw: RawBuilder) -> list[str]:
    """The keys of the logs, as uploaded."""
    return [info.key for info in raw.store.list(raw.keys().folder) if info.key.endswith(".log")]


def rewrite(raw: RawBuilder, erased: set[int]) -> None:
    """Erase, and rewrite all seals with one of the offsets."""
    bases = [(int(key.rpartition("/")[2][:20]), key) for key in logs(raw)]
    ends = [*(base for base, _ in bases[1:]), 1 << 40]
    for (base, key), end in zip(bases, ends, strict=True):
        if any(base <= offset < end for offset in erased):
            rewrite_seal(raw, key)


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_an_open_reader_delivers_all_other_records(
    remote_store: RemoteStore, rng: random.Random, ranges: Shrink, committed: bool, compacted: bool
) -> None:
    raw, log = remote_store.raw(), Log(rng, transactions=True, holes=compacted)
    stored(log, raw, 5, compacted=compacted)
    known = log.committed if committed else log.all
    erased = {one.offset for one in rng.sample(log.all, len(log.all) // 3)}
    erase(raw, erased)
    left = [one for one in known if one.offset not in erased]
    ranges(700)
    with Reader(remote_store.storage(), committed=committed) as reader:
        assert shape(reader.read(0)) == left
        first: list[Any] = []
        reader.tier.read(TP, 0)
        while len(first) < len(left) // 4:
            block = reader.next(max_rows=5)
            assert block is not None
            first += shape(records_of(block))
        rewrite(raw, erased)
        rest = [one for block in reader.blocks() for one in shape(records_of(block))]
        assert first + rest == left
        for start in rng.sample(range(log.end), 5):
            assert shape(reader.read(start)) == [one for one in left if one.offset >= start]
    with Reader(remote_store.storage(), committed=committed) as reader:
        assert shape(reader.read(0)) == left


def history(raw: RawBuilder) -> list[str]:
    """Four seals, with a transaction that a later one aborts."""
    raw.times = True
    keys = [
        raw.segment([batch(0, [Record(i, T0 + 10 * i) for i in range(3)]), transactional(3, 7, 3)]),
        raw.segment([batch(6, [Record(i, T0 + 100 + 10 * i) for i in range(3)])]),
        raw.segment([marker(9, 7, commit=False), simple(10)], aborted=[(7, 3, 9)]),
        raw.segment([simple(13)]),
    ]
    raw.publish()
    return keys


def test_what_was_known_of_a_seal_is_learnt_again(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    keys = history(raw)
    erase(raw, [1, 4, 7, 11])
    part = opened(remote_store.storage())
    wanted = [part.next_stretch(offset, committed=True) for offset in range(13)]
    times = [part.offset_for_time(T0 + at, markers=False) for at in (0, 10, 15, 100, 105, 125)]
    for key in keys[:3]:
        rewrite_seal(raw, key)
    for offset, before in enumerate(wanted):
        assert isinstance(before, Stretch)
        part.invalidate(before.segment)  # as after a request that has found it gone
        now = part.next_stretch(offset, committed=True)
        assert isinstance(now, Stretch)
        assert (now.start, now.end, now.aborted) == (before.start, before.end, before.aborted)
        assert now.segment.name.erasure == 1
    assert [part.offset_for_time(T0 + at, markers=False) for at in (0, 10, 15, 100, 105, 125)] == times


def test_a_time_is_found_though_its_seal_has_another_name_now(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    keys = history(raw)
    erase(raw, [7])
    part = opened(remote_store.storage())
    assert part.offset_for_time(T0 + 100, markers=False) is not None
    for key in keys[1:2]:
        rewrite_seal(raw, key)
    fresh = opened(remote_store.storage())
    assert part.offset_for_time(T0 + 100, markers=False) == fresh.offset_for_time(T0 + 100, markers=False)


def test_an_unknown_hole_elsewhere_hides_no_rewritten_seal(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    keys = history(raw)
    erase(raw, [1])
    part = opened(remote_store.storage())
    assert isinstance(part.next_stretch(0, committed=False), Stretch)
    for extension in ("manifest.json", "log"):
        raw.store.delete(keys[1].replace(".log", f".{extension}"))
    assert isinstance(part.next_stretch(6, committed=False), Gap)
    rewrite_seal(raw, keys[0])
    part.invalidate(part.next_stretch(0, committed=False).segment)  # type: ignore[union-attr]
    now = part.next_stretch(0, committed=False)
    assert isinstance(now, Stretch)
    assert now.segment.name.erasure == 1


def test_a_range_is_read_across_rewritten_seals(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    keys = history(raw)
    erase(raw, [1, 7])
    for key in keys[:2]:
        rewrite_seal(raw, key)
    for start, end in pairwise([0, 1, 3, 6, 7, 8, 12, 16]):
        rows = read_range("orders", 0, start, end, storage=remote_store.storage())
        left = set(range(start, end)) - {1, 3, 4, 5, 7, 9}
        assert set(rows["kafka_offset"].to_pylist()) == left


def test_the_aborts_of_a_seal_that_was_rewritten_are_read_again(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    keys = history(raw)
    erase(raw, [11])
    part = opened(remote_store.storage())
    for offset in (0, 6, 9):
        assert isinstance(part.next_stretch(offset, committed=False), Stretch)
    rewrite_seal(raw, keys[2])
    found = part.next_stretch(3, committed=True)
    assert isinstance(found, Stretch)
    assert [(one.first_offset, one.last_offset) for one in found.aborted] == [(3, 9)]
