"""A partition's directory, listed again only when its files may have changed.

Kafka makes, renames and deletes files, and each of these moves the directory's modification time; an append moves the
active segment's. So two ``stat`` calls show that a directory of thousands of files has not changed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from uploader_agent.disk.log_dirs import DirectoryListing, list_segments
from uploader_agent.disk.segment_files import file_name
from uploader_agent.runtime import MACHINE, Runtime

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
