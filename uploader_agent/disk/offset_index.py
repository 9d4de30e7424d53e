"""A position to start from in a local segment, from the broker's ``.index``, which is only a hint.

Kafka preallocates the indexes of an active segment with zeros, and may leave entries of a log that was truncated.
"""

from __future__ import annotations

from bisect import bisect_left

from tidemark.errors import FormatError
from tidemark.kafka_log import OffsetIndexEntry, confirms_cut, parse_offset_index
from tidemark.kafka_log.batch import HEADER_SIZE, read_header
from tidemark.kafka_log.indexes import INDEX_ENTRY_SIZE
from uploader_agent.disk.segment_files import OpenFile, SegmentFiles, file_name

_INTERVAL = 4096  # Kafka's index.interval.bytes; if it is smaller, fewer entries are read, and a walk starts earlier


def entry_up_to(files: SegmentFiles, log: OpenFile, base_offset: int, offset: int) -> OffsetIndexEntry | None:
    """The last entry of the index that ends at or below ``offset``, if a batch begins at its position.

    ``log`` is the whole segment at ``base_offset``. None if there is no such entry. Raises FormatError for a damaged
    index.
    """
    index = files.open(file_name(base_offset, "index"))
    if index is None:
        return None
    entries = parse_offset_index(head(index, log, INDEX_ENTRY_SIZE), base_offset, log.size, index.name)
    last = next((entry for entry in reversed(entries) if entry.last_offset <= offset), None)
    if last is None:
        return None
    return last if confirms_cut(log.pread(last.position, HEADER_SIZE[2]), last, base_offset, log.size) else None


def position_before_epoch(files: SegmentFiles, log: OpenFile, base_offset: int, epoch: int) -> int:
    """The position of a batch at or before the first one of leader ``epoch``, some batches before it at most.

    ``log`` is the whole segment at ``base_offset``. Epochs never decrease in a log. 0 without a sound index.
    """
    index = files.open(file_name(base_offset, "index"))
    if index is None:
        return 0
    try:
        entries = parse_offset_index(head(index, log, INDEX_ENTRY_SIZE), base_offset, log.size, index.name)
        number = bisect_left(entries, epoch, key=lambda entry: _epoch_at(log, entry, base_offset))
    except FormatError:
        return 0
    return entries[number - 1].position if number else 0


def _epoch_at(log: OpenFile, entry: OffsetIndexEntry, base_offset: int) -> int:
    """The leader epoch of the batch at ``entry``. Raises FormatError if no batch begins there."""
    header = log.pread(entry.position, HEADER_SIZE[2])
    if not confirms_cut(header, entry, base_offset, log.size):
        raise FormatError(log.name, f"no batch begins at byte {entry.position}, where its index has one")
    return read_header(header, 0, entry.position).leader_epoch


def head(index: OpenFile, log: OpenFile, entry_size: int) -> bytes:
    """The part of a preallocated index, with entries of ``entry_size`` bytes, that can belong to ``log``."""
    entries = min(index.size // entry_size, log.size // _INTERVAL + 1)
    return index.cut(entries * entry_size).read()
