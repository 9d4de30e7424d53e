from __future__ import annotations

import gzip
import random
import tracemalloc
from typing import get_args

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import pytest
import zstandard

from tests.tidemark.kafka_log.build import JAVA_LIKE, snappy_java, snappy_raw
from tidemark.decode.decompress import Arena, CorruptRecords, Decompressor
from tidemark.kafka_log.batch import Codec

CODECS: tuple[Codec, ...] = get_args(Codec)
COMPRESSED = [codec for codec in CODECS if codec != "none"]


def expand(codec: Codec, data: bytes, max_bytes: int = 1 << 24) -> bytes:
    arena = Arena(16)
    arena.append(b"before")
    held = Decompressor(max_bytes).append(codec, memoryview(data), arena)
    assert bytes(arena.data[:6]) == b"before"
    assert arena.used == 6 + held
    return bytes(arena.data[6 : arena.used])


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("size", [0, 1, 100, 32_768, 32_769, 200_000, 3_000_000])
def test_what_was_compressed_comes_back(codec: Codec, size: int, rng: random.Random) -> None:
    data = bytes(rng.choices(range(20), k=size))
    assert expand(codec, JAVA_LIKE[codec](data)) == data


@pytest.mark.parametrize("codec", COMPRESSED)
def test_many_frames_in_a_row(codec: Codec) -> None:
    pieces = [b"%d" % i * 500 for i in range(30)]
    assert expand(codec, b"".join(map(JAVA_LIKE[codec], pieces))) == b"".join(pieces)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_every_truncation_is_noticed(codec: Codec) -> None:
    data = JAVA_LIKE[codec](bytes(range(256)) * 8)
    for size in range(len(data)):
        if codec == "snappy" and size == 16:
            continue  # the header of a stream alone is a stream of no blocks
        with pytest.raises(CorruptRecords, match=codec):
            expand(codec, data[:size])


@pytest.mark.parametrize("codec", COMPRESSED)
def test_damage_raises_nothing_else(codec: Codec, rng: random.Random) -> None:
    pristine = JAVA_LIKE[codec](bytes(rng.choices(range(20), k=5000)))
    for _ in range(500):
        data = bytearray(pristine)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        arena = Arena(100)
        try:
            Decompressor(1 << 20).append(codec, memoryview(data), arena)
        except CorruptRecords:
            assert arena.used == 0  # some damage passes: not every codec has a checksum


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_is_bounded_in_memory(codec: Codec) -> None:
    bombs = {
        "gzip": gzip.compress(bytes(1 << 26)),
        "snappy": snappy_java(bytes(1 << 26)),
        "lz4": lz4.frame.compress(bytes(1 << 26)),
        "zstd": zstandard.ZstdCompressor().compress(bytes(1 << 26)),
    }
    tracemalloc.start()
    with pytest.raises(CorruptRecords, match="bound"):
        expand(codec, bombs[codec], 1 << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 << 20


@pytest.mark.parametrize("codec", COMPRESSED)
def test_many_frames_are_a_bomb_together(codec: Codec) -> None:
    bomb = JAVA_LIKE[codec](bytes(1 << 19)) * 100
    tracemalloc.start()
    with pytest.raises(CorruptRecords, match="bound"):
        expand(codec, bomb, 1 << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 << 20


def test_many_lz4_frames_cost_as_many_bytes_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left behind a frame is not copied to find the next one."""
    frames = lz4.frame.compress(b"") * 1000
    read: list[int] = []
    copied: list[int] = []
    decompress_chunk = lz4.frame.decompress_chunk

    def counting(context: object, data: bytes | memoryview, **options: int) -> tuple[bytes, int, bool]:
        if not (isinstance(data, memoryview) and data.obj is frames):
            copied.append(len(data))
        found: tuple[bytes, int, bool] = decompress_chunk(context, data, **options)
        read.append(found[1])
        return found

    monkeypatch.setattr(lz4.frame, "decompress_chunk", counting)
    assert expand("lz4", frames) == b""
    assert sum(read) == len(frames)
    assert len(read) <= 2 * 1000
    assert sum(copied) <= len(frames)


def test_exactly_the_bound_is_accepted() -> None:
    for codec in COMPRESSED:
        assert len(expand(codec, JAVA_LIKE[codec](bytes(100_000)), 100_000)) == 100_000
        with pytest.raises(CorruptRecords, match="bound"):
            expand(codec, JAVA_LIKE[codec](bytes(100_001)), 100_000)


def test_a_snappy_block_that_claims_too_much_allocates_nothing() -> None:
    lying = b"\xff\xff\xff\xff\x03" + snappy_raw(b"abc")[1:]
    assert cramjam.snappy.decompress_raw_len(lying) == 2**30 - 1
    with pytest.raises(CorruptRecords, match="claims more"):
        expand("snappy", lying, 1 << 30)
    long_block = snappy_java(b"abc")[:16] + b"\x7f\xff\xff\xff" + b"x"
    with pytest.raises(CorruptRecords, match="longer than the data that is left"):
        expand("snappy", long_block)


def test_a_window_beyond_what_clients_accept_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=28)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(CorruptRecords, match="zstd"):
        expand("zstd", stream.compress(b"x" * 1000) + stream.flush())


def test_an_arena_is_used_again() -> None:
    arena, decompressor = Arena(1000), Decompressor(1 << 20)
    memory = arena.data
    for text in (b"one", b"two"):
        arena.used = 0
        decompressor.append("gzip", memoryview(gzip.compress(text * 100)), arena)
        assert arena.data is memory
        assert bytes(memory[:300]) == text * 100
