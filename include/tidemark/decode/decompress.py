"""Decompression of batches' records into one reused arena, with a bound on the result of a batch and of a run of them.

Every framing that clients of any language have written is read: several zstd frames, lz4 frames or gzip members in a
row; zstd without content size; snappy as one raw block (librdkafka) or in the blocks of snappy-java, also several such
streams in a row, and with the version bytes of any writer. Fresh memory for each batch would cost as much as lz4
itself. Only records that do not fit the arena are decompressed twice: first to count them, so that memory for them is
fetched once.

Source: Kafka's ``Compression`` classes (KIP-110 zstd, KIP-57 lz4), the xerial ``SnappyOutputStream``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import numpy as np
import zstandard
from isal import isal_zlib
from numpy.typing import NDArray

from tidemark.decode.batch_headers import Headers, as_array
from tidemark.decode.kernel import MIN_RECORD_BYTES
from tidemark.kafka_log.batch import CODEC_MASK, CODECS, HEADER_SIZE, Codec

_ZSTD_MAX_RATIO: Final = 1 << 15
"""A zstd block of 4 bytes may stand for 128 KiB."""

_GZIP_MAX_RATIO: Final = 1032
"""258 bytes for 2 bits."""

_STEP_BYTES: Final = 1 << 14
"""The most bytes of input at a time, if the bound allows it: the libraries bound no output."""

_LZ4_STEP_BYTES: Final = 1 << 16
_LZ4_STEP_RATIO: Final = 8
"""Records rarely expand beyond this: they take one step, and memory that the allocator need not fetch each time."""

_SNAPPY_MAX_RATIO: Final = 32
"""A snappy copy of 3 bytes stands for at most 64."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE: Final = 16


class CorruptRecords(Exception):
    """The compressed records do not decompress, or to more than the bound."""


_FAILURES: Final[tuple[type[Exception], ...]] = (
    CorruptRecords,
    zstandard.ZstdError,
    RuntimeError,  # lz4's
    EOFError,  # lz4's, too
    isal_zlib.error,  # type: ignore[assignment]  # the stub has an instance for the class
    cramjam.DecompressionError,
)


class Arena:
    """A byte buffer that is filled from the start, grows as needed, and is used again."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.data: NDArray[np.uint8] = np.empty(capacity, np.uint8)
        self.used = 0

    @property
    def room(self) -> int:
        """Bytes that it can take without growing."""
        return len(self.data) - self.used

    def reserve(self, size: int) -> memoryview:
        """The next ``size`` bytes, to be written to and then taken by adding to ``used``."""
        if size > self.room:
            grown = np.empty(self.used + size + min(size, self._capacity) // 4, np.uint8)
            grown[: self.used] = self.data[: self.used]
            self.data = grown
        return self.data.data[self.used : self.used + size]

    def append(self, piece: bytes | memoryview) -> None:
        """Write ``piece`` at the end."""
        self.reserve(len(piece))[:] = piece
        self.used += len(piece)

    def shrink(self) -> None:
        """Empty the arena; free the memory that it grew by if that is more than it began with."""
        self.used = 0
        if len(self.data) > 2 * self._capacity:
            self.data = np.empty(self._capacity, np.uint8)


class Decompressor:
    """Appends decompressed records to an arena. Not for use from several threads: it keeps a zstd context."""

    def __init__(self, max_bytes: int) -> None:
        """``max_bytes`` bounds the result of one call; memory may go to twice that, and the arena's, meanwhile."""
        self._max_bytes = max_bytes
        self._zstd = zstandard.ZstdDecompressor()  # refuses windows over 128 MiB, as Kafka's zstd-jni does

    def append(self, codec: Codec, source: memoryview, arena: Arena) -> int:
        """Decompress all of ``source`` to the end of ``arena``; return the number of bytes appended.

        Raises :class:`CorruptRecords`, with the arena as before.
        """
        start = arena.used
        try:
            if codec == "snappy":
                _append_snappy(source, arena, self._max_bytes)
            else:
                self._append(codec, source, arena)
        except _FAILURES as error:
            arena.used = start
            raise CorruptRecords(f"{codec}: {error}") from error
        return arena.used - start

    def _append(self, codec: Codec, source: memoryview, arena: Arena) -> None:
        start = arena.used
        pieces = self._bounded(codec, source)
        for piece in pieces:
            if len(piece) > arena.room:
                size = arena.used - start + len(piece)
                del piece
                size += sum(map(len, pieces))
                arena.used = start
                arena.reserve(size)
                pieces = self._bounded(codec, source)
                break
            arena.append(piece)
        for piece in pieces:
            arena.append(piece)

    def _bounded(self, codec: Codec, source: memoryview) -> Iterator[bytes | memoryview]:
        """The decompressed pieces, while they are within the bound."""
        left = self._max_bytes
        for piece in self._pieces(codec, source):
            left -= len(piece)
            if left < 0:
                raise _too_large(self._max_bytes)
            yield piece

    def _pieces(self, codec: Codec, source: memoryview) -> Iterator[bytes | memoryview]:
        if codec == "zstd":
            return _frames(self._zstd.decompressobj, source, self._step(_ZSTD_MAX_RATIO))
        if codec == "gzip":
            return _frames(lambda: isal_zlib.decompressobj(31), source, self._step(_GZIP_MAX_RATIO))
        if codec == "lz4":
            return self._lz4(source)
        return iter((source,))

    def _step(self, ratio: int) -> int:
        """The number of input bytes that cannot exceed the bound."""
        return max(1, min(_STEP_BYTES, self._max_bytes // ratio))

    def _lz4(self, source: memoryview) -> Iterator[bytes]:
        """The content of lz4 frames. The library's own decompressor object copies the whole rest for each frame."""
        context = lz4.frame.create_decompression_context()  # it begins anew after each frame
        most = max(_LZ4_STEP_BYTES, min(_LZ4_STEP_RATIO * len(source), self._max_bytes + 1))  # allocated at once
        at, ended = 0, False
        while at < len(source) or not ended:
            piece, read, ended = lz4.frame.decompress_chunk(context, source[at:], max_length=most)
            if not (read or piece or ended):
                raise CorruptRecords("the frame is not complete")
            yield piece
            at += read


def _frames(new: Callable[[], Any], source: memoryview, step: int) -> Iterator[bytes]:
    """The content of zstd frames or gzip members in a row, from ``step`` bytes at a time."""
    frame = new()
    for at in range(0, len(source), step):
        piece: bytes | memoryview = source[at : at + step]
        while piece:
            if frame.eof:
                frame = new()
            yield frame.decompress(piece)
            piece = frame.unused_data
    if not frame.eof:  # no error for the libraries
        raise CorruptRecords("the frame is not complete")


def _append_snappy(source: memoryview, arena: Arena, most: int) -> None:
    """Append snappy's blocks. A block starts with its size, so the sum is known before any is decompressed."""
    blocks = list(_snappy_blocks(source))
    sizes = [_snappy_size(block) for block in blocks]
    if sum(sizes) > most:
        raise _too_large(most)
    target = arena.reserve(sum(sizes))
    at = 0
    for block, size in zip(blocks, sizes, strict=True):
        if cramjam.snappy.decompress_raw_into(block, target[at : at + size]) != size:
            raise CorruptRecords("a block is shorter than it claims")
        at += size
    arena.used += at


def _snappy_blocks(source: memoryview) -> Iterator[memoryview]:
    if not _starts_stream(source, 0):
        yield source
        return
    at = 0
    while at < len(source):
        if _starts_stream(source, at):
            at += _XERIAL_HEADER_SIZE
            if at > len(source):
                raise CorruptRecords("the header of a stream is not complete")
            continue
        size = int.from_bytes(source[at : at + 4], "big")
        at += 4
        if size > len(source) - at:
            raise CorruptRecords("a block is longer than the data that is left")
        yield source[at : at + size]
        at += size


def _snappy_size(block: memoryview) -> int:
    """The size that a block claims to have when decompressed."""
    if not len(block):
        raise CorruptRecords("a block is empty")  # no error for the library
    size = cramjam.snappy.decompress_raw_len(block)
    if size > _SNAPPY_MAX_RATIO * len(block):
        raise CorruptRecords("a block claims more than it can hold")
    return size


def _starts_stream(source: memoryview, at: int) -> bool:
    return bytes(source[at : at + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC


def _too_large(most: int) -> CorruptRecords:
    return CorruptRecords(f"more than {most} bytes when decompressed, which is the bound of a batch")


class Chunk(NamedTuple):
    """``memory[starts[k]:ends[k]]`` holds the records of the batch of ``headers[k]``; valid until the next chunk."""

    memory: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    headers: Headers


class DecodeLimits(NamedTuple):
    """The size of the part of a log that is decoded at once."""

    arena_bytes: int = 16 << 20
    """Records of a chunk, uncompressed: a chunk ends with the batch that reaches this."""
    rows: int = 1 << 18
    """Rows of a chunk, unless its only batch has more."""
    records_bytes: int = 1 << 30
    """Records of one batch, uncompressed; a batch with more is refused, also one that was never compressed."""


DEFAULT_LIMITS: Final = DecodeLimits()

Refuse = Callable[[Headers, str], None]
"""Called with the header of a batch (an item of Headers) and the rule that the batch breaks."""


def chunks(
    segment: NDArray[np.uint8], headers: Headers, position: int, limits: DecodeLimits, arena: Arena, refuse: Refuse
) -> Iterator[Chunk]:
    """Cut v2 batches into chunks. ``segment`` starts at byte ``position`` of the file.

    Uncompressed batches are not copied, others go to ``arena``. Batches that do not decompress, that are too large, or
    that cannot hold as many records as they claim, are refused and left out.
    """
    view = segment.data
    decompressor = Decompressor(limits.records_bytes)
    starts = (headers["position"] - position + HEADER_SIZE[2]).tolist()
    ends = (headers["position"] - position + headers["size"]).tolist()
    codecs = (headers["attributes"] & CODEC_MASK).tolist()
    counts = headers["record_count"].tolist()
    index = 0
    while index < len(headers):
        compressed = codecs[index] != 0
        arena.used = 0
        rows, size = 0, 0
        taken: list[tuple[int, int, int]] = []
        while index < len(headers) and size < limits.arena_bytes and (codecs[index] != 0) == compressed:
            if taken and rows + counts[index] > limits.rows:
                break
            try:
                source = view[starts[index] : ends[index]]
                unpacked = decompressor.append(CODECS[codecs[index]], source, arena) if compressed else len(source)
                _check_size(unpacked, limits.records_bytes)
                _check_count(counts[index], unpacked)
                start = arena.used - unpacked if compressed else starts[index]
                taken.append((index, start, start + unpacked))
                rows += counts[index]
                size += unpacked
            except CorruptRecords as error:
                refuse(headers[index], str(error))
            index += 1
        if taken:
            bounds = np.array(taken, np.int64).T.copy()
            yield Chunk(as_array(arena.data) if compressed else segment, bounds[1], bounds[2], headers[bounds[0]])


def _check_size(unpacked: int, most: int) -> None:
    if unpacked > most:
        raise CorruptRecords(f"its records have {unpacked} bytes, and {most} is the bound of a batch")


def _check_count(count: int, unpacked: int) -> None:
    """Refuse an impossible record count before anything is allocated per record."""
    if MIN_RECORD_BYTES * count > unpacked:
        raise CorruptRecords(f"{unpacked} bytes cannot hold {count} records")
