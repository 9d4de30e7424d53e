"""When the records of an active segment were made: by its batch headers, followed as the segment grows.

A segment that is long already when it is first seen is entered through its indexes, whose time index is a running
maximum; from then on only what was appended is read, 64 KiB at a time.
"""

from __future__ import annotations

from pathlib import Path

from tidemark.records import BatchHeader, parse_offset_index, parse_time_index
from tidemark.records.indexes import INDEX_ENTRY_SIZE, TIME_INDEX_ENTRY_SIZE
from uploader_agent.files import OpenFile, PartitionFiles, file_name
from uploader_agent.headers import headers

_INDEX_INTERVAL = 4096  # Kafka's index.interval.bytes; with a smaller one the walk only starts earlier
_ANY_OFFSET = 1 << 62


class ActiveSpan:
    """First and largest timestamp of a partition's active segment, in milliseconds since 1970; None without records.

    ``base_offset`` names the segment; None before one was read.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self.largest: int | None = None
        self.base_offset: int | None = None
        self._position = 0

    def update(self, folder: Path, topic_id: str | None, base_offset: int) -> None:
        """Take account of what ``base_offset``'s segment has by now.

        Raises SegmentChanged if the directory is gone, FormatError if an index is damaged.
        """
        with PartitionFiles(folder, topic_id) as files:
            log = files.open(file_name(base_offset, "log"))
            if log is None:
                return
            if base_offset != self.base_offset or log.size < self._position:
                self._enter(files, log, base_offset)
            for header in headers(log, self._position):
                self._take(header)

    def _enter(self, files: PartitionFiles, log: OpenFile, base_offset: int) -> None:
        self.base_offset, self._position, self.first, self.largest = base_offset, 0, None, None
        for header in headers(log, 0):
            self._take(header)
            break
        entries = log.size // _INDEX_INTERVAL + 1
        index = files.open(file_name(base_offset, "index"))
        times = files.open(file_name(base_offset, "timeindex"))
        if index is None or times is None:
            return
        known = parse_offset_index(_head(index, entries, INDEX_ENTRY_SIZE), base_offset, log.size, index.name)
        maxima = parse_time_index(_head(times, entries, TIME_INDEX_ENTRY_SIZE), base_offset, _ANY_OFFSET, times.name)
        # The walk must start no later than where the running maximum ends, or it would miss what lies between.
        if maxima:
            covered = [entry.position for entry in known if entry.last_offset <= maxima[-1].offset]
            self._position = max([self._position, *covered[-1:]])
            self.largest = maxima[-1].timestamp

    def _take(self, header: BatchHeader) -> None:
        self._position = header.end
        if header.is_control or header.max_timestamp < 0:
            return
        if self.first is None and header.base_timestamp >= 0:
            self.first = header.base_timestamp
        self.largest = header.max_timestamp if self.largest is None else max(self.largest, header.max_timestamp)


def _head(file: OpenFile, entries: int, entry_size: int) -> bytes:
    return file.cut(min(file.size // entry_size, entries) * entry_size).read()
