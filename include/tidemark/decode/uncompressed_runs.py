"""Runs of batches with uncompressed records in one piece of memory, of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidemark.decode.batch_headers import Headers, as_array
from tidemark.decode.decompress import Arena, CorruptRecords, Decompressor
from tidemark.decode.kernel import MIN_RECORD_BYTES
from tidemark.kafka_log.batch import CODEC_MASK, CODECS, HEADER_SIZE


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
