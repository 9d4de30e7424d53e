"""The partitions on the broker's disks: the directory of each, and its segments.

Nothing here opens a segment. Files that Kafka is making (``.cleaned``, ``.swap``) and directories that come or go
(``-future``, ``-delete``, ``-stray``) do not have names of segments or partitions, so they are never seen, nor is the
cache of the remote tier's indexes. Deleted files (``.deleted``) are listed separately. A symbolic link is never
followed here: Kafka makes none, and its maker should not choose the files that the agent reads. A log directory itself
may be a link, by configuration.

Source: Kafka's ``UnifiedLog.parseTopicPartitionName``, ``LogFileUtils``, ``RemoteIndexCache``.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from tidemark.errors import FormatError
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import parse_partition_metadata, parse_segment_file

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


def find_partitions(log_dirs: Iterable[Path]) -> Inventory:
    """Look through all ``log_dirs``, once. See :class:`Disks`."""
    return Disks(log_dirs).find()


class Disks:
    """Looks through ``log_dirs`` repeatedly; unchanged names are not parsed again."""

    def __init__(self, log_dirs: Iterable[Path]) -> None:
        self._log_dirs = tuple(log_dirs)
        self._parsed: dict[Path, _Parsed] = {}

    def find(self) -> Inventory:
        """The current partitions.

        While a partition moves between two log directories, both may hold it for a moment, with the same content.
        """
        partitions: dict[TopicPartition, Path] = {}
        strangers: list[Path] = []
        links: list[Path] = []
        unreadable: dict[Path, str] = {}
        for log_dir in self._log_dirs:
            try:
                names, linked = _folders(log_dir)
            except OSError as error:
                unreadable[log_dir] = str(error)
                continue
            parsed = self._parsed.get(log_dir)
            if parsed is None or parsed.names != names:
                parsed = self._parsed[log_dir] = _parse(log_dir, names)
            partitions |= parsed.partitions
            strangers += parsed.strangers
            links += linked
        return Inventory(partitions, tuple(strangers), tuple(links), unreadable)


class _Parsed(NamedTuple):
    names: list[str]
    partitions: dict[TopicPartition, Path]
    strangers: list[Path]


def _parse(log_dir: Path, names: list[str]) -> _Parsed:
    parsed = _Parsed(names, {}, [])
    for name in names:
        match = _PARTITION.fullmatch(name)
        if match is not None and match["topic"] == _QUORUM_LOG:
            continue
        if match is not None:
            parsed.partitions[TopicPartition(match["topic"], int(match["partition"]))] = log_dir / name
        elif not _KAFKA_S_OWN.fullmatch(name):
            parsed.strangers.append(log_dir / name)
    return parsed


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """A partition's directory: its segments by base offset, the last one active, and the bases of ``.log.deleted``."""

    segments: list[LocalSegment]
    deleted: frozenset[int] = frozenset()


def list_segments(folder: Path) -> DirectoryListing:
    """The content of a partition's directory; empty if it is gone or keeps changing, until the next scan."""
    for _ in range(_LISTINGS):
        try:
            return _list(folder)
        except FileNotFoundError:
            if not folder.is_dir():
                break
    return DirectoryListing([])


def find_segments(folder: Path) -> list[LocalSegment]:
    """The segments of :func:`list_segments`."""
    return list_segments(folder).segments


def topic_id_of(folder: Path) -> str | None:
    """The topic id in ``partition.metadata``; None where the cluster has none, or the directory is gone.

    Raises:
        FormatError: the file is damaged.
    """
    path = folder / PARTITION_METADATA
    try:
        return parse_partition_metadata(read_text(path), str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def open_file(name: str | Path, directory: int | None = None) -> int:
    """A descriptor of a regular file, relative to the descriptor ``directory`` if given; the caller closes it.

    Raises:
        OSError: it cannot be opened; a link is not followed (ELOOP), and a pipe is not waited for.
    """
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", str(name))
    return descriptor


def read_text(path: Path) -> str:
    """The content of a small text file of the broker's.

    Raises:
        FileNotFoundError, NotADirectoryError: the file is missing.
        FormatError: it is a link, or no regular file.
    """
    try:
        with open(open_file(path), encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EINVAL}:
            raise FormatError(str(path), f"{error.strerror}: no link is followed, and only files are read") from error
        raise


def _folders(log_dir: Path) -> tuple[list[str], list[Path]]:
    """The names of the directories, and the paths of all links."""
    names: list[str] = []
    links: list[Path] = []
    with os.scandir(log_dir) as entries:
        for entry in entries:
            if entry.is_symlink():
                links.append(log_dir / entry.name)
            elif entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
    return sorted(names), sorted(links)


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
