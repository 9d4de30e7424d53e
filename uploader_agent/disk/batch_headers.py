"""A segment's batch headers without its batches: a walk that reads 64 KiB at a time and verifies no checksum."""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.kafka_log import BatchHeader
from tidemark.kafka_log.batch import HEADER_SIZE, PREFIX_SIZE, check_prefix, read_header
from uploader_agent.disk.segment_files import OpenFile

_WINDOW = 64 << 10


def headers(log: OpenFile, position: int) -> Iterator[BatchHeader]:
    """The headers of the whole batches from ``position`` on. Ends silently at bytes that are no whole batch."""
    window, start = b"", position
    while position + PREFIX_SIZE <= log.size:
        if position + HEADER_SIZE[2] > start + len(window):
            window, start = log.pread(position, _WINDOW), position
        at = position - start
        if len(window) - at < PREFIX_SIZE or check_prefix(window, at) is not None:
            return
        if len(window) - at < HEADER_SIZE[window[at + PREFIX_SIZE - 1]]:
            return
        header = read_header(window, at, position)
        if header.end > log.size:
            return
        yield header
        position = header.end
