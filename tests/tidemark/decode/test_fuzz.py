"""Damaged segments: the decoder gives the rows that kafka-python reads, or an error, or differs for a listed reason."""

from __future__ import annotations

import random
import resource
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from kafka.record.memory_records import MemoryRecords
from numpy.typing import NDArray

from tests.tidemark.decode.real_logs import snappy_for_kafka_python
from tests.tidemark.decode.reference import Row, rows_of
from tests.tidemark.decode.test_messages_v0_v1 import wrapper
from tests.tidemark.kafka_log.build import (
    CODEC_IDS,
    HEADER,
    T0,
    Record,
    batch,
    compressed,
    empty,
    legacy,
    marker,
    reseal,
    reseal_legacy,
    snappy_java,
    transactional,
)
from tidemark.decode import DecodeLimits, decode_batches, scan_headers
from tidemark.decode.decompress import Arena, chunks
from tidemark.decode.schema import MAX_MILLISECONDS
from tidemark.errors import SegmentError

__all__ = ["snappy_for_kafka_python"]

BASE = 100
LIMITS = DecodeLimits(arena_bytes=1 << 16, records_bytes=1 << 22)
HEADROOM = 256 << 20
"""Address space that a decoder with LIMITS may take."""

STRICTER = {
    # What stands in headers and kafka-python believes, or does not look at.
    "the bytes end inside this record batch": "it takes a partial tail for one that is still being fetched",
    "magic": "it takes all above 1 for 2, and all below 0 for 0",
    "base offset": "it does not compare batches",
    "last offset is": "it does not know the segment's base",
    "last offset delta": "it does not use the field",
    "record count": "it does not compare the count with the offsets",
    "the length field": "it takes the batch for one that is still being fetched",
    "compression codec": "it asks for no codec where it finds nothing to decompress, and passes over bits in v0 and v1",
    "leader epoch": "it does not look at the field's range",
    # What follows the part of a batch that it reads.
    "is longer than its key and value": "it does not look behind a v0 or v1 message's value",
    "a block is longer than the data that is left": "it takes what is there of a snappy block",
    "LZ4F_decompress failed": "it does not look behind an lz4 frame",
    "the frame is not complete": "likewise, and behind a zstd frame",
    "gzip": "it does not look behind a gzip member",
    # What no client writes.
    " out of ": "it takes any negative length for null, and what is there where a length exceeds it",
    "does not fit 64 bits": "its integers have no bound",
    "offset delta does not increase": "it does not compare records",
    # What it does not verify in the messages that a v0 or v1 message wraps.
    "inner message": "their checksums, magic and lengths",
    "do not end at the wrapper's": "their offsets",
    "of another format": "their format",
    "too small for": "their sizes",
}
"""What we refuse and kafka-python reads, by a part of our message, and why it does so."""

RECORDS = [
    Record(0, T0, b"key", b"value", [("trace", b"1"), ("clé", None)]),
    Record(1, T0 - 5, None, b"x" * 200),
    Record(2, T0 + 70_000, b"", None, [("", b"")]),
    Record(5, T0, b"k" * 40, b""),
]
PLAIN = batch(0, RECORDS, last_offset_delta=7)


class Piece(NamedTuple):
    """A sound batch of a segment; ``codec`` is that of a v2 batch whose records may be damaged before compression."""

    raw: bytes
    codec: str | None = None


def segment() -> list[Piece]:
    """A batch of every codec, of every format, and what transactions and compaction leave."""
    pieces = [
        Piece(compressed(reseal(PLAIN, base_offset=BASE + 10 * i), codec), codec) for i, codec in enumerate(CODEC_IDS)
    ]
    pieces += [
        Piece(transactional(160, 9, 3, codec="lz4"), "lz4"),
        Piece(marker(163, 9, commit=False)),
        Piece(empty(164, 5, attributes=4)),
        Piece(reseal(PLAIN, base_offset=180, attributes=8), "none"),
    ]
    for magic, at in ((0, 200), (1, 250)):
        inner = legacy(magic, at + 10 if magic == 0 else 0)
        pieces += [
            Piece(legacy(magic, at)),
            Piece(legacy(magic, at + 5, codec="gzip")),
            Piece(wrapper(magic, at + 12, snappy_java(inner), CODEC_IDS["snappy"])),
        ]
    pieces.append(Piece(legacy(1, 270, codec="lz4")))
    return sorted(pieces, key=lambda piece: struct.unpack_from(">q", piece.raw))


PIECES = segment()


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """Bytes changed, removed, repeated or added, in a few places."""
    data = bytearray(raw)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 2:
            data[at : at + 4] = struct.pack(">i", rng.choice([0, -1, 1, 2**31 - 1, -(2**31), rng.getrandbits(31)]))
        elif kind == 3:
            del data[at : at + rng.choice([1, 4, 30])]
        elif kind == 4:
            data[at:at] = rng.randbytes(rng.choice([1, 4, 30]))
        elif kind == 5:
            data[at:at] = data[at : at + rng.choice([1, 8, 60])]
        elif rng.random() < 0.2:
            del data[at:]
    return bytes(data)


def sealed(raw: bytes, offset: int) -> bytes:
    """With the length and checksum that belong to what is there, so that the damage gets past both."""
    if len(raw) > HEADER.size and raw[16] == 2:
        return reseal(raw)
    if len(raw) > 34 and raw[16] in {0, 1}:
        return reseal_legacy(raw, offset)
    return raw


def mutated(rng: random.Random) -> tuple[bytes, bool]:
    """A segment with a damaged batch; whether its checksum was made right."""
    chosen = [piece for piece in PIECES if rng.random() < 0.3] or [rng.choice(PIECES)]
    at = rng.randrange(len(chosen))
    raw, codec = chosen[at]
    seal = rng.random() < 0.5
    if seal and codec not in {None, "none"} and rng.random() < 0.5:
        base = struct.unpack_from(">q", raw)[0]
        inside = damaged(PLAIN[HEADER.size :], rng)
        fields = {"base_offset": base, "record_count": rng.choice([4, 4, 4, 3, 5, 8])}
        raw = compressed(reseal(PLAIN[: HEADER.size] + inside, **fields), f"{codec}")
    else:
        raw = damaged(raw, rng)
        raw = sealed(raw, struct.unpack_from(">q", chosen[at].raw)[0]) if seal else raw
    return b"".join([*(piece.raw for piece in chosen[:at]), raw, *(piece.raw for piece in chosen[at + 1 :])]), seal


def by_oracle(data: bytes) -> list[Row] | str:
    """The rows as kafka-python has them, checksums verified; or why it does not."""
    rows: list[Row] = []
    try:
        for found in MemoryRecords(data):
            if not found.validate_crc():
                return "checksum"
            if found.magic == 2 and found.is_control_batch:
                continue
            for record in found:
                timestamp = -1 if record.timestamp is None else record.timestamp
                fits = abs(timestamp) <= MAX_MILLISECONDS
                kind = "append" if record.timestamp_type == 1 else "create"
                headers = list(record.headers)
                rows.append(Row(record.offset, timestamp if fits else None, kind, record.key, record.value, headers))
    except Exception as error:  # noqa: BLE001 - whatever it raises, it does not read this
        return f"{type(error).__name__}: {error}"
    return rows


def by_tidemark(data: bytes) -> list[Row] | str:
    """The rows as the decoder has them; or the rule that is broken."""
    try:
        headers = scan_headers(data, "segment.log", BASE)
        return rows_of(decode_batches(data, headers, name="segment.log", partition=0, incarnation=0, limits=LIMITS))
    except SegmentError as error:
        return error.detail


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Let nothing allocate without bound: MemoryError is no SegmentError."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def reasoned(data: bytes) -> bool:
    """Whether Java's client reads ``data`` as we do, and kafka-python does not.

    A batch without records is passed over, whatever its bytes. A record's attributes are a byte; kafka-python reads a
    varint, which a byte from 128 on does not end.
    """
    buffer = np.frombuffer(data, np.uint8)
    headers = scan_headers(data, "segment.log", BASE)
    if any(row["magic"] == 2 and not row["record_count"] and row["size"] > HEADER.size for row in headers):
        return True
    wanted = (headers["magic"] == 2) & (headers["record_count"] != 0)
    arena = Arena(LIMITS.arena_bytes)
    return any(
        memory[at] >= 0x80
        for memory, starts, ends, _ in chunks(buffer, headers[wanted], 0, LIMITS, arena, lambda *_: None)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        for at in attributes_of(memory, start, end)
    )


def attributes_of(memory: NDArray[np.uint8], at: int, end: int) -> Iterator[int]:
    """Where the attributes of each record of ``memory[at:end]`` lie; records start with their length, a varint."""
    while at < end:
        zigzag = shift = 0
        more = True
        while more:
            zigzag |= (int(memory[at]) & 0x7F) << shift
            more = bool(memory[at] & 0x80)
            shift, at = shift + 7, at + 1
        yield at
        at += zigzag >> 1


def compare(data: bytes) -> str:
    """What became of a damaged segment; AssertionError if that is not as it must be."""
    with bounded_memory():
        ours = by_tidemark(data)
    theirs = by_oracle(data)
    if isinstance(ours, str):
        if isinstance(theirs, str):
            return "refused by both"
        assert any(pattern in ours for pattern in STRICTER), (ours, data.hex())
        return "refused by us alone"
    if isinstance(theirs, str):  # header keys that are not UTF-8 are read as by Java's client
        assert "UnicodeDecodeError" in theirs or reasoned(data), (theirs, data.hex())
        return "read by us alone"
    assert ours == theirs or reasoned(data), data.hex()
    return "the same rows"


@pytest.mark.timeout(3600)
def test_damage_gives_the_oracles_rows_or_an_error(rng: random.Random, full: bool) -> None:
    whole = b"".join(piece.raw for piece in PIECES)
    assert compare(whole) == "the same rows"
    seen: Counter[str] = Counter()
    resealed = 0
    for _ in range(150_000 if full else 1500):
        data, seal = mutated(rng)
        seen[compare(data)] += 1
        resealed += seal
    total = sum(seen.values())
    sys.stdout.write(f"{total} damaged segments, {resealed} with checksums made right: {dict(seen)}\n")
    assert 0.45 < resealed / total < 0.55
    assert seen["the same rows"] > total // 20
