"""A bucket in memory whose requests take time, fail, take effect without an answer, and lose races, by seed."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, BinaryIO, NamedTuple

from crc32c import crc32c as crc32c_of

from tests.uploader_agent.simulation.clock import START, Scheduler
from tests.uploader_agent.simulation.faults import Faults
from tidemark.errors import AccessDenied, NotFound, PreconditionFailed, SlowDown, StoreError, UnknownOutcome
from tidemark.store import Body, check_size
from tidemark.store.base import Fetched, ObjectInfo
from tidemark.store.local import FileBody

ONCE = (".pack", ".log", ".index", ".timeindex", ".txnindex", ".manifest")
"""What the keys have of objects that are written once."""


class _Object(NamedTuple):
    body: bytes
    etag: str
    modified: float
    crc32c: int


class PackReader:
    """Reads packs at once and without faults, for the oracle."""

    def __init__(self, objects: dict[str, _Object]) -> None:
        self._objects = objects

    def get_range(self, key: str, start: int, end: int) -> bytes:
        if key not in self._objects:
            raise NotFound(key, "there is no such object")
        return self._objects[key].body[start:end]


class SimulatedStore:
    """:class:`tidemark.store.Store`. ``written`` is told key and bytes of each object, before anybody can read it."""

    url = "s3://raw"

    def __init__(self, scheduler: Scheduler, faults: Faults, written: Callable[[str, bytes], None]) -> None:
        self.objects: dict[str, _Object] = {}
        self.deleted: set[str] = set()
        """The keys of packs that retention has deleted."""
        self._scheduler = scheduler
        self._faults = faults
        self._written = written
        self._versions = 0

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
        with self.request("put", key, conditional=bool(if_match or if_none_match)):
            content = body if isinstance(body, bytes) else body.read(-1 if size is None else size)
            checksum = crc32c_of(content)
            if crc32c not in {None, checksum} or size not in {None, len(content)}:
                raise StoreError(key, "other bytes than promised")
            if self._faults.strike("store_late", f"put {key}"):
                delay = self._faults.felt(self._faults.within(0.1, 10.0))
                self._scheduler.call_later(delay, lambda: self._take_effect(key, content, if_match, if_none_match))
                raise UnknownOutcome(key, "the request takes effect later")
            return self._put(key, content, if_match, if_none_match)

    def _take_effect(self, key: str, content: bytes, if_match: str | None, if_none_match: bool) -> None:
        with suppress(PreconditionFailed):
            self._put(key, content, if_match, if_none_match)

    def _put(self, key: str, content: bytes, if_match: str | None, if_none_match: bool) -> str:
        there = self.objects.get(key)
        if if_none_match and there is not None:
            raise PreconditionFailed(key, "exists already")
        if if_match is not None and (there is None or there.etag != if_match):
            raise PreconditionFailed(key, "is another version now")
        self._versions += 1
        etag = f'"{self._versions}"'
        self._written(key, content)
        self.objects[key] = _Object(content, etag, START + self._scheduler.now, crc32c_of(content))
        return etag

    def get(self, key: str, *, if_match: str | None = None, limit: int | None = None) -> Fetched:
        with self.request("get", key):
            found = self._find(key, if_match)
        check_size(key, len(found.body), limit)
        return Fetched(found.body, found.etag)

    def get_range(self, key: str, start: int, end: int, *, if_match: str | None = None) -> bytes:
        body = self.get(key, if_match=if_match).body
        if end > len(body):
            raise StoreError(key, f"has no bytes {start} to {end}")
        return body[start:end]

    @contextmanager
    def stream(
        self, key: str, start: int = 0, end: int | None = None, *, if_match: str | None = None
    ) -> Iterator[Body]:
        found = self.get(key, if_match=if_match)
        body = found.body[start:end]
        yield FileBody(io.BytesIO(body), key, found.etag, len(body))

    def head(self, key: str) -> ObjectInfo:
        with self.request("head", key):
            found = self._find(key, None)
        return _info(key, found)._replace(crc32c=found.crc32c)

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        with self.request("list", prefix):
            keys = sorted(key for key in self.objects if key.startswith(prefix) and key > (start_after or ""))
            found = [_info(key, self.objects[key]) for key in keys]
        yield from found

    def spoil(self, key: str, body: bytes | None) -> None:
        """Put ``body`` under ``key`` as somebody else does, or remove the object; at once, and whatever is there."""
        self._versions += 1
        if body is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = _Object(body, f'"{self._versions}"', START + self._scheduler.now, crc32c_of(body))

    def copy(self, source: str, target: str, *, source_etag: str) -> str:
        return self.put(target, self.get(source, if_match=source_etag).body)

    def now(self) -> datetime:
        """The simulation's time, at once, or an error: how far clocks may be apart is not what is simulated."""
        if self._faults.strike("store_error", "now"):
            raise UnknownOutcome("", "cut")
        if self._faults.strike("store_odd_error", "now"):
            raise RuntimeError("what no client library promised to raise")
        return self.clock()

    def clock(self) -> datetime:
        """The simulation's time, which is also this machine's."""
        return datetime.fromtimestamp(START + self._scheduler.now, UTC)

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        raise AssertionError(f"the agent never deletes, but wants to delete {key} if it is {if_match}")

    def _find(self, key: str, if_match: str | None) -> _Object:
        found = self.objects.get(key)
        if found is None:
            raise NotFound(key, "there is no such object")
        if if_match is not None and found.etag != if_match:
            raise PreconditionFailed(key, "is another version now")
        return found

    @contextmanager
    def request(self, operation: str, key: str, *, conditional: bool = False) -> Iterator[None]:
        """Around a request's effect: the time it takes there and back, and what goes wrong with it."""
        what = f"{operation} {key}"
        self._scheduler.sleep(self._faults.latency("store_slow", what))
        writes = operation == "put"
        if self._faults.strike("store_error", what):
            raise SlowDown(key, "the simulation says so") if self._faults.even() else UnknownOutcome(key, "cut")
        if self._faults.strike("store_refuses", what):
            raise AccessDenied(key, "the simulation says so")
        if conditional and self._faults.strike("store_conflict", what):
            raise PreconditionFailed(key, "another conditional write is under way (409)")
        yield
        self._scheduler.sleep(self._faults.latency("store_slow", what))
        if writes and self._faults.strike("store_reply_lost", what):
            raise UnknownOutcome(key, "the reply was lost")
        if self._faults.strike("store_odd_error", what):
            raise RuntimeError("what no client library promised to raise")


class DeletingStore:
    """The store as the retention of packs has it: ``deleted`` is told of each pack before it is gone."""

    def __init__(self, inner: SimulatedStore, deleted: Callable[[str], None]) -> None:
        self.url = inner.url
        self._inner = inner
        self._deleted = deleted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        """Delete a pack."""
        assert key.endswith(".pack"), key
        assert if_match is None, key
        with self._inner.request("delete", key):
            if key in self._inner.objects:
                self._deleted(key)
                self._inner.deleted.add(key)
                del self._inner.objects[key]


def _info(key: str, found: _Object) -> ObjectInfo:
    return ObjectInfo(key, len(found.body), found.etag, datetime.fromtimestamp(found.modified, UTC))
