"""A store in a SQLite file: a small and complete example of ``store.backend`` (docs/storage.md)."""

from __future__ import annotations

import io
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import BinaryIO

from crc32c import crc32c as crc32c_of

from tidemark.errors import NotFound, PreconditionFailed, StoreError, UnknownOutcome
from tidemark.store import Body, Fetched, ObjectInfo, StoreOptions, check_size
from tidemark.store.local import FileBody

TABLE = "CREATE TABLE IF NOT EXISTS objects (key TEXT PRIMARY KEY, body BLOB, etag TEXT, modified REAL, crc INT)"
PAGE = "SELECT key, length(body), etag, modified, crc FROM objects WHERE key > ? AND key >= ? ORDER BY key LIMIT ?"
MOST_KEYS = 1000


class SqliteStore:
    """Objects as rows of a SQLite file. Each call has a connection and a transaction of its own."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        self.url = url
        self._path = url.removeprefix("sqlite://")
        self._seconds = options.deadline.total_seconds()
        with self._connected("") as connection:
            connection.execute(TABLE)

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
        """Write an object under the conditions; returns its ETag."""
        data = body if isinstance(body, bytes) else body.read(-1 if size is None else size)
        if size not in {None, len(data)} or crc32c not in {None, crc32c_of(data)}:
            raise StoreError(key, "the bytes are not those that were announced; read the file again")
        etag, now = f'"{uuid.uuid4().hex}"', datetime.now(UTC).timestamp()
        with self._connected(key) as connection:
            stored = self._etag(connection, key)
            if (if_none_match and stored) or (if_match is not None and stored != if_match):
                raise PreconditionFailed(key, f"is another version now: {stored}")
            row = key, data, etag, now, crc32c_of(data)
            connection.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", row)
        return etag

    def get(self, key: str, *, if_match: str | None = None, limit: int | None = None) -> Fetched:
        """The object, if it has at most ``limit`` bytes."""
        with self._connected(key) as connection:
            row = connection.execute("SELECT body, etag FROM objects WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise NotFound(key, "there is no such object")
        if if_match not in {None, row[1]}:
            raise PreconditionFailed(key, f"is another version now: {row[1]}")
        check_size(key, len(row[0]), limit)
        return Fetched(*row)

    def get_range(self, key: str, start: int, end: int, *, if_match: str | None = None) -> bytes:
        """The bytes from ``start`` to before ``end``."""
        data = self.get(key, if_match=if_match).body[start:end]
        if len(data) != end - start:
            raise StoreError(key, f"has no bytes {start} to {end}")
        return data

    @contextmanager
    def stream(
        self, key: str, start: int = 0, end: int | None = None, *, if_match: str | None = None
    ) -> Iterator[Body]:
        """The same bytes, to be read piece by piece."""
        found = self.get(key, if_match=if_match)
        end = len(found.body) if end is None else end
        if not start <= end <= len(found.body):
            raise StoreError(key, f"has no bytes {start} to {end}")
        yield FileBody(io.BytesIO(found.body[start:end]), key, found.etag, end - start)

    def head(self, key: str) -> ObjectInfo:
        """The object's size, ETag, time and checksum."""
        found = next((info for info in self.list(key) if info.key == key), None)
        if found is None:
            raise NotFound(key, "there is no such object")
        return found

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """The objects whose keys begin with ``prefix``, in the order of their keys."""
        after, more = start_after or "", True
        while more:
            with self._connected(prefix) as connection:
                rows = connection.execute(PAGE, (after, prefix, MOST_KEYS)).fetchall()
            for key, size, etag, modified, crc in rows:
                if not key.startswith(prefix):
                    return
                yield ObjectInfo(key, size, etag, datetime.fromtimestamp(modified, UTC), crc)
            more, after = len(rows) == MOST_KEYS, rows[-1][0] if rows else after

    def now(self) -> datetime:
        """The time by the clock that stamps objects."""
        return datetime.now(UTC)

    def copy(self, source: str, target: str, *, source_etag: str) -> str:
        """Copy exactly that version; returns the copy's ETag."""
        return self.put(target, self.get(source, if_match=source_etag).body)

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        """Delete the object, or only that version of it."""
        with self._connected(key) as connection:
            stored = self._etag(connection, key)
            if stored and if_match not in {None, stored}:
                raise PreconditionFailed(key, f"is another version now: {stored}")
            connection.execute("DELETE FROM objects WHERE key = ?", (key,))

    def _etag(self, connection: sqlite3.Connection, key: str) -> str | None:
        row = connection.execute("SELECT etag FROM objects WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    @contextmanager
    def _connected(self, key: str) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._path, timeout=self._seconds, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise UnknownOutcome(key, f"SQLite says: {error}; try again") from error
