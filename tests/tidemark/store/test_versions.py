"""What a bucket keeps of deleted objects goes, only the deleted versions, or is named with the date of its lock."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.s3 import OwnBuckets, S3Server, allow
from tests.support.waiting import wait_until
from tests.tidemark.store.test_store import at
from tidemark.errors import AccessDenied, NotFound, UnknownOutcome
from tidemark.store import Store, open_store
from tidemark.store.obstore.store import ObjectStore
from tidemark.store.s3.clients import forget_clients
from tidemark.store.s3.store import S3Store
from tidemark.store.versions import AGAIN, OTHER, KeptVersion, ObjectVersion, VersionedStore, delete_versions, versioned

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class Bucket:
    """A bucket of its own; if it ``keeps`` versions, it can lock them as well."""

    def __init__(self, server: S3Server, *, keeps: bool = True) -> None:
        self.admin: S3Client = server.client()
        self.name = f"b-{uuid.uuid4().hex}"
        self.admin.create_bucket(Bucket=self.name, ObjectLockEnabledForBucket=keeps)
        self.store: Store = open_store(f"s3://{self.name}", at(server))
        inner = versioned(self.store)
        assert inner is not None
        self.inner: VersionedStore = inner

    def put(self, key: str, *bodies: bytes) -> list[str]:
        """The ETags of the ``bodies``, which are put one over the other."""
        return [self.store.put(key, body) for body in bodies]

    def version(self, key: str) -> str:
        """The id of the latest version."""
        return self.admin.head_object(Bucket=self.name, Key=key)["VersionId"]

    def lock(self, key: str, mode: Any, until: datetime) -> str:
        """Lock the latest version, and return its id."""
        there: dict[str, Any] = {"Bucket": self.name, "Key": key, "VersionId": self.version(key)}
        self.admin.put_object_retention(**there, Retention={"Mode": mode, "RetainUntilDate": until})
        return str(there["VersionId"])

    def left(self, prefix: str = "") -> list[tuple[str, str | None]]:
        """The (key, ETag) pairs of all versions, None for a delete marker."""
        found = self.admin.list_object_versions(Bucket=self.name, Prefix=prefix)
        versions = [(version["Key"], version["ETag"]) for version in found.get("Versions", [])]
        return [*versions, *((marker["Key"], None) for marker in found.get("DeleteMarkers", []))]


@pytest.fixture
def bucket(s3: S3Server) -> Bucket:
    return Bucket(s3)


def later(seconds: float) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)


@pytest.mark.essential
def test_the_deleted_versions_of_the_named_keys_go_and_no_others(bucket: Bucket) -> None:
    first, second = bucket.put("p/a.log", b"1", b"2")
    [rewritten] = bucket.put("p/a.log-e1", b"3")
    bucket.put("p/b.log", b"4")
    for key in ("p/a.log", "p/b.log"):
        bucket.store.delete(key)
    assert delete_versions(bucket.inner, {"p/a.log": {first, second}, "p/never": {first}}) == []
    assert sorted(key for key, _ in bucket.left()) == ["p/a.log-e1", "p/b.log", "p/b.log"]
    assert bucket.store.head("p/a.log-e1").etag == rewritten
    assert delete_versions(bucket.inner, {"p/a.log": {first, second}}) == [], "it may be repeated"


def test_what_was_put_there_later_stays(bucket: Bucket) -> None:
    [old] = bucket.put("k", b"old")
    bucket.store.delete("k")
    [new] = bucket.put("k", b"new")
    assert delete_versions(bucket.inner, {"k": {old}}) == []
    assert bucket.left() == [("k", new)]
    bucket.put("same", b"old")
    bucket.store.delete("same")
    bucket.put("same", b"old")
    assert delete_versions(bucket.inner, {"same": {old}}) == [KeptVersion("same", bucket.version("same"), AGAIN)]
    assert bucket.store.get("same").body == b"old"


def test_a_former_version_that_nobody_named_stays_hidden_and_is_told(bucket: Bucket) -> None:
    bucket.put("k", b"unknown")
    unknown = bucket.version("k")
    [old] = bucket.put("k", b"old")
    bucket.store.delete("k")
    assert delete_versions(bucket.inner, {"k": {old}}) == [KeptVersion("k", unknown, OTHER)]
    with pytest.raises(NotFound):
        bucket.store.head("k")


@pytest.mark.essential
@pytest.mark.parametrize("mode", ["COMPLIANCE", "GOVERNANCE"])
def test_a_locked_version_stays_hidden_until_its_date(bucket: Bucket, mode: str) -> None:
    [etag] = bucket.put("k", b"locked")
    until = later(3)
    version = bucket.lock("k", mode, until)
    bucket.store.delete("k")
    why = f"is kept by Object Lock in {mode.lower()} mode"
    assert delete_versions(bucket.inner, {"k": {etag}}) == [KeptVersion("k", version, why, until)]
    assert bucket.left() == [("k", etag), ("k", None)]
    wait_until(lambda: bucket.store.now() > until, what="the end of the lock by the store's clock")
    assert delete_versions(bucket.inner, {"k": {etag}}) == []
    assert bucket.left() == []


@pytest.mark.essential
def test_a_legal_hold_is_told_with_and_without_a_date(bucket: Bucket) -> None:
    [etag] = bucket.put("k", b"held")
    until = later(100)
    version = bucket.lock("k", "GOVERNANCE", until)
    bucket.put("h", b"held")
    held = bucket.version("h")
    for key, name in (("k", version), ("h", held)):
        bucket.admin.put_object_legal_hold(Bucket=bucket.name, Key=key, VersionId=name, LegalHold={"Status": "ON"})
        bucket.store.delete(key)
    assert delete_versions(bucket.inner, {"k": {etag}, "h": {etag}}) == [
        KeptVersion("k", version, "is kept by Object Lock in governance mode and a legal hold", until),
        KeptVersion("h", held, "is kept by a legal hold"),
    ]


@pytest.mark.essential
def test_what_was_put_before_the_bucket_kept_versions_goes_and_after(s3: S3Server) -> None:
    bucket = Bucket(s3, keeps=False)
    [etag] = bucket.put("k", b"1")
    assert delete_versions(bucket.inner, {"k": {etag}})[0].why == AGAIN, "it is still there"
    for status in ("Enabled", "Suspended"):
        versioning: Any = {"Status": status}
        bucket.admin.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration=versioning)
        bucket.store.delete("k")
        assert delete_versions(bucket.inner, {"k": {etag}}) == []
        assert ("k", etag) not in bucket.left(), "SeaweedFS keeps the delete marker of a bucket with suspended versions"
        bucket.put("k", b"1")


def test_a_directory_keeps_nothing(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    inner = versioned(store)
    assert inner is not None
    etag = store.put("k", b"1")
    assert [kept.why for kept in delete_versions(inner, {"k": {etag}})] == [AGAIN]
    store.delete("k")
    assert delete_versions(inner, {"k": {etag}}) == []


def test_stores_of_other_clouds_cannot_tell() -> None:
    assert versioned(object.__new__(ObjectStore)) is None


def test_listings_of_many_pages_are_read_to_their_end(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    etags = bucket.put("k", *(b"%d" % number for number in range(5)))
    bucket.store.delete("k")
    real = bucket.inner._clients.read.get_paginator  # type: ignore[attr-defined]

    def small(name: str) -> Any:
        pages: Any = real(name)

        class Pages:
            """Pages of two versions."""

            def paginate(self, **options: Any) -> Any:
                return pages.paginate(**options, PaginationConfig={"PageSize": 2})

        return Pages()

    monkeypatch.setattr(bucket.inner._clients.read, "get_paginator", small)  # type: ignore[attr-defined]
    assert len(bucket.inner.versions("k")) == 6
    assert delete_versions(bucket.inner, {"k": {*etags}}) == []
    assert bucket.left() == []


@pytest.mark.usefixtures("quick_retries")
def test_lost_replies_are_asked_for_again(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    [etag] = bucket.put("k", b"1")
    bucket.store.delete("k")
    lost: set[str] = set()

    def losing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            answer = real(*arguments)
            if name not in lost:
                lost.add(name)
                raise UnknownOutcome(name, "no answer")
            return answer

        return call

    for name in ("versions", "delete_version"):
        monkeypatch.setattr(S3Store, name, losing(name, getattr(S3Store, name)))
    assert delete_versions(bucket.inner, {"k": {etag}}) == []
    assert (bucket.left(), lost) == ([], {"versions", "delete_version"})


RIGHTS = {"s3:ListBucketVersions": ["s3:DeleteObjectVersion"], "s3:DeleteObjectVersion": ["s3:ListBucketVersions"]}


@pytest.mark.essential
@pytest.mark.parametrize("missing", RIGHTS)
def test_a_missing_right_is_named(
    own_buckets: Callable[..., OwnBuckets], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    everything = ["arn:aws:s3:::raw", "arn:aws:s3:::raw/*"]
    rights = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket", *RIGHTS[missing]]
    users = {"job": [allow(rights, everything)]}
    server = own_buckets(versioned=("raw",), users=users)
    for name, value in server.env("job").items():
        monkeypatch.setenv(name, value)
    forget_clients()
    store = open_store(f"s3://{server.raw}", at(server))
    inner = versioned(store)
    assert inner is not None
    etag = store.put("k", b"1")
    store.delete("k")
    with pytest.raises(AccessDenied, match=missing):
        delete_versions(inner, {"k": {etag}})
    forget_clients()


def test_versions_are_told_from_markers(bucket: Bucket) -> None:
    [etag] = bucket.put("k", b"1")
    version = bucket.version("k")
    bucket.put("k-e1", b"of another key")
    assert bucket.inner.versions("k") == [ObjectVersion(version, etag, latest=True, size=1)]
    assert bucket.inner.deleted("k") == {}
    bucket.store.delete("k")
    assert [found[1:3] for found in bucket.inner.versions("k")] == [(etag, False), (None, True)]
    assert bucket.inner.deleted("") == {"k": bucket.inner.versions("k")}
    assert bucket.inner.get_version("k", version, 0, 1) == b"1"
    with pytest.raises(NotFound):
        bucket.inner.get_version("k", f"{version[:-1]}0", 0, 1)
    assert bucket.inner.lock("k", version) is None
