"""The record of a held segment, and the two ways of keeping its files: open descriptors, and a directory of hard links.

Both outlive the broker's renames and unlinks. A descriptor needs read permission only, and ends with this process; a
link outlives it, and costs no descriptor. A directory of links is made under a name that starts with a dot and then
renamed, so that it is either complete or missing.
"""

from __future__ import annotations

import errno
import os
import resource
import secrets
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import structlog
from pydantic import Field
from typing_extensions import override

from tidemark.errors import FormatError, LaterFormat
from tidemark.formats.base import StoredObject
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import Lineage
from uploader_agent.disk.log_dirs import LocalSegment
from uploader_agent.disk.segment_files import file_name

logger = structlog.get_logger(__name__)

NOTE = "segment.json"

HEADROOM = 512
"""Descriptors left for sockets, running uploads, and everything else."""

MOST = 1 << 16
"""Most descriptors kept: each pins an inode and a directory entry in the kernel's memory, about 1.3 KiB."""


class HeldSegment(StoredObject):
    """The record of a held segment, of a partition of one topic id.

    It is written when the rotated segment is first seen, and is the basis of every later check.

    ``size`` and ``modified`` (seconds since 1970) are those of its ``.log``, ``files`` the names of all files that are
    held; ``lineage`` ends at ``next_offset``. ``deleted`` states that the segment was first seen as ``.log.deleted``,
    so that its lineage comes from its batches alone.
    """

    topic: str
    partition: int = Field(ge=0)
    topic_id: str | None
    base_offset: int = Field(ge=0)
    next_offset: int = Field(ge=0)
    size: int = Field(ge=0)
    modified: float
    leader_epoch: int
    lineage: tuple[tuple[int, int], ...]
    files: tuple[str, ...]
    deleted: bool = False

    @property
    def tp(self) -> TopicPartition:
        """The segment's partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def segment(self) -> LocalSegment:
        """The segment as the log directory showed it."""
        return LocalSegment(self.base_offset, self.next_offset, self.size, self.modified)

    @property
    def log(self) -> str:
        """The name of its ``.log``."""
        return file_name(self.base_offset, "log")

    def diverges(self, lineage: Lineage, end: int | None = None) -> int | None:
        """The first of its offsets that ``lineage``, known below ``end``, assigns to another epoch."""
        limit = self.next_offset if end is None else min(self.next_offset, end)
        return Lineage(self.lineage).divergence(lineage, limit)


class HoldBackend(Protocol):
    """Keeps the files of one segment. Errors are ``OSError``."""

    @property
    def count(self) -> int:
        """The number of descriptors in use."""
        ...

    def open(self, name: str) -> int | None:
        """A descriptor of a file, which the caller closes; None if it is not kept."""
        ...

    def stat(self, name: str) -> os.stat_result:
        """A kept file's state."""
        ...

    def is_last(self, log: str) -> bool:
        """True if the broker has unlinked the file ``log``, so that keeping it costs space."""
        ...

    def drop(self) -> None:
        """Release all files."""
        ...


class DescriptorBackend(HoldBackend):
    """Open files by name, which this object owns."""

    def __init__(self, files: Mapping[str, int]) -> None:
        self._files = dict(files)
        self._lock = threading.Lock()  # the number of a closed descriptor may be reused at once

    @property
    @override
    def count(self) -> int:
        return len(self._files)

    @override
    def open(self, name: str) -> int | None:
        with self._lock:
            descriptor = self._files.get(name)
            return None if descriptor is None else os.dup(descriptor)

    @override
    def stat(self, name: str) -> os.stat_result:
        with self._lock:
            if name not in self._files:
                raise FileNotFoundError(errno.ENOENT, "is not held any more", name)
            return os.fstat(self._files[name])

    @override
    def is_last(self, log: str) -> bool:
        return self.stat(log).st_nlink == 0

    @override
    def drop(self) -> None:
        with self._lock:
            close_all(self._files)
            self._files.clear()


class HardLinkBackend(HoldBackend):
    """A directory of hard links."""

    count = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, parent: Path, note: HeldSegment, files: Mapping[str, int]) -> HardLinkBackend:
        """Link the open ``files``, by name, into a new directory below ``parent``. The caller still owns them.

        Raises:
            OSError: nothing was made. EXDEV: another file system, or another mount of it; EPERM: the kernel's
                ``fs.protected_hardlinks`` requires write permission on the files; ENOSPC, EROFS, EACCES, EMLINK.
        """
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{note.base_offset:020d}-{secrets.token_hex(8)}"
        folder = parent / f".{name}"
        folder.mkdir(mode=0o700)
        try:
            for file, descriptor in files.items():
                link(descriptor, folder / file)
            (folder / NOTE).write_bytes(note.to_bytes())
            folder.rename(parent / name)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)  # the next start removes the rest
            raise
        return cls(parent / name)

    @override
    def open(self, name: str) -> int | None:
        try:
            return os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None

    @override
    def stat(self, name: str) -> os.stat_result:
        return (self.folder / name).stat()

    @override
    def is_last(self, log: str) -> bool:
        return self.stat(log).st_nlink == 1

    def drop(self) -> None:
        """See :class:`HoldBackend`. A dotted name comes first, so that a crash leaves no valid partial set."""
        dropped = self.folder.with_name(f".{self.folder.name}")
        try:
            self.folder.rename(dropped)
            shutil.rmtree(dropped)
        except OSError as error:
            logger.warning("links_not_removed", folder=str(self.folder), error=str(error))


def read_back(parent: Path) -> Iterator[tuple[HeldSegment, HardLinkBackend]]:
    """Read the sets that a former agent left below ``parent``. Incomplete or changed sets are removed.

    A set that a later version of the agent has described stays for that version.

    Raises:
        OSError: a set cannot be read now. It may hold the only copy of a segment, so it stays for the next try.
    """
    try:
        paths = sorted(parent.iterdir())
    except FileNotFoundError:
        return
    failure: OSError | None = None
    for folder in paths:
        try:
            if stat.S_ISDIR(folder.stat().st_mode):  # Path.is_dir takes errors of the disk for an answer
                yield _read(folder)
        except LaterFormat as error:
            logger.warning("held_set_not_read", folder=str(folder), error=str(error))
        except (FileNotFoundError, FormatError) as error:
            logger.warning("held_set_dropped", folder=str(folder), error=str(error))
            shutil.rmtree(folder, ignore_errors=True)
        except OSError as error:
            failure = error
    if failure is not None:
        raise failure


def link(descriptor: int, path: Path) -> None:
    """Make ``path`` a hard link to an open file under any current name (ENOENT if the file has no name left)."""
    # With a directory descriptor Python calls linkat(2) with AT_SYMLINK_FOLLOW, which /proc's links need.
    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)


def close_all(files: Mapping[str, int]) -> None:
    """Close the descriptors of ``files``."""
    for descriptor in files.values():
        os.close(descriptor)


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one (``RLIMIT_NOFILE``), and return :func:`budget` of it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return budget(hard)


def budget(limit: int) -> int:
    """Most descriptors to keep under a ``limit`` of open files; half of a small limit."""
    if limit == resource.RLIM_INFINITY:
        return MOST
    return min(max(limit - HEADROOM, limit // 2), MOST)


def _read(folder: Path) -> tuple[HeldSegment, HardLinkBackend]:
    path = folder / NOTE
    if folder.name.startswith("."):
        raise FormatError(str(folder), "was not finished, or was being removed, when its agent ended")
    note, links = HeldSegment.from_bytes(path.read_bytes(), str(path)), HardLinkBackend(folder)
    for name in note.files:
        kept = links.stat(name)
        if name == note.log and (kept.st_size, kept.st_mtime) != (note.size, note.modified):
            raise FormatError(str(folder / name), "has changed since it was linked: its log was truncated")
    return note, links
