"""The two ways of keeping a segment's files: open descriptors, and a directory of hard links.

Both outlive the broker's renames and unlinks. A descriptor needs read permission only, and ends with this process; a
link outlives it, and costs no descriptor. A directory of links is made under a name that starts with a dot and then
renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import structlog

from tidemark.errors import FormatError
from uploader_agent.hold.record import HeldSegment

logger = structlog.get_logger(__name__)

NOTE = "segment.json"


class HoldBackend(Protocol):
    """Keeps the files of one segment. Errors are ``OSError``."""

    @property
    def count(self) -> int:
        """How many descriptors that takes."""
        ...

    def open(self, name: str) -> int | None:
        """A descriptor of a file, which the caller closes; None if it is not kept."""
        ...

    def stat(self, name: str) -> os.stat_result:
        """A kept file's state."""
        ...

    def is_last(self, log: str) -> bool:
        """Whether the broker has unlinked the file ``log``, so that keeping it costs space."""
        ...

    def add(self, note: HeldSegment, name: str, descriptor: int) -> None:
        """Keep one more open file, which is named in ``note`` already; ``descriptor`` becomes the keeper's."""
        ...

    def drop(self) -> None:
        """Keep nothing any more."""
        ...


class DescriptorBackend:
    """Open files, by name; they become this object's."""

    def __init__(self, files: Mapping[str, int]) -> None:
        self._files = dict(files)
        self._lock = threading.Lock()  # a number that is closed may be another file's at once

    @property
    def count(self) -> int:
        """See :class:`HoldBackend`."""
        return len(self._files)

    def open(self, name: str) -> int | None:
        """See :class:`HoldBackend`."""
        with self._lock:
            descriptor = self._files.get(name)
            return None if descriptor is None else os.dup(descriptor)

    def stat(self, name: str) -> os.stat_result:
        """See :class:`HoldBackend`."""
        with self._lock:
            if name not in self._files:
                raise FileNotFoundError(errno.ENOENT, "is not held any more", name)
            return os.fstat(self._files[name])

    def is_last(self, log: str) -> bool:
        """See :class:`HoldBackend`."""
        return self.stat(log).st_nlink == 0

    def add(self, note: HeldSegment, name: str, descriptor: int) -> None:
        """See :class:`HoldBackend`."""
        with self._lock:
            self._files[name] = descriptor

    def drop(self) -> None:
        """See :class:`HoldBackend`."""
        with self._lock:
            close_all(self._files)
            self._files.clear()


class HardLinkBackend:
    """A directory of hard links."""

    count = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, parent: Path, note: HeldSegment, files: Mapping[str, int]) -> HardLinkBackend:
        """Link the open ``files``, by name, into a new directory below ``parent``. They stay the caller's.

        Raises:
            OSError: nothing was made. EXDEV: another file system, or another mount of it; EPERM: the kernel's
                ``fs.protected_hardlinks`` wants write permission on the files; ENOSPC, EROFS, EACCES, EMLINK.
        """
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{note.base_offset:020d}-{secrets.token_hex(8)}"
        made = parent / f".{name}"
        made.mkdir(mode=0o700)
        try:
            for file, descriptor in files.items():
                link(descriptor, made / file)
            (made / NOTE).write_bytes(note.to_bytes())
            made.rename(parent / name)
        except OSError:
            shutil.rmtree(made, ignore_errors=True)  # what cannot be removed now goes at the next start
            raise
        return cls(parent / name)

    def open(self, name: str) -> int | None:
        """See :class:`HoldBackend`."""
        try:
            return os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None

    def stat(self, name: str) -> os.stat_result:
        """See :class:`HoldBackend`."""
        return (self.folder / name).stat()

    def is_last(self, log: str) -> bool:
        """See :class:`HoldBackend`."""
        return self.stat(log).st_nlink == 1

    def add(self, note: HeldSegment, name: str, descriptor: int) -> None:
        """See :class:`HoldBackend`."""
        link(descriptor, self.folder / name)
        os.close(descriptor)
        temporary = self.folder / f".{NOTE}"
        temporary.write_bytes(note.to_bytes())
        temporary.rename(self.folder / NOTE)

    def drop(self) -> None:
        """See :class:`HoldBackend`. Under a dotted name first, so that a crash leaves no half of it to be believed."""
        gone = self.folder.with_name(f".{self.folder.name}")
        try:
            self.folder.rename(gone)
            shutil.rmtree(gone)
        except OSError as error:
            logger.warning("links_not_removed", folder=str(self.folder), error=str(error))


def read_back(parent: Path) -> Iterator[tuple[HeldSegment, HardLinkBackend]]:
    """What a former agent left below ``parent``. What is incomplete, or no longer as it was, is removed."""
    try:
        folders = sorted(path for path in parent.iterdir() if path.is_dir())
    except FileNotFoundError:
        return
    for folder in folders:
        try:
            yield _read(folder)
        except (OSError, FormatError) as error:
            logger.warning("held_set_dropped", folder=str(folder), error=str(error))
            shutil.rmtree(folder, ignore_errors=True)


def link(descriptor: int, path: Path) -> None:
    """Make ``path`` a hard link to an open file, whatever its name is by now (ENOENT if it has none left)."""
    # With a directory descriptor Python asks for linkat(2) with AT_SYMLINK_FOLLOW, which /proc's links need.
    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)


def close_all(files: Mapping[str, int]) -> None:
    """Close the descriptors of ``files``."""
    for descriptor in files.values():
        os.close(descriptor)


def _read(folder: Path) -> tuple[HeldSegment, HardLinkBackend]:
    path = folder / NOTE
    if folder.name.startswith("."):
        raise FormatError(str(folder), "was not finished, or was being removed, when its agent ended")
    note, links = HeldSegment.from_bytes(path.read_bytes(), str(path)), HardLinkBackend(folder)
    for name in note.files:
        stat = links.stat(name)
        if name == note.log and (stat.st_size, stat.st_mtime) != (note.size, note.modified):
            raise FormatError(str(folder / name), "is not what it was when it was linked: its log was truncated")
    return note, links
