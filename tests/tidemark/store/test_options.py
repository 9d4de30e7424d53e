"""What the options make of the requests that are really sent, and what large objects go through."""

from __future__ import annotations

import io
import random
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c
from pydantic import ValidationError

from tests.support.proxy import Fault, FaultProxy, Rule
from tests.support.s3 import S3Server
from tests.support.wire import WireServer, read_head
from tidemark.errors import BucketMissing, NotFound, PreconditionFailed, StoreError, UnknownOutcome
from tidemark.store import Store, StoreOptions, open_store
from tidemark.store.base import Traffic
from tidemark.store.options import LIMITS
from tidemark.store.s3.store import encoded_checksum

MIB = 1 << 20
LARGE = random.Random(4).randbytes(12 * MIB)
PARTS = {"part_size": "5MiB"}
SMALL = replace(LIMITS, multipart_from=5 * MIB)
KEY_ARN = "arn:aws:kms:eu-central-1:123456789012:key/1234"


class Recorder:
    """Answers as S3 would, and keeps each request's line and headers."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = []

    def __call__(self, connection: socket.socket, _: threading.Event) -> None:
        while head := read_head(connection):
            line, *rest = head.decode().rstrip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in rest)}
            self.seen.append((line, headers))
            if "expect" in headers:
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            left = int(headers.get("content-length", "0"))
            while left:
                left -= len(connection.recv(min(left, 1 << 20)))
            body = self.body(line, headers)
            connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: %d\r\n\r\n%b' % (len(body), body))

    def body(self, line: str, headers: dict[str, str]) -> bytes:
        """What S3 answers to those requests that are answered in XML."""
        if "x-amz-copy-source" in headers:
            return b'<CopyObjectResult><ETag>"e"</ETag></CopyObjectResult>'
        if "?uploads" in line:
            return b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
        if line.startswith("POST"):
            whole = encoded_checksum(crc32c(LARGE)).encode()
            tag = b"<ETag>e</ETag><ChecksumCRC32C>%b</ChecksumCRC32C>" % whole
            return b"<CompleteMultipartUploadResult>%b</CompleteMultipartUploadResult>" % tag
        return b""

    def named(self, word: str) -> dict[str, str]:
        """The headers of the one request whose line has ``word``."""
        [found] = [headers for line, headers in self.seen if word in line]
        return found


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "A")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "B")
    found = Recorder()
    with WireServer(found) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")  # the option is stronger
        found.endpoint = server.endpoint  # type: ignore[attr-defined]  # what the tests open
        yield found


def opened(recorder: Recorder, **options: Any) -> Store:
    endpoint = recorder.endpoint  # type: ignore[attr-defined]  # set by the fixture
    base = {"endpoint_url": endpoint, "region": "us-east-1", "path_style": True}
    return open_store("s3://raw", StoreOptions.model_validate({**base, **options}), limits=SMALL)


def use_all(store: Store) -> None:
    store.put("single", b"hello", crc32c=1, if_match='"old"')
    store.put("multi", io.BytesIO(LARGE), size=len(LARGE), crc32c=crc32c(LARGE), if_none_match=True)
    store.copy("single", "copied", source_etag='"e"')
    list(store.list("p/"))
    store.delete("single")


CREATING = ["/raw/single HTTP", "/raw/multi?uploads", "/raw/copied"]


def test_every_written_object_gets_key_class_and_tags(recorder: Recorder) -> None:
    tags = {"team": "data platform", "cost-center": "4711"}
    use_all(opened(recorder, **PARTS, sse_kms_key_id=KEY_ARN, storage_class="INTELLIGENT_TIERING", tags=tags))
    recorder.seen = [(line, headers) for line, headers in recorder.seen if not line.startswith("DELETE")]
    for word in CREATING:
        headers = recorder.named(word)
        assert headers["x-amz-server-side-encryption"] == "aws:kms"
        assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == KEY_ARN
        assert headers["x-amz-storage-class"] == "INTELLIGENT_TIERING"
        assert headers["x-amz-tagging"] == "team=data+platform&cost-center=4711"
    assert recorder.named("/raw/copied")["x-amz-tagging-directive"] == "REPLACE"
    others = [headers for line, headers in recorder.seen if not any(word in line for word in CREATING)]
    assert len(others) == 5, "three parts, their completion and a listing"
    assert not any(name.startswith(("x-amz-server", "x-amz-storage", "x-amz-tag")) for one in others for name in one)


def test_every_request_names_the_expected_owner(recorder: Recorder) -> None:
    use_all(opened(recorder, **PARTS, expected_bucket_owner="123456789012"))
    assert len(recorder.seen) == 9
    assert {headers["x-amz-expected-bucket-owner"] for _, headers in recorder.seen} == {"123456789012"}
    assert recorder.named("/raw/copied")["x-amz-source-expected-bucket-owner"] == "123456789012"


def test_nothing_is_sent_that_was_not_asked_for(recorder: Recorder) -> None:
    use_all(opened(recorder, **PARTS))
    sent = {name for _, headers in recorder.seen for name in headers}
    assert not {name for name in sent if name.startswith(("x-amz-server-side", "x-amz-storage", "x-amz-tag"))}
    assert "x-amz-expected-bucket-owner" not in sent


def test_conditions_and_checksums_go_along(recorder: Recorder) -> None:
    use_all(opened(recorder, **PARTS))
    single, complete = recorder.named("PUT /raw/single"), recorder.named("POST /raw/multi?uploadId")
    assert (single["if-match"], single["x-amz-checksum-crc32c"]) == ('"old"', encoded_checksum(1))
    assert single["content-length"] == "5", "as it is, not in chunks with a checksum behind"
    assert complete["if-none-match"] == "*"
    assert complete["x-amz-checksum-crc32c"] == encoded_checksum(crc32c(LARGE))
    assert (complete["x-amz-checksum-type"], complete["x-amz-mp-object-size"]) == ("FULL_OBJECT", str(len(LARGE)))
    assert recorder.named("?uploads")["x-amz-checksum-type"] == "FULL_OBJECT"
    pieces = [LARGE[at : at + 5 * MIB] for at in range(0, len(LARGE), 5 * MIB)]
    for number, piece in enumerate(pieces, start=1):
        assert recorder.named(f"partNumber={number}")["x-amz-checksum-crc32c"] == encoded_checksum(crc32c(piece))


@pytest.mark.parametrize(
    ("path_style", "line", "host"),
    [(True, "PUT /raw/k HTTP/1.1", "s3.example:"), (False, "PUT /k HTTP/1.1", "raw.s3.example:")],
)
def test_path_style_and_endpoint(
    recorder: Recorder, path_style: bool, line: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _host, *more, **named: resolve("127.0.0.1", *more, **named))
    endpoint = recorder.endpoint.replace("127.0.0.1", "s3.example")  # type: ignore[attr-defined]  # set by the fixture
    opened(recorder, endpoint_url=endpoint, path_style=path_style).put("k", b"")
    [(sent, headers)] = recorder.seen
    assert sent == line
    assert headers["host"].startswith(host)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"part_size": "2GiB"}, "part_size must be at most 1GiB"),
        ({"part_size": "1MiB"}, "greater than or equal to 5242880"),
        ({"part_size": "6GiB"}, "less than or equal to 5368709120"),
        ({"sse_kms_key_id": "k", "endpoint_url": "http://s3.example"}, "needs an https endpoint"),
        ({"storage_class": "GLACIER"}, "Input should be 'STANDARD'"),
        ({"tags": {str(number): "" for number in range(11)}}, "at most 10 items"),
        ({"tags": {"aws:x": "1"}}, "AWS's own"),
        ({"tags": {"x": "y" * 257}}, "at most 256"),
        ({"tags": {"x": "a&b"}}, "may have only letters"),
        ({"expected_bucket_owner": "me"}, "should match pattern"),
        ({"deadline": "0s"}, "greater than 0"),
    ],
)
def test_what_cannot_be_is_a_configuration_error(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        StoreOptions.model_validate(options)


def test_options_survive_the_way_to_a_spark_job() -> None:
    options = StoreOptions.model_validate({**PARTS, "deadline": "90s", "tags": {"a": "b"}})
    assert StoreOptions.model_validate_json(options.model_dump_json()) == options


class Requests(Traffic):
    """Counts what a store sends."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def request(self, operation: str) -> None:
        self.sent.append(operation)

    def admit(self, size: int, total: int) -> int:
        del total
        return size


def large(endpoint: str, traffic: Requests | None = None, **options: Any) -> Store:
    base = {"endpoint_url": endpoint, "path_style": True, **PARTS}
    return open_store("s3://raw", StoreOptions.model_validate({**base, **options}), traffic, limits=SMALL)


def put(store: Store, key: str, content: bytes = LARGE, **options: Any) -> str:
    file = io.BytesIO(b"before" + content + b"behind")
    file.seek(6)
    return store.put(key, file, size=len(content), **options)


def uploads(s3: S3Server, key: str) -> list[object]:
    return [*s3.client().list_multipart_uploads(Bucket="raw", Prefix=key).get("Uploads", [])]


@pytest.fixture
def key() -> str:
    return f"large/{uuid.uuid4().hex}"


@pytest.mark.essential
def test_large_objects_go_in_parts_under_the_same_conditions(s3: S3Server, key: str) -> None:
    requests = Requests()
    store = large(s3.endpoint, requests)
    etag = put(store, key, crc32c=crc32c(LARGE), if_none_match=True)
    parts = ["CreateMultipartUpload", *["UploadPart"] * 3, "CompleteMultipartUpload"]
    assert requests.sent[:5] == parts
    assert set(requests.sent[5:]) <= {"GetObject"}, "read back where the server does not tell the whole's checksum"
    assert store.head(key)[1:3] == (len(LARGE), etag)
    assert store.head(key).crc32c == crc32c(LARGE)
    assert store.get(key).body == LARGE
    other = LARGE[::-1]
    with pytest.raises(PreconditionFailed):
        put(store, key, other, if_none_match=True)
    with pytest.raises(PreconditionFailed):
        put(store, key, other, if_match='"another"')
    assert store.get(key).body == LARGE
    put(store, key, other, if_match=etag)
    assert store.get(key).body == other
    assert uploads(s3, key) == [], "what was refused is aborted"


def test_small_ones_go_in_one(s3: S3Server, key: str) -> None:
    requests = Requests()
    put(large(s3.endpoint, requests), key, LARGE[: 5 * MIB])
    assert requests.sent == ["PutObject"]


@pytest.mark.essential
def test_other_bytes_than_the_checksums_are_never_completed(s3: S3Server, key: str) -> None:
    store = large(s3.endpoint)
    with pytest.raises(StoreError, match="CRC32C of the bytes is"):
        put(store, key, crc32c=1)
    with pytest.raises(NotFound):
        store.head(key)
    assert uploads(s3, key) == []


@pytest.mark.essential
@pytest.mark.parametrize(
    ("fault", "of", "error"),
    [
        (Fault.CORRUPT, "partNumber=2", StoreError),
        (Fault.CUT_MID_BODY, "partNumber=3", UnknownOutcome),
        (Fault.ERROR, "uploads", UnknownOutcome),
    ],
)
def test_a_part_that_fails_leaves_nothing(
    s3: S3Server, rng: random.Random, key: str, fault: Fault, of: str, error: type[StoreError]
) -> None:
    with FaultProxy(s3.endpoint, rng, [Rule(fault, where=lambda request: of in request.query)]) as proxy:
        with pytest.raises(error):
            put(large(proxy.endpoint), key, crc32c=crc32c(LARGE), if_none_match=True)
        assert proxy.counts()[fault] == 1
    with pytest.raises(NotFound):
        large(s3.endpoint).head(key)
    assert uploads(s3, key) == []


@pytest.mark.essential
def test_a_completion_without_a_reply_is_unknown_and_found_by_reading(
    s3: S3Server, rng: random.Random, key: str
) -> None:
    rule = Rule(Fault.LOSE_REPLY, where=lambda request: request.method == "POST" and "uploadId" in request.query)
    with FaultProxy(s3.endpoint, rng, [rule]) as proxy:
        store = large(proxy.endpoint)
        with pytest.raises(UnknownOutcome):
            put(store, key, crc32c=crc32c(LARGE), if_none_match=True)
        proxy.rules = ()
        assert store.head(key).crc32c == crc32c(LARGE)
        with pytest.raises(PreconditionFailed):
            put(store, key, crc32c=crc32c(LARGE), if_none_match=True)


@pytest.mark.essential
def test_tags_and_class_are_stored(s3: S3Server, key: str) -> None:
    store = large(s3.endpoint, tags={"team": "a b"}, storage_class="STANDARD_IA")
    etag = store.put(key, b"small")
    put(store, f"{key}-parts")
    store.copy(key, f"{key}-copy", source_etag=etag)
    for name in (key, f"{key}-parts", f"{key}-copy"):
        tags = s3.client().get_object_tagging(Bucket="raw", Key=name)["TagSet"]
        assert tags == [{"Key": "team", "Value": "a b"}], name
        assert s3.client().head_object(Bucket="raw", Key=name)["StorageClass"] == "STANDARD_IA", name


@pytest.mark.essential
def test_nothing_found_in_a_missing_bucket_is_no_absence(s3: S3Server) -> None:
    options = StoreOptions(endpoint_url=s3.endpoint, path_style=True)
    missing = open_store(f"s3://none-{uuid.uuid4().hex}", options)
    for call in (missing.head, missing.get, lambda key: list(missing.list(key)), lambda key: missing.put(key, b"")):
        with pytest.raises(BucketMissing):
            call("k")
