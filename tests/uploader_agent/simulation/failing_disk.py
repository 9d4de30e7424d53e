"""Disks of brokers whose calls fail for a while: the agent's alone, since the broker's own log goes on.

The modules of the agent that read disks call the operating system by another module than ``os``.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from uploader_agent.disk import locks, log_dirs, segment_files

ERRORS: Final = (errno.EIO, errno.EACCES, errno.ENOTDIR, errno.ESTALE, errno.ENOENT)

_MODULES: Final = (locks, log_dirs, segment_files)
_CALLS: Final = ("stat", "open", "scandir", "listdir", "fstat", "pread", "preadv")


class FailingDisks:
    """What stands for ``os``. Calls below a path that fails do so in a ``share`` of cases; draws from ``rng``."""

    def __init__(self, rng: random.Random, tell: Callable[[str], None]) -> None:
        self._rng = rng
        self._tell = tell
        self._failing: dict[Path, tuple[int, float]] = {}
        for name in _CALLS:
            setattr(self, name, self._wrapped(getattr(os, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fail(self, place: Path, code: int, share: float) -> None:
        """Have calls below ``place`` fail from now on."""
        self._failing[place] = code, share

    def heal(self, place: Path) -> None:
        """Have no call below ``place`` fail."""
        self._failing.pop(place, None)

    def heal_all(self) -> None:
        """Have no call fail."""
        self._failing.clear()

    @contextmanager
    def patched(self) -> Iterator[None]:
        """A block in which the agent's calls may fail."""
        with ExitStack() as stack:
            for module in _MODULES:
                stack.enter_context(patch.object(module, "os", self))
            yield

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *arguments: Any, dir_fd: int | None = None, **options: Any) -> Any:
            if self._failing:
                self._check(real.__name__, _path_of(target, dir_fd))
            return real(target, *arguments, **(options if dir_fd is None else {**options, "dir_fd": dir_fd}))

        return call

    def _check(self, name: str, path: Path) -> None:
        for place, (code, share) in self._failing.items():
            if path.is_relative_to(place) and (share == 1 or self._rng.random() < share):
                self._tell(f"!! {errno.errorcode[code]}: {name} {path.relative_to(place.parent)}")
                raise OSError(code, os.strerror(code), str(path))


def _path_of(target: Any, directory: int | None) -> Path:
    if isinstance(target, int):
        return Path(os.readlink(f"/proc/self/fd/{target}"))  # noqa: PTH115 - not of a path
    path = Path(target)
    return path if directory is None or path.is_absolute() else _path_of(directory, None) / path
