"""Locks of directories: a second agent that works on one of them is refused.

A lock is taken on the directory itself (``flock`` on a descriptor that is open for reading). So nothing is written in
``log.dirs``, the lock holds across containers and state directories, and it ends with the process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemark.errors import TidemarkError
from uploader_agent.disk.log_dirs import resolved


class AlreadyRunning(TidemarkError):
    """Another agent works on one of the directories."""


class DirectoryLocks:
    """The locks of one process, by path; usable with ``with``, which gives them back. For one thread."""

    def __init__(self) -> None:
        self._held: dict[Path, tuple[int, tuple[int, int]]] = {}
        """The descriptor of each directory, and its device and inode."""

    def take(self, folder: Path) -> None:
        """Lock ``folder``, unless it is locked. If another directory is there now, as after a mount, that is locked.

        Raises:
            AlreadyRunning: another agent has locked it.
            OSError: it cannot be opened.
        """
        stat, held = os.stat(folder), self._held.get(folder)  # noqa: PTH116 - as the descriptor's below
        directory = stat.st_dev, stat.st_ino
        if held is not None and held[1] == directory:
            return
        self.release(folder)
        if any(other == directory for _, other in self._held.values()):
            return  # under another path: a second descriptor of it would conflict with the first
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            opened = os.fstat(descriptor)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise AlreadyRunning(f"{folder}: another agent uses this directory; stop it first") from error
            raise
        self._held[folder] = descriptor, (opened.st_dev, opened.st_ino)

    def release(self, folder: Path) -> None:
        """Give the lock of ``folder`` back, if there is one: an open directory keeps its disk from being unmounted."""
        held = self._held.pop(folder, None)
        if held is not None:
            os.close(held[0])

    def close(self) -> None:
        """Give all locks back."""
        for folder in list(self._held):
            self.release(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lock_directories(folders: Iterable[Path]) -> DirectoryLocks:
    """Lock all ``folders``, or none.

    Raises:
        AlreadyRunning: names the one that another agent has locked.
        OSError: one cannot be opened.
    """
    locks = DirectoryLocks()
    try:
        for folder in sorted(set(map(resolved, folders))):
            locks.take(folder)
    except BaseException:
        locks.close()
        raise
    return locks
