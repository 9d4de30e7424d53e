"""A directory that behaves like a bucket: for tests, for trying things out, and for a shared file system.

An object is a file; its ETag identifies this very file (inode, time of change, size). Writes go to a temporary file
that is renamed into place, or linked if it must be first. Conditions are checked under a lock on the directory.
"""

from __future__ import annotations

import fcntl
import io
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

from crc32c import crc32c as crc32c_of

from tidemark.errors import NotFound, PreconditionFailed, StoreError, UnknownOutcome
from tidemark.store.base import Fetched, ObjectInfo, check_key, check_size
from tidemark.store.versions import ObjectVersion

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_HIDDEN = ".tidemark-store"
_CHUNK = 1 << 20


class FileBody:
    """Bytes of an open file, from its position on. See :class:`tidemark.store.base.Body`."""

    def __init__(self, file: BinaryIO, key: str, etag: str, size: int) -> None:
        """Give ``size`` bytes of ``file``."""
        self._file, self._key = file, key
        self.etag, self.size = etag, size
        self._left = size

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read the file, see :meth:`tidemark.store.base.Body.readinto`."""
        view = memoryview(buffer).cast("B")[: self._left]
        count = self._file.readinto(view) if view else 0  # type: ignore[attr-defined]  # of BinaryIO, typeshed lacks it
        if not count and view:
            raise UnknownOutcome(self._key, f"ended {self._left} bytes early: it was cut off; read again")
        self._left -= count
        return int(count)


class LocalStore:
    """The files below ``root``."""

    def __init__(self, root: Path) -> None:
        self.url = f"file://{root}"
        self._root = root
        self._private = root / _HIDDEN
        self._private.mkdir(parents=True, exist_ok=True)

    def put(
        self,
        key: str,
        body: bytes | BinaryIO,
        *,
        size: int | None = None,
        crc32c: int | None = None,
        if_match: str | None = None,
        if_none_match: bool = False,
    ) -> str:
        """Write a file, see :meth:`tidemark.store.base.Store.put`."""
        target = self._path(key)
        with tempfile.NamedTemporaryFile(dir=self._private, delete=False) as temporary:
            try:
                _copy(key, io.BytesIO(body) if isinstance(body, bytes) else body, temporary, size, crc32c)
                temporary.flush()
                os.fsync(temporary.fileno())
                etag = _etag(os.fstat(temporary.fileno()))
                with self._locked():  # only now: others write their files at the same time
                    _check(key, self._etag(target), if_match, if_none_match)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if if_none_match:
                        _create(key, Path(temporary.name), target)
                    else:
                        Path(temporary.name).rename(target)
            except BaseException:
                Path(temporary.name).unlink(missing_ok=True)
                raise
        return etag

    def get(self, key: str, *, if_match: str | None = None, limit: int | None = None) -> Fetched:
        """Read a file, see :meth:`tidemark.store.base.Store.get`."""
        with self._opened(key, if_match) as (file, status):
            check_size(key, status.st_size, limit)
            return Fetched(file.read(), _etag(status))

    def get_range(self, key: str, start: int, end: int, *, if_match: str | None = None) -> bytes:
        """See :meth:`tidemark.store.base.Store.get_range`."""
        with self._opened(key, if_match) as (file, _):
            file.seek(start)
            data = file.read(end - start)
        if len(data) != end - start:
            raise StoreError(key, f"has no bytes {start} to {end}")
        return data

    @contextmanager
    def stream(
        self, key: str, start: int = 0, end: int | None = None, *, if_match: str | None = None
    ) -> Iterator[FileBody]:
        """See :meth:`tidemark.store.base.Store.stream`."""
        with self._opened(key, if_match) as (file, status):
            end = status.st_size if end is None else end
            if end > status.st_size or start > end:
                raise StoreError(key, f"has no bytes {start} to {end}")
            file.seek(start)
            yield FileBody(file, key, _etag(status), end - start)

    def head(self, key: str) -> ObjectInfo:
        """See :meth:`tidemark.store.base.Store.head`."""
        checksum = 0
        with self._opened(key, None) as (file, status):
            while chunk := file.read(_CHUNK):
                checksum = crc32c_of(chunk, checksum)
        return _info(key, status)._replace(crc32c=checksum)

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """See :meth:`tidemark.store.base.Store.list`."""
        folder = self._root / prefix.rpartition("/")[0]
        keys = sorted(str(path.relative_to(self._root)) for path in folder.rglob("*") if path.is_file())
        for key in keys:
            hidden = key.startswith(_HIDDEN)
            if hidden or not key.startswith(prefix) or (start_after is not None and key <= start_after):
                continue
            try:
                yield _info(key, self._path(key).stat())
            except FileNotFoundError:
                continue  # deleted since the folder was read, as on S3

    def now(self) -> datetime:
        """The file system's time, maybe that of another host; see :meth:`tidemark.store.base.Store.now`."""
        with tempfile.TemporaryFile(dir=self._private) as file:
            return datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC)

    def copy(self, source: str, target: str, *, source_etag: str) -> str:
        """See :meth:`tidemark.store.base.Store.copy`."""
        return self.put(target, self.get(source, if_match=source_etag).body)

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        """See :meth:`tidemark.store.base.Store.delete`."""
        path = self._path(key)
        with self._locked():
            present = self._etag(path)
            if if_match is not None and present is not None and present != if_match:
                raise PreconditionFailed(key, f"is another version now: {present}, not {if_match}")
            path.unlink(missing_ok=True)

    def versions(self, key: str) -> Sequence[ObjectVersion]:
        """The file, see :meth:`tidemark.store.versions.VersionedStore.versions`: a directory keeps no other version."""
        etag = self._etag(self._path(key))
        return [ObjectVersion("", etag, latest=True)] if etag else []

    def deleted(self, prefix: str) -> Mapping[str, Sequence[ObjectVersion]]:
        """Nothing: a directory keeps nothing of deleted files."""
        return {}

    def get_version(self, key: str, version: str, start: int, end: int) -> bytes:
        """The bytes ``[start, end)`` of the file."""
        return self.get_range(key, start, end)

    def delete_version(self, key: str, version: str) -> None:
        """Do nothing: there is no former version."""

    def lock(self, key: str, version: str) -> None:
        """None, for a directory has no locks."""

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    def _etag(self, path: Path) -> str | None:
        return _etag(path.stat()) if path.is_file() else None

    @contextmanager
    def _opened(self, key: str, if_match: str | None) -> Iterator[tuple[BinaryIO, os.stat_result]]:
        try:
            file = self._path(key).open("rb")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise NotFound(key, "there is no such object") from error
        with file:
            status = os.fstat(file.fileno())
            if if_match is not None and _etag(status) != if_match:
                raise PreconditionFailed(key, f"is another version now: {_etag(status)} and not {if_match}")
            yield file, status

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._private / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _check(key: str, present: str | None, if_match: str | None, if_none_match: bool) -> None:
    """Raise PreconditionFailed unless the conditions of a write hold for the present ETag."""
    if if_none_match and present is not None:
        raise PreconditionFailed(key, "exists already")
    if if_match is not None and present != if_match:
        raise PreconditionFailed(key, f"is another version now: {present}, not {if_match}")


def _create(key: str, source: Path, target: Path) -> None:
    """Give ``source`` the name ``target``, unless that exists: a program that ignores the lock may make it."""
    try:
        target.hardlink_to(source)
    except FileExistsError as error:
        raise PreconditionFailed(key, "exists already") from error
    source.unlink()


def _copy(key: str, source: BinaryIO, target: IO[bytes], size: int | None, crc32c: int | None) -> None:
    """Copy ``size`` bytes of ``source``, or all; raise StoreError if their checksum is not ``crc32c``."""
    copied = checksum = 0
    while chunk := source.read(_CHUNK if size is None else min(_CHUNK, size - copied)):
        target.write(chunk)
        checksum = crc32c_of(chunk, checksum)
        copied += len(chunk)
    if size is not None and copied != size:
        raise StoreError(key, f"the file has {copied} bytes and not {size}; it changed while it was read")
    if crc32c is not None and checksum != crc32c:
        raise StoreError(key, f"CRC32C of the bytes is {checksum:08x} and not {crc32c:08x}")


def _etag(status: os.stat_result) -> str:
    return f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, _etag(status), datetime.fromtimestamp(status.st_mtime, UTC))
