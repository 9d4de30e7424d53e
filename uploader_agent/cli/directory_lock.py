"""One agent per log directory and per state directory: a second agent refuses to start.

The lock is taken on the directories themselves (``flock`` on a descriptor that is open for reading). So nothing is
written in ``log.dirs``, the lock holds across containers and state directories, and it ends with the process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from tidemark.errors import TidemarkError


class AlreadyRunning(TidemarkError):
    """Another agent works on one of the directories."""


def lock_directories(folders: Iterable[Path]) -> ExitStack:
    """Lock all ``folders`` until the result is closed.

    Raises:
        AlreadyRunning: names the directory that another agent has locked.
    """
    with ExitStack() as stack:
        for folder in sorted({folder.resolve() for folder in folders}):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise AlreadyRunning(f"{folder}: another agent works on this directory; stop it first") from error
        return stack.pop_all()
