"""Files that the processes of a user keep for one another on a machine, in ``~/.cache/tidemark``.

They spare work and decide nothing: each is named after all that its content depends on, and a process without one does
the work itself. Only files that this user has written, and no other user may write, are read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from tidemark.installation import VERSION

_MOST: Final = 8
"""Files of a kind that are kept: those that were written last."""

_log = logging.getLogger(__name__)


def kept(kind: str, *depends_on: str) -> Any:
    """The JSON value that a process of this user has kept under ``depends_on``; None if there is none."""
    body = read(_path(kind, depends_on))
    try:
        return None if body is None else json.loads(body)
    except ValueError:  # it was damaged: it is made again
        return None


def keep(kind: str, value: Any, *depends_on: str) -> None:
    """Keep a JSON ``value`` for other processes of this user; logged where no file can be written."""
    path = _path(kind, depends_on)
    write(path, json.dumps(value).encode())
    with suppress(OSError):  # other processes do the same
        newest_first = sorted(path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
        for former in newest_first[_MOST:]:
            former.unlink(missing_ok=True)


def read(path: Path) -> bytes | None:
    """The content of a file that a process of this user has written; None if there is none."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            own = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022
            return file.read() if own else None
    except OSError:
        return None


def write(path: Path, body: bytes) -> None:
    """Replace a file as a whole, for this user alone; where none can be written, that is logged once for a folder."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, partial = tempfile.mkstemp(dir=path.parent, prefix=".")  # mode 0600
        try:
            with os.fdopen(number, "wb") as file:
                file.write(body)
            Path(partial).replace(path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
    except OSError as error:
        _warn(path.parent, str(error))


@cache
def _warn(parent: Path, error: str) -> None:
    _log.warning("each process does again what %s would spare it, which cannot be written: %s", parent, error)


def folder(kind: str) -> Path:
    """The directory of the files of a kind."""
    # Path's own raises for a user without a home; here it is a directory that cannot be written.
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(base, "tidemark", kind)


def _path(kind: str, depends_on: tuple[str, ...]) -> Path:
    digest = hashlib.sha256(json.dumps([VERSION, _code(), *depends_on]).encode()).hexdigest()
    return folder(kind) / f"{digest}.json"


@cache
def _code() -> list[tuple[str, int, int]]:
    """The modules of this package with time and size: in a checkout they change without a new version."""
    package = Path(__file__).parent
    found = ((path, path.stat()) for path in package.rglob("*.py"))
    return sorted((str(path.relative_to(package)), status.st_mtime_ns, status.st_size) for path, status in found)
