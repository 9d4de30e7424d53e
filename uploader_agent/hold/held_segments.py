"""The held sets of an agent, and the offsets of those that were evicted to stay within the bounds.

The files of a held segment are kept by open descriptors, or by a directory of hard links. Both outlive the broker's
renames and unlinks. A descriptor needs read permission only, and ends with this process; a link outlives it, and costs
no descriptor. A directory of links is made under a name that starts with a dot and then renamed, so that it is either
complete or missing.
"""

from __future__ import annotations

import errno
import os
import resource
import secrets
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import structlog
from pydantic import Field
from typing_extensions import override

from tidemark.errors import FormatError, LaterFormat
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.keys import TopicPartition
from tidemark.intervals import Intervals
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


logger = structlog.get_logger(__name__)

Owner = tuple[TopicPartition, str | None]

HeldKey = tuple[Owner, int]
"""The owner of a held set, and the base offset of its segment."""

Held = dict[int, tuple[HeldSegment, HoldBackend]]
"""Held segments of one partition and topic id, by base offset."""

_EFFECT = "descriptors hold instead, until the agent ends"


class HeldSegments:
    """All held sets: by hard links where these can be made, else by descriptors while there are any.

    Any thread may read and drop sets; only one thread adds them.
    """

    def __init__(self, links: tuple[Path, ...], descriptors: int) -> None:
        """Read back the sets in ``links``, the directories for hard links; at most ``descriptors`` are kept open."""
        self._descriptors = descriptors
        self._open = 0
        self._newest = -1.0  # no segment that may lose its descriptors to an older one was modified later than this
        self._sets: dict[Owner, Held] = {}
        self._lock = threading.RLock()
        self._said: set[object] = set()
        self._links: dict[int, list[Path]] = {}
        self._unread = links
        self.read_links()

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._sets.values()))

    def of(self, owner: Owner) -> Held:
        """A copy of a partition's held segments."""
        with self._lock:
            return dict(self._sets.get(owner, {}))

    def owners(self) -> list[Owner]:
        """The owners of the held sets."""
        with self._lock:
            return list(self._sets)

    def all(self) -> Iterator[tuple[HeldKey, HeldSegment, HoldBackend]]:
        """All held sets."""
        with self._lock:
            everything = [(owner, dict(held)) for owner, held in self._sets.items()]
        for owner, held in everything:
            for base, (note, keeper) in held.items():
                yield (owner, base), note, keeper

    def add(self, note: HeldSegment, files: Mapping[str, int], device: int) -> bool:
        """Hold the open ``files`` of a log directory on ``device``, and own them; return False if there is no room."""
        keeper = self._link(note, files, device)
        if keeper is None and not self._has_room(len(files) + 1, note.modified):
            close_all(files)
            return False
        if keeper is not None:
            close_all(files)
        self._put(note, keeper or DescriptorBackend(files))
        return True

    def read_links(self) -> None:
        """Read back the sets in the directories for links that could not be read before."""
        unread, self._unread = self._unread, ()
        for folder in unread:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                usable = self._links.setdefault(folder.stat().st_dev, [])
                if folder not in usable:
                    usable.append(folder)
                for note, keeper in read_back(folder):
                    self._put(note, keeper)
            except OSError as error:
                self._unread = (*self._unread, folder)
                self._warn_once((folder, error.errno), "links_unusable", folder=str(folder), error=str(error))

    def drop(self, key: HeldKey) -> None:
        """Release a set."""
        with self._lock:
            owner, base_offset = key
            held = self._sets.get(owner, {})
            if base_offset not in held:
                return
            _, keeper = held.pop(base_offset)
            if not held:
                del self._sets[owner]
            self._open -= keeper.count
        keeper.drop()

    def close(self) -> None:
        """Drop the sets that only this process keeps, by descriptors."""
        for key, _, keeper in list(self.all()):
            if keeper.count:
                self.drop(key)

    def _put(self, note: HeldSegment, keeper: HoldBackend) -> None:
        with self._lock:
            self._open += keeper.count
            self._newest = max(self._newest, note.modified if keeper.count else -1.0)
            self._sets.setdefault((note.tp, note.topic_id), {})[note.base_offset] = note, keeper

    def _link(self, note: HeldSegment, files: Mapping[str, int], device: int) -> HoldBackend | None:
        folders = self._links.get(device, [])
        if self._links and not folders:
            rule = f"no directory of hold.links is on the file system of {note.tp}"
            self._warn_once(("device", device), "links_impossible", error=rule, effect=_EFFECT)
        for parent in folders:
            try:
                return HardLinkBackend.make(parent, note, files)
            except OSError as error:
                cause = {"folder": str(parent), "error": str(error)}
                self._warn_once((parent, error.errno), "links_impossible", **cause, effect=_EFFECT)
        return None

    def _has_room(self, needed: int, modified: float) -> bool:
        """True if ``needed`` more descriptors fit; if necessary, newer segments that are not gone lose theirs."""
        while self._open + needed > self._descriptors:
            if modified >= self._newest:
                return False
            newer = [
                (note.modified, key)
                for key, note, keeper in self.all()
                if keeper.count and note.modified > modified and not keeper.is_last(note.log)
            ]
            if not newer:
                self._newest = modified
                return False
            self._newest, newest = max(newer, key=lambda item: item[0])
            self.drop(newest)
        return True

    def _warn_once(self, subject: object, event: str, **details: str) -> None:
        if subject not in self._said:
            self._said.add(subject)
            logger.warning(event, **details)


class EvictedOffsets:
    """Evicted offsets by owner, kept in the file ``path`` until the watermark records them. Not thread-safe.

    The store may be unreachable after an eviction, and the agent may restart: the reason of the gap must survive that.
    An unusable file is only logged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets = self._read()

    def get(self, owner: Owner) -> Intervals:
        """The evicted offsets of a partition."""
        return self._offsets.get(owner, Intervals())

    def add(self, evicted: Iterable[tuple[Owner, tuple[int, int]]]) -> None:
        """Add evicted offsets of each owner, and write the file."""
        for owner, offsets in evicted:
            self._offsets[owner] = self.get(owner) | Intervals([offsets])
        self._write()

    def remove(self, owner: Owner, recorded: Intervals) -> None:
        """Remove offsets that are now recorded as a gap, or that the store turned out to have."""
        before = self.get(owner)
        after = before - recorded
        if after == before:
            return
        self._offsets[owner] = after
        if not after:
            del self._offsets[owner]
        self._write()

    def _read(self) -> dict[Owner, Intervals]:
        try:
            entries = _File.from_bytes(self._path.read_bytes(), str(self._path)).yielded
        except FileNotFoundError:
            return {}
        except (OSError, FormatError) as error:
            logger.warning("evicted_offsets_not_read", error=str(error), effect="gaps may state a less exact reason")
            return {}
        return {
            (TopicPartition(entry.topic, entry.partition), entry.topic_id): Intervals(entry.offsets)
            for entry in entries
        }

    def _write(self) -> None:
        entries = tuple(
            _Entry(topic=tp.topic, partition=tp.partition, topic_id=topic_id, offsets=offsets.parts)
            for (tp, topic_id), offsets in sorted(self._offsets.items(), key=lambda item: (item[0][0], str(item[0][1])))
        )
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_bytes(_File(yielded=entries).to_bytes())
            temporary.rename(self._path)
        except OSError as error:
            effect = "a restart would forget these gaps' reason"
            logger.warning("evicted_offsets_not_written", error=str(error), effect=effect)


class _Entry(Model):
    topic: str
    partition: int
    topic_id: str | None
    offsets: tuple[tuple[int, int], ...]


class _File(StoredObject):
    yielded: tuple[_Entry, ...]
