from __future__ import annotations

import gzip
import random
import re
import struct
import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import lz4.frame  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa
import pytest
import zstandard

from tests.tidemark.decode.reference import Row, by_kafka_python, decoded, rows_of
from tests.tidemark.kafka_log.build import (
    HEADER,
    T0,
    Record,
    batch,
    compressed,
    empty,
    legacy,
    lz4_java,
    marker,
    reseal,
    simple,
    snappy_java,
    snappy_raw,
    transactional,
    with_records,
    zstd_java,
)
from tidemark.decode import DecodeLimits, decode_batches, exact_milliseconds, scan_headers
from tidemark.errors import SegmentError
from tidemark.kafka_log import BatchHeader

Compress = Callable[[bytes], bytes]

MANY = [
    Record(
        i,
        T0 + 17 * i,
        None if i % 11 == 0 else b"" if i % 13 == 0 else b"key-%d" % i,
        None if i % 17 == 0 else b"" if i % 19 == 0 else b"value %d " % i * 20,
        [("trace", b"%d" % i), ("trace", b"again"), ("", b""), ("clé", None)][: i % 5],
    )
    for i in range(700)
]

FRAMINGS: dict[str, tuple[str, Compress]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip of two members": ("gzip", lambda data: gzip.compress(data[:5000]) + gzip.compress(data[5000:])),
    "snappy-java": ("snappy", snappy_java),
    "snappy raw block": ("snappy", snappy_raw),
    "snappy with a little-endian version": (
        "snappy",
        lambda data: snappy_java(data)[:8] + struct.pack("<ii", 1, 1) + snappy_java(data)[16:],
    ),
    "two snappy-java streams": ("snappy", lambda data: snappy_java(data[:50_000]) + snappy_java(data[50_000:])),
    "lz4": ("lz4", lz4_java),
    "lz4 linked blocks, checksum and size": (
        "lz4",
        lambda data: lz4.frame.compress(data, block_linked=True, content_checksum=True, store_size=True),
    ),
    "two lz4 frames": ("lz4", lambda data: lz4_java(data[:50_000]) + lz4_java(data[50_000:])),
    "zstd without size": ("zstd", zstd_java),
    "zstd with size": ("zstd", lambda data: zstandard.ZstdCompressor().compress(data)),
    "two zstd frames": ("zstd", lambda data: zstd_java(data[:50_000]) + zstd_java(data[50_000:])),
    "zstd, many small frames": (
        "zstd",
        lambda data: b"".join(zstd_java(data[at : at + 7000]) for at in range(0, len(data), 7000)),
    ),
}


def test_records_are_as_kafka_python_reads_them() -> None:
    data = batch(100, MANY) + batch(800, MANY[:50], "gzip") + batch(850, MANY[:50], "lz4")
    assert decoded(data, 100) == by_kafka_python(data)


@pytest.mark.parametrize("framing", FRAMINGS)
def test_every_framing_of_every_codec(framing: str) -> None:
    codec, compress = FRAMINGS[framing]
    plain = batch(100, MANY)
    assert decoded(compressed(plain, codec, compress), 100) == by_kafka_python(plain)


def test_random_records(rng: random.Random) -> None:
    data, offset = b"", 0
    for _ in range(60):
        records, delta = [], rng.randint(0, 3)
        for _ in range(rng.randint(1, 40)):
            headers = [
                ("h" * rng.randint(0, 90), rng.choice([None, b"", rng.randbytes(rng.randint(1, 200))]))
                for _ in range(rng.choice([0, 0, 1, 3]))
            ]
            key = rng.choice([None, b"", rng.randbytes(rng.randint(1, 300))])
            value = rng.choice([None, b"", rng.randbytes(rng.randint(1, 9000))])
            timestamp = T0 + rng.choice([0, -1, 1]) * rng.randint(0, 2**45)
            records.append(Record(delta, timestamp, key, value, headers))
            delta += rng.randint(1, 5)
        append_time = rng.random() < 0.2
        data += batch(
            offset,
            records,
            rng.choice(["none", "gzip", "lz4", "zstd"]),
            8 if append_time else 0,
            last_offset_delta=delta,
        )
        offset += delta + 1
    expected = by_kafka_python(data)
    assert decoded(data) == expected
    assert decoded(data, limits=DecodeLimits(arena_bytes=3000, rows=17)) == expected


def test_columns_name_partition_incarnation_and_epoch() -> None:
    data = simple(0, 2, leader_epoch=4) + simple(2, 1, "zstd", leader_epoch=5) + legacy(1, 3, 1)
    headers = scan_headers(data, "segment.log", 0)
    table = pa.Table.from_batches(decode_batches(data, headers, name="segment.log", partition=7, incarnation=2))
    assert table.column("kafka_partition").to_pylist() == [7] * 4
    assert table.column("kafka_incarnation").to_pylist() == [2] * 4
    assert table.column("kafka_leader_epoch").to_pylist() == [4, 4, 5, -1]


def test_markers_and_empty_batches_have_no_rows() -> None:
    data = transactional(0, 9, 2) + marker(2, 9, commit=True) + empty(3, 6, attributes=4) + simple(10, 1)
    assert [row.offset for row in decoded(data)] == [0, 1, 10]


def test_append_time_is_that_of_every_record() -> None:
    data = batch(0, [Record(0, T0), Record(1, T0 + 5)], attributes=8, max_timestamp=T0 + 777) + simple(2, 1)
    rows = decoded(data)
    assert [(row.timestamp, row.timestamp_type) for row in rows] == [
        (T0 + 777, "append"),
        (T0 + 777, "append"),
        (T0, "create"),
    ]


def test_a_delete_horizon_is_the_base_of_deltas_only() -> None:
    raw = batch(0, [Record(0, T0), Record(1, T0 + 5)], attributes=0x40)
    assert [row.timestamp for row in decoded(raw)] == [T0, T0 + 5]


def test_only_offsets_asked_for() -> None:
    data = simple(0, 5) + batch(5, [Record(0), Record(4), Record(6)]) + simple(12, 5, "zstd") + legacy(1, 17, 5, "gzip")
    everything = decoded(data)
    for start, end in [(0, 22), (3, 9), (4, 5), (9, 10), (10, 11), (13, 15), (18, 20), (21, 22), (22, 99), (7, 7)]:
        expected = [row for row in everything if start <= row.offset < end]
        assert decoded(data, from_offset=start, to_offset=end) == expected


def test_only_batches_selected() -> None:
    data = simple(0) + simple(3, 3, "lz4") + simple(6)
    assert [row.offset for row in decoded(data, select=np.array([True, False, True]))] == [0, 1, 2, 6, 7, 8]


def test_a_range_of_a_segment_names_positions_in_the_file() -> None:
    first, second = simple(100), with_records(simple(103, 1), b"\x00" * 7)
    headers = scan_headers(second, "segment.log", 100, position=len(first), expected=103)
    assert headers["position"].tolist() == [len(first)]
    with pytest.raises(SegmentError, match="record 0 of the batch") as caught:
        list(decode_batches(second, headers, name="segment.log", partition=0, incarnation=0, position=len(first)))
    assert (caught.value.position, caught.value.offset) == (len(first), 103)


def test_memory_is_bounded_by_arena_and_rows() -> None:
    data = b"".join(simple(100 * i, 100, "zstd" if i % 2 else "none") for i in range(40))
    headers = scan_headers(data, "segment.log", 0)

    def sizes(limits: DecodeLimits) -> list[int]:
        batches = decode_batches(data, headers, name="segment.log", partition=0, incarnation=0, limits=limits)
        return [len(rows) for rows in batches]

    assert max(sizes(DecodeLimits(rows=250))) <= 250
    assert max(sizes(DecodeLimits(arena_bytes=1))) == 100
    zstd_only = headers["attributes"] == 4
    rows = decode_batches(data, headers[zstd_only], name="segment.log", partition=0, incarnation=0)
    assert [len(each) for each in rows] == [2000]


def test_a_timestamp_that_microseconds_cannot_hold_is_null_and_reported() -> None:
    limit = (2**63 - 1) // 1000
    stamps = [T0, limit, limit + 1, -limit, -limit - 1, -1, 2**62]
    data = batch(0, [Record(i, stamp) for i, stamp in enumerate(stamps)])
    headers = scan_headers(data, "segment.log", 0)
    [rows] = decode_batches(data, headers, name="segment.log", partition=0, incarnation=0)
    assert [row.timestamp for row in rows_of([rows])] == [T0, limit, None, -limit, None, -1, None]
    assert exact_milliseconds(rows).tolist() == stamps
    assert exact_milliseconds(rows.slice(3)).tolist() == stamps[3:]


def test_a_timestamp_delta_that_overflows_is_refused() -> None:
    for sign, base in [(1, 2**63 - 5), (-1, -(2**63) + 5)]:
        raw = batch(0, [Record(0, 0), Record(1, 10 * sign)], base_timestamp=base)
        with pytest.raises(SegmentError, match="record 1 of the batch: its timestamp does not fit"):
            decoded(raw)


def varint(value: int) -> bytes:
    """A zigzag varint of ``value``, however large."""
    rest, out = (value << 1) ^ (value >> 63), bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def record(delta: int = 0, key: bytes = varint(-1), value: bytes = varint(-1), headers: bytes = varint(0)) -> bytes:
    body = b"\x00" + varint(0) + varint(delta) + key + value + headers
    return varint(len(body)) + body


def header(key: bytes, value: bytes = varint(-1)) -> bytes:
    return varint(1) + varint(len(key)) + key + value


BAD_RECORDS = {
    "its length runs out of the batch": varint(500) + record()[1:],
    "its length runs out of the batch ": varint(-4) + record()[1:],
    "its length runs out of the batch  ": b"\xff" * 30,
    "its length is longer than its fields": varint(9) + record()[1:] + b"abc",
    "its offset delta does not increase": record(-1),
    "its offset delta does not increase, or exceeds the batch's last": record(3),
    "its key runs out of the record": record(key=varint(100)),
    "its key runs out of the record ": record(key=varint(-2)),
    "its value runs out of the record": record(value=varint(100)),
    "its value runs out of the record ": record(value=varint(-7)),
    "its headers run out of the record": record(headers=varint(2**30)),
    "its headers run out of the record ": record(headers=varint(-1)),
    "its headers run out of the record  ": record(headers=varint(1) + varint(-1) + varint(-1)),
    "its key runs out of the record  ": record(key=varint(9)) + bytes(40),
    "its value runs out of the record  ": record(value=varint(9)) + bytes(40),
    "its headers run out of the record   ": record(headers=varint(1) + varint(9)) + bytes(40),
    "its headers run out of the record    ": record(headers=header(b"k", varint(9))) + bytes(40),
    "there are more bytes in the batch than the record count says": record() + b"\x00",
}


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("rule", BAD_RECORDS)
def test_a_record_that_lies_is_named(rule: str, codec: str) -> None:
    bad = compressed(with_records(simple(3, 1), BAD_RECORDS[rule]), codec)
    data = simple(0) + bad + simple(4)
    with pytest.raises(SegmentError, match=rule.strip()) as caught:
        decoded(data)
    assert (caught.value.name, caught.value.position, caught.value.offset) == ("segment.log", len(simple(0)), 3)
    refused: list[tuple[BatchHeader, SegmentError]] = []
    rows = decoded(data, on_refused=lambda header, error: refused.append((header, error)))
    assert [row.offset for row in rows] == [0, 1, 2, 4, 5, 6]
    [(bad_header, error)] = refused
    assert (bad_header.base_offset, bad_header.size, str(error)) == (3, len(bad), str(caught.value))


def test_a_refused_batch_leaves_no_trace_in_the_rows_beside_it() -> None:
    good = [Record(0, T0, None, None, [("a", None)]), Record(1, T0, b"", b"x", [("b", b"")])]
    plain = batch(4, [Record(0, T0, b"key", b"value", [("h", b"1")]), Record(1), Record(2)])
    bad = with_records(plain, plain[HEADER.size :][:-1] + b"\x02")
    data = batch(0, good) + bad + batch(8, good)
    expected = by_kafka_python(batch(0, good) + batch(8, good))
    assert decoded(data, on_refused=lambda *_: None) == expected


def test_two_records_of_one_offset_are_refused() -> None:
    raw = with_records(simple(0, 2), record(1) + record(1))
    with pytest.raises(SegmentError, match="does not increase"):
        decoded(raw)


@pytest.mark.parametrize("text", ["ascii", "é", "€", "𝄞", "\x00", "\x7f\x80߿ࠀ￿𐀀\U0010ffff", "a𝄞b€céd"])
def test_header_keys_of_any_script(text: str) -> None:
    assert decoded(batch(0, [Record(0, headers=[(text, b"")])]))[0].headers == [(text, b"")]


_PARTS = re.compile(
    rb"(?:\xe0[\xa0-\xbf]|[\xe1-\xef][\x80-\xbf])[\x80-\xbf]?"
    rb"|(?:\xf0[\x90-\xbf]|[\xf1-\xf3][\x80-\xbf]|\xf4[\x80-\x8f])[\x80-\xbf]{0,2}|[\xc2-\xdf][\x80-\xbf]?|.",
    re.DOTALL,
)


def as_java(key: bytes) -> str:
    """The text that ``new String(key, UTF_8)`` makes of a header key, by Java 17."""

    def text(part: bytes) -> str:
        try:
            return part.decode()
        except UnicodeDecodeError:
            return "\ufffd"

    return "".join(map(text, _PARTS.findall(key)))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"\x80", "\ufffd"),
        (b"\xbf\xbf", "\ufffd\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xc2", "\ufffd"),
        (b"\xc2\x41", "\ufffdA"),
        (b"\xe0\x9f\xbf", "\ufffd\ufffd\ufffd"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0A", "\ufffdA"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xf0\x8f\xbf\xbf", "\ufffd\ufffd\ufffd\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
        (b"\xf5\x80\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
        (b"ok\xff", "ok\ufffd"),
        (b"\xf0\x9d\x84\x41", "\ufffdA"),
        ("größe".encode("latin1"), "gr\ufffd\ufffde"),
    ],
)
def test_header_keys_that_are_not_utf8_are_read_as_kafkas_client_reads_them(key: bytes, text: str) -> None:
    assert as_java(key) == text
    assert decoded(with_records(simple(0, 1), record(headers=header(key))))[0].headers == [(text, None)]


def test_one_such_header_key_changes_nothing_else_in_its_batch(rng: random.Random) -> None:
    """Keys of other records before and after it in the batch, and in other batches, are as they were."""
    for _ in range(300):
        octets = (0x41, 0x80, 0xBF, 0xC3, 0xE0, 0xA0, 0xED, 0x9F, 0xF0, 0x90, 0xF4, 0x8F)
        odd = [bytes(rng.choice(octets) for _ in range(rng.randrange(7))) for _ in range(3)]
        keys = ["é€𝄞".encode(), odd[0], b"plain", odd[1], "日本".encode(), odd[2]]
        raw = with_records(simple(0, 6), b"".join(record(at, headers=header(key)) for at, key in enumerate(keys)))
        sound = batch(6, [Record(0, headers=[("é", b"v"), ("k", None)])])
        rows = decoded(raw + sound)
        assert [row.headers for row in rows[:6]] == [[(as_java(key), None)] for key in keys]
        assert rows[6].headers == [("é", b"v"), ("k", None)]
        assert decoded(raw, from_offset=2, to_offset=5) == rows[2:5]


def test_a_count_beyond_the_bytes_allocates_nothing() -> None:
    lying = reseal(simple(0, 1), record_count=1 << 30, last_offset_delta=1 << 30)
    with pytest.raises(SegmentError, match="cannot hold 1073741824 records"):
        decoded(lying)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_beyond_the_bound_is_refused_and_the_others_are_read(codec: str) -> None:
    def sized(base: int, value: int) -> bytes:
        return batch(base, [Record(0, T0, None, bytes(value))], codec)

    data = sized(0, 100) + sized(1, 1 << 20) + sized(2, (1 << 20) - 100)
    refused: list[tuple[int, str]] = []
    rows = decoded(
        data,
        limits=DecodeLimits(records_bytes=1 << 20, arena_bytes=1 << 12),
        on_refused=lambda header, error: refused.append((header.base_offset, error.detail)),
    )
    assert [row.offset for row in rows] == [0, 2]
    [(offset, reason)] = refused
    assert offset == 1
    assert "1048576" in reason
    assert "bound of a batch" in reason


@pytest.mark.sampled(2)
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_large_batch_takes_its_size_twice_while_it_is_decoded_and_once_thereafter(codec: str) -> None:
    size = 32 << 20
    data = batch(0, [Record(0, T0, None, bytes(size))], codec) + simple(1, 1, codec)
    headers = scan_headers(data, "segment.log", 0)
    limits = DecodeLimits(arena_bytes=1 << 16, records_bytes=size + 1000)
    list(decode_batches(data, headers[1:], name="x", partition=0, incarnation=0))  # compiles outside of what is traced
    tracemalloc.start()
    try:
        rows = decode_batches(data, headers, name="x", partition=0, incarnation=0, limits=limits)
        large = next(rows)
        held, peak = tracemalloc.get_traced_memory()
        assert large.nbytes > size
        assert peak < 2.3 * size
        assert held < 1.1 * size
        [small] = rows
        assert (len(large), len(small)) == (1, 1)
    finally:
        tracemalloc.stop()


def test_damaged_records_never_read_out_of_bounds(rng: random.Random, full: bool) -> None:
    """With checksums made right, so that every mutation reaches the loops; run once more with checked bounds."""
    pristine = batch(0, MANY[:20])
    for _ in range(200_000 if full else 3000):
        records = bytearray(pristine[HEADER.size :])
        for _ in range(rng.randint(1, 5)):
            records[rng.randrange(len(records))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        if rng.random() < 0.3:
            del records[rng.randrange(len(records)) :]
        data = with_records(
            pristine, bytes(records), record_count=rng.choice([20, 20, 1, 19, 21]), last_offset_delta=30
        )
        check_rows(decoded(data, on_refused=lambda *_: None))


def check_rows(rows: list[Row]) -> None:
    offsets = [row.offset for row in rows]
    assert all(left < right for left, right in pairwise(offsets))
    assert all(0 <= offset <= 30 for offset in offsets)
