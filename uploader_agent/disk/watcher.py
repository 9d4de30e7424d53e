"""Watches directories, so that the loop looks again where something has changed. It decides nothing.

It reports two kinds of events: a segment's file was made or renamed (look at that directory), and a sign of a change of
leadership (ask the broker): a directory that is new or was renamed, or a leader epoch file moved into place, which
Kafka writes when an epoch starts. A directory is reported once when its watch starts, since files made before that
raise no event.

inotify may overflow, run out of watches or miss a file system altogether; the loop's own scan then finds the same
changes later. So nothing here is an error: a directory that cannot be watched is left to the scan, and logged once.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog
from inotify_simple import Event, INotify, flags
from typing_extensions import override

from uploader_agent.disk.segment_files import EPOCHS

logger = structlog.get_logger(__name__)

_MASK = flags.CREATE | flags.MOVED_TO | flags.MOVE_SELF | flags.ONLYDIR
_LEADERSHIP = flags.ISDIR | flags.MOVE_SELF | flags.IGNORED
_SEGMENT_NAMES = (".log", ".deleted")
_SHORT_OF_WATCHES = "raise fs.inotify.max_user_watches; until then the scan finds new segments later"


class Heard(NamedTuple):
    """The events that woke the loop: directories in which segments came or went, and signs of a change of leader."""

    folders: frozenset[Path] = frozenset()
    leaders: bool = False


NOTHING = Heard()


class Watcher:
    """Wakes the agent's loop. Only :meth:`wake` and time do so here; others also watch directories."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A worker may call :meth:`wake` after the loop has ended, when the pipe's number may be another file's.
        self._closing = threading.Lock()
        self._closed = False

    def watch(self, folders: Iterable[Path]) -> None:
        """Watch exactly these directories from now on."""

    def wait(self, timeout: float) -> Heard:
        """Wait at most ``timeout`` seconds, and return the events, possibly none."""
        self._select([self._read], timeout)
        return NOTHING

    def wake(self) -> None:
        """End a :meth:`wait` from another thread or a signal handler."""
        with self._closing, suppress(BlockingIOError):  # the pipe is full already
            if not self._closed:
                os.write(self._write, b"\0")

    def close(self) -> None:
        """Release the descriptors."""
        with self._closing:
            self._closed = True
            os.close(self._read)
            os.close(self._write)

    def _select(self, descriptors: list[int], timeout: float) -> list[int]:
        """Wait, and return the ``descriptors`` that are ready; the pipe is emptied."""
        ready, _, _ = select.select(descriptors, [], [], max(0.0, timeout))
        if self._read in ready:
            os.read(self._read, 4096)
        return ready


class DirectoryWatcher(Watcher):
    """Wakes the loop with inotify, as soon as a file is made in a directory, or moved into it."""

    def __init__(self, inotify: INotify | None = None) -> None:
        """Watch with ``inotify``; default: a new instance."""
        super().__init__()
        self._inotify = inotify or INotify()
        self._watched: dict[Path, int] = {}
        self._names: dict[int, Path] = {}
        self._fresh: set[Path] = set()
        self._complained = False

    @override
    def watch(self, folders: Iterable[Path]) -> None:
        wanted = set(folders)
        for folder in [folder for folder in self._watched if folder not in wanted]:
            self._forget(folder)
        for folder in wanted - self._watched.keys():
            try:
                number = self._inotify.add_watch(folder, _MASK)
                self._watched[folder], self._names[number] = number, folder
                self._fresh.add(folder)
            except OSError as error:
                self._complain(folder, error)

    @override
    def wait(self, timeout: float) -> Heard:
        folders, self._fresh = self._fresh, set()
        ready = self._select([self._read, self._inotify.fileno()], 0.0 if folders else timeout)
        if self._inotify.fileno() not in ready:
            return Heard(frozenset(folders))
        leaders = False
        for event in self._inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:
                return Heard(self._start_over(), leaders=True)
            leaders = leaders or event.name == EPOCHS or bool(event.mask & _LEADERSHIP)
            folder = self._names.get(event.wd)
            if folder is None:
                continue
            if event.name.endswith(_SEGMENT_NAMES):
                folders.add(folder)
            self._follow(folder, event)
        return Heard(frozenset(folders), leaders)

    @override
    def close(self) -> None:
        self._inotify.close()
        super().close()

    def _follow(self, folder: Path, event: Event) -> None:
        """Remove the watch of a renamed directory, so that a new directory of the same path gets its own."""
        if event.mask & flags.MOVE_SELF:
            self._forget(folder)
        elif event.mask & flags.IGNORED:
            del self._watched[folder], self._names[event.wd]

    def _start_over(self) -> frozenset[Path]:
        """Watch all directories again: events were lost, so directories may have been replaced."""
        lost = frozenset(self._watched)
        for folder in lost:
            self._forget(folder)
        return lost

    def _forget(self, folder: Path) -> None:
        number = self._watched.pop(folder)
        del self._names[number]
        try:
            self._inotify.rm_watch(number)
        except OSError as error:
            logger.debug("watch_gone", folder=str(folder), error=str(error))  # deleted with its directory

    def _complain(self, folder: Path, error: OSError) -> None:
        if error.errno != errno.ENOSPC:  # who reads the directory tells what is wrong with it
            logger.debug("not_watched", folder=str(folder), error=str(error))
        elif not self._complained:
            self._complained = True
            logger.warning("not_watched", folder=str(folder), error=str(error), hint=_SHORT_OF_WATCHES)
