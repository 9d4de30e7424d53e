"""A doorbell on directories: something was created here, look again. It decides nothing.

inotify may overflow, run out of watches or miss a file system altogether; the loop's own scan then finds the same
things later. So nothing here is an error: what cannot be watched is left to the scan, and said once.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog
from inotify_simple import INotify, flags

logger = structlog.get_logger(__name__)

_MASK = flags.CREATE | flags.MOVED_TO | flags.ONLYDIR
_SHORT_OF_WATCHES = "raise fs.inotify.max_user_watches; until then the scan finds new segments later"


class Doorbell(Protocol):
    """Wakes the loop."""

    def watch(self, folders: Iterable[Path]) -> None:
        """Watch exactly these directories from now on."""
        ...

    def wait(self, timeout: float) -> set[Path]:
        """Wait at most ``timeout`` seconds; the directories in which something was created, possibly none."""
        ...

    def ring(self) -> None:
        """End a :meth:`wait` from another thread or a signal handler."""
        ...

    def close(self) -> None:
        """Release what the system lent."""
        ...


class SilentDoorbell:
    """Never heard of inotify: the loop is woken by :meth:`ring` and by time alone."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def watch(self, folders: Iterable[Path]) -> None:
        """See :class:`Doorbell`."""

    def wait(self, timeout: float) -> set[Path]:
        """See :class:`Doorbell`."""
        self._select([self._read], timeout)
        return set()

    def ring(self) -> None:
        """See :class:`Doorbell`."""
        with suppress(BlockingIOError):  # the pipe is full of rings already
            os.write(self._write, b"\0")

    def close(self) -> None:
        """See :class:`Doorbell`."""
        os.close(self._read)
        os.close(self._write)

    def _select(self, descriptors: list[int], timeout: float) -> list[int]:
        """Those of ``descriptors`` that are ready; the pipe's bytes are taken out."""
        ready, _, _ = select.select(descriptors, [], [], max(0.0, timeout))
        if self._read in ready:
            os.read(self._read, 4096)
        return ready


class InotifyDoorbell(SilentDoorbell):
    """:class:`Doorbell` by inotify."""

    def __init__(self) -> None:
        super().__init__()
        self._inotify = INotify()
        self._watched: dict[Path, int] = {}
        self._complained = False

    def watch(self, folders: Iterable[Path]) -> None:
        """See :class:`Doorbell`."""
        wanted = set(folders)
        for folder in [folder for folder in self._watched if folder not in wanted]:
            self._forget(folder)
        for folder in wanted - self._watched.keys():
            try:
                self._watched[folder] = self._inotify.add_watch(folder, _MASK)
            except OSError as error:
                self._complain(folder, error)

    def wait(self, timeout: float) -> set[Path]:
        """See :class:`Doorbell`."""
        if self._inotify.fileno() not in self._select([self._read, self._inotify.fileno()], timeout):
            return set()
        events = self._inotify.read(timeout=0)
        if any(event.mask & flags.Q_OVERFLOW for event in events):
            return set(self._watched)
        ended = {event.wd for event in events if event.mask & flags.IGNORED}
        rung = {event.wd for event in events}
        names = {number: folder for folder, number in self._watched.items()}
        for number in ended & names.keys():
            del self._watched[names[number]]
        return {names[number] for number in rung & names.keys()}

    def close(self) -> None:
        """See :class:`Doorbell`."""
        self._inotify.close()
        super().close()

    def _forget(self, folder: Path) -> None:
        try:
            self._inotify.rm_watch(self._watched.pop(folder))
        except OSError as error:
            logger.debug("watch_gone", folder=str(folder), error=str(error))  # deleted with its directory

    def _complain(self, folder: Path, error: OSError) -> None:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            logger.debug("not_watched", folder=str(folder), error=str(error))
        elif not self._complained:
            self._complained = True
            logger.warning("not_watched", folder=str(folder), error=str(error), hint=_SHORT_OF_WATCHES)
