"""Decompression of a batch's records into one reused arena, with a bound on what a batch may expand to.

Every framing that clients of any language have written is read: several zstd frames, lz4 frames or gzip members in a
row; zstd without content size; snappy as one raw block (librdkafka) or in the blocks of snappy-java, also several such
streams in a row, and with the version bytes of any writer. Fresh memory for each batch would cost as much as lz4
itself.

Source: Kafka's ``Compression`` classes (KIP-110 zstd, KIP-57 lz4), the xerial ``SnappyOutputStream``.
"""

from __future__ import annotations

from typing import Final

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import numpy as np
import zstandard
from isal import isal_zlib
from numpy.typing import NDArray

from tidemark.records.batch import Codec

_ZSTD_MAX_RATIO: Final = 1 << 15
"""A zstd block of 4 bytes may stand for 128 KiB."""

_LZ4_STEP_BYTES: Final = 1 << 16
_LZ4_STEP_RATIO: Final = 8
"""What records rarely expand beyond: one step then, and memory that the allocator need not fetch each time."""

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
    EOFError,  # likewise
    isal_zlib.error,  # type: ignore[assignment]  # the stub has an instance for the class
    cramjam.DecompressionError,
)


class Arena:
    """A byte buffer that is filled from the start, grows as needed, and is used again."""

    def __init__(self, capacity: int) -> None:
        self.data: NDArray[np.uint8] = np.empty(capacity, np.uint8)
        self.used = 0

    def reserve(self, size: int) -> memoryview:
        """The next ``size`` bytes, to be written to and then taken with :meth:`advance`."""
        if self.used + size > len(self.data):
            grown = np.empty((self.used + size) * 5 // 4, np.uint8)
            grown[: self.used] = self.data[: self.used]
            self.data = grown
        return self.data.data[self.used : self.used + size]

    def append(self, piece: bytes) -> None:
        """Write ``piece`` at the end."""
        self.reserve(len(piece))[:] = piece
        self.used += len(piece)


class Decompressor:
    """Appends decompressed records to an arena. Not for use from several threads: it keeps a zstd context."""

    def __init__(self, max_bytes: int) -> None:
        """``max_bytes`` bounds the result of one call; memory may go to twice that before it is noticed."""
        self._max_bytes = max_bytes
        self._zstd = zstandard.ZstdDecompressor()  # refuses windows over 128 MiB, as Kafka's zstd-jni does

    def append(self, codec: Codec, source: memoryview, arena: Arena) -> int:
        """Decompress all of ``source`` to the end of ``arena``: the number of bytes appended.

        Raises :class:`CorruptRecords`, with the arena as before.
        """
        start = arena.used
        try:
            if codec == "zstd":
                self._append_zstd(source, arena, start + self._max_bytes)
            elif codec == "lz4":
                self._append_lz4(source, arena, start + self._max_bytes)
            elif codec == "gzip":
                self._append_gzip(source, arena, start + self._max_bytes)
            elif codec == "snappy":
                self._append_snappy(source, arena, start + self._max_bytes)
            else:
                arena.append(bytes(source))
        except _FAILURES as error:
            arena.used = start
            raise CorruptRecords(f"{codec}: {error}") from error
        return arena.used - start

    def _append_zstd(self, source: memoryview, arena: Arena, limit: int) -> None:
        step = max(1, self._max_bytes // _ZSTD_MAX_RATIO)  # the library bounds no output, so bound each input
        frame = self._zstd.decompressobj()
        for at in range(0, len(source), step):
            piece: bytes | memoryview = source[at : at + step]
            while piece:
                if frame.eof:
                    frame = self._zstd.decompressobj()
                _append_bounded(arena, frame.decompress(piece), limit)
                piece = frame.unused_data
        if not frame.eof:  # not an error to the library
            raise CorruptRecords("the frame is not complete")

    def _append_lz4(self, source: memoryview, arena: Arena, limit: int) -> None:
        rest: bytes | memoryview = source
        while True:
            frame = lz4.frame.LZ4FrameDecompressor()
            most = max(_LZ4_STEP_BYTES, _LZ4_STEP_RATIO * len(rest))  # the library allocates as much at once
            _append_bounded(arena, frame.decompress(rest, max_length=most), limit)
            while not (frame.eof or frame.needs_input):
                _append_bounded(arena, frame.decompress(b"", max_length=most), limit)
            if not frame.eof:
                raise CorruptRecords("the frame is not complete")
            if not frame.unused_data:
                return
            rest = frame.unused_data

    def _append_gzip(self, source: memoryview, arena: Arena, limit: int) -> None:
        rest: bytes | memoryview = source
        while True:
            member = isal_zlib.decompressobj(31)
            _append_bounded(arena, member.decompress(rest, limit - arena.used + 1), limit)
            if not member.eof:
                raise CorruptRecords("the gzip member is not complete")
            if not member.unused_data:
                return
            rest = member.unused_data

    def _append_snappy(self, source: memoryview, arena: Arena, limit: int) -> None:
        if not _starts_stream(source, 0):
            _append_snappy_block(source, arena, limit)
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
                raise CorruptRecords("a block is longer than what is there")
            _append_snappy_block(source[at : at + size], arena, limit)
            at += size


def _starts_stream(source: memoryview, at: int) -> bool:
    return bytes(source[at : at + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC


def _append_bounded(arena: Arena, piece: bytes, limit: int) -> None:
    if arena.used + len(piece) > limit:
        raise CorruptRecords("more than the bound when decompressed")
    arena.append(piece)


def _append_snappy_block(block: memoryview, arena: Arena, limit: int) -> None:
    if not len(block):
        raise CorruptRecords("a block is empty")  # not an error to the library
    size = cramjam.snappy.decompress_raw_len(block)
    if size > _SNAPPY_MAX_RATIO * len(block) or arena.used + size > limit:
        raise CorruptRecords("a block claims more than it can hold, or than the bound")
    if cramjam.snappy.decompress_raw_into(block, arena.reserve(size)) != size:
        raise CorruptRecords("a block is shorter than it claims")
    arena.used += size
