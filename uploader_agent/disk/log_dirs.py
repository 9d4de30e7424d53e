"""The partitions on the broker's disks: the directory of each, and its segments.

Nothing here opens a segment. Files that Kafka is making (``.cleaned``, ``.swap``) and directories that come or go
(``-future``, ``-delete``, ``-stray``) do not have names of segments or partitions, so they are never seen, nor is the
cache of the remote tier's indexes. Deleted files (``.deleted``) are listed separately. A symbolic link is never
followed here: Kafka makes none, and its maker should not choose the files that the agent reads. A log directory itself
may be a link, by configuration.

A partition's directory is listed again only when its files may have changed. Kafka makes, renames and deletes files,
and each of these moves the directory's modification time; an append moves the active segment's. So two ``stat`` calls
show that a directory of thousands of files has not changed.

Source: Kafka's ``UnifiedLog.parseTopicPartitionName``, ``LogFileUtils``, ``RemoteIndexCache``.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from tidemark.errors import FormatError, TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import parse_partition_metadata, parse_segment_file, segment_name
from uploader_agent.runtime import MACHINE, Runtime

PARTITION_METADATA = "partition.metadata"

_PARTITION = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>0|[1-9]\d{0,9})")
_QUORUM_LOG = "__cluster_metadata"
"""The log of KRaft's quorum lies among the partitions. It is no topic: no broker names a leader of it.

Source: ``Topic.CLUSTER_METADATA_TOPIC_NAME``.
"""
_KAFKA_S_OWN = re.compile(r".+-(?:future|delete|stray)|remote-log-index-cache")

DELETED = ".deleted"
"""The suffix that Kafka appends to the names of a segment's files ``file.delete.delay.ms`` before it unlinks them."""

_LISTINGS = 10
"""Listings of a directory before it counts as empty because files kept vanishing from it."""

_GRANULARITY = 2.0
"""Seconds within which two changes may leave one modification time: coarse clocks of kernels and file systems."""

_PROMPT = 1.0
"""Seconds within which a file event is reported."""


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A segment as the directory shows it. ``next_offset`` is the next segment's base; None while it is active."""

    base_offset: int
    next_offset: int | None
    size: int
    modified: float
    """Seconds since 1970 of the last append."""

    @property
    def rotated(self) -> bool:
        """True if a segment with a higher base exists, so that this segment is final."""
        return self.next_offset is not None


@dataclass(frozen=True, slots=True)
class Inventory:
    """Partitions, directories of other names, links, and unreadable log directories with the reason."""

    partitions: dict[TopicPartition, Path]
    strangers: tuple[Path, ...]
    links: tuple[Path, ...]
    unreadable: dict[Path, str]


class LogDirs(Collection[Path]):
    """The log directories that could be read at the last look. Those of this class are fixed, and may hold anything.

    One thread looks; any thread may go through them.
    """

    def __init__(self, named: Iterable[Path]) -> None:
        self.named = tuple(named)
        """All log directories, readable or not. Where two have a partition, the later one counts."""
        self.readable = self.named
        """Set after each look."""
        self.problem: tuple[Path, str] | None = None
        """The file that says which log directories there are, and the reason for which it cannot be followed."""
        self.replaced: str | None = None
        """How the broker has become another one, for which this process cannot work."""

    def follow(self) -> None:
        """Look again which log directories there are."""

    def check(self, log_dir: Path) -> None:
        """Return if ``log_dir`` may be read. Raises OSError and TidemarkError with the reason otherwise."""

    @override
    def __iter__(self) -> Iterator[Path]:
        return iter(self.readable)

    @override
    def __len__(self) -> int:
        return len(self.readable)

    @override
    def __contains__(self, log_dir: object) -> bool:
        return log_dir in self.readable


def find_partitions(log_dirs: Iterable[Path]) -> Inventory:
    """Look through all ``log_dirs``, once. See :class:`Disks`."""
    return Disks(LogDirs(log_dirs)).find()


class Disks:
    """Looks through ``log_dirs`` repeatedly; unchanged names are not parsed again."""

    def __init__(self, log_dirs: LogDirs) -> None:
        self._log_dirs = log_dirs
        self._parsed: dict[Path, tuple[list[str], tuple[dict[TopicPartition, Path], list[Path]]]] = {}
        """The names in each directory, and what they are."""

    def find(self) -> Inventory:
        """The current partitions. A log directory that cannot be read fails alone.

        While a partition moves between two log directories, both may hold it for a moment, with the same content.
        """
        self._log_dirs.follow()
        partitions: dict[TopicPartition, Path] = {}
        strangers: list[Path] = []
        links: list[Path] = []
        unreadable: dict[Path, str] = {}
        for log_dir in self._log_dirs.named:
            try:
                self._log_dirs.check(log_dir)
                names, linked = _folders(log_dir)
            except (OSError, TidemarkError) as error:
                unreadable[log_dir] = str(error)
                continue
            former = self._parsed.get(log_dir)
            parsed = former[1] if former is not None and former[0] == names else _parse(log_dir, names)
            self._parsed[log_dir] = names, parsed
            partitions |= parsed[0]
            strangers += parsed[1]
            links += linked
        self._log_dirs.readable = tuple(log_dir for log_dir in self._log_dirs.named if log_dir not in unreadable)
        return Inventory(partitions, tuple(strangers), tuple(links), unreadable)


def _parse(log_dir: Path, names: list[str]) -> tuple[dict[TopicPartition, Path], list[Path]]:
    """The partitions, and the folders that are not Kafka's."""
    partitions: dict[TopicPartition, Path] = {}
    strangers: list[Path] = []
    for name in names:
        match = _PARTITION.fullmatch(name)
        if match is not None and match["topic"] == _QUORUM_LOG:
            continue
        if match is not None:
            partitions[TopicPartition(match["topic"], int(match["partition"]))] = log_dir / name
        elif not _KAFKA_S_OWN.fullmatch(name):
            strangers.append(log_dir / name)
    return partitions, strangers


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """A partition's directory: its segments by base offset, the last one active, and the bases of ``.log.deleted``."""

    segments: list[LocalSegment]
    deleted: frozenset[int] = frozenset()


def list_segments(folder: Path) -> DirectoryListing:
    """The content of a partition's directory; empty if it is gone or keeps changing, until the next scan.

    Raises:
        OSError: it cannot be read. A part of a listing is never returned: what it lacks would seem to be deleted.
    """
    for _ in range(_LISTINGS):
        try:
            return _list(folder)
        except FileNotFoundError:
            try:
                os.stat(folder)  # noqa: PTH116 - Path.is_dir hides errors of the disk
            except FileNotFoundError:
                break
    return DirectoryListing([])


def find_segments(folder: Path) -> list[LocalSegment]:
    """The segments of :func:`list_segments`."""
    return list_segments(folder).segments


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
            self._active = f"{self._text}/{segment_name(self.listing.segments[-1].base_offset)}.log"

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


def topic_id_of(folder: Path) -> str | None:
    """The topic id in ``partition.metadata``; None where the cluster has none, or the directory is gone.

    Raises:
        FormatError: the file is damaged.
        OSError: it cannot be read.
    """
    path = folder / PARTITION_METADATA
    try:
        return parse_partition_metadata(read_text(path), str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def resolved(path: str | Path) -> Path:
    """``path`` without links, as far as these can be read; Path.resolve raises an error for a circle of them."""
    return Path(os.path.realpath(path))


def open_file(name: str | Path, directory: int | None = None) -> int:
    """A descriptor of a regular file, relative to the descriptor ``directory`` if given; the caller closes it.

    Raises:
        OSError: it cannot be opened; a link is not followed (ELOOP), and a pipe is not waited for.
    """
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    with ExitStack() as stack:
        stack.callback(os.close, descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            stack.pop_all()
            return descriptor
    raise OSError(errno.EINVAL, "is not a regular file", str(name))


def read_text(path: Path) -> str:
    """The content of a small text file of the broker's.

    Raises:
        FileNotFoundError, NotADirectoryError: the file is missing.
        OSError: it cannot be read.
        FormatError: it is a link, no regular file, or no text.
    """
    try:
        with open(open_file(path), encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EINVAL}:
            raise FormatError(str(path), f"{error.strerror}: no link is followed, and only files are read") from error
        raise
    except UnicodeDecodeError as error:
        raise FormatError(str(path), f"is no text in UTF-8: {error}") from error


def _folders(log_dir: Path) -> tuple[list[str], list[Path]]:
    """The names of the directories, and the paths of all links."""
    names: list[str] = []
    links: list[Path] = []
    with os.scandir(log_dir) as entries:
        for entry in entries:
            if entry.is_symlink():
                links.append(log_dir / entry.name)
            elif _is_folder(entry):
                names.append(entry.name)
    return sorted(names), sorted(links)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """True for a directory, and for what cannot be told, if a partition has such a name: it then fails alone."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return _PARTITION.fullmatch(entry.name) is not None


def _list(folder: Path) -> DirectoryListing:
    logs: dict[int, os.stat_result] = {}
    deleted: set[int] = set()
    with os.scandir(folder) as entries:
        for entry in entries:
            parsed = parse_segment_file(entry.name.removesuffix(DELETED))
            if parsed is None or parsed[1] != "log":
                continue
            if entry.name.endswith(DELETED):
                deleted.add(parsed[0])
            else:
                logs[parsed[0]] = entry.stat(follow_symlinks=False)
    bases = sorted(logs)
    segments = [
        LocalSegment(base, following, logs[base].st_size, logs[base].st_mtime)
        for base, following in zip_longest(bases, bases[1:])
    ]
    return DirectoryListing(segments, frozenset(deleted))
