"""Runs of batches whose records lie uncompressed in one piece of memory, of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidemark.decode.decompress import Arena, CorruptRecords, Decompressor
from tidemark.decode.headers import Headers, as_array
from tidemark.decode.kernel import MIN_RECORD_BYTES
from tidemark.records.batch import APPEND_TIME, CODEC_MASK, CODECS, HEADER_SIZE


class Chunk(NamedTuple):
    """``memory[starts[k]:ends[k]]`` holds the records of the batch of ``headers[k]``; valid until the next chunk."""

    memory: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    headers: Headers


Refuse = Callable[[int, str], None]
"""Called with the index of a batch among the headers and the rule that it breaks."""


def chunks(
    segment: NDArray[np.uint8],
    headers: Headers,
    position: int,
    arena_bytes: int,
    max_rows: int,
    max_records_bytes: int,
    refuse: Refuse,
) -> Iterator[Chunk]:
    """Cut v2 batches into chunks of at most about ``arena_bytes`` and ``max_rows``, or one batch that is larger.

    ``segment`` starts at byte ``position`` of the file. Uncompressed batches are not copied. All batches of a chunk have
    the same timestamp type. Batches that do not decompress, or cannot hold as many records as they claim, are refused.
    """
    view = memoryview(segment)
    decompressor = Decompressor(max_records_bytes)
    arena = Arena(arena_bytes)
    starts = headers["position"] - position + HEADER_SIZE[2]
    ends = headers["position"] - position + headers["size"]
    counts = headers["record_count"].tolist()
    attributes = headers["attributes"].tolist()
    spans = list(zip(starts.tolist(), ends.tolist(), strict=True))
    index = 0
    while index < len(headers):
        first, rows, size = index, 0, 0
        kind = _kind(attributes[first])
        arena.used = 0
        taken: list[int] = []
        bounds: list[tuple[int, int]] = []
        while index < len(headers) and _kind(attributes[index]) == kind and size < arena_bytes:
            if taken and rows + counts[index] > max_rows:
                break
            start, end = spans[index]
            try:
                if attributes[index] & CODEC_MASK:
                    before = arena.used
                    decompressor.append(CODECS[attributes[index] & CODEC_MASK], view[start:end], arena)
                    start, end = before, arena.used
                if MIN_RECORD_BYTES * counts[index] > end - start:
                    raise CorruptRecords(f"{end - start} bytes cannot hold {counts[index]} records")
                taken.append(index)
                bounds.append((start, end))
                rows += counts[index]
                size += end - start
            except CorruptRecords as error:
                refuse(index, str(error))
            index += 1
        memory = as_array(arena.data) if kind[0] else segment
        limits = np.array(bounds, np.int64).reshape(-1, 2)
        yield Chunk(memory, limits[:, 0].copy(), limits[:, 1].copy(), headers[taken])


def _kind(attributes: int) -> tuple[bool, int]:
    return attributes & CODEC_MASK != 0, attributes & APPEND_TIME
