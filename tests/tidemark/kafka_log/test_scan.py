from __future__ import annotations

import random
import struct
import tracemalloc
import zlib

import pytest
from crc32c import crc32c

from tests.tidemark.kafka_log.build import (
    T0,
    Record,
    batch,
    empty,
    legacy,
    marker,
    reseal,
    reseal_legacy,
    simple,
    transactional,
)
from tidemark.errors import SegmentError
from tidemark.kafka_log import (
    BatchHeader,
    OpenTransaction,
    Rule,
    SegmentScanner,
    SegmentSummary,
    end_below,
    scan_batches,
)


def scan(data: bytes, base: int = 0, step: int = 1 << 20) -> SegmentSummary:
    scanner = SegmentScanner("segment.log", base)
    for at in range(0, len(data), step):
        scanner.feed(data[at : at + step])
    return scanner.finish()


def error(data: bytes, base: int = 0, step: int = 1 << 20) -> SegmentError:
    with pytest.raises(SegmentError) as caught:
        scan(data, base, step)
    return caught.value


def test_a_summary_says_all_that_a_manifest_needs() -> None:
    data = (
        legacy(0, 100)
        + legacy(1, 103, codec="gzip")
        + simple(106, 3, "zstd", leader_epoch=4)
        + transactional(109, 7, 2, epoch=1)
        + simple(111, 2, "lz4", leader_epoch=6)
    )
    assert scan(data, 100) == SegmentSummary(
        size=len(data),
        crc32c=crc32c(data),
        end=len(data),
        batch_count=7,
        next_offset=113,
        first_timestamp=-1,
        max_timestamp=T0 + 2,
        magics=(0, 1, 2),
        codecs=("gzip", "lz4", "none", "zstd"),
        epochs=((4, 106), (3, 109), (6, 111)),
        open_transactions=(OpenTransaction(7, 1, 109),),
        last=[*scan_batches([data], "log", 100)][-1],
    )


def test_an_empty_segment_ends_at_its_base() -> None:
    summary = scan(b"", 42)
    assert (summary.next_offset, summary.batch_count, summary.first_timestamp, summary.crc32c) == (42, 0, None, 0)


@pytest.mark.parametrize("step", [1, 2, 16, 17, 18, 60, 61, 62, 63, 1000])
def test_chunks_may_be_cut_anywhere(step: int) -> None:
    data = legacy(0, 0) + simple(3) + legacy(1, 6, codec="lz4") + empty(9, 5) + simple(20, 50, "zstd") + legacy(1, 70)
    assert scan(data, 0, step) == scan(data, 0)
    damaged = bytearray(data)
    damaged[-3] ^= 0x40
    assert str(error(bytes(damaged), 0, step)) == str(error(bytes(damaged)))


def test_headers_come_one_by_one_and_only_when_verified(rng: random.Random) -> None:
    parts = [simple(10 * i, rng.randint(1, 9), rng.choice(["none", "gzip"])) for i in range(20)]
    data = b"".join(parts)
    cuts = sorted(rng.sample(range(len(data)), 7))
    chunks = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    headers = list(scan_batches(chunks, "segment.log", 0))
    assert [header.size for header in headers] == [len(part) for part in parts]
    assert [header.position for header in headers] == [sum(map(len, parts[:i])) for i in range(20)]

    damaged = data[: headers[5].end - 1] + bytes([data[headers[5].end - 1] ^ 1]) + data[headers[5].end :]
    seen: list[BatchHeader] = []

    def collect() -> None:
        for header in scan_batches([damaged], "segment.log", 0):
            seen.append(header)  # noqa: PERF402  # what came before the error must be kept

    with pytest.raises(SegmentError, match="checksum"):
        collect()
    assert seen == headers[:5]


def test_a_header_has_the_fields_that_were_written() -> None:
    fields = {
        "leader_epoch": 5,
        "producer_id": 99,
        "producer_epoch": 4,
        "base_sequence": 17,
        "attributes": 0x58,
        "last_offset_delta": 9,
    }
    raw = simple(1000, 3, "lz4", **fields)
    [header] = scan_batches([raw], "segment.log", 1000)
    assert (header.leader_epoch, header.producer_id, header.producer_epoch, header.base_sequence) == (5, 99, 4, 17)
    assert (header.codec, header.timestamp_type) == ("lz4", "append")
    assert (header.is_transactional, header.is_control, header.has_delete_horizon) == (True, False, True)
    assert (header.base_offset, header.last_offset, header.next_offset, header.record_count) == (1000, 1009, 1010, 3)
    assert (header.position, header.size, header.end) == (0, len(raw), len(raw))
    assert (header.base_timestamp, header.max_timestamp) == (T0, T0 + 2)
    assert header.crc == crc32c(raw[21:])


def test_a_legacy_header_tells_what_little_it_knows() -> None:
    [wrapper] = scan_batches([legacy(1, 50, 4, "gzip", attributes=0x08)], "segment.log", 50)
    assert (wrapper.magic, wrapper.base_offset, wrapper.next_offset, wrapper.record_count) == (1, 53, 54, -1)
    assert (wrapper.codec, wrapper.timestamp_type, wrapper.leader_epoch, wrapper.producer_id) == (
        "gzip",
        "append",
        -1,
        -1,
    )
    plain = list(scan_batches([legacy(0, 50, 2)], "segment.log", 50))
    assert [(message.base_offset, message.record_count, message.max_timestamp) for message in plain] == [
        (50, 1, -1),
        (51, 1, -1),
    ]


def test_the_first_timestamp_is_that_of_data_and_the_largest_that_of_any_batch() -> None:
    horizon = batch(0, [Record(0, T0 + 5)], attributes=0x40, base_timestamp=T0 + 10**9)
    assert scan(horizon + simple(1, 1)).first_timestamp == T0
    appended = batch(0, [Record(0, T0)], attributes=0x08, max_timestamp=T0 + 77)
    assert scan(appended).first_timestamp == T0 + 77
    assert scan(empty(0, 3)).max_timestamp is None, "nothing is left of it"
    late = reseal(marker(3, 1, commit=True), base_timestamp=T0 + 90, max_timestamp=T0 + 90)
    found = scan(late + simple(4, 3))
    assert (found.first_timestamp, found.max_timestamp) == (T0, T0 + 90), "lookups by time find markers, too"
    assert scan(simple(0, 3) + batch(3, [Record(0, T0 - 9)])).max_timestamp == T0 + 2


def test_compaction_may_leave_holes_and_empty_batches() -> None:
    data = batch(500, [Record(3), Record(90)], last_offset_delta=120) + empty(700, 10, attributes=4) + simple(711)
    assert scan(data, 400).next_offset == 714


def test_a_truncated_tail_names_the_place_and_is_accepted_on_request() -> None:
    whole = simple(0) + simple(3)
    for size in range(1, len(simple(6, 3, "zstd"))):
        data = whole + simple(6, 3, "zstd")[:size]
        caught = error(data)
        assert (caught.position, caught.offset, caught.detail) == (len(whole), 6, Rule.TRUNCATED.text(0))
        scanner = SegmentScanner("segment.log", 0)
        scanner.feed(data)
        summary = scanner.finish(allow_partial_tail=True)
        assert (summary.size, summary.end, summary.next_offset) == (len(data), len(whole), 6)
        assert summary.crc32c == crc32c(data)


@pytest.mark.parametrize("step", [1, 10, 1 << 20])
def test_a_zeroed_tail_likewise(step: int) -> None:
    whole = simple(0)
    caught = error(whole + bytes(5000), 0, step)
    assert (caught.position, caught.offset, caught.detail) == (len(whole), 3, Rule.ZEROED.text(0))
    scanner = SegmentScanner("segment.log", 0)
    for at in range(0, 5000, step):
        scanner.feed((whole + bytes(5000 - len(whole)))[at : at + step])
    assert scanner.finish(allow_partial_tail=True).end == len(whole)


def test_zeros_before_data_are_never_accepted() -> None:
    scanner = SegmentScanner("segment.log", 0)
    with pytest.raises(SegmentError, match="zeros"):
        scanner.feed(simple(0) + bytes(512) + simple(3))


@pytest.mark.parametrize(
    ("change", "rule", "value"),
    [
        ({"magic": 3}, Rule.MAGIC, 3),
        ({"magic": -1}, Rule.MAGIC, -1),
        ({"length": 48}, Rule.LENGTH, 48),
        ({"length": -5}, Rule.LENGTH, -5),
        ({"length": (1 << 30) - 11}, Rule.LENGTH, (1 << 30) - 11),
        ({"base_offset": 2}, Rule.OFFSET, 2),
        ({"base_offset": -7}, Rule.OFFSET, -7),
        ({"last_offset_delta": -1}, Rule.DELTA, -1),
        ({"base_offset": 1 << 40}, Rule.RANGE, (1 << 40) + 2),
        ({"base_offset": (1 << 63) - 1}, Rule.RANGE, (1 << 63) + 1),
        ({"base_offset": 5, "last_offset_delta": (1 << 31) - 1}, Rule.RANGE, (1 << 31) + 4),
        ({"record_count": -1}, Rule.COUNT, -1),
        ({"record_count": 4}, Rule.COUNT, 4),
        ({"attributes": 5}, Rule.CODEC, 5),
        ({"attributes": 7}, Rule.CODEC, 7),
        ({"leader_epoch": -2}, Rule.EPOCH, -2),
        ({"crc": 123}, Rule.CRC, 123),
    ],
)
def test_each_rule_of_a_v2_batch_is_named(change: dict[str, int], rule: Rule, value: int) -> None:
    first = simple(0)
    caught = error(first + reseal(simple(3), **change) + simple(6))
    assert (caught.name, caught.position, caught.offset) == ("segment.log", len(first), 3)
    assert caught.detail == rule.text(value)


def test_each_rule_of_a_legacy_message_is_named() -> None:
    message = legacy(1, 3, 1)
    assert error(simple(0) + reseal_legacy(message, 2)).detail == Rule.OFFSET.text(2)
    assert error(simple(0) + reseal_legacy(message, 3, attributes=4)).detail == Rule.CODEC.text(4)
    short = message[:8] + struct.pack(">i", 21) + message[12:]
    assert error(simple(0) + short).detail == Rule.LENGTH.text(21)
    damaged = message[:-1] + b"!"
    assert error(simple(0) + damaged).detail == Rule.CRC.text(zlib.crc32(message[16:]))


def test_every_flipped_bit_under_the_checksum_is_found() -> None:
    data = simple(0, 2)
    for position in range(16, len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            assert error(bytes(damaged)).position == 0


def test_offsets_may_not_go_back_or_below_the_base() -> None:
    assert error(simple(0) + simple(2)).detail == Rule.OFFSET.text(2)
    assert error(simple(99), 100).offset == 100


def test_what_came_before_the_error_is_known() -> None:
    scanner = SegmentScanner("segment.log", 0)
    with pytest.raises(SegmentError):
        scanner.feed(simple(0) + simple(3) + b"\xff" * 100)
    assert (scanner.summary().end, scanner.summary().next_offset) == (2 * len(simple(0)), 6)


def test_the_end_below_a_high_watermark() -> None:
    parts = [simple(0), simple(3), simple(10), simple(13)]
    data = b"".join(parts) + simple(16)[:30]
    lengths = [sum(map(len, parts[:i])) for i in range(5)]
    answers = {0: (0, 0), 2: (0, 0), 3: (lengths[1], 3), 5: (lengths[1], 3), 6: (lengths[2], 6), 10: (lengths[2], 6)}
    answers |= {13: (lengths[3], 13), 99: (lengths[4], 16)}
    for high_watermark, expected in answers.items():
        assert end_below([data[:50], data[50:]], "segment.log", 0, high_watermark) == expected


def test_memory_does_not_grow_with_a_batch() -> None:
    piece = b"x" * (1 << 20)
    raw = batch(0, [Record(0, T0, b"k", piece * 48)])
    scanner = SegmentScanner("segment.log", 0)
    view = memoryview(raw)
    tracemalloc.start()
    for at in range(0, len(raw), 1 << 16):
        scanner.feed(view[at : at + (1 << 16)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert scanner.finish().batch_count == 1
    assert peak < 200_000


def test_no_bytes_whatever_raise_anything_else(rng: random.Random) -> None:
    for _ in range(300):
        data = bytearray(b"".join([simple(0, 2), legacy(1, 2, 1), simple(3, 5, "zstd"), marker(8, 1, commit=True)]))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        del data[rng.randrange(len(data)) :]
        scanner = SegmentScanner("segment.log", 0)
        try:
            scanner.feed(data)
            scanner.finish()
        except SegmentError as caught:
            assert 0 <= caught.position <= len(data)  # noqa: PT017  # most inputs fail, but not all
