"""Chains of packed ranges: followed backwards, checked range by range, and judged by lineage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidemark.formats.packing import CONTROL, TOPIC_ID, content, entry, line, pack_of
from tests.tidemark.remote.world import Counting
from tidemark.errors import AccessDenied, FormatError, UnknownOutcome
from tidemark.formats.keys import PackName
from tidemark.formats.raw.head import HeadEntry
from tidemark.formats.raw.pack import PackedRange, Range, RangePointer, build
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.raw import packs
from tidemark.raw.packs import MOST_CHAIN, RangeLines, chain, live_end, live_part, packed_end, read_range_bytes
from tidemark.storage import ClusterStore
from tidemark.store import LocalStore, ObjectInfo


class Tail:
    """What an agent packs of orders-17, tick by tick, from ``end`` on."""

    def __init__(self, root: Path, end: int = 1000) -> None:
        self.store = Counting(LocalStore(root))
        self.end = end
        self.last: list[RangePointer] = []

    def pack(self, end: int, broker: int = 5, **changes: Any) -> RangePointer:
        """Pack up to ``end``, between the ranges of other partitions; the checks may be cheated by ``changes``."""
        fields = {"previous": self.last[-1] if self.last else None, **changes}
        first = fields.pop("first", self.end)
        others = [(content(0, 9, partition=other, epochs=[(3, 0)]), b"other") for other in (1, 2)]
        ranges = [others[0], (content(first, end, **fields), b"%d" % end), others[1]]
        [built] = build(broker, ranges)
        self.store.put(CONTROL.pack(built.name), built.body, if_none_match=True)
        self.last.append(built.ranges[1].pointer)
        self.end = end
        return self.last[-1]

    def entry(self, **changes: Any) -> HeadEntry:
        return entry(self.end, self.last[-1], **changes)

    def read(self, end_of_seals: int, of: HeadEntry | None = None) -> list[tuple[int, int]]:
        """The ranges that the chain gives, in short."""
        self.store.reset()
        found = chain(ClusterStore(self.store, CONTROL), of or self.entry(), end_of_seals)
        assert set(self.store.requests) <= {"get_range"}, "and nothing is listed"
        return [(one.range.first, one.range.next) for one in found]


@pytest.fixture
def tail(tmp_path: Path) -> Tail:
    found = Tail(tmp_path)
    for end in (1100, 1110, 1200, 1260):
        found.pack(end)
    return found


@pytest.mark.parametrize(
    ("end_of_seals", "expected"),
    [
        (1260, []),
        (9999, []),
        (1259, [(1200, 1260)]),
        (1200, [(1200, 1260)]),
        (1199, [(1110, 1200), (1200, 1260)]),
        (1105, [(1100, 1110), (1110, 1200), (1200, 1260)]),
        (1000, [(1000, 1100), (1100, 1110), (1110, 1200), (1200, 1260)]),
        (0, [(1000, 1100), (1100, 1110), (1110, 1200), (1200, 1260)]),
    ],
)
def test_a_chain_is_read_back_to_the_end_of_the_seals(
    tail: Tail, end_of_seals: int, expected: list[tuple[int, int]]
) -> None:
    assert tail.read(end_of_seals) == expected
    assert tail.store.requests["get_range"] == len(expected), "one request a range"


def test_the_bytes_of_a_chain_are_those_that_were_packed(tail: Tail) -> None:
    found = chain(ClusterStore(tail.store, CONTROL), tail.entry(), 1000)
    assert [read_range_bytes(tail.store, one) for one in found] == [b"1100", b"1110", b"1200", b"1260"]
    assert [one.key for one in found] == [CONTROL.pack(pointer.name) for pointer in tail.last]


def test_a_chain_ends_where_a_pack_is_gone(tail: Tail) -> None:
    tail.store.delete(CONTROL.pack(tail.last[1].name))
    assert tail.read(1000) == [(1110, 1200), (1200, 1260)]
    assert tail.store.requests["get_range"] == 3
    tail.store.delete(CONTROL.pack(tail.last[3].name))
    assert tail.read(1000) == []


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"topic_id": "A" * 22}, f"is of orders-17 with the topic id {'A' * 22}"),
        ({"topic": "clicks"}, "is of clicks-17"),
        ({"partition": 16}, "is of orders-16"),
        ({"leader_epoch": 4}, "leader_epoch: is 4"),
        ({"broker": 6}, "is of broker 6"),
        ({"end": 1109}, "next: is 1109, and should be 1110, where the chain continues"),
        ({"end": 1111}, "next: is 1111, and should be 1110, where the chain continues"),
    ],
)
def test_a_range_that_does_not_belong_to_the_chain_is_named(tmp_path: Path, changes: dict[str, Any], rule: str) -> None:
    tail = Tail(tmp_path)
    tail.pack(1100)
    wrong = tail.pack(**{"end": 1110, **changes})
    tail.end = 1110
    tail.pack(1200)
    tail.pack(1260)
    assert tail.read(1110) == [(1110, 1200), (1200, 1260)], "nobody asks for it"
    key = CONTROL.pack(wrong.name)
    told = rf"^{key}: line at byte \d+: {rule}.* in the chain of orders-17, topic id {TOPIC_ID}, epoch 3: damaged"
    with pytest.raises(FormatError, match=told):
        tail.read(1000)
    assert tail.store.requests["get_range"] == 3


def test_an_entry_that_names_another_range_than_its_own_is_refused(tail: Tail) -> None:
    for of, rule in [
        (entry(1270, tail.last[-1]), "next: is 1260, and should be 1270"),
        (entry(1260, tail.last[-2]), "next: is 1200, and should be 1260"),
        (tail.entry(partition=18), "is of orders-17"),
        (tail.entry(topic_id="A" * 22), "is of orders-17"),
        (tail.entry(epoch=4, lineage=[(4, 1000)]), "leader_epoch: is 3"),
    ]:
        with pytest.raises(FormatError, match=rule):
            tail.read(1000, of)
        assert tail.store.requests["get_range"] == 1


def going_on(tail: Tail, name: PackName, first: int, end: int, to: PackName) -> RangePointer:
    """Store a pack whose only range goes on at the only one of the pack ``to``, which is as long."""
    length = len(line(0, 1000, content(first, end, previous=RangePointer(pack=str(to), position=1000, length=500))))
    of = content(first, end, previous=RangePointer(pack=str(to), position=1000, length=length))
    tail.store.put(CONTROL.pack(name), pack_of(bytes(1000), line(0, 1000, of)))
    return RangePointer(pack=str(name), position=1000, length=length)


A, B, C = (PackName(5, digit * 32) for digit in "abc")


@pytest.mark.parametrize(
    ("ranges", "rule", "requests"),
    [
        ([(A, 1200, 1260, A)], "next: is 1260, and should be 1200", 2),
        ([(A, 1200, 1260, B), (B, 1110, 1200, A)], "next: is 1260, and should be 1110", 3),
        ([(A, 1200, 1260, B), (B, 1110, 1200, C), (C, 1100, 1110, B)], "next: is 1200, and should be 1100", 4),
        ([(A, 1200, 1260, B), (B, 1100, 1110, C)], "next: is 1110, and should be 1200", 2),
        ([(A, 1200, 1260, B), (B, 1190, 1250, C)], "next: is 1250, and should be 1200", 2),
    ],
)
def test_a_chain_that_loops_skips_or_repeats_ends_with_an_error(
    tail: Tail, ranges: list[tuple[PackName, int, int, PackName]], rule: str, requests: int
) -> None:
    tail.last = [going_on(tail, *one) for one in ranges][:1]
    with pytest.raises(FormatError, match=rf"{rule}, where the chain continues"):
        tail.read(0)
    assert tail.store.requests["get_range"] == requests


def test_a_chain_of_too_many_ranges_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_CHAIN == 512
    monkeypatch.setattr(packs, "MOST_CHAIN", 5)
    tail = Tail(tmp_path)
    for end in range(1001, 1008):
        tail.pack(end)
    assert len(tail.read(1002)) == 5
    told = r"_tails/east/5/\w+\.pack: the chain of orders-17 from 1002 to 1003 has more than 5 ranges above offset 1001"
    with pytest.raises(FormatError, match=told):
        tail.read(1001)
    assert tail.store.requests["get_range"] == 5


def test_a_damaged_line_is_named(tail: Tail) -> None:
    key = CONTROL.pack(tail.last[1].name)
    body = tail.store.get(key).body
    tail.store.put(key, body.replace(b'"partition":17', b'"partition":-1'))
    with pytest.raises(FormatError, match=rf"^{key}: line at byte \d+: partition"):
        tail.read(1000)


def test_a_store_that_fails_is_not_a_chain_that_ends(tail: Tail) -> None:
    def failing(*_: Any) -> PackedRange:
        raise AccessDenied("k", "not with this key")

    with pytest.raises(AccessDenied):
        chain(ClusterStore(tail.store, CONTROL), tail.entry(), 1000, failing)


# -- what is live ------------------------------------------------------------------------------------------------------


def packed(first: int, end: int, *epochs: tuple[int, int]) -> Range:
    of = content(first, end, epochs=epochs, leader_epoch=max(9, epochs[-1][0]))
    return Range(**dict(of), position=0, size=1, crc32c="00000000")


@pytest.mark.parametrize(
    ("one", "lineage", "live"),
    [
        (packed(100, 200, (3, 100)), [(3, 50)], [(100, 200)]),
        (packed(100, 200, (3, 100)), [(3, 50), (5, 150)], [(100, 150)]),
        (packed(100, 200, (3, 100)), [(3, 50), (5, 100)], []),
        (packed(100, 200, (3, 100)), [(2, 50), (5, 150)], []),
        (packed(100, 200, (3, 100)), [(4, 50)], []),
        (packed(100, 200, (3, 100)), [(3, 150)], [(150, 200)]),
        (packed(100, 200, (3, 100)), [], []),
        (packed(100, 200, (2, 100), (3, 150)), [(2, 0), (3, 150)], [(100, 200)]),
        (packed(100, 200, (2, 100), (3, 150)), [(2, 0), (3, 140)], [(100, 200)]),
        (packed(100, 200, (2, 100), (3, 150)), [(2, 0), (4, 180)], [(100, 150)]),
        (packed(100, 200, (2, 100), (3, 150)), [(2, 0), (3, 160)], [(100, 200)]),
        (packed(100, 200, (2, 120), (3, 150)), [(2, 0), (3, 150)], [(100, 200)]),
        (packed(100, 200, (2, 120), (3, 150)), [(3, 150)], [(150, 200)]),
        (packed(100, 200, (-1, 100), (3, 150)), [(3, 150)], [(100, 200)]),
        (packed(100, 200, (-1, 100)), [], [(100, 200)]),
        (packed(100, 200, (-1, 100)), [(3, 120)], [(100, 120)]),
    ],
)
def test_what_of_a_range_is_live(one: Range, lineage: Sequence[tuple[int, int]], live: list[tuple[int, int]]) -> None:
    assert live_part(one, Lineage(tuple(lineage))) == Intervals(live)


@st.composite
def lineages(draw: st.DrawFn) -> tuple[Lineage, Lineage]:
    """Two lineages with one past: an election began an epoch that one of them lacks, and retention cut one of them."""
    starts = sorted(draw(st.sets(st.integers(1, 60), max_size=6)))
    past = draw(st.integers(0, len(starts)))
    mine, theirs = [(0, 0)], [(0, 0)]
    for epoch, start in enumerate(starts, 1):
        for one in (mine, theirs) if epoch <= past else [draw(st.sampled_from([mine, theirs]))]:
            one.append((epoch, start))
    start = draw(st.integers(0, 60))
    (epoch, _), *later = Lineage(tuple(theirs)).since(start).entries
    return Lineage(tuple(mine)), Lineage(((epoch, start), *later))


@st.composite
def logs(draw: st.DrawFn) -> tuple[Range, list[tuple[int, int]], Lineage]:
    """A range as compaction may have left it, the (base offset, epoch) of its batches, and another log's lineage."""
    own, lineage = draw(lineages())
    bases = sorted(draw(st.sets(st.integers(10, 50), min_size=1, max_size=12)))
    batches = [(base, own.epoch_at(base) or 0) for base in bases]
    changes = [one for number, one in enumerate(batches) if not number or batches[number - 1][1] != one[1]]
    first = bases[0] - draw(st.integers(0, 10))
    after = bases[-1] + draw(st.integers(1, 10))
    return packed(first, after, *((epoch, base) for base, epoch in changes)), batches, lineage


@given(logs())
def test_the_live_part_has_the_live_batches_and_what_lies_between(
    log: tuple[Range, list[tuple[int, int]], Lineage],
) -> None:
    one, batches, lineage = log
    live = live_part(one, lineage)
    for base, epoch in batches:
        assert (base in live) == lineage.is_live(base, epoch)
    assert (one.first in live) == (batches[0][0] in live) or one.first == batches[0][0]
    assert len(live.parts) <= 1
    assert not live - Intervals([(one.first, one.next)])


@pytest.mark.parametrize(
    ("lineage", "end"),
    [
        ([(2, 900), (3, 1000)], 1260),
        ([(2, 900), (3, 1000), (5, 1260)], 1260),
        ([(2, 900), (3, 1000), (5, 1100)], 1100),
        ([(2, 900), (5, 950)], 950),
        ([(0, 0), (5, 800)], 800),
    ],
)
def test_a_tail_ends_where_it_leaves_the_lineage(tail: Tail, lineage: list[tuple[int, int]], end: int) -> None:
    assert live_end(tail.entry(), Lineage(tuple(lineage))) == end
    live = Intervals()
    for one in chain(ClusterStore(tail.store, CONTROL), tail.entry(), 0):
        live = live | live_part(one.range, Lineage(tuple(lineage)))
    assert live.missing(1000, 1260) == Intervals([(max(end, 1000), 1260)])
    assert packed_end(tail.entry(), Lineage(tuple(lineage))) == (end if end > 900 else 0)


def test_the_lines_of_a_pack_are_read_together_once_two_are_asked_for(tmp_path: Path) -> None:
    store = Counting(LocalStore(tmp_path))
    [built] = build(5, [(content(partition=number), b"%d" % number) for number in range(50)])
    store.put(CONTROL.pack(built.name), built.body, if_none_match=True)
    pointers, lines = [one.pointer for one in built.ranges], RangeLines()

    def read(pointer: RangePointer) -> tuple[int, int, int, str]:
        found = lines.read(ClusterStore(store, CONTROL), pointer).range
        return found.partition, found.first, found.next, found.crc32c

    wanted = [(number, one.part.first, one.part.next, one.part.crc32c) for number, one in enumerate(built.ranges)]
    assert read(pointers[7]) == wanted[7]
    assert store.requests == {"put": 1, "get_range": 1}
    assert [read(pointer) for pointer in (*pointers, *pointers)] == [*wanted, *wanted]
    assert store.requests == {"put": 1, "get_range": 2, "head": 1}


def test_a_pointer_to_no_line_is_refused_however_many_are_known(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    [built] = build(5, [(content(partition=number), b"%d" % number) for number in range(3)])
    store.put(CONTROL.pack(built.name), built.body, if_none_match=True)
    lines, pointer = RangeLines(), built.ranges[1].pointer
    wrong = pointer.model_copy(update={"position": pointer.position + 1})
    for one in built.ranges:
        lines.read(ClusterStore(store, CONTROL), one.pointer)
    with pytest.raises(FormatError, match=f"byte {wrong.position}: no line of the footer begins there"):
        lines.read(ClusterStore(store, CONTROL), wrong)


def test_a_pack_that_is_not_given_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that hangs has each reader wait for a minute."""
    store = Counting(LocalStore(tmp_path))
    [built] = build(5, [(content(partition=number), b"%d" % number) for number in range(3)])
    store.put(CONTROL.pack(built.name), built.body, if_none_match=True)
    lines = RangeLines()
    assert lines.read(ClusterStore(store, CONTROL), built.ranges[0].pointer).range.partition == 0

    def refuse(key: str, *_: object) -> ObjectInfo:
        raise UnknownOutcome(key, "no answer")

    monkeypatch.setattr(LocalStore, "head", lambda _, key: refuse(key))
    for one in built.ranges[1:]:
        with pytest.raises(UnknownOutcome):
            lines.read(ClusterStore(store, CONTROL), one.pointer)
    assert store.requests["head"] == 1
    assert lines.read(ClusterStore(store, CONTROL), built.ranges[0].pointer).range.partition == 0, "it is known"
