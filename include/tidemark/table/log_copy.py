"""A table's Delta log in a temporary directory, where delta-rs reads it and makes the next version.

delta-rs asks the store for each version since the checkpoint some seven times, to open a table, to find its ledger and
to commit. A copy takes one GET for the checkpoint and for each version since, and one LIST for each further look. The
store decides: a version counts once it was created there. The objects that a process has read stay in the user's cache,
so the next process reads only those that are new.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from tidemark import user_cache
from tidemark.concurrency import in_parallel
from tidemark.errors import FormatError, NotFound, PreconditionFailed
from tidemark.formats import object_sizes
from tidemark.formats.base import canonical, parse_json
from tidemark.store import ObjectInfo, Store, put_over
from tidemark.store.schemes import DIRECTORY, scheme_of

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from tidemark.formats.table.ledger import Ledger, Parent

_VERSION: Final = re.compile(r"([0-9]{20})\.json", re.ASCII)
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint\.parquet", re.ASCII)
_COPIED: Final = re.compile(r"(?:_sidecars/)?[0-9a-zA-Z][0-9a-zA-Z._-]*", re.ASCII)
"""Names that may be copied: no other name can lead out of the directory."""

_HINT: Final = "_last_checkpoint"
_PREFIX: Final = "tidemark-log-"
_LOCK: Final = "lock"
_ABANDONED_SECONDS: Final = 3600.0
"""Age from which an unlocked directory is abandoned: a new one is locked a moment after it is made."""

_KIND: Final = "delta-logs"
_DIGEST: Final = hashlib.sha256().digest_size
_UNUSED_SECONDS: Final = 7 * 86400.0

_TRIES: Final = 3
"""The number of times that a copy is begun anew because objects were removed during the read, like expired versions."""

_MOST_FOLLOWED: Final = 100
"""Versions that are added to a copy before it begins anew at a checkpoint: delta-rs reads all of them again."""


class _Folder:
    """A directory of its own, removed with the last reference to it, or when the process ends.

    It is locked. The next process removes the directories without a lock: their processes were killed.
    """

    def __init__(self) -> None:
        _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self.log = self.path / "_delta_log"
        self.log.mkdir()
        lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDONLY, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        weakref.finalize(self, _remove, self.path, lock, os.getpid())


def _cache_of(store: Store, root: str) -> Path | None:
    """The folder that keeps the objects of a log for the user's other processes; None: a directory needs no cache."""
    digest = hashlib.sha256(f"{store.url}\0{root}".encode()).hexdigest()[:32]
    return user_cache.folder(_KIND) / digest if scheme_of(store.url) != DIRECTORY else None


def _read(store: Store, cache: Path | None, info: ObjectInfo) -> bytes:
    """The bytes of an object. Raises NotFound, PreconditionFailed.

    It is known in the ``cache`` by all that the store lists of it, with its ETag, and its content is checked.
    """
    kept = (user_cache.read(cache / _name(info)) if cache is not None else None) or b""
    if kept[:_DIGEST] == hashlib.sha256(kept[_DIGEST:]).digest():
        return kept[_DIGEST:]
    body = store.get(info.key, if_match=info.etag).body
    if cache is not None:
        user_cache.write(cache / _name(info), hashlib.sha256(body).digest() + body)
    return body


def _keep_only(cache: Path, wanted: Sequence[ObjectInfo]) -> None:
    """Remove the other objects from ``cache``, and the logs of tables of which none was read for a week."""
    names = {_name(info) for info in wanted}
    with suppress(OSError):
        for path in cache.iterdir():
            if path.name not in names and not path.name.startswith("."):
                path.unlink(missing_ok=True)
        if user_cache.read(swept := cache.parent / "swept") is None or _age(swept) > _UNUSED_SECONDS / 7:
            user_cache.write(swept, b"")
            for folder in cache.parent.iterdir():
                if folder.is_dir() and _age(folder) > _UNUSED_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)


def _name(info: ObjectInfo) -> str:
    """The name of an object in the cache."""
    listed = "\0".join((info.key, info.etag, str(info.size), info.modified.isoformat()))
    return hashlib.sha256(listed.encode()).hexdigest()


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime


class LogCopy:
    """Holds the log of one table at a time. Thread-safe."""

    def __init__(self) -> None:
        """Start with no copy."""
        self._lock = RLock()
        self.ledger: tuple[Ledger, Parent] | None = None
        """The ledger that was read last, and the reference to it: a ledger that a version names is never replaced."""
        self._root = ""
        self._folder: _Folder | None = None
        self._versions: dict[int, str] = {}  # the ETags of the copied versions, by number
        self._delta: DeltaTable | None = None

    def look(self, store: Store, root: str) -> DeltaTable | None:
        """The table under ``root`` at its newest version; None if there is none.

        A table that was made again, or restored from elsewhere, is recognized by the ETag of the newest known version.

        Raises:
            StoreError: the store failed.
            DeltaError: the object there is not a Delta log.
        """
        from deltalake import DeltaTable

        with self._lock:
            if root != self._root or not self._followed(store):
                self._begin(store, root)
            if self._delta is None and self._folder is not None:
                self._delta = DeltaTable(self._folder.path)
                weakref.finalize(self._delta, _let_go, self._folder)  # the table reads the folder as long as it lives
            return self._delta

    def create(self, store: Store, root: str, url: str, schema: pa.Schema, **settings: Any) -> None:
        """Create the table under ``root`` and ``url``; if another writer has just created it, that one stays.

        ``settings`` are those of :meth:`deltalake.DeltaTable.create`. Raises StoreError.
        """
        from deltalake import DeltaTable

        with suppress(PreconditionFailed), self.next_version(store, root) as folder:
            DeltaTable.create(folder, schema=schema, **settings)
            version = folder / "_delta_log" / f"{0:020d}.json"
            version.write_bytes(_located(version.read_bytes(), url))

    @contextmanager
    def next_version(self, store: Store, root: str) -> Iterator[Path]:
        """Take the version that the block makes, in the directory that it gets, and create it in the store.

        The checkpoint that delta-rs may have made is written with it.

        Raises:
            PreconditionFailed: another writer has created that version.
            StoreError: the store failed. Any error leaves the outcome unknown.
        """
        with self._lock:
            number = 0 if self._delta is None else self._delta.version() + 1
            folder = self._folder = self._folder or _Folder()
            name, checkpoint = f"{number:020d}.json", f"{number:020d}.checkpoint.parquet"
            try:
                yield folder.path
                body = (folder.log / name).read_bytes()
                self._versions[number] = store.put(f"{root}/_delta_log/{name}", body, if_none_match=True)
                if (folder.log / checkpoint).exists():
                    for extra in (checkpoint, _HINT):
                        put_over(store, f"{root}/_delta_log/{extra}", (folder.log / extra).read_bytes())
            except BaseException:
                self._root = ""  # the block's files must not be taken for a version in the store
                raise
            finally:
                self._delta = None

    def _followed(self, store: Store) -> bool:
        """Add the new versions to the copy; return false if it must begin anew."""
        if not self._versions or len(self._versions) > _MOST_FOLLOWED:
            return False
        last = max(self._versions)
        new = _versions(self._listed(store, f"{last:020d}"))
        known = new.pop(last, None)
        if known is None or known.etag != self._versions[last] or not _is_run(new, last + 1):
            return False
        if not new:
            return True
        try:
            self._add(store, list(new.values()))
        except (NotFound, PreconditionFailed):
            return False
        self._versions |= {number: info.etag for number, info in new.items()}
        self._delta = None
        return True

    def _begin(self, store: Store, root: str) -> None:
        for attempt in range(1, _TRIES + 1):
            self._root, self._folder, self._versions, self._delta = root, None, {}, None
            try:
                wanted, versions = self._wanted(store)
                self._add(store, wanted)
                if (cache := _cache_of(store, root)) is not None:
                    _keep_only(cache, wanted)
            except (NotFound, PreconditionFailed):
                if attempt == _TRIES:
                    raise
            else:
                self._versions = versions
                return

    def _wanted(self, store: Store) -> tuple[Sequence[ObjectInfo], dict[int, str]]:
        """The objects to copy, from the newest checkpoint on; and the ETags of its versions, the checkpoint's included.

        All are copied if there is no checkpoint of one object, or if a version since is missing: other programs make
        checkpoints in several objects.
        """
        hint = self._hint(store)
        listed = self._listed(store, f"{hint:020d}" if hint is not None else None)
        if hint is not None and hint not in _checkpoints(listed):
            listed = self._listed(store, None)
        versions, checkpoints = _versions(listed), _checkpoints(listed)
        newest = max(checkpoints, default=-1)
        since = {number: info for number, info in versions.items() if number > newest}
        if _is_run(since, newest + 1):
            # To commit, delta-rs reads the newest version, even if the checkpoint is of that.
            newest_on = [checkpoints.get(newest), *(since.values() or [versions.get(newest)])]
            wanted: Sequence[ObjectInfo] = [info for info in newest_on if info is not None]
        else:
            wanted = listed
        return wanted, {number: info.etag for number, info in versions.items() if number >= newest}

    def _hint(self, store: Store) -> int | None:
        """The version of the last checkpoint in its writer's note; None if there is no readable note."""
        key = f"{self._root}/_delta_log/{_HINT}"
        try:
            note = parse_json(store.get(key, limit=object_sizes.SMALL).body, key)
        except (NotFound, FormatError):
            return None
        number = note.get("version") if isinstance(note, dict) else None
        return number if isinstance(number, int) and 0 <= number < 10**20 else None

    def _listed(self, store: Store, after: str | None) -> list[ObjectInfo]:
        folder = f"{self._root}/_delta_log/"
        infos = store.list(folder, start_after=f"{folder}{after}" if after is not None else None)
        return [info for info in infos if _COPIED.fullmatch(info.key.removeprefix(folder))]

    def _add(self, store: Store, wanted: Sequence[ObjectInfo]) -> None:
        if not wanted:
            return
        folder, cache = self._folder or _Folder(), _cache_of(store, self._root)
        self._folder = folder

        def add(info: ObjectInfo) -> None:
            path = folder.log / info.key.removeprefix(f"{self._root}/_delta_log/")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(_read(store, cache, info))

        in_parallel(add, wanted)


def _located(version: bytes, url: str) -> bytes:
    """``version`` with ``url`` as the location of the created table, instead of this process's directory."""
    actions = [json.loads(line) for line in version.splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["operationParameters"]["location"] = url
    return b"\n".join(map(canonical, actions))


def _remove(path: Path, lock: int, owner: int) -> None:
    """Remove the directory, unless this is a child of the process that made it."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _sweep() -> None:
    """Remove the directories of processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # Another user's cannot be opened, one without a lock is not ours, and another process may be faster.
        with suppress(OSError):
            lock = os.open(path / _LOCK, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _let_go(_folder: _Folder) -> None:
    """Do nothing: the reference to the folder ends here."""


def _versions(listed: Sequence[ObjectInfo]) -> dict[int, ObjectInfo]:
    return _numbered(_VERSION, listed)


def _checkpoints(listed: Sequence[ObjectInfo]) -> dict[int, ObjectInfo]:
    """The checkpoints that are one object each."""
    return _numbered(_CHECKPOINT, listed)


def _numbered(pattern: re.Pattern[str], listed: Sequence[ObjectInfo]) -> dict[int, ObjectInfo]:
    names = ((pattern.fullmatch(info.key.rpartition("/")[2]), info) for info in listed)
    return {int(name[1]): info for name, info in names if name is not None}


def _is_run(versions: dict[int, ObjectInfo], first: int) -> bool:
    """True if ``versions`` has no hole from ``first`` on; also if it is empty."""
    return sorted(versions) == list(range(first, first + len(versions)))
