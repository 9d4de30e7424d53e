"""The live end of a partition as the catalogue sees it, rule by rule, and what it costs in requests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.raw_builder import EPOCH, RawBuilder
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, reseal, simple, transactional
from tests.tidemark.remote.live import Packing, Range
from tests.tidemark.remote.reading import read
from tests.tidemark.remote.test_catalog import bury, opened, stretch
from tests.tidemark.remote.world import RemoteStore
from tidemark.errors import FormatError, OutOfRange
from tidemark.formats.keys import SegmentName
from tidemark.remote import OffsetForTime, RemotePartition, RemoteTopics
from tidemark.storage import Storage


def follows(store: RemoteStore) -> tuple[RawBuilder, Packing]:
    """[0, 3) is sealed, [3, 9) is packed in two ranges."""
    raw = store.raw()
    raw.segment([simple(0)])
    agent = Packing(raw)
    agent.lead()
    agent.pack(Range([simple(3)]))
    agent.pack(Range([simple(6)]))
    raw.publish()
    return raw, agent


def bounds(part: RemotePartition) -> tuple[int, int]:
    """(last stable offset, end)."""
    return part.end(committed=True), part.end(committed=False)


def values(storage: Storage, part: RemotePartition, start: int, *, committed: bool = True) -> list[int]:
    """The offsets of all records from ``start`` on."""
    found: list[int] = []
    while (end := part.end(committed=committed)) > start:
        piece = stretch(part, start, committed=committed)
        assert piece.start == start
        found += [row.offset for row in read(storage, piece)]
        start = piece.end
        assert start <= end
    return found


def test_ranges_are_read_behind_the_seals(remote_store: RemoteStore) -> None:
    follows(remote_store)
    storage = remote_store.storage()
    part = opened(storage)
    assert bounds(part) == (9, 9)
    assert values(storage, part, 0) == list(range(9))
    assert [stretch(part, at).segment.packed for at in (2, 3, 7)] == [False, True, True]
    assert part.next_stretch(9, committed=True) is None
    assert (part.gap_at(9), part.gap_at(12)) == (None, None), "a hole above next_offset is no gap"


def test_the_view_moves_on_with_the_head_alone(remote_store: RemoteStore) -> None:
    _, agent = follows(remote_store)
    storage, store = remote_store.counted()
    part = opened(storage)
    agent.pack(Range([simple(9)]))
    store.reset()
    part.refresh()
    assert bounds(part) == (12, 12)
    assert store.requests["get"] == 2, "offset.wm and the head"
    assert store.requests["get_range"] == 1, "the line of the new range"
    assert store.requests["list"] == 2, "heads and tombstones"


def test_what_a_refresh_costs_while_nothing_changes(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    agent = Packing(raw)
    for partition in range(10):
        raw.segment([simple(0)], partition)
        agent.lead(partition)
    agent.pack(*(Range([simple(3)], partition) for partition in range(10)))
    raw.segment([simple(0)], 10)
    raw.publish()
    storage, store = remote_store.counted()
    topics = RemoteTopics(storage, heads_max_age=3600)
    parts = [topics.partition("orders", number) for number in range(11)]
    assert sum(key.startswith(agent.control.heads) for key in store.keys) == 1, "one GET for all"
    store.reset()
    for part in parts:
        assert part is not None
        part.refresh()
        assert part.end(committed=True) == (3 if part.partition == 10 else 6)
    assert store.requests == {"get": 11, "list": 11}, "as without tails: offset.wm and the tombstones of each"
    topics._live_end._checked_at = {raw.keys().endpoint.root: float("-inf")}
    store.reset()
    for part in parts:
        assert part is not None
        part.refresh()
    assert sum(key.startswith(agent.control.heads) for key in store.keys) == 1, "a listing for all"


def test_heads_are_read_before_offset_wm(remote_store: RemoteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two reads, the tail is sealed, and the head has a shorter one: nothing is missing between them."""
    raw, agent = follows(remote_store)
    storage, store = remote_store.counted()
    part = opened(storage)
    agent.pack(Range([simple(9)]))
    inner = store._inner
    log: list[str] = []

    def get(key: str, **options: Any) -> Any:
        log.append(key)
        found = inner.get(key, **options)
        if len(log) == 1:
            raw.segment([simple(3), simple(6), simple(9)])
            raw.publish()
            chain = agent.lead()
            chain.end = 12
            agent.pack(Range([simple(12)]))
            raw.publish()
        return found

    monkeypatch.setattr(store, "get", get, raising=False)
    part.refresh()
    assert log[:2] == [agent.control.head(5), raw.keys().watermark]
    assert values(storage, part, 0) == list(range(12))


def test_offset_wm_is_read_again_behind_heads_that_it_names_first(
    remote_store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the first look: whose heads to read is known from offset.wm, which is older than these then."""
    raw, agent = follows(remote_store)
    storage, store = remote_store.counted()
    inner = store._inner
    seen: list[str] = []

    def get(key: str, **options: Any) -> Any:
        if key == agent.control.head(5) and key not in seen:  # another leader seals all, and packs more
            raw.segment([simple(3), simple(6)])
            other = Packing(raw, 6)
            raw.partition().tails = ()
            other.lead(lineage=((EPOCH, 0), (EPOCH + 1, 9)))
            other.pack(Range([simple(9, leader_epoch=EPOCH + 1)]))
            agent.chain().listed = False
            agent.put_head()
            raw.publish()
        seen.append(key)
        return inner.get(key, **options)

    monkeypatch.setattr(store, "get", get, raising=False)
    part = opened(storage)
    assert values(storage, part, 0) == list(range(12))
    read_at = {key: number for number, key in enumerate(seen)}
    heads = [read_at[agent.control.head(broker)] for broker in (5, 6)]
    assert seen.index(raw.keys().watermark) < min(heads) < max(heads) < read_at[raw.keys().watermark]


def test_a_tail_that_is_cut_off_is_a_truncation(remote_store: RemoteStore) -> None:
    raw, _ = follows(remote_store)
    storage = remote_store.storage()
    part = opened(storage)
    assert part.diverged(9, EPOCH) is None
    other = Packing(raw, 6)
    other.lead(lineage=((EPOCH, 0), (EPOCH + 1, 7)), end=6)
    raw.publish()  # the claim
    part.refresh()
    assert (part.end(committed=False), part.branch, part.diverged(9, EPOCH), part.diverged(7, EPOCH)) == (7, 1, 7, None)
    other.pack(Range([simple(6, 1), simple(7, 5, leader_epoch=EPOCH + 1)]))
    part.refresh()
    assert (bounds(part), part.branch) == ((12, 12), 1)
    for one in (part, opened(storage)):
        assert values(storage, one, 0) == list(range(12))
        assert [row.epoch for row in read(storage, stretch(one, 7))] == [EPOCH + 1] * 5
    assert opened(storage).diverged(9, EPOCH) == 7, "a reader that opens the partition later sees it as well"


def test_tails_of_two_leaders_are_read_as_one(remote_store: RemoteStore) -> None:
    """Neither cut anything off: the new leader packs from the end of the seals on, with other boundaries."""
    raw, agent = follows(remote_store)
    other = Packing(raw, 6)
    other.lead(lineage=((EPOCH, 0), (EPOCH + 1, 12)), end=3)
    agent.pack(Range([simple(9)]))  # the last that the old leader has packed
    other.pack(Range([simple(3), simple(6), simple(9), simple(12, leader_epoch=EPOCH + 1)]))
    raw.publish()
    storage = remote_store.storage()
    assert values(storage, opened(storage), 0) == list(range(15))
    raw.store.delete(agent.chain().packs[0][0])
    assert values(storage, opened(storage), 0) == list(range(15))


def test_a_new_leader_goes_on_where_the_old_ones_tail_ends(remote_store: RemoteStore) -> None:
    raw, _ = follows(remote_store)
    storage, store = remote_store.counted()
    part = opened(storage)
    other = Packing(raw, 6)
    other.lead(lineage=((EPOCH, 0), (EPOCH + 1, 9)), end=9)
    other.pack(Range([simple(9, leader_epoch=EPOCH + 1)]))
    raw.publish()
    part.refresh()
    assert (bounds(part), part.branch) == ((12, 12), 0)
    store.reset()
    part.refresh()
    assert store.requests == {"get": 1, "list": 2, "listed": 2}, "the known ranges are not read again"


def test_a_head_that_is_gone_takes_nothing_away(remote_store: RemoteStore) -> None:
    raw, agent = follows(remote_store)
    part = opened(remote_store.storage())
    raw.store.delete(agent.control.head(5))
    part.refresh()
    assert (bounds(part), part.branch) == ((9, 9), 0)
    assert bounds(opened(remote_store.storage())) == (3, 3), "who comes later waits for the seal"


def test_a_head_that_is_late_hides_what_is_packed(remote_store: RemoteStore) -> None:
    _, agent = follows(remote_store)
    part = opened(remote_store.storage())
    agent.pack(Range([simple(9)]), put_head=False)
    part.refresh()
    assert bounds(part) == (9, 9)
    agent.put_head()
    part.refresh()
    assert bounds(part) == (12, 12)


def test_a_head_that_does_not_parse_is_told_once(remote_store: RemoteStore, caplog: pytest.LogCaptureFixture) -> None:
    raw, agent = follows(remote_store)
    raw.store.put(agent.control.head(5), b"{}")
    part = opened(remote_store.storage())
    part.refresh()
    assert bounds(part) == (3, 3)
    assert [one.getMessage() for one in caplog.records if "what broker 5 has packed" in one.getMessage()] != []
    assert len([one for one in caplog.records if "what broker 5 has packed" in one.getMessage()]) == 1
    agent.put_head()
    part.refresh()
    assert bounds(part) == (9, 9)


def test_a_pack_that_is_gone_is_sealed(remote_store: RemoteStore) -> None:
    raw, agent = follows(remote_store)
    storage = remote_store.storage()
    part = opened(storage)
    before = stretch(part, 4)
    raw.segment([simple(3), simple(6)])
    agent.sealed()
    raw.publish()
    raw.store.delete(before.segment.key)
    part.refresh()
    assert not stretch(part, 4).segment.packed
    assert values(storage, part, 0) == list(range(9))


def test_seals_take_the_place_of_ranges_one_by_one(remote_store: RemoteStore) -> None:
    raw, agent = follows(remote_store)
    storage = remote_store.storage()
    part = opened(storage)
    raw.segment([simple(3)])
    raw.publish()
    part.refresh()
    assert [stretch(part, at).segment.packed for at in (3, 6)] == [False, True]
    agent.pack(Range([simple(9)]))
    part.refresh()
    assert (values(storage, part, 0), part.branch) == (list(range(12)), 0)


def test_a_seal_ends_inside_a_range(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0)])
    agent = Packing(raw)
    agent.lead()
    agent.pack(Range([simple(3), simple(6), simple(9)]))
    raw.segment([simple(3), simple(6)])
    raw.publish()
    storage = remote_store.storage()
    part = opened(storage)
    piece = stretch(part, 9)
    assert (piece.start, piece.end, piece.segment.packed) == (9, 12, True)
    assert values(storage, part, 0) == list(range(12))


def test_a_chain_that_begins_above_the_seals_is_not_ahead_of_them(remote_store: RemoteStore) -> None:
    """Its first pack is not visible yet. It is no gap, and not asked for again once it is known."""
    raw, agent = follows(remote_store)
    first = agent.chain().packs[0][0]
    body = raw.store.get(first).body
    raw.store.delete(first)
    part = opened(remote_store.storage())
    assert (bounds(part), part.next_stretch(3, committed=False)) == ((3, 3), None)
    raw.store.put(first, body)
    part.refresh()
    assert bounds(part) == (9, 9)


def test_a_damaged_chain_is_told_at_its_offset(remote_store: RemoteStore) -> None:
    raw, agent = follows(remote_store)
    first = agent.chain().packs[0][0]
    raw.store.put(first, b"x" * len(raw.store.get(first).body))
    part = opened(remote_store.storage())
    assert bounds(part) == (3, 3)
    assert stretch(part, 0).end == 3
    for _ in range(2):
        with pytest.raises(FormatError, match=f"{first}: .*newline"):
            part.next_stretch(3, committed=True)
    raw.segment([simple(3), simple(6)])
    raw.publish()
    part.refresh()
    assert stretch(part, 3).end == 9


def test_another_topic_of_the_name_has_a_tail_of_its_own(remote_store: RemoteStore) -> None:
    raw, agent = follows(remote_store)
    raw.recreate("B" * 22)
    raw.segment([simple(0)])
    agent.lead()
    raw.publish()
    storage = remote_store.storage()
    newest, oldest = opened(storage), opened(storage, "A" * 22)
    assert (bounds(newest), bounds(oldest)) == ((3, 3), (9, 9)), "what the deleted one has packed is not the new one's"
    agent.chains[max(agent.chains)].end = 3
    agent.pack(Range([simple(3, 1)]))
    newest.refresh()
    assert bounds(newest) == (4, 4)


def test_what_is_open_at_the_end_of_a_range_holds_back(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0), transactional(3, 7, 3)])
    agent = Packing(raw)
    agent.lead()
    agent.pack(Range([transactional(6, 8, 3), marker(9, 7, commit=True)]))
    raw.publish()
    storage = remote_store.storage()
    part = opened(storage)
    assert bounds(part) == (6, 10)
    assert values(storage, part, 0) == [0, 1, 2, 3, 4, 5]
    agent.pack(Range([simple(10)]))
    part.refresh()
    assert bounds(part) == (6, 13)
    agent.pack(Range([marker(13, 8, commit=False)], aborted=[(8, 6, 13)]))
    part.refresh()
    assert (bounds(part), values(storage, part, 0)) == ((14, 14), [0, 1, 2, 3, 4, 5, 10, 11, 12])
    assert values(storage, part, 0, committed=False) == [*range(9), 10, 11, 12]


def test_aborts_of_seals_and_ranges_are_found_ahead(remote_store: RemoteStore) -> None:
    """Data in a seal with its marker in a range; data in a range whose marker is sealed by the time it is read."""
    raw = remote_store.raw()
    raw.segment([transactional(0, 7, 3), transactional(3, 8, 3)])
    agent = Packing(raw)
    agent.lead()
    agent.pack(Range([marker(6, 7, commit=False), transactional(7, 9, 1)], aborted=[(7, 0, 6)]))
    agent.pack(Range([marker(8, 8, commit=True)]))
    agent.pack(Range([marker(9, 9, commit=False)], aborted=[(9, 7, 9)]))
    raw.publish()
    storage = remote_store.storage()
    part = opened(storage)
    assert values(storage, part, 0) == [3, 4, 5]
    raw.segment([marker(6, 7, commit=False), transactional(7, 9, 1), marker(8, 8, commit=True)], aborted=[(7, 0, 6)])
    raw.publish()
    part.refresh()
    assert [stretch(part, at).segment.packed for at in (6, 9)] == [False, True]
    assert values(storage, part, 0) == [3, 4, 5]


@pytest.mark.parametrize("start", [3, 6])
def test_the_marker_of_a_dead_branch_decides_nothing(remote_store: RemoteStore, start: int) -> None:
    """The new leader packs all again, or goes on behind what is left of the old range, which lists the abort."""
    raw = remote_store.raw()
    raw.segment([transactional(0, 7, 3)])
    before = raw.partition().open_transactions
    agent = Packing(raw)
    agent.lead()
    agent.pack(Range([simple(3), marker(6, 7, commit=False)], aborted=[(7, 0, 6)]))
    raw.publish()
    storage = remote_store.storage()
    part = opened(storage)
    assert (bounds(part), values(storage, part, 0)) == ((7, 7), [3, 4, 5])
    raw.partition().open_transactions = before
    other = Packing(raw, 6)
    other.lead(lineage=((EPOCH, 0), (EPOCH + 1, 6)), end=start)
    raw.publish()
    part.refresh()
    assert bounds(part) == (0, 6), "the range that lists nothing as open is not whole any more"
    commit = reseal(marker(6, 7, commit=True), leader_epoch=EPOCH + 1)
    other.pack(Range([simple(3), commit] if start == 3 else [commit]))
    part.refresh()
    assert (bounds(part), values(storage, part, 0)) == ((7, 7), list(range(6)))


def test_times_in_the_tail(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.times = True
    raw.segment([batch(0, [Record(0, T0), Record(1, T0 + 50)])])
    agent = Packing(raw)
    agent.lead()
    agent.pack(Range([batch(2, [Record(0, T0 + 10)])]))
    agent.pack(Range([batch(3, [Record(0, T0 + 100), Record(1, T0 + 90)])]))
    agent.pack(Range([batch(5, [Record(0, T0 + 60)])]))
    raw.publish()
    storage, store = remote_store.counted()
    part = opened(storage)
    assert part.offset_for_time(T0 + 50) == OffsetForTime(1, T0 + 50, EPOCH)
    store.reset()
    assert part.offset_for_time(T0 + 51) == OffsetForTime(3, T0 + 100, EPOCH)
    assert store.requests == {"get_range": 1}, "the one range that is late enough, and no index"
    assert part.offset_for_time(T0 + 101) is None


def test_times_beyond_what_is_decided(remote_store: RemoteStore) -> None:
    _, agent = follows(remote_store)
    late = Record(0, T0 + 90)
    open_batch = batch(9, [late], attributes=0x10, producer_id=7, producer_epoch=0, base_sequence=0)
    agent.pack(Range([open_batch]))
    part = opened(remote_store.storage())
    assert part.offset_for_time(T0 + 90) == OffsetForTime(9, T0 + 90, EPOCH)
    assert part.offset_for_time(T0 + 90, committed=True) is None


def test_a_tail_behind_a_gap(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0)])
    known = raw.partition()
    known.gaps, known.next_offset = [raw.gap(3, 6, "failed_disk")], 3
    agent = Packing(raw)
    agent.lead(end=6)
    agent.pack(Range([simple(6)]))
    raw.publish()
    storage = remote_store.storage()
    part = opened(storage)
    gap = part.gap_at(3)
    assert gap is not None
    assert (gap.end, bounds(part), values(storage, part, 6)) == (6, (9, 9), [6, 7, 8])
    raw.acknowledge(3, 6)
    part.refresh()
    assert stretch(part, 3, committed=True).start == 6


def test_a_compacted_range(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0)], next_offset=5, compacted=True)
    agent = Packing(raw)
    agent.lead()
    agent.pack(Range([simple(7, 1), simple(10, 1)], compacted=True))
    agent.pack(Range([simple(13, 1)], compacted=True))
    raw.publish()
    storage = remote_store.storage()
    part = opened(storage)
    assert (bounds(part), values(storage, part, 0)) == ((14, 14), [0, 1, 2, 7, 10, 13])


def test_a_head_of_the_dead_branch_that_says_nothing_of_what_lies_below_its_seals(remote_store: RemoteStore) -> None:
    """The election is unclean below the seals: the old entry's lineage begins above the cut, its ranges below."""
    raw = remote_store.raw()
    old = ((EPOCH, 0), (EPOCH + 1, 9))
    raw.segment([simple(0)])
    agent = Packing(raw)
    chain = agent.lead(lineage=old)
    agent.pack(Range([simple(3), simple(6), simple(9, leader_epoch=EPOCH + 1), simple(12, leader_epoch=EPOCH + 1)]))
    raw.segment([simple(3), simple(6), simple(9, leader_epoch=EPOCH + 1)])
    chain.lineage = old[1:]
    agent.put_head()
    raw.publish()
    storage = remote_store.storage()
    assert values(storage, opened(storage), 0) == list(range(15))
    other = Packing(raw, 6)
    known = raw.partition()
    known.end, known.line1 = 3, 0
    other.lead(lineage=((EPOCH, 0), (EPOCH + 2, 4)))
    other.pack(Range([simple(3, 1), simple(4, 2, leader_epoch=EPOCH + 2)]))
    raw.publish()
    part = opened(storage)
    assert bounds(part) == (6, 6), "offset 6 of the dead branch does not follow"
    assert values(storage, part, 0) == list(range(6))


def test_a_start_that_nobody_asks_for_is_looked_up_now_and_then(remote_store: RemoteStore) -> None:
    raw, _ = follows(remote_store)
    storage, store = remote_store.counted()
    part = opened(storage)
    bury(raw, 0, 3)
    raw.store.delete(raw.keys().segment(SegmentName(0), "manifest.json"))
    store.reset()
    part.refresh(3600)
    assert (part.start, [key for key in store.keys if "_tombstones" in key]) == (0, [])
    with pytest.raises(OutOfRange, match="read from 3 on"):
        opened(storage).next_stretch(0, committed=True)
    part.refresh()
    assert part.start == 3


def test_lines_in_one_pack_are_read_once(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    agent = Packing(raw)
    for partition in range(6):
        raw.segment([simple(0)], partition)
        agent.lead(partition)
    raw.publish()
    storage, store = remote_store.counted()
    topics = RemoteTopics(storage)
    parts = [part for number in range(4) if (part := topics.partition("orders", number))]
    for tick in (3, 6, 9):
        agent.pack(*(Range([simple(tick)], partition) for partition in range(6)))
        store.reset()
        for part in parts:
            part.refresh()
            assert part.end(committed=True) == tick + 3
        assert store.requests["get_range"] == 1, "lines of the four partitions"
    late = topics.partition("orders", 5)
    assert late is not None
    assert late.end(committed=True) == 12
