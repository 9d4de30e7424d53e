"""Google Cloud Storage and Azure Blob Storage, by obstore: the behaviour of all stores, and what only they have.

What runs for real is Azure's, over Azurite where ``TIDEMARK_AZURITE`` says where it is. Google's server is one of ours
that answers as is documented.
"""

from __future__ import annotations

import io
import random
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from crc32c import crc32c
from obstore.store import LocalStore as ObstoreLocalStore
from obstore.store import MemoryStore

from tests.support import azurite
from tests.support.azurite import Azurite
from tests.support.gcs import GcsServer
from tests.support.ports import free_port
from tests.support.proxy import Fault, FaultProxy, Rule
from tests.support.wire import WireServer, never_replies, read_head, replies_in_a_trickle
from tests.tidemark.store.test_backend import SHARED
from tests.tidemark.store.test_store import race
from tidemark.errors import (
    AccessDenied,
    BucketMissing,
    ConfigError,
    NotFound,
    PreconditionFailed,
    SlowDown,
    StoreError,
    UnknownOutcome,
)
from tidemark.store import Fetched, Store, StoreOptions, clock, open_store, put_once, retrying
from tidemark.store.base import Traffic
from tidemark.store.obstore.clients import ObstoreClients
from tidemark.store.obstore.factory import forget_clients
from tidemark.store.obstore.store import ObjectStore
from tidemark.store.options import LIMITS, RequestLimits

MIB = 1 << 20
LARGE = random.Random(11).randbytes(12 * MIB)
PARTS: dict[str, Any] = {"part_size": "5MiB"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Credentials for servers that look at none, and no client left over from another test."""
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "token")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    forget_clients()
    yield
    forget_clients()


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads are tried once."""
    monkeypatch.setattr(retrying, "ATTEMPTS", 1)


@pytest.fixture
def gcs() -> Iterator[GcsServer]:
    with GcsServer() as server:
        yield server


def at(endpoint: str, url: str = "gs://raw", *, limits: RequestLimits = LIMITS, **options: Any) -> Store:
    return open_store(url, StoreOptions.model_validate({"endpoint_url": endpoint, **options}), limits=limits)


def over(client: Any, **options: Any) -> ObjectStore:
    """Our class over one of obstore's own stores."""
    chosen = StoreOptions.model_validate({**PARTS, **options})
    clients = ObstoreClients(lambda _: client, chosen)
    return ObjectStore("memory://raw", clients, chosen, Traffic(), lambda: datetime.now(UTC), by_generation=False)


@pytest.fixture(scope="session")
def emulated(starts_other: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    program = azurite.program()
    if program is None:
        pytest.skip("TIDEMARK_AZURITE does not say where azurite-blob is")
    with Azurite(program, tmp_path_factory.mktemp("azurite") / "log") as server:
        yield server


@pytest.fixture
def in_azurite(emulated: Azurite, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A container of its own in Azurite."""
    for name, value in emulated.env().items():
        monkeypatch.setenv(name, value)
    container = f"c-{uuid.uuid4().hex}"
    emulated.create_container(container)
    return at(emulated.endpoint, f"az://{container}", path_style=True, **PARTS)


AZ = pytest.param("az", marks=pytest.mark.other)


@pytest.fixture(params=["memory", "local", "gs", AZ])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return over(MemoryStore())
    if request.param == "local":
        return over(ObstoreLocalStore(tmp_path))
    if request.param == "az":
        found: Store = request.getfixturevalue("in_azurite")
        return found
    return at(request.getfixturevalue("gcs").endpoint, **PARTS)


NOT_LOCALLY = {"test_replace_only_what_was_seen", "test_listing_is_by_prefix_and_sorted_in_a_folder"}
"""What obstore's own local store cannot do: replace a version, and list in order. It is here for the rest."""


@pytest.mark.parametrize("shared", SHARED, ids=lambda one: one.__name__)
def test_they_do_what_the_others_do(store: Store, shared: FunctionType, request: pytest.FixtureRequest) -> None:
    if "local" in request.node.callspec.params.values() and shared.__name__ in NOT_LOCALLY:
        with pytest.raises((StoreError, AssertionError)):
            shared(store)
        return
    shared(store)


@pytest.fixture(params=["memory", "gs", AZ])
def whole(request: pytest.FixtureRequest) -> Store:
    """A store that does all."""
    if request.param == "memory":
        return over(MemoryStore())
    if request.param == "az":
        found: Store = request.getfixturevalue("in_azurite")
        return found
    return at(request.getfixturevalue("gcs").endpoint, **PARTS)


def put(store: Store, key: str, content: bytes = LARGE, **options: Any) -> str:
    file = io.BytesIO(b"before" + content + b"behind")
    file.seek(6)
    return store.put(key, file, size=len(content), **options)


def test_large_objects_go_under_the_same_conditions(whole: Store) -> None:
    etag = put(whole, "large", crc32c=crc32c(LARGE), if_none_match=True)
    assert whole.get("large") == Fetched(LARGE, etag)
    other = LARGE[::-1]
    with pytest.raises(PreconditionFailed):
        put(whole, "large", other, if_none_match=True)
    with pytest.raises(PreconditionFailed):
        put(whole, "large", other, if_match='"another"')
    assert whole.get("large").body == LARGE
    put(whole, "large", other, if_match=etag, crc32c=crc32c(other))
    assert whole.get("large").body == other
    put(whole, "large", LARGE)
    assert whole.get("large").body == LARGE
    assert [item.key for item in whole.list("")] == ["large"]


def test_other_bytes_than_announced_are_never_completed(whole: Store) -> None:
    for create in (True, False):
        with pytest.raises(StoreError, match="CRC32C of the bytes is"):
            put(whole, "large", crc32c=1, if_none_match=create)
        with pytest.raises(StoreError, match="changed while it was read"):
            whole.put("large", io.BytesIO(LARGE), size=len(LARGE) + 1, if_none_match=create)
    with pytest.raises(NotFound):
        whole.head("large")
    assert list(whole.list("")) == []


def test_a_large_object_is_created_by_one_of_many(whole: Store) -> None:
    race(whole, [bytes([number]) * (6 * MIB) for number in range(4)])


def test_only_that_version_is_removed(whole: Store) -> None:
    old = whole.put("k", b"1")
    new = whole.put("k", b"2")
    with pytest.raises(PreconditionFailed):
        whole.delete("k", if_match=old)
    whole.delete("k", if_match=new)
    whole.delete("k", if_match=new)
    with pytest.raises(NotFound):
        whole.head("k")


def test_a_copy_of_another_version_does_not_stay(whole: Store) -> None:
    old = whole.put("k", b"1")
    whole.put("k", b"2")
    with pytest.raises(PreconditionFailed):
        whole.copy("k", "copy", source_etag=old)
    with pytest.raises(NotFound):
        whole.head("copy")
    with pytest.raises(NotFound):
        whole.copy("nowhere", "copy", source_etag=old)


def test_listings_give_the_etags_of_the_objects(whole: Store) -> None:
    etags = {f"a/{number}": whole.put(f"a/{number}", bytes([number])) for number in range(8)}
    assert {item.key: item.etag for item in whole.list("a/")} == etags
    assert [item.key for item in whole.list("a/", start_after="a/4")] == ["a/5", "a/6", "a/7"]
    assert [item.key for item in whole.list("a/3")] == ["a/3"]


def test_a_missing_bucket_is_no_absence(gcs: GcsServer, request: pytest.FixtureRequest) -> None:
    stores = [at(gcs.endpoint, "gs://nowhere")]
    if azurite.program() is not None:
        request.getfixturevalue("in_azurite")
        stores.append(at(request.getfixturevalue("emulated").endpoint, "az://nowhere", path_style=True))
    for store in stores:
        for call in (
            store.head,
            store.get,
            lambda key, it=store: list(it.list(key)),
            lambda key, it=store: it.put(key, b""),
        ):
            with pytest.raises(BucketMissing):
                call("k")


@pytest.mark.parametrize("key", ["", "/a", "a/../b", "a//b", "a/"])
def test_keys_are_as_everywhere(key: str) -> None:
    store = over(MemoryStore())
    for call in (
        store.get,
        store.head,
        store.delete,
        lambda it: store.put(it, b""),
        lambda it: store.copy("k", it, source_etag=""),
    ):
        with pytest.raises(StoreError, match="is not a valid key"):
            call(key)


# What is sent, and what is made of the replies: requests are kept, replies are as Google and Microsoft document them.


class Replies:
    """Answers requests in turn, each connection for one; keeps their lines and headers. None cuts the connection."""

    def __init__(self, *replies: tuple[int, dict[str, str]] | None) -> None:
        self._replies = list(replies)
        self.seen: list[tuple[str, dict[str, str]]] = []

    def __call__(self, connection: socket.socket, _: threading.Event) -> None:
        head = read_head(connection)
        if not head:
            return
        line, *rest = head.decode().rstrip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in rest)}
        left = int(headers.get("content-length", "0"))
        while left:
            left -= len(connection.recv(min(left, 1 << 16)))
        self.seen.append((line.rpartition(" ")[0], headers))
        reply = self._replies.pop(0)
        if reply is None:
            connection.shutdown(socket.SHUT_RDWR)
            return
        status, more = reply
        lines = "".join(f"{name}: {value}\r\n" for name, value in {"Content-Length": "0", **more}.items())
        connection.sendall(f"HTTP/1.1 {status} It\r\nConnection: close\r\n{lines}\r\n".encode())


META = {"ETag": '"e1"', "Last-Modified": "Mon, 23 Nov 2026 00:00:00 GMT", "x-goog-generation": "77"}
DONE = (201, META)
URLS = {"gs": "gs://raw", "az": "az://raw"}


@pytest.mark.parametrize("scheme", URLS)
def test_conditions_are_in_the_requests(scheme: str) -> None:
    replies = Replies(DONE, DONE, *([(200, {**META, "Content-Length": "1"})] if scheme == "gs" else []), DONE)
    with WireServer(replies) as server:
        store = at(server.endpoint, URLS[scheme])
        assert store.put("a/b", b"1") == '"e1"'
        store.put("a/b", b"1", if_none_match=True)
        store.put("a/b", b"1", if_match='"e1"')
    conditions = {"if-match", "if-none-match", "x-goog-if-generation-match"}
    sent = [
        (line.partition(" ")[0], {name: headers[name] for name in conditions & headers.keys()})
        for line, headers in replies.seen
    ]
    if scheme == "gs":
        generation = "x-goog-if-generation-match"
        assert sent == [("PUT", {}), ("PUT", {generation: "0"}), ("HEAD", {}), ("PUT", {generation: "77"})]
    else:
        assert sent == [("PUT", {}), ("PUT", {"if-none-match": "*"}), ("PUT", {"if-match": '"e1"'})]


@pytest.mark.parametrize("scheme", URLS)
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (None, UnknownOutcome),
        ((412, {}), PreconditionFailed),
        ((409, {}), PreconditionFailed),
        ((401, {}), AccessDenied),
        ((403, {}), AccessDenied),
        ((408, {}), UnknownOutcome),
        ((429, {}), SlowDown),
        ((503, {}), SlowDown),
        ((500, {}), UnknownOutcome),
        ((504, {}), UnknownOutcome),
        ((400, {}), StoreError),
        ((201, {}), UnknownOutcome),
    ],
)
def test_what_a_reply_to_a_write_proves(
    scheme: str, reply: tuple[int, dict[str, str]] | None, error: type[StoreError]
) -> None:
    replies = Replies(reply)
    with WireServer(replies) as server, pytest.raises(StoreError) as caught:
        at(server.endpoint, URLS[scheme]).put("a/b", b"1", if_none_match=True)
    assert type(caught.value) is error, caught.value
    assert len(replies.seen) == 1, "it is tried once"
    assert "a/b" in caught.value.key


def test_a_lost_reply_is_resolved_by_reading(gcs: GcsServer, rng: random.Random) -> None:
    rules = [Rule(Fault.LOSE_REPLY, where=lambda request: request.method == "PUT")]
    with FaultProxy(gcs.endpoint, rng, rules) as proxy:
        assert put_once(at(proxy.endpoint), "k", b"1") == at(gcs.endpoint).head("k").etag
        assert proxy.counts()[Fault.LOSE_REPLY] == 1


def test_a_large_creation_whose_last_reply_is_lost_is_unknown(gcs: GcsServer, rng: random.Random) -> None:
    """It has taken effect. Its parts stay where no listing shows them."""
    rules = [Rule(Fault.LOSE_REPLY, where=lambda request: request.method == "PUT" and request.path.endswith("/large"))]
    with FaultProxy(gcs.endpoint, rng, rules) as proxy, pytest.raises(UnknownOutcome):
        put(at(proxy.endpoint, **PARTS), "large", if_none_match=True)
    store = at(gcs.endpoint, **PARTS)
    assert store.get("large").body == LARGE
    assert [item.key for item in store.list("")] == ["large"]
    assert len(gcs.bucket.objects) == 2
    with pytest.raises(PreconditionFailed):
        put(store, "large", if_none_match=True)
    assert len(gcs.bucket.objects) == 2, "what was refused is removed"


def test_a_part_that_fails_leaves_nothing(gcs: GcsServer, rng: random.Random) -> None:
    with FaultProxy(gcs.endpoint, rng, [Rule(Fault.ERROR, where=lambda one: "partNumber=2" in one.query)]) as proxy:
        for create in (True, False):
            with pytest.raises(UnknownOutcome):
                put(at(proxy.endpoint, **PARTS), "large", if_none_match=create)
    assert (gcs.bucket.objects, gcs.bucket.uploads) == ({}, {})


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("scheme", URLS)
def test_reads_go_on_after_what_passes(scheme: str) -> None:
    replies = Replies(None, (503, {}), (500, {}), (200, META))
    with WireServer(replies) as server:
        assert at(server.endpoint, URLS[scheme]).get("a/b") == Fetched(b"", '"e1"')
    assert len(replies.seen) == 4


@pytest.mark.usefixtures("quick_retries")
def test_a_body_that_breaks_off_goes_on_where_it_did() -> None:
    asked: list[str] = []

    def behave(connection: socket.socket, _: threading.Event) -> None:
        head = read_head(connection).decode().lower()
        start = int(head.partition("range: bytes=")[2].partition("-")[0] or 0)
        asked.append("if-match" if "if-match" in head else "")
        lines = "".join(f"{name}: {value}\r\n" for name, value in META.items())
        status = f"206 It\r\nContent-Range: bytes {start}-{MIB - 1}/{MIB}" if start else "200 It"
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {MIB - start}\r\n{lines}\r\n".encode())
        connection.sendall(bytes(min(600_000, MIB - start)))
        connection.shutdown(socket.SHUT_RDWR)

    with WireServer(behave) as server, at(server.endpoint).stream("k") as body:
        got, buffer = 0, bytearray(1 << 16)
        while count := body.readinto(buffer):
            got += count
    assert got == MIB
    assert asked[0] == ""
    assert set(asked[1:]) == {"if-match"}


@pytest.mark.usefixtures("once")
def test_a_reply_with_another_version_than_asked_for_is_refused() -> None:
    """By a server that does not know the condition."""
    with WireServer(Replies((200, META))) as server, pytest.raises(PreconditionFailed, match="another version"):
        at(server.endpoint).get("k", if_match='"e2"')


def test_a_server_that_does_not_know_where_to_start() -> None:
    """As Azure's emulator, which lists all."""
    blobs = "".join(
        f"<Blob><Name>a/{number}</Name><Properties><Last-Modified>{META['Last-Modified']}</Last-Modified>"
        f"<Etag>0x{number}</Etag><Content-Length>1</Content-Length><Content-Type>a/b</Content-Type></Properties></Blob>"
        for number in range(4)
    )
    body = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>".encode()
    asked: list[bytes] = []

    def behave(connection: socket.socket, _: threading.Event) -> None:
        asked.append(read_head(connection).partition(b"\r\n")[0])
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    with WireServer(behave) as server:
        found = list(at(server.endpoint, "az://raw").list("a/", start_after="a/1"))
    assert [(item.key, item.etag) for item in found] == [("a/2", '"0x2"'), ("a/3", '"0x3"')]
    assert b"startFrom=a%2F1" in asked[0]


def test_refused_credentials_are_looked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies((403, {}), (200, META))
    with WireServer(replies) as server:
        store = at(server.endpoint)
        with pytest.raises(AccessDenied):
            store.get("k")
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "another")
        store.get("k")
    assert [headers["authorization"] for _, headers in replies.seen] == ["Bearer token", "Bearer another"]


SHORT: dict[str, Any] = {
    "deadline": "900ms",
    "limits": RequestLimits(
        connect_timeout=timedelta(milliseconds=300), no_progress=timedelta(milliseconds=400), min_rate=1 << 30
    ),
}


def sends_a_body_in_a_trickle(connection: socket.socket, ended: threading.Event) -> None:
    read_head(connection)
    lines = "".join(f"{name}: {value}\r\n" for name, value in META.items())
    connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n{lines}\r\n".encode())
    while not ended.wait(0.05):
        connection.sendall(b"x")


CALLS: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put("k", b"small"),
    "put large": lambda store: store.put("k", bytes(8 * MIB), if_match='"e1"'),
    "head": lambda store: store.head("k"),
    "get": lambda store: store.get("k"),
    "list": lambda store: list(store.list("k/")),
}


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize(
    ("behave", "call"),
    [
        *((behave, call) for behave in (never_replies, replies_in_a_trickle) for call in CALLS),
        (sends_a_body_in_a_trickle, "get"),
        (sends_a_body_in_a_trickle, "list"),
    ],
)
def test_a_server_that_hangs(behave: Callable[[socket.socket, threading.Event], None], call: str) -> None:
    with WireServer(behave) as server, pytest.raises(StoreError) as caught:
        CALLS[call](at(server.endpoint, "az://raw", **SHORT))
    assert isinstance(caught.value, UnknownOutcome)


@pytest.mark.usefixtures("once")
def test_no_server() -> None:
    store = at(f"http://127.0.0.1:{free_port()}", **SHORT)
    for call in (store.get, lambda key: store.put(key, b""), lambda _: store.now()):
        with pytest.raises(UnknownOutcome, match="no answer"):
            call("k")


@pytest.mark.usefixtures("once")
def test_without_credentials_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_BEARER_TOKEN")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "nowhere.json"))
    with pytest.raises(ConfigError, match=r"GOOGLE_\*.*nowhere\.json"):
        at("http://127.0.0.1:1").get("k")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    with pytest.raises(ConfigError, match="AZURE_STORAGE_ACCOUNT_NAME: names the storage account"):
        open_store("az://raw")


def test_the_time_is_the_servers_even_if_it_refuses() -> None:
    with WireServer(Replies((403, {"Date": "Mon, 23 Nov 2026 01:02:03 GMT"}))) as server:
        assert at(server.endpoint).now() == datetime(2026, 11, 23, 1, 2, 3, tzinfo=UTC)
    with WireServer(Replies((200, {}))) as server, pytest.raises(StoreError, match="have no Date"):
        at(server.endpoint).now()


def test_clocks_are_compared(gcs: GcsServer) -> None:
    reading = clock.read(at(gcs.endpoint))
    assert reading is None or abs(reading.skew) < timedelta(minutes=1)


def test_renewed_clients_are_made_when_credentials_are_refused() -> None:
    made: list[object] = []

    def connect(_: object) -> Any:
        made.append(MemoryStore())
        return made[-1]

    clients = ObstoreClients(connect, StoreOptions())
    assert clients.read() is clients.read()
    assert clients.write(1) is clients.write(MIB)
    assert clients.write(MIB + 1) is clients.write(64 * MIB)
    assert len(made) == 3
    clients.renew()
    clients.read()
    assert len(made) == 4


class Counting(Traffic):
    """Lets a thousand bytes go at a time, and counts."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.admitted = 0

    def request(self, operation: str) -> None:
        self.sent.append(operation)

    def admit(self, size: int, total: int) -> int:
        assert total >= size
        self.admitted += min(size, 1000)
        return min(size, 1000)


def test_traffic_is_metered(gcs: GcsServer) -> None:
    traffic = Counting()
    store = open_store("gs://raw", StoreOptions(endpoint_url=gcs.endpoint, part_size=5 * MIB), traffic)
    store.put("k", bytes(2 * MIB))
    assert (traffic.sent, traffic.admitted) == (["PutObject"], 2 * MIB)
    put(store, "large", LARGE)
    assert traffic.admitted == 2 * MIB + len(LARGE)
    store.head("k")
    store.delete("k")
    assert traffic.sent[-2:] == ["HeadObject", "DeleteObject"]


def test_what_is_stored_is_read_back(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded: the server keeps other bytes than it was sent."""
    keep = gcs.bucket.put
    monkeypatch.setattr(gcs.bucket, "put", lambda key, body: keep(key, body[:-1] + b"!"))
    store = at(gcs.endpoint, **PARTS)
    store.put("k", b"hello")
    for content in (b"hello", LARGE):
        with pytest.raises(StoreError, match="has other bytes"):
            put(store, "k", content, crc32c=crc32c(content))


@pytest.mark.parametrize("url", ["gs://raw", "az://raw"])
def test_the_missing_extra_is_named(url: str) -> None:
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from tidemark.store import open_store\nfrom tidemark.errors import ConfigError\n"
        f"try:\n    open_store({url!r})\nexcept ConfigError as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "install the extra tidemark-kafka[object-store]" in run.stdout


def test_opening_twice_makes_one_store(gcs: GcsServer) -> None:
    one, other = at(gcs.endpoint), at(gcs.endpoint)
    assert getattr(one, "inner", 1) is getattr(other, "inner", 2)
