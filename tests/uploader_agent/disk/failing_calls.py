"""Calls of the operating system on a disk that can be made to fail: the n-th of a kind, or all below a path."""

from __future__ import annotations

import builtins
import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Self
from unittest.mock import patch

from uploader_agent.disk import log_dirs

ERRORS: Final = tuple(
    getattr(errno, name)
    for name in ("EIO", "EACCES", "ENOTDIR", "ELOOP", "ENOENT", "ESTALE", "ENAMETOOLONG", "EPERM", "ENXIO", "EMFILE")
)
_BY_PATH: Final = ("stat", "open", "scandir", "listdir", "statvfs")
_BY_DESCRIPTOR: Final = ("fstat", "pread", "preadv", "read")
KINDS: Final = (*_BY_PATH, *_BY_DESCRIPTOR, "entry")
"""``entry`` is what a directory's entry is asked; ``read`` reads a small text file."""


class FailingCalls:
    """Calls on what lies below ``root``; usable with :meth:`patched`. Any thread may call."""

    def __init__(self, root: Path) -> None:
        self.counts: Counter[str] = Counter()
        """The calls of each kind so far."""
        self.struck = threading.Event()
        """Set once a call has failed since the last :meth:`fail`."""
        self._root = str(root)
        self._chosen: Callable[[str, str, int], bool] = _none
        self._code = errno.EIO
        self._lock = threading.Lock()
        self._real = {name: getattr(os, name) for name in (*_BY_PATH, *_BY_DESCRIPTOR) if name != "read"}

    def fail(self, code: int, chosen: Callable[[str, str, int], bool]) -> None:
        """Fail the calls that ``chosen`` takes by their kind, path and number among those of their kind from now on."""
        with self._lock:
            self.counts.clear()
            self.struck.clear()
            self._code, self._chosen = code, chosen

    def nth(self, code: int, kind: str, number: int) -> None:
        """Fail one call."""
        self.fail(code, lambda is_kind, _, is_number: (is_kind, is_number) == (kind, number))

    def below(self, code: int, place: Path) -> None:
        """Fail all calls on ``place`` and what lies below it."""
        self.fail(code, lambda _, path, __: f"{path}/".startswith(f"{place}/"))

    def heal(self) -> None:
        """Fail nothing more."""
        self.fail(errno.EIO, _none)

    @contextmanager
    def patched(self) -> Iterator[Self]:
        """A block in which this process's calls may fail."""
        with ExitStack() as stack:
            for name in self._real:
                stack.enter_context(patch.object(os, name, self._wrapped(name)))
            stack.enter_context(self._text_files())
            yield self

    @contextmanager
    def _text_files(self) -> Iterator[None]:
        def opened(descriptor: int, *arguments: Any, **options: Any) -> Any:
            file = builtins.open(descriptor, *arguments, **options)  # noqa: SIM115 - its caller closes it
            try:
                self._call("read", self._path_of(descriptor))
            except OSError:
                file.close()
                raise
            return file

        with patch.object(log_dirs, "open", opened, create=True):
            yield

    def _wrapped(self, kind: str) -> Callable[..., Any]:
        real = self._real[kind]

        def call(target: Any = ".", *arguments: Any, dir_fd: int | None = None, **options: Any) -> Any:
            path = self._path_of(target, dir_fd)
            self._call(kind, path)
            result = real(target, *arguments, **(options if dir_fd is None else {**options, "dir_fd": dir_fd}))
            return _Entries(result, self) if kind == "scandir" and path.startswith(self._root) else result

        return call

    def _path_of(self, target: Any, directory: int | None = None) -> str:
        if isinstance(target, int):
            return _link(target)
        path = os.fspath(target)
        text = path.decode() if isinstance(path, bytes) else str(path)
        return f"{_link(directory)}/{text}" if directory is not None and not text.startswith("/") else text

    def _call(self, kind: str, path: str) -> None:
        if not path.startswith(self._root):
            return
        with self._lock:
            self.counts[kind] += 1
            fails = self._chosen(kind, path, self.counts[kind])
        if fails:
            self.struck.set()
            raise OSError(self._code, os.strerror(self._code), path)

    def asked(self, path: str) -> None:
        """A directory's entry is asked for what it is."""
        self._call("entry", path)


class _Entries:
    """What ``os.scandir`` returns."""

    def __init__(self, inner: Any, calls: FailingCalls) -> None:
        self._inner = inner
        self._calls = calls

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._inner.close()

    def __iter__(self) -> Iterator[_Entry]:
        return (_Entry(entry, self._calls) for entry in self._inner)


class _Entry:
    def __init__(self, inner: os.DirEntry[str], calls: FailingCalls) -> None:
        self.name, self.path = inner.name, inner.path
        self._inner = inner
        self._calls = calls

    def is_symlink(self) -> bool:
        return self._inner.is_symlink()

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        self._calls.asked(self.path)
        return self._inner.is_dir(follow_symlinks=follow_symlinks)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        self._calls.asked(self.path)
        return self._inner.stat(follow_symlinks=follow_symlinks)


def _link(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - Path's would call what is wrapped
    except OSError:
        return ""


def _none(_kind: str, _path: str, _number: int) -> bool:
    return False
