"""A partition's directory, listed again only when its files may have changed, and the end of its active segment.

Kafka makes, renames and deletes files, and each of these moves the directory's modification time; an append moves the
active segment's. So two ``stat`` calls show that a directory of thousands of files has not changed.

The reader of the active segment follows the batch headers as it grows. In a segment that is already long when it is
first read, it starts at a position from the indexes; the time index is a running maximum. From then on it reads only
the bytes appended, 64 KiB at a time. The log end offset of a leader cannot be asked for: ListOffsets answers with the
high watermark or the last stable offset, and ``offset_lag`` of DescribeLogDirs is 0 on a leader (``UnifiedLog`` and
``ReplicaManager`` of Kafka 4.3.1).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tidemark.kafka_log import BatchHeader, parse_time_index
from tidemark.kafka_log.batch import PREFIX_SIZE
from tidemark.kafka_log.indexes import TIME_INDEX_ENTRY_SIZE
from uploader_agent.disk.log_dirs import DirectoryListing, list_segments
from uploader_agent.disk.segment_files import (
    OpenFile,
    PartitionFiles,
    batch_headers,
    entry_up_to,
    file_name,
    index_head,
    log_bases,
)
from uploader_agent.runtime import MACHINE, Runtime

_ANY_OFFSET = 1 << 62


class Active(NamedTuple):
    """A partition's active segment at the time of a read.

    ``size`` is the file's in bytes. ``end`` is the log end offset; None if an incomplete batch follows, for example
    while the broker writes it. ``leader_epoch`` is that of the last batch; -1 without a batch, or with a batch of an
    old format. The timestamps are the first and the largest, in milliseconds since 1970; None without records.
    """

    base_offset: int
    size: int
    end: int | None
    leader_epoch: int
    first_timestamp: int | None
    max_timestamp: int | None


class ActiveReader:
    """Reads one partition's active segment again and again. Not thread-safe."""

    def __init__(self) -> None:
        self._base_offset: int | None = None
        self._position = 0
        self._end = 0
        self._leader_epoch = -1
        self._first: int | None = None
        self._largest: int | None = None

    def read(self, folder: Path, topic_id: str | None) -> Active | None:
        """The current state of the active segment; None where the directory has no segment.

        Raises SegmentChanged if the directory is gone or another topic's, FormatError if an index is damaged, OSError.
        """
        with PartitionFiles(folder, topic_id) as files:
            base_offset = max(log_bases(files.names()), default=None)
            log = None if base_offset is None else files.open(file_name(base_offset, "log"))
            if base_offset is None or log is None:
                return None
            if base_offset == self._base_offset and log.size >= self._position:
                self._follow(log)
            if base_offset != self._base_offset or not self._ends(log):
                self._enter(files, log, base_offset)
                self._follow(log)
            end = self._end if self._ends(log) else None
            return Active(base_offset, log.size, end, self._leader_epoch, self._first, self._largest)

    def _follow(self, log: OpenFile) -> None:
        for header in batch_headers(log, self._position):
            self._take(header)

    def _enter(self, files: PartitionFiles, log: OpenFile, base_offset: int) -> None:
        self._base_offset, self._position, self._end, self._leader_epoch = base_offset, 0, base_offset, -1
        self._first = self._largest = None
        for header in batch_headers(log, 0):
            self._take(header)
            break
        times = files.open(file_name(base_offset, "timeindex"))
        if times is None:
            return
        maxima = parse_time_index(index_head(times, log, TIME_INDEX_ENTRY_SIZE), base_offset, _ANY_OFFSET, times.name)
        # The walk must start no later than the offset of the running maximum, or it would miss batches in between.
        timestamp, offset = maxima[-1] if maxima else (-1, -1)
        entry = entry_up_to(files, log, base_offset, offset) if maxima else None
        if entry is not None:
            self._position, self._largest = entry.position, timestamp

    def _take(self, header: BatchHeader) -> None:
        self._position, self._end, self._leader_epoch = header.end, header.last_offset + 1, header.leader_epoch
        if header.is_control or header.max_timestamp < 0:
            return
        if self._first is None and header.base_timestamp >= 0:
            self._first = header.base_timestamp
        self._largest = header.max_timestamp if self._largest is None else max(self._largest, header.max_timestamp)

    def _ends(self, log: OpenFile) -> bool:
        """True if nothing follows the last batch, or only the zeros of a preallocated file."""
        if log.size < self._position:
            return False
        return not any(log.pread(self._position, PREFIX_SIZE))


_GRANULARITY = 2.0
"""Seconds within which two changes may leave one modification time: coarse clocks of kernels and file systems."""


_PROMPT = 1.0
"""Seconds within which a file event is reported."""


class LogTail(NamedTuple):
    """The state that a log's changes move: the first base, and the active segment's base, size and time."""

    first: int
    base_offset: int
    size: int
    modified: float


class PartitionFolder:
    """A partition's directory; ``listing`` is the result of the last :meth:`look` that could read it."""

    def __init__(self, path: Path, runtime: Runtime = MACHINE) -> None:
        self.path = path
        self._time = runtime.time
        self.listing = DirectoryListing([])
        self.tail: LogTail | None = None
        self.error: str | None = None
        """The reason for which the last look could not read it. Then nothing is known to have changed."""
        self.overdue = 0
        """New segments at the last look that began more than a second before it: no event reported them."""
        self.replaced = False
        """True if the last look found another directory than the one before, or a log that had become shorter."""
        self._inode: int | None = None
        self._listed: tuple[int, int] | None = None
        self._modified = 0.0
        self._text = str(path)
        self._active = ""

    def look(self) -> bool:
        """Look again, and return True if the directory was listed again because its files may have changed."""
        before, inode = self.tail, self._inode
        try:
            listed = self._look()
        except OSError as error:
            self._listed, self.error, self.overdue, self.replaced = None, str(error), 0, False
            return False
        self.error = None
        tail = self._tail()
        if tail != before:
            self.tail = tail
        shrunk = before is not None and tail is not None and tail[1:3] < before[1:3]
        self.replaced = shrunk or (inode is not None and inode != self._inode)
        self.overdue = 0
        if before is not None and self._modified < self._time() - _PROMPT:
            self.overdue = sum(segment.base_offset > before.base_offset for segment in self.listing.segments)
        return listed

    def _look(self) -> bool:
        try:
            stat = os.stat(self._text)  # noqa: PTH116 - thousands of times in a scan
        except FileNotFoundError:
            self._listed, self.listing = None, DirectoryListing([])
            return True
        self._inode = stat.st_ino
        if (stat.st_ino, stat.st_mtime_ns) == self._listed and self._look_at_active():
            return False
        self._list(stat)
        return True

    def _list(self, stat: os.stat_result) -> None:
        stable = self._time() - stat.st_mtime > _GRANULARITY
        self.listing = list_segments(self.path)
        # An empty listing may be a failed one (list_segments returns the same for a directory that is gone).
        self._listed = (stat.st_ino, stat.st_mtime_ns) if stable and self.listing.segments else None
        self._modified = stat.st_mtime
        if self.listing.segments:
            self._active = f"{self._text}/{file_name(self.listing.segments[-1].base_offset, 'log')}"

    def _look_at_active(self) -> bool:
        """Update the active segment's size and time; return False if it is gone."""
        if not self.listing.segments:
            return True
        *rotated, active = self.listing.segments
        try:
            stat = os.stat(self._active)  # noqa: PTH116 - as above
        except FileNotFoundError:
            return False
        if (stat.st_size, stat.st_mtime) != (active.size, active.modified):
            grown = replace(active, size=stat.st_size, modified=stat.st_mtime)
            self.listing = replace(self.listing, segments=[*rotated, grown])
        return True

    def _tail(self) -> LogTail | None:
        if not self.listing.segments:
            return None
        first, active = self.listing.segments[0], self.listing.segments[-1]
        return LogTail(first.base_offset, active.base_offset, active.size, active.modified)
