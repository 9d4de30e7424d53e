"""Packs are read back as they were written; whatever else lies under a key is refused by object, field and rule."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.tidemark.formats.packing import (
    CONTROL,
    MAGIC,
    NAME,
    NOON,
    POINTER,
    TOPIC_ID,
    content,
    line,
    pack_of,
    parts_of,
    trailer,
)
from tests.tidemark.kafka_log.build import marker, simple, transactional
from tests.tidemark.remote.world import Counting
from tidemark.errors import FormatError, NotFound, StoreError
from tidemark.formats.keys import PackName
from tidemark.formats.raw import pack
from tidemark.formats.raw.pack import (
    MOST_BYTES,
    MOST_FOOTER,
    MOST_LINE,
    MOST_RANGES,
    TRAILER_SIZE,
    Pack,
    PackedRange,
    Range,
    RangeContent,
    RangePointer,
    build,
    line_bytes,
    pack_name,
)
from tidemark.kafka_log import AbortedTransaction, OpenTransaction, SegmentScanner
from tidemark.raw.packs import read_footer, read_range_bytes, read_range_line
from tidemark.storage import ClusterStore
from tidemark.store import LocalStore

KEY = CONTROL.pack(NAME)


class Disk(Counting):
    """A directory, whose requests are counted."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalStore(root))
        self.root = root

    def place(self, body: bytes, key: str = KEY) -> str:
        """Put ``body``, quickly, and count from zero."""
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        self.reset()
        return key


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    return Disk(tmp_path_factory.mktemp("packs"))


# -- what is written is read back --------------------------------------------------------------------------------------


def opened(producer_id: int, first_offset: int) -> OpenTransaction:
    return OpenTransaction(producer_id=producer_id, producer_epoch=0, first_offset=first_offset)


@st.composite
def contents(draw: st.DrawFn) -> RangeContent:
    first = draw(st.integers(0, 2**62))
    end = first + draw(st.integers(1, 5000))
    starts = sorted(draw(st.sets(st.integers(first, end - 1), min_size=1, max_size=4)))
    count = len(starts)
    epochs = sorted(draw(st.sets(st.integers(-1, 1000), min_size=count, max_size=count)))
    producers = sorted(draw(st.sets(st.integers(0, 2**40), max_size=3)))
    markers = sorted(draw(st.sets(st.integers(max(first, 1), end - 1), max_size=3))) if end - 1 >= max(first, 1) else []
    return content(
        first,
        end,
        topic=draw(st.sampled_from(["orders", "a" * 249, "x.y-z_0"])),
        partition=draw(st.integers(0, 10_000)),
        epochs=list(zip(epochs, starts, strict=True)),
        leader_epoch=max(epochs[-1], 0) + draw(st.integers(0, 3)),
        open=[
            {"producer_id": p, "producer_epoch": 1, "first_offset": draw(st.integers(0, end - 1))} for p in producers
        ],
        aborts=[{"producer_id": 7, "first_offset": draw(st.integers(0, at - 1)), "last_offset": at} for at in markers],
        max_timestamp=draw(st.none() | st.integers(-1, 2**50)),
        previous=draw(st.none() | st.just(POINTER)),
    )


@given(st.lists(st.tuples(contents(), st.binary(min_size=1, max_size=200)), min_size=1, max_size=200))
def test_packs_round_trip(disk: Disk, ranges: list[tuple[RangeContent, bytes]]) -> None:
    [built] = build(5, ranges)
    key = disk.place(built.body, CONTROL.pack(built.name))
    stored = read_footer(disk, key, len(built.body))
    footer_size = len(parts_of(built.body)[1])
    assert disk.requests == {"get_range": 1 if footer_size + TRAILER_SIZE <= 64 << 10 else 2}
    assert [(one.range.part, one.range.size) for one in stored] == [(one.part, one.size) for one in built.ranges]
    for (given_content, data), one, written in zip(ranges, stored, built.ranges, strict=True):
        assert RangeContent.model_validate(one.range.model_dump()) == given_content
        assert (written.part.first, written.begins_chain) == (given_content.first, given_content.previous is None)
        assert written.part.shipped_at == given_content.shipped_at
        assert str(one.range) == str(given_content)
        disk.reset()
        assert read_range_line(ClusterStore(disk, CONTROL), written.pointer) == one
        assert disk.requests == {"get_range": 1}
        assert read_range_bytes(disk, one) == data
        assert disk.requests == {"get_range": 2}
        assert written.pointer.length <= line_bytes(given_content)


def test_real_batches_are_untouched(disk: Disk) -> None:
    batches = transactional(1200, 7, 3) + marker(1203, 8, commit=False) + simple(1210)
    aborted = AbortedTransaction(8, 1190, 1203)
    of = content(1200, 1213, open=(opened(7, 1200),), aborts=(aborted,))
    [built] = build(5, [(content(0, 3, partition=0, epochs=[(3, 0)]), simple(0)), (of, batches)])
    [_, packed] = read_footer(disk, disk.place(built.body))
    assert disk.requests == {"head": 1, "get_range": 1}, "without the size that a listing has, one more request"
    scanner = SegmentScanner(packed.key, packed.range.first)
    scanner.feed(read_range_bytes(disk, packed))
    summary = scanner.finish()
    assert (summary.next_offset, summary.epochs, f"{summary.crc32c:08x}") == (1213, ((3, 1200),), packed.range.crc32c)
    assert summary.open_transactions[0] == packed.range.open[0]


def test_the_layout_is_the_documented_one() -> None:
    [built] = build(5, [(content(), b"batch")])
    data, footer, end = parts_of(built.body)
    assert (data, footer) == (b"batch", line(0, 5, crc32c=built.ranges[0].part.crc32c))
    assert end == trailer(5, footer, 1)
    assert end[:8] == MAGIC
    assert footer.startswith(b'{"aborts":[],"compacted":false,"crc32c":"')
    assert built.ranges[0].pointer == RangePointer(pack=str(built.name), position=5, length=len(footer))


def test_a_reader_ignores_what_a_newer_writer_adds(disk: Disk) -> None:
    [packed] = read_footer(disk, disk.place(pack_of(b"abc", line(0, 3, added_later=[1]))))
    assert packed.range.size == 3


def test_names_are_random() -> None:
    names = {pack_name() for _ in range(1000)}
    assert len(names) == 1000
    assert all(PackName.parse(f"5/{name}.pack") == (5, name) for name in names)


# -- the limits of a writer --------------------------------------------------------------------------------------------


def sizes(packs: Iterator[Pack]) -> list[int]:
    return [len(one.ranges) for one in packs]


def test_what_has_no_room_goes_into_another_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sizes(build(5, [])) == []
    of = content()
    assert sizes(build(5, ((of, b"b") for _ in range(MOST_RANGES + 1)))) == [MOST_RANGES, 1]
    half = bytes(MOST_BYTES // 2)
    assert sizes(build(5, [(of, half), (of, half), (of, b"b")])) == [2, 1]
    assert sizes(build(5, [(of, b"b"), (of, bytes(MOST_BYTES))])) == [1, 1]
    monkeypatch.setattr(pack, "MOST_FOOTER", 3 * line_bytes(of))
    assert sizes(build(5, [(of, b"b")] * 7)) == [3, 3, 1]


def test_packs_of_one_tick_have_names_of_their_own() -> None:
    first, second = build(5, [(content(), bytes(MOST_BYTES))] * 2)
    assert first.name != second.name
    assert {first.name.broker, second.name.broker} == {5}
    assert {one.pointer.pack for one in second.ranges} == {str(second.name)}


@pytest.mark.parametrize("size", [0, MOST_BYTES + 1])
def test_batches_that_no_pack_may_have_are_refused(size: int) -> None:
    told = rf"5/\w+\.pack: orders-17 from 1200 to 1260: size: has {size} bytes .* cut the range, or seal the partition"
    with pytest.raises(FormatError, match=told):
        Pack(NAME).add(content(), bytes(size))


def with_open(count: int) -> RangeContent:
    return content(open=[opened(10**6 + one, 1200) for one in range(count)])


def test_a_line_that_is_too_long_is_refused_wherever_it_would_lie() -> None:
    each = line_bytes(with_open(11)) - line_bytes(with_open(10))
    most = 10 + (MOST_LINE - line_bytes(with_open(10))) // each
    built = Pack(NAME)
    assert built.add(with_open(most), b"b")
    assert line_bytes(with_open(most + 1)) > MOST_LINE
    told = rf"open, aborts, epochs: the line takes {line_bytes(with_open(most + 1))} bytes, and may have 65536"
    with pytest.raises(FormatError, match=told):
        built.add(with_open(most + 1), b"b")
    assert len(built.ranges) == 1, "and the pack goes on without it"
    assert most > 700


WRONG = [
    ({"next": 1200}, "first must be below next"),
    ({"epochs": []}, "epochs"),
    ({"epochs": [(4, 1200)]}, "epochs must be from -1 to leader_epoch"),
    ({"epochs": [(-2, 1200)]}, "epochs must be from -1 to leader_epoch"),
    ({"epochs": [(3, 1199)]}, "epochs must start from first on and below next"),
    ({"epochs": [(3, 1260)]}, "epochs must start from first on and below next"),
    ({"epochs": [(2, 1200), (3, 1200)]}, "epochs and their starts must increase"),
    ({"epochs": [(0, 1200), (2, 1210), (1, 1220), (3, 1230)]}, "epochs and their starts must increase"),
    ({"open": [asdict(opened(7, 1260))]}, "open: a transaction must begin below"),
    ({"open": [asdict(opened(7, at)) for at in (3, 5)]}, "open: a producer"),
    ({"aborts": [{"producer_id": 7, "first_offset": 1201, "last_offset": 1201}]}, "aborts: a transaction must begin"),
    ({"aborts": [{"producer_id": 7, "first_offset": 1201, "last_offset": 1260}]}, "aborts: a transaction must begin"),
    ({"aborts": [{"producer_id": 7, "first_offset": 1, "last_offset": 1199}]}, "aborts: markers must be from first"),
    ({"aborts": [{"producer_id": p, "first_offset": 1, "last_offset": 1201} for p in (7, 8)]}, "and increase"),
    ({"topic": "a/b"}, "topic: .* is not a valid topic name"),
    ({"topic_id": "short"}, "topic_id"),
    ({"topic_id": TOPIC_ID + "\n"}, "topic_id"),
    ({"topic_id": None}, "topic_id"),
    ({"partition": -1}, "partition"),
    ({"leader_epoch": -1}, "leader_epoch"),
    ({"first": "1200x"}, "first"),
    ({"first": 1 << 63}, "first"),
    ({"shipped_at": "2026-11-23T06:19:09"}, "shipped_at"),
    ({"previous": {"pack": "../x", "position": 1, "length": 1}}, r"previous\.pack: .* is not a pack"),
    ({"previous": {"pack": str(NAME), "position": 0, "length": 1}}, r"previous\.position"),
    ({"previous": {"pack": str(NAME), "position": 1, "length": MOST_LINE + 1}}, r"previous\.length"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "rule"), WRONG)
def test_ranges_that_contradict_themselves_are_refused(disk: Disk, changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError):
        content(**changes)
    body = pack_of(b"abc", line(0, 3, **changes))
    with pytest.raises(
        FormatError, match=rf"^{KEY}: range 0: .*{rule}.*; restore it from a version of the bucket, or wait"
    ):
        read_footer(disk, disk.place(body), len(body))
    pointer = RangePointer(pack=str(NAME), position=3, length=len(body) - TRAILER_SIZE - 3)
    with pytest.raises(FormatError, match=rf"^{KEY}: line at byte 3: .*{rule}"):
        read_range_line(ClusterStore(disk, CONTROL), pointer)


# -- what may lie under a pack's key -----------------------------------------------------------------------------------


def refused(disk: Disk, body: bytes, rule: str) -> None:
    disk.place(body)
    with pytest.raises(FormatError, match=rf"^{KEY}: .*{rule}") as raised:
        read_footer(disk, KEY, len(body))
    assert len(str(raised.value)) < 2000
    assert disk.requests["get_range"] <= 2


def test_each_byte_of_trailer_and_footer_counts(disk: Disk) -> None:
    [built] = build(5, [(content(), b"batch"), (content(1260, 1300), b"more")])
    data, footer, end = parts_of(built.body)
    for at in range(len(data), len(built.body)):
        for flipped in (1, 0x80, 0xFF):
            damaged = bytearray(built.body)
            damaged[at] ^= flipped
            refused(disk, bytes(damaged), "footer: its CRC32C" if at < len(data + footer) else "trailer: ")
    assert len(end) == TRAILER_SIZE


def test_each_byte_of_a_range_counts(disk: Disk) -> None:
    [built] = build(5, [(content(), b"batch"), (content(1260, 1300), b"more")])
    for at in range(9):
        damaged = bytearray(built.body)
        damaged[at] ^= 1
        first, second = read_footer(disk, disk.place(bytes(damaged)))
        good, bad = (second, first) if at < 5 else (first, second)
        assert read_range_bytes(disk, good)
        told = rf"^{KEY}: {bad.range}: crc32c: bytes {bad.range.position} to {bad.range.end} have .*; restore it"
        with pytest.raises(FormatError, match=told):
            read_range_bytes(disk, bad)


def test_an_object_that_is_cut_short_or_goes_on_is_refused(disk: Disk) -> None:
    [built] = build(5, [(content(), b"batch")])
    for size in range(len(built.body)):
        refused(disk, built.body[:size], "trailer: is not that of a pack")
    refused(disk, b"x" + built.body, "do not end before the trailer of a pack of")
    refused(disk, built.body[1:], "do not end before the trailer of a pack of")
    refused(disk, built.body + b"x", "trailer: is not that of a pack")


LINE = line(0, 3)


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (b"abc" + LINE + trailer(3, LINE, 1, b"TMPACK\0\2"), "has format 2 of packs, and Tidemark .* reads .* up to 1"),
        (b"abc" + LINE + trailer(3, LINE, 1, b"TMPACK\1\1"), "trailer: is not that of a pack"),
        (b"abc" + LINE + trailer(3, LINE, 1)[:-1] + b"\0", "trailer: its CRC32C is not the one at its end"),
        (pack_of(b"abc", LINE, position=1 << 40), "footer: has .* and may have"),
        (pack_of(b"abc", LINE, length=MOST_FOOTER + 1), "footer: has .* and may have"),
        (pack_of(b"abc", LINE, position=4), "footer: .* do not end before the trailer"),
        (pack_of(b"abc", LINE, length=5), "footer: .* do not end before the trailer"),
        (pack_of(b"abc", LINE, count=0), "trailer: 0 ranges"),
        (pack_of(b"abc", LINE, count=MOST_RANGES + 1), "trailer: 8193 ranges, and a pack has 1 to 8192"),
        (pack_of(b"abc", LINE, count=2), "footer: has not one line for each of 2 ranges"),
        (pack_of(b"abc", LINE, LINE, count=1), "footer: has not one line for each of 1 ranges"),
        (pack_of(b"abc", LINE, crc32c=1), "footer: its CRC32C is not 00000001"),
        (pack_of(b"abc", LINE[:-1]), "footer: has not one line"),
        (pack_of(b"abc", b"\n", LINE[:-1], count=1), "footer: has not one line"),
        (pack_of(b"abc", b"\n" * (1 << 20), count=9), "footer: has not one line"),
        (pack_of(b"abc", b"\n"), "range 0: object: Invalid JSON"),
        (pack_of(b"abc", b"[]\n"), "range 0: object: Input should be an object"),
        (pack_of(b"abc", b"{\n"), "range 0: object: Invalid JSON"),
        (pack_of(b"abc", b"{}\n"), "range 0: topic: Field required"),
        (pack_of(b"abc", b"\xff\n"), "range 0: object: Invalid JSON"),
        (pack_of(b"abc", b"[" * 60_000 + b"\n"), "range 0: object: Invalid JSON"),
        (pack_of(b"abc", line(0, 3, crc32c="XYZ")), "range 0: crc32c"),
        (pack_of(b"abc", line(0, 3, size="far")), "range 0: size"),
        (pack_of(b"abc", line(0, 0)), "range 0: size"),
        (pack_of(b"abc", line(0, 3, position=-1)), "range 0: position"),
        (pack_of(b"abc", line(MOST_BYTES, 3)), "range 0: .*position and size must end at or below"),
        (pack_of(b"abc", line(1, 2)), "range 0: position: is 1, and the range before it ends at 0"),
        (pack_of(b"abc", line(0, 2), line(1, 2)), "range 1: position: is 1, and the range before it ends at 2"),
        (pack_of(b"abc", line(0, 2)), "footer: begins at 3, and the last range ends at 2"),
        (pack_of(b"abc", line(0, 4)), "footer: begins at 3, and the last range ends at 4"),
        (pack_of(b"abc", line(0, 3, more="x" * MOST_LINE)), "range 0: has .* bytes, and may have 65536"),
    ],
)
def test_a_pack_that_does_not_hold_is_named(disk: Disk, body: bytes, rule: str) -> None:
    refused(disk, body, rule)


def test_an_object_that_is_too_large_is_refused_before_it_is_read(disk: Disk) -> None:
    disk.place(b"")
    with (disk.root / KEY).open("wb") as file:
        file.truncate(MOST_BYTES + MOST_FOOTER + TRAILER_SIZE + 1)
    with pytest.raises(FormatError, match="objects of its kind have at most 83886112"):
        read_footer(disk, KEY, MOST_BYTES + MOST_FOOTER + TRAILER_SIZE + 1)
    assert not disk.requests


def test_a_large_footer_is_read_by_a_second_request(disk: Disk) -> None:
    [built] = build(5, [(content(), b"b")] * 1000)
    assert len(read_footer(disk, disk.place(built.body), len(built.body))) == 1000
    assert disk.requests == {"get_range": 2}


@pytest.mark.parametrize(
    ("position", "length", "rule"),
    [
        (3, len(LINE) - 1, "does not end with its only newline"),
        (3, len(LINE) + 1, "does not end with its only newline"),
        (4, len(LINE) - 1, "Invalid JSON"),
        (2, len(LINE) + 1, "Invalid JSON"),
        (3, len(LINE) + len(line(3, 3)), "does not end with its only newline"),
        (3 + len(LINE), len(line(3, 3)), None),
    ],
)
def test_a_pointer_that_misses_its_line_is_noticed(disk: Disk, position: int, length: int, rule: str | None) -> None:
    disk.place(pack_of(b"abc", LINE, line(3, 3)))
    pointer = RangePointer(pack=str(NAME), position=position, length=length)
    if rule is None:
        assert read_range_line(ClusterStore(disk, CONTROL), pointer).range.position == 3
    else:
        with pytest.raises(FormatError, match=rf"^{KEY}: line at byte {position}: .*{rule}"):
            read_range_line(ClusterStore(disk, CONTROL), pointer)
    assert disk.requests == {"get_range": 1}


def test_a_line_in_front_of_its_own_range_is_refused(disk: Disk) -> None:
    disk.place(b"ab" + LINE)
    with pytest.raises(FormatError, match="position, size: the range ends at 3, behind its own line"):
        read_range_line(ClusterStore(disk, CONTROL), RangePointer(pack=str(NAME), position=2, length=len(LINE)))


def test_what_is_not_there_is_the_stores_matter(disk: Disk) -> None:
    disk.place(pack_of(b"abc", LINE))
    with pytest.raises(StoreError, match="has no bytes"):
        read_range_line(ClusterStore(disk, CONTROL), RangePointer(pack=str(NAME), position=3, length=9999))
    gone = CONTROL.pack(PackName(5, "ab" * 16))
    one = Range(**dict(content()), position=0, size=3, crc32c="00000000")
    calls: list[Callable[[], object]] = [
        lambda: read_footer(disk, gone),
        lambda: read_footer(disk, gone, 100),
        lambda: read_range_line(
            ClusterStore(disk, CONTROL), RangePointer(pack=f"5/{'ab' * 16}.pack", position=3, length=9)
        ),
        lambda: read_range_bytes(disk, PackedRange(gone, one)),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            call()


# -- any bytes ---------------------------------------------------------------------------------------------------------


def mutated(rng: random.Random, body: bytes) -> bytes:
    """``body`` with a few bytes changed, taken out, doubled or put in."""
    found = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(len(found) + 1), rng.randint(0, 6)
        piece = bytes(found[at : at + size])
        found[at : at + size] = rng.choice([rng.randbytes(size), b"", piece * 2, b"0", b'"', b"-", b"9" * 30, b"\n"])
    return bytes(found)


def test_any_bytes_give_ranges_or_a_format_error(
    disk: Disk, rng: random.Random, full: bool, tried: Callable[[str, int], None]
) -> None:
    [built] = build(5, [(content(), b"batch"), (with_open(2), b"more")])
    data, footer, _ = parts_of(built.body)
    count, good = (100_000 if full else 3000), 0
    for number in range(count):
        kind = number % 3
        if kind == 0:
            body = rng.randbytes(rng.randrange(400))
        elif kind == 1:
            body = mutated(rng, built.body)
        else:  # so that the parser gets to see it
            lines = mutated(rng, footer)
            body = data + lines + trailer(len(data), lines, lines.count(b"\n"))
        disk.place(body)
        try:
            for packed in read_footer(disk, KEY, len(body)):
                good += 1
                read_range_bytes(disk, packed)
        except FormatError as error:
            assert error.name == KEY  # noqa: PT017  # a read may succeed
        position = rng.randrange(1, max(2, len(body) - 1))
        if position < len(body):
            pointer = RangePointer(pack=str(NAME), position=position, length=rng.randint(1, len(body) - position))
            try:
                read_range_line(ClusterStore(disk, CONTROL), pointer)
            except FormatError as error:
                assert error.name == KEY  # noqa: PT017  # likewise
    tried("damaged packs", count)
    assert good


def test_times_are_stated_in_full() -> None:
    assert line(0, 3, content(shipped_at=NOON)).count(b'"shipped_at":"2026-11-23T12:00:00.123000Z"') == 1
