"""Deletes the bytes that a bucket keeps of deleted objects, and tells which of them stay, and until when.

S3 keeps every version of an object if the bucket has versioning: deleting the object only adds a delete marker. A
version under Object Lock cannot be deleted before its date, nor while a legal hold is on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol, runtime_checkable

from tidemark.concurrency import in_parallel
from tidemark.errors import AccessDenied
from tidemark.store.base import Store
from tidemark.store.retrying import RepeatingStore, Retry


class ObjectVersion(NamedTuple):
    """A version of an object, or a delete marker, whose ``etag`` is None. Readers get the ``latest``."""

    id: str
    etag: str | None
    latest: bool
    size: int = 0


class ObjectLock(NamedTuple):
    """The reasons for which a version cannot be deleted: a retention of a ``mode`` up to a time, and a legal hold."""

    mode: str | None = None
    until: datetime | None = None
    hold: bool = False

    def __str__(self) -> str:
        retention = [f"Object Lock in {self.mode} mode"] if self.mode else []
        return " and ".join([*retention, *(["a legal hold"] if self.hold else [])])


@runtime_checkable
class VersionedStore(Protocol):
    """A store that tells what it keeps of deleted objects. Each request is tried once, with a store's errors."""

    def versions(self, key: str) -> Sequence[ObjectVersion]:
        """All versions of ``key``, and its delete markers. A store without versions has at most the latest."""
        ...

    def deleted(self, prefix: str) -> Mapping[str, Sequence[ObjectVersion]]:
        """The versions and delete markers of each key with ``prefix`` that has no object any more."""
        ...

    def get_version(self, key: str, version: str, start: int, end: int) -> bytes:
        """The bytes ``[start, end)`` of a version. Raises NotFound."""
        ...

    def delete_version(self, key: str, version: str) -> None:
        """Delete one version or delete marker for good; not an error if it is gone already.

        Raises AccessDenied if a lock keeps it, or if the role may not delete versions.
        """
        ...

    def lock(self, key: str, version: str) -> ObjectLock | None:
        """The lock of a version, None without one. Raises NotFound."""
        ...


class KeptVersion(NamedTuple):
    """A version that stays, the reason, and the time up to which a lock keeps it."""

    key: str
    version: str
    why: str
    until: datetime | None = None


OTHER: Final = "is another version than the deleted one, and may hold the same: delete it, or have the lifecycle do so"
AGAIN: Final = "was put again after its deletion"


def versioned(store: Store) -> VersionedStore | None:
    """``store``, if it tells what it keeps of deleted objects, and otherwise None."""
    inner = store.inner if isinstance(store, RepeatingStore) else store
    return inner if isinstance(inner, VersionedStore) else None


def delete_versions(store: VersionedStore, deleted: Mapping[str, Collection[str]]) -> list[KeptVersion]:
    """Delete the former versions of deleted objects, and return what stays.

    ``deleted`` has the ETags of the deleted versions by key. The latest version of a key is never deleted, nor one
    of another ETag. Delete markers go last: without them a former version would become the latest. May be repeated.

    Raises:
        AccessDenied: the role may not list or delete versions, or may not see locks.
        StoreError: the store failed; what was deleted until then is gone.
    """

    def kept(key: str) -> list[KeptVersion]:
        found = Retry().call(lambda: store.versions(key))
        return list(_deleted(store, key, found, deleted[key]))

    return [version for versions in in_parallel(kept, [*deleted]) for version in versions]


def delete_all_versions(store: VersionedStore, former: Mapping[str, Sequence[ObjectVersion]]) -> list[KeptVersion]:
    """Delete the listed ``former`` versions of keys without an object, as :func:`delete_versions` does."""

    def kept(key: str) -> list[KeptVersion]:
        etags = {version.etag for version in former[key] if version.etag is not None}
        return list(_deleted(store, key, former[key], etags))

    return [version for versions in in_parallel(kept, [*former]) for version in versions]


def _deleted(
    store: VersionedStore, key: str, found: Sequence[ObjectVersion], etags: Collection[str]
) -> Iterator[KeptVersion]:
    """Delete the former versions of ``key`` among those ``found``; yields those that stay."""
    retry, former = Retry(), False
    for version in found:
        if version.etag is None:
            continue
        kept = _kept(store, retry, key, version, etags)
        former |= kept is not None and not version.latest
        if kept is not None:
            yield kept
    for marker in found:
        if marker.etag is None and not former:
            _delete(store, retry, key, marker)


def _kept(
    store: VersionedStore, retry: Retry, key: str, version: ObjectVersion, etags: Collection[str]
) -> KeptVersion | None:
    """Delete ``version`` if it is a former one of ``etags``; returns why it stays."""
    if version.latest:
        return KeptVersion(key, version.id, AGAIN) if version.etag in etags else None
    if version.etag not in etags:
        return KeptVersion(key, version.id, OTHER)
    try:
        _delete(store, retry, key, version)
    except AccessDenied as error:
        try:
            lock = retry.call(lambda: store.lock(key, version.id))
        except AccessDenied:
            lock = None
        if lock is None:
            rights = "s3:DeleteObjectVersion, s3:GetObjectVersion, s3:GetObjectRetention and s3:GetObjectLegalHold"
            rule = f"version {version.id}: {error.reason}; no lock is seen, and to delete it takes {rights}"
            raise AccessDenied(error.key, rule) from error
        return KeptVersion(key, version.id, f"is kept by {lock}", lock.until)
    return None


def _delete(store: VersionedStore, retry: Retry, key: str, version: ObjectVersion) -> None:
    retry.call(lambda: store.delete_version(key, version.id))
