from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from crc32c import crc32c

from tests.tidemark.kafka_log.build import (
    FIELDS,
    T0,
    Record,
    batch,
    empty,
    legacy,
    marker,
    reseal,
    simple,
    transactional,
)
from tidemark.decode import HEADER_DTYPE, scan_headers
from tidemark.errors import SegmentError
from tidemark.kafka_log import BatchHeader, scan_batches

Verdict = tuple[list[BatchHeader], str]

GOOD = [
    simple(100),
    simple(103, 50, "zstd", leader_epoch=7),
    legacy(0, 153),
    legacy(1, 156, codec="gzip", attributes=8),
    empty(159, 12, attributes=4),
    batch(180, [Record(0, -1), Record(5, 2**60)], attributes=0x48, last_offset_delta=9),
    transactional(190, 2**62, 3, epoch=32767, codec="lz4"),
    marker(193, 2**62, commit=False),
    batch(200, [Record(0, T0, None, b"x" * 100_000)]),
]


def by_scanner(data: bytes, base: int, *, partial: bool = False) -> Verdict:
    """What the pure-Python scan finds: headers and the error."""
    found: list[BatchHeader] = []
    try:
        for header in scan_batches([data], "segment.log", base, allow_partial_tail=partial):
            found.append(header)  # noqa: PERF402  # what came before the error counts
    except SegmentError as error:
        return found, str(error)
    return found, ""


def by_numba(data: bytes, base: int, *, partial: bool = False) -> Verdict:
    """What the compiled scan finds: headers (none if there is an error), and the error."""
    try:
        headers = scan_headers(data, "segment.log", base, allow_partial_tail=partial)
    except SegmentError as error:
        return [], str(error)
    return [BatchHeader(*row) for row in headers.tolist()], ""


def same(data: bytes, base: int, *, partial: bool = False) -> str:
    """Check that both agree; the error, if any."""
    scanned, error = by_scanner(data, base, partial=partial)
    compiled, compiled_error = by_numba(data, base, partial=partial)
    assert compiled_error == error
    assert error or compiled == scanned
    return error


def test_fields_are_those_of_the_scanner() -> None:
    assert HEADER_DTYPE.names == BatchHeader._fields
    assert not same(b"".join(GOOD), 100)
    assert not same(b"", 100)


def test_a_file_of_many_batches() -> None:
    one = simple(0, 1)
    data = b"".join(struct.pack(">q", i) + one[8:] for i in range(70_000))
    headers = scan_headers(data, "segment.log", 0)
    assert headers["base_offset"].tolist() == list(range(70_000))
    damaged = bytearray(data)
    damaged[60_000 * len(one) + 70] ^= 1
    with pytest.raises(SegmentError) as caught:
        scan_headers(damaged, "segment.log", 0)
    assert (caught.value.position, caught.value.offset) == (60_000 * len(one), 60_000)


def test_each_kind_of_buffer_is_read() -> None:
    data = b"".join(GOOD)
    expected = scan_headers(data, "segment.log", 100)
    for kind in (
        bytearray(data),
        memoryview(data),
        np.frombuffer(data, np.uint8),
        np.frombuffer(bytearray(data), np.uint8),
    ):
        assert (scan_headers(kind, "segment.log", 100) == expected).all()


def test_a_range_of_a_segment() -> None:
    position = len(GOOD[0]) + len(GOOD[1])
    data = b"".join(GOOD)
    whole = scan_headers(data, "segment.log", 100)
    part = scan_headers(data[position:], "segment.log", 100, position=position, expected=153)
    assert (part == whole[2:]).all()
    with pytest.raises(SegmentError, match="lower") as caught:
        scan_headers(data[position:], "segment.log", 100, position=position, expected=154)
    assert (caught.value.position, caught.value.offset) == (position, 154)


def test_every_truncation_and_zeroing_is_judged_alike() -> None:
    data = b"".join(GOOD[:8])
    for size in range(len(data)):
        for tail in (b"", bytes(40), bytes(40) + b"x"):
            same(data[:size] + tail, 100)
            same(data[:size] + tail, 100, partial=True)


def test_every_flipped_bit_is_judged_alike() -> None:
    data = b"".join([simple(100, 1), legacy(1, 101, 1), legacy(0, 102, 1), simple(103, 1, "gzip")])
    found = 0
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            found += bool(same(bytes(damaged), 100))
    # What stands outside the checksum may pass: base offsets (the higher, still lower than the next) and the epoch.
    assert found >= 8 * len(data) - 3 * 8 * 12


def test_mutations_are_judged_alike(rng: random.Random, full: bool) -> None:
    """Most mutations have their checksums made right, so that they reach the other rules."""
    errors: set[str] = set()
    extremes = [0, 1, -1, 2, 48, 49, 61, 2**31 - 1, -(2**31), 2**15 - 1, 127, -128]
    widths = dict(zip(FIELDS, [64, 32, 32, 8, 32, 16, 32, 64, 64, 64, 16, 32, 32], strict=True))
    for _ in range(300_000 if full else 6000):
        parts = [part for part in GOOD[:8] if rng.random() < 0.6]
        for index, part in enumerate(parts):
            if part[16] == 2 and rng.random() < 0.3:
                field = rng.choice(FIELDS)
                limit = 1 << widths[field] - 1
                value = rng.choice([*extremes, rng.randrange(-limit, limit)])
                value = (value + limit) % (2 * limit) - limit
                parts[index] = reseal(part, **{field: value & 0xFFFFFFFF if field == "crc" else value})
        data = bytearray(b"".join(parts))
        if data and rng.random() < 0.3:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        if data and rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        error = same(bytes(data), 100, partial=rng.random() < 0.2)
        errors.add(error.partition(": at byte")[2].partition(": ")[2][:12])
    assert len(errors) >= 11  # no error, and each of the ten rules


def test_a_checksum_is_taken_over_the_right_bytes() -> None:
    raw = bytearray(simple(0))
    raw[12:16] = struct.pack(">i", 99)  # the epoch lies outside
    assert not same(bytes(raw), 0)
    raw[17:21] = struct.pack(">I", crc32c(bytes(raw[20:])))
    assert "checksum" in same(bytes(raw), 0)
