"""An object store: conditional writes, listings with ETags, and a watcher of every change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.live_end.model import Call, Conflict


class Stored(NamedTuple):
    """An object. Its ETag is that of the content, as for a simple PUT to S3, or unique, as for a multipart upload."""

    value: Any
    etag: str


Watch = Callable[[str, Stored | None, Stored | None], None]


class Store:
    """``watch`` gets the key, and the object before and after each change."""

    def __init__(self, watch: Watch, *, etags_of_content: bool) -> None:
        self.objects: dict[str, Stored] = {}
        self._watch = watch
        self._numbers: dict[Any, int] = {}
        self.written = 0
        """How many writes took effect."""
        self._by_content = etags_of_content

    # -- calls for actors ----------------------------------------------------------------------------------------------

    def create(self, key: str, value: Any) -> Call:
        """PUT If-None-Match; the ETag."""
        return Call(f"create {key}", lambda: self._put(key, value, None, conditional=True), write=True)

    def replace(self, key: str, value: Any, etag: str | None) -> Call:
        """PUT If-Match, or If-None-Match for an ``etag`` of None; the new ETag."""
        return Call(f"replace {key}", lambda: self._put(key, value, etag, conditional=True), write=True)

    def overwrite(self, key: str, value: Any) -> Call:
        """PUT without a condition; the new ETag."""
        return Call(f"overwrite {key}", lambda: self._put(key, value, None, conditional=False), write=True)

    def copy(self, key: str, target: str, etag: str) -> Call:
        """Copy exactly the version with this ETag."""

        def run() -> str:
            there = self.objects.get(key)
            if there is None or there.etag != etag:
                raise Conflict(key)
            return self._put(target, there.value, None, conditional=False)

        return Call(f"copy {key}", run, write=True)

    def get(self, key: str) -> Call:
        """The object, or None."""
        return Call(f"get {key}", lambda: self.objects.get(key))

    def list(self, prefix: str, start: str = "") -> Call:
        """(key, ETag) of all objects from ``start`` on, in order."""

        def run() -> list[tuple[str, str]]:
            found = (key for key in self.objects if key.startswith(prefix) and key >= start)
            return [(key, self.objects[key].etag) for key in sorted(found)]

        return Call(f"list {prefix}", run)

    def delete(self, key: str) -> Call:
        """Delete the object if it is there."""

        def run() -> None:
            before = self.objects.pop(key, None)
            if before is not None:
                self._watch(key, before, None)

        return Call(f"delete {key}", run)

    # -- what they do --------------------------------------------------------------------------------------------------

    def _put(self, key: str, value: Any, etag: str | None, *, conditional: bool) -> str:
        before = self.objects.get(key)
        if conditional and (before.etag if before else None) != etag:
            raise Conflict(key)
        self.written += 1
        timed = key.startswith("_heads/")  # a head says when it was written, so no two are equal
        by_content = self._by_content and not timed
        number = self._numbers.setdefault(value, len(self._numbers)) if by_content else self.written
        after = Stored(value, f"{'c' if by_content else 'u'}{number}")
        self.objects[key] = after
        self._watch(key, before, after)
        return after.etag


def folder(topic: str) -> str:
    """The folder of the partition of one incarnation."""
    return f"raw/{topic}/"


def stem_of(base: int, epoch: int | None = None) -> str:
    """The name of a seal: its base offset; with the ``epoch`` of its first batch if another branch has that name."""
    return f"{base:06d}" if epoch is None else f"{base:06d}-{epoch}"


def log_key(topic: str, stem: str) -> str:
    return f"{folder(topic)}{stem}.log"


def aborts_key(topic: str, stem: str) -> str:
    return f"{folder(topic)}{stem}.txnindex"


def manifest_key(topic: str, stem: str) -> str:
    return f"{folder(topic)}{stem}.manifest"


def watermark_key(topic: str) -> str:
    return f"wm/{topic}"


def head_key(broker: int) -> str:
    return f"_heads/{broker}"
