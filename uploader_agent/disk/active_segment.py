"""Reads the active segment: the end of the log, and the timestamps of its records.

It follows the batch headers as the segment grows. In a segment that is already long when it is first read, it starts at
a position from the indexes; the time index is a running maximum. From then on it reads only the bytes appended, 64
KiB at a time.

The log end offset of a leader cannot be asked for: ListOffsets answers with the high watermark or the last stable
offset, and ``offset_lag`` of DescribeLogDirs is 0 on a leader (``UnifiedLog`` and ``ReplicaManager`` of Kafka 4.3.1).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tidemark.kafka_log import BatchHeader, parse_time_index
from tidemark.kafka_log.batch import PREFIX_SIZE
from tidemark.kafka_log.indexes import TIME_INDEX_ENTRY_SIZE
from uploader_agent.disk.partition_files import PartitionFiles
from uploader_agent.disk.segment_files import OpenFile, batch_headers, entry_up_to, file_name, index_head, log_bases

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
