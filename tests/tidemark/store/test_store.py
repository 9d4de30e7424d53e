"""One behaviour, two stores: a directory, and a real S3 server."""

from __future__ import annotations

import io
import threading
import uuid
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from crc32c import crc32c

from tests.support.ports import free_port
from tests.support.s3 import OwnBuckets, S3Server
from tidemark.errors import AccessDenied, FormatError, NotFound, PreconditionFailed, StoreError, UnknownOutcome
from tidemark.store import Fetched, LocalStore, Store, StoreOptions, local, open_store, put_once


@pytest.fixture(params=["local", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.essential])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return open_store(f"file://{tmp_path}")
    server: S3Server = request.getfixturevalue("s3")
    bucket = f"b-{uuid.uuid4().hex}"
    server.client().create_bucket(Bucket=bucket)
    return open_store(f"s3://{bucket}", at(server))


def at(server: S3Server | OwnBuckets) -> StoreOptions:
    return StoreOptions(endpoint_url=server.endpoint, region="us-east-1", path_style=True)


def test_what_is_put_is_got(store: Store) -> None:
    etag = store.put("a/b.json", b"hello")
    assert store.get("a/b.json") == Fetched(b"hello", etag)
    assert store.get("a/b.json", if_match=etag).body == b"hello"
    assert store.get_range("a/b.json", 1, 3) == b"el"
    assert store.get_range("a/b.json", 2, 2) == b""
    assert store.head("a/b.json")[:3] == ("a/b.json", 5, etag)


@pytest.mark.parametrize(
    ("start", "end"), [(0, None), (0, 700_000), (3, 700_001), (123_456, None), (999_999, 1_000_000)]
)
def test_a_range_is_streamed_into_buffers(store: Store, start: int, end: int | None) -> None:
    data = bytes(range(250)) * 4000
    etag = store.put("k", data)
    with store.stream("k", start, end, if_match=etag) as body:
        assert (body.etag, body.size) == (etag, (end or len(data)) - start)
        got, buffer = b"", bytearray(65_537)
        while count := body.readinto(buffer):
            got += buffer[:count]
        assert body.readinto(buffer) == 0
    assert got == data[start:end]


def test_a_stream_that_is_left_early_leaves_the_store_usable(store: Store) -> None:
    store.put("k", bytes(8 << 20))
    for _ in range(20):
        with store.stream("k") as body:
            assert body.readinto(bytearray(10)) > 0
    assert len(store.get("k").body) == 8 << 20


@pytest.mark.usefixtures("quick_retries")
def test_what_a_stream_cannot_give_is_said(store: Store) -> None:
    store.put("k", b"hello")
    for end in (9, 6):
        with pytest.raises(StoreError, match="k"), store.stream("k", 2, end):
            pass
    with pytest.raises(PreconditionFailed), store.stream("k", if_match='"other"'):
        pass
    with pytest.raises(NotFound), store.stream("nowhere"):
        pass
    store.put("empty", b"")
    with store.stream("empty") as body:
        assert body.readinto(bytearray(4)) == 0


def test_a_file_that_shrinks_while_it_is_streamed_is_noticed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("k", bytes(1000))
    with store.stream("k") as body:
        (tmp_path / "k").write_bytes(b"")
        with pytest.raises(UnknownOutcome, match="early"):
            body.readinto(bytearray(10))


def test_a_file_is_put_with_its_checksum(store: Store) -> None:
    data = bytes(range(256)) * 1000
    file = io.BytesIO(b"skipped" + data + b"not sent")
    for checksum in (crc32c(data), None):
        file.seek(7)
        store.put("f", file, size=len(data), crc32c=checksum)
        assert store.get("f").body == data
        assert store.head("f").crc32c in {crc32c(data), None}, "a store need not know it"


def test_these_two_know_checksums(request: pytest.FixtureRequest, store: Store) -> None:
    """With ``request``, so that it is not among the tests of all stores."""
    del request
    store.put("f", io.BytesIO(b"hello"), size=5, crc32c=crc32c(b"hello"))
    assert store.head("f").crc32c == crc32c(b"hello")


def test_other_bytes_than_the_checksums_are_refused(store: Store) -> None:
    with pytest.raises(StoreError):
        store.put("f", b"hello", crc32c=crc32c(b"hullo"))
    with pytest.raises(NotFound):
        store.head("f")


def test_missing_objects(store: Store) -> None:
    for call in (store.get, store.head, lambda key: store.get_range(key, 0, 1)):
        with pytest.raises(NotFound, match="nowhere"):
            call("nowhere")
    store.delete("nowhere")


def test_create_only(store: Store) -> None:
    store.put("k", b"1", if_none_match=True)
    with pytest.raises(PreconditionFailed):
        store.put("k", b"2", if_none_match=True)
    assert store.get("k").body == b"1"


def test_replace_only_what_was_seen(store: Store) -> None:
    old = store.put("k", b"1")
    new = store.put("k", b"2", if_match=old)
    with pytest.raises(PreconditionFailed):
        store.put("k", b"3", if_match=old)
    with pytest.raises(PreconditionFailed):
        store.get("k", if_match=old)
    with pytest.raises(PreconditionFailed):
        store.get_range("k", 0, 1, if_match=old)
    assert store.get("k") == Fetched(b"2", new)


def race(store: Store, bodies: list[bytes]) -> None:
    """Create an object with each of ``bodies`` at once: exactly one of them is there afterwards."""
    winners: list[bytes] = []
    barrier = threading.Barrier(len(bodies))

    def create(body: bytes) -> None:
        barrier.wait()
        try:
            store.put("raced", io.BytesIO(body), size=len(body), if_none_match=True)
        except PreconditionFailed:
            return
        winners.append(body)

    threads = [threading.Thread(target=create, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert winners == [store.get("raced").body]


def test_one_winner_among_racing_creators(store: Store) -> None:
    race(store, [str(number).encode() for number in range(6)])


def test_listing_is_by_prefix_and_sorted_in_a_folder(store: Store) -> None:
    for key in ("p/3", "p/1", "p/2", "p-x/1", "q"):
        store.put(key, key.encode())
    assert [item.key for item in store.list("p/")] == ["p/1", "p/2", "p/3"]
    assert [item.key for item in store.list("p/", start_after="p/1")] == ["p/2", "p/3"]
    assert sorted(item.key for item in store.list("")) == ["p-x/1", "p/1", "p/2", "p/3", "q"]
    assert list(store.list("none/")) == []
    assert [item.size for item in store.list("p/")] == [3, 3, 3]


def test_copy_only_what_was_seen(store: Store) -> None:
    old = store.put("k", b"1")
    store.copy("k", "kept", source_etag=old)
    assert store.get("kept").body == b"1"
    store.put("k", b"2")
    with pytest.raises(PreconditionFailed):
        store.copy("k", "kept2", source_etag=old)


def test_delete(store: Store) -> None:
    store.put("k", b"1")
    store.delete("k")
    with pytest.raises(NotFound):
        store.get("k")


def test_put_once_is_safe_to_repeat(store: Store) -> None:
    assert put_once(store, "k", b"1") == put_once(store, "k", b"1")
    with pytest.raises(PreconditionFailed, match="never replaced"):
        put_once(store, "k", b"2")


class LostReply(LocalStore):
    """A store whose next PUT takes effect although its reply is lost."""

    lose = True

    def put(self, key: str, body: bytes | BinaryIO, **options: Any) -> str:
        etag = super().put(key, body, **options)
        if self.lose:
            self.lose = False
            raise UnknownOutcome(key, "no answer")
        return etag


def test_put_once_resolves_an_unknown_outcome_by_reading(tmp_path: Path) -> None:
    assert put_once(LostReply(tmp_path), "k", b"1") == LocalStore(tmp_path).get("k").etag


@pytest.mark.parametrize("key", ["", "/a", "a/../b", "a//b", "."])
def test_keys_never_leave_the_directory(tmp_path: Path, key: str) -> None:
    with pytest.raises(StoreError, match="is not a valid key"):
        LocalStore(tmp_path).put(key, b"")


def test_urls(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="must name only a bucket"):
        open_store("s3://bucket/prefix")
    with pytest.raises(FormatError, match="must be s3://"):
        open_store(str(tmp_path))


def test_a_missing_bucket_says_so(s3: S3Server) -> None:
    with pytest.raises(StoreError, match=r"s3://no-such-bucket/k: the bucket does not exist"):
        open_store("s3://no-such-bucket", at(s3)).put("k", b"")


def test_wrong_credentials_are_loud(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(AccessDenied, match="check the credentials"):
        open_store("s3://raw", at(s3)).get("k")


def test_no_answer_is_an_unknown_outcome(s3: S3Server) -> None:
    options = StoreOptions(endpoint_url=f"http://127.0.0.1:{free_port()}", region="us-east-1", path_style=True)
    with pytest.raises(UnknownOutcome, match="no answer"):
        open_store("s3://raw", options).put("k", b"")


def test_a_program_that_does_not_know_the_lock_of_a_directory_may_be_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an engine that commits to a table at the same time."""
    store, real = LocalStore(tmp_path), local._check

    def overtaken(*given: Any) -> None:
        real(*given)
        (tmp_path / "key").write_bytes(b"theirs")

    monkeypatch.setattr(local, "_check", overtaken)
    with pytest.raises(PreconditionFailed):
        store.put("key", b"ours", if_none_match=True)
    assert store.get("key").body == b"theirs"
    assert [path.name for path in (tmp_path / ".tidemark-store").iterdir()] == ["lock"], "nothing is left"
