from __future__ import annotations

import struct
from zlib import crc32

import lz4.frame  # type: ignore[import-untyped]
import pytest
import xxhash

from tests.tidemark.decode.reference import by_kafka_python, decoded, rows_of
from tests.tidemark.kafka_log.build import JAVA_LIKE, T0, legacy, reseal_legacy, simple, snappy_raw
from tidemark.decode import DEFAULT_LIMITS, DecodeLimits, decode_batches, exact_milliseconds, scan_headers
from tidemark.errors import SegmentError


def wrapper(magic: int, base: int, inner: bytes, codec: int) -> bytes:
    """An entry that wraps compressed bytes; ``base`` is the offset of the last message."""
    head = struct.pack(">qiIbb", base, 0, 0, magic, codec) + (struct.pack(">q", T0 + 99) if magic else b"")
    return reseal_legacy(head + struct.pack(">ii", -1, len(inner)) + inner, base)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("gap", [1, 4])
def test_messages_are_as_kafka_python_reads_them(magic: int, codec: str, gap: int) -> None:
    data = legacy(magic, 100, 5, codec, gap=gap)
    rows = decoded(data, 100)
    assert rows == by_kafka_python(data)
    assert [row.offset for row in rows] == [100 + gap * i for i in range(5)]


def test_a_v0_message_has_no_timestamp() -> None:
    assert [row.timestamp for row in decoded(legacy(0, 0, 2) + legacy(0, 2, 2, "gzip"))] == [-1] * 4


def test_lz4_of_v1_is_as_kafka_python_reads_it() -> None:
    data = legacy(1, 100, 40, "lz4")
    assert decoded(data, 100) == by_kafka_python(data)


@pytest.mark.parametrize("size", [True, False])
def test_lz4_of_v0_has_a_wrong_header_checksum(size: bool) -> None:
    """KAFKA-3160: v0 clients took it over the frame's magic too."""
    inner = legacy(0, 100, 40)
    frame = bytearray(lz4.frame.compress(inner, store_size=size, block_linked=False))
    end = 14 if size else 6
    assert frame[end] == xxhash.xxh32(bytes(frame[4:end]), seed=0).intdigest() >> 8 & 0xFF
    for broken in (xxhash.xxh32(bytes(frame[:end]), seed=0).intdigest() >> 8 & 0xFF, frame[end]):
        frame[end] = broken
        assert decoded(wrapper(0, 139, bytes(frame), 3), 100) == by_kafka_python(inner)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("compress", [JAVA_LIKE["snappy"], snappy_raw])
def test_snappy(magic: int, compress: object) -> None:
    inner = legacy(magic, 100 if magic == 0 else 0, 40)
    assert callable(compress)
    rows = decoded(wrapper(magic, 139, compress(inner), 2), 100)
    assert rows == by_kafka_python(legacy(magic, 100, 40))


def test_append_time_of_a_wrapper_is_that_of_its_messages() -> None:
    data = legacy(1, 100, 3, "gzip", attributes=8)
    rows = decoded(data, 100)
    assert rows == by_kafka_python(data)
    assert {row.timestamp_type for row in rows} == {"append"}


def test_null_and_empty_differ() -> None:
    def message(offset: int, key: bytes | None, value: bytes | None) -> bytes:
        fields = b"".join(
            struct.pack(">i", -1 if field is None else len(field)) + (field or b"") for field in (key, value)
        )
        return reseal_legacy(struct.pack(">qiIbbq", offset, 0, 0, 1, 0, T0) + fields, offset)

    data = message(0, None, None) + message(1, b"", b"") + message(2, b"k", None) + message(3, None, b"v")
    assert decoded(data) == by_kafka_python(data)


@pytest.mark.parametrize("milliseconds", [-(2**63), 2**63 - 1, 2**63 // 1000 + 1])
def test_a_timestamp_that_microseconds_cannot_hold_is_null_and_reported(milliseconds: int) -> None:
    data = reseal_legacy(struct.pack(">qiIbbqii", 7, 0, 0, 1, 0, milliseconds, -1, -1), 7)
    headers = scan_headers(data, "segment.log", 0)
    [rows] = decode_batches(data, headers, name="segment.log", partition=0, incarnation=0)
    assert [row.timestamp for row in rows_of([rows])] == [None]
    assert exact_milliseconds(rows).tolist() == [milliseconds]


def test_formats_may_change_within_a_segment() -> None:
    data = legacy(0, 0) + legacy(1, 3, codec="gzip") + simple(6) + legacy(1, 9, 1) + simple(10, 3, "gzip")
    assert decoded(data) == by_kafka_python(data)
    assert decoded(data, limits=DecodeLimits(rows=2)) == by_kafka_python(data)


def refusal(data: bytes, limits: DecodeLimits = DEFAULT_LIMITS) -> str:
    with pytest.raises(SegmentError) as caught:
        decoded(data, limits=limits)
    return caught.value.detail


def test_wrappers_that_lie_are_refused() -> None:
    gzip = JAVA_LIKE["gzip"]
    good = legacy(1, 0, 3)
    assert "empty" in refusal(wrapper(1, 2, gzip(b""), 1))
    assert "gzip" in refusal(wrapper(1, 2, b"no gzip", 1))
    assert "another format" in refusal(wrapper(1, 2, gzip(legacy(0, 0, 3)), 1))
    assert "compressed again" in refusal(wrapper(1, 2, gzip(wrapper(1, 2, gzip(good), 1)), 1))
    assert "end inside" in refusal(wrapper(1, 2, gzip(good[:-1]), 1))
    assert "checksum" in refusal(wrapper(1, 2, gzip(good[:-1] + b"!"), 1))
    assert "too small" in refusal(wrapper(1, 2, gzip(good[:8] + struct.pack(">i", -12) + good[12:]), 1))
    assert "do not end" in refusal(wrapper(0, 9, gzip(legacy(0, 0, 3)), 1))
    assert "bound" in refusal(wrapper(1, 2, gzip(good + bytes(1 << 22)), 1), DecodeLimits(records_bytes=1 << 20))


def test_wrapped_offsets_may_not_go_below_the_entry_before() -> None:
    data = simple(0, 5) + legacy(1, 5, 3) + wrapper(1, 9, JAVA_LIKE["gzip"](legacy(1, 0, 3)), 1)
    assert "start before" in refusal(data)


@pytest.mark.parametrize("lengths", [(-2, 1), (100, 1), (1, 100), (1, -2), (0, 0), (2**31 - 1, 0)])
def test_key_and_value_stay_within_their_message(lengths: tuple[int, int]) -> None:
    key, value = lengths
    body = struct.pack(">qiIbbq", 7, 0, 0, 1, 0, T0) + struct.pack(">i", key) + b"k" + struct.pack(">i", value) + b"v"
    refusal(reseal_legacy(body, 7))


def test_a_checksum_is_verified_before_anything_is_decompressed() -> None:
    data = bytearray(legacy(1, 0, 3, "gzip"))
    data[-1] ^= 1
    assert crc32(bytes(data[16:])) != struct.unpack_from(">I", data, 12)[0]
    assert "checksum" in refusal(bytes(data))
