"""A request ends in time whatever the server does, and says which limit it broke."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.ports import HOST
from tests.support.wire import WireServer, never_replies, read_head, replies_in_a_trickle
from tidemark.errors import StoreError, UnknownOutcome
from tidemark.store import Store, StoreOptions, open_store, retrying
from tidemark.store.options import RequestLimits

LARGE = 32 << 20
SHORT = RequestLimits(
    connect_timeout=timedelta(milliseconds=300), no_progress=timedelta(milliseconds=400), min_rate=1 << 30
)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "A")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "B")


@pytest.fixture(autouse=True)
def one_more_try(monkeypatch: pytest.MonkeyPatch, quick_retries: None) -> None:
    """Reads are tried twice, and soon: each try waits until its limit."""
    monkeypatch.setattr(retrying, "ATTEMPTS", 2)


def at(endpoint: str, limits: RequestLimits = SHORT) -> Store:
    options = {"endpoint_url": endpoint, "region": "us-east-1", "path_style": True, "deadline": "900ms"}
    return open_store("s3://raw", StoreOptions.model_validate(options), limits=limits)


def put_large(store: Store) -> object:
    return store.put("k", io.BytesIO(bytes(LARGE)), size=LARGE, crc32c=0)


def put_small(store: Store) -> object:
    return store.put("k", b"small", crc32c=0)


def get(store: Store) -> object:
    return store.get("k")


def stream(store: Store) -> object:
    buffer, size = bytearray(1 << 16), 0
    with store.stream("k") as body:
        while count := body.readinto(buffer):
            size += count
    return size


def failure(call: Callable[[], object]) -> BaseException | None:
    """What ``call`` raises, if it ends at all; it runs in a thread, and none is left behind."""
    before = set(threading.enumerate())
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(call).exception(timeout=60)
    assert not {thread for thread in set(threading.enumerate()) - before if "_serve" not in thread.name}
    return found


def take(connection: socket.socket, size: int) -> None:
    """Read ``size`` bytes of a body, after asking for it if the client waits to be asked."""
    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    while size and (found := connection.recv(min(size, 1 << 16))):
        size -= len(found)


def stops_reading(connection: socket.socket, ended: threading.Event) -> None:
    read_head(connection)
    take(connection, 1 << 20)
    ended.wait()


def reads_a_trickle(connection: socket.socket, ended: threading.Event) -> None:
    read_head(connection)
    take(connection, 1)
    while not ended.wait(0.05):
        connection.recv(1 << 18)


def sends_a_body_in_a_trickle(connection: socket.socket, ended: threading.Event) -> None:
    read_head(connection)
    connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 100000\r\n\r\n')
    while not ended.wait(0.05):
        connection.sendall(b"x")


def stops_mid_body(connection: socket.socket, ended: threading.Event) -> None:
    read_head(connection)
    connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 100000\r\n\r\nbegin')
    ended.wait()


def stops_in_an_error(connection: socket.socket, ended: threading.Event) -> None:
    read_head(connection)
    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 1000\r\n\r\n<Error>")
    ended.wait()


@pytest.mark.parametrize(
    ("behave", "call", "limit"),
    [
        (stops_reading, put_large, "no byte moved"),
        (reads_a_trickle, put_large, "store.deadline"),
        (never_replies, put_small, "no byte moved"),
        (never_replies, get, "no byte moved"),
        (replies_in_a_trickle, put_small, "store.deadline"),
        (replies_in_a_trickle, get, "store.deadline"),
        (sends_a_body_in_a_trickle, get, "store.deadline"),
        (stops_mid_body, get, "no byte moved"),
        (never_replies, stream, "no byte moved"),
        (sends_a_body_in_a_trickle, stream, "store.deadline"),
        (stops_mid_body, stream, "no byte moved"),
        (stops_in_an_error, get, "no byte moved"),
        (stops_in_an_error, put_small, "no byte moved"),
    ],
)
def test_a_server_that_hangs(
    behave: Callable[[socket.socket, threading.Event], None], call: Callable[[Store], object], limit: str
) -> None:
    with WireServer(behave) as server:
        found = failure(lambda: call(at(server.endpoint)))
    assert isinstance(found, UnknownOutcome)
    assert limit in str(found)


def test_a_connection_that_is_never_made() -> None:
    """A listener that accepts nobody, and whose queue is full."""
    with socket.create_server((HOST, 0), backlog=0) as listener, socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        found = failure(lambda: put_small(at(f"http://{HOST}:{listener.getsockname()[1]}")))
    assert isinstance(found, UnknownOutcome)
    assert "no connection in time" in str(found)


@pytest.mark.parametrize(
    ("reply", "call"),
    [
        (b"HTTP/1.1 100 Continue\r\n", put_large),
        (b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 100000\r\n\r\nbegin', stream),
    ],
    ids=["in the midst of 100 Continue", "in the midst of a stream"],
)
def test_a_connection_that_is_cut_neither_spins_nor_ends_as_if_it_were_whole(
    reply: bytes, call: Callable[[Store], object]
) -> None:
    def behave(connection: socket.socket, _: threading.Event) -> None:
        read_head(connection)
        connection.sendall(reply)
        connection.shutdown(socket.SHUT_RDWR)

    with WireServer(behave) as server:
        assert isinstance(failure(lambda: call(at(server.endpoint))), UnknownOutcome)


def test_a_slow_server_gets_the_time_that_the_bytes_need() -> None:
    """Longer than the deadline alone, but faster than the least rate, and with no long pause."""

    def behave(connection: socket.socket, ended: threading.Event) -> None:
        read_head(connection)
        take(connection, 0)
        for _ in range(8):
            ended.wait(0.2)
            size = LARGE // 8
            while size and (found := connection.recv(min(size, 1 << 16))):
                size -= len(found)
        connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n')

    with WireServer(behave) as server:
        assert failure(lambda: put_large(at(server.endpoint))) is not None, "seed: at 1 GiB/s it is too slow"
        patient = replace(SHORT, min_rate=8 << 20, no_progress=timedelta(milliseconds=900))
        assert failure(lambda: put_large(at(server.endpoint, patient))) is None


class Reluctant(io.BytesIO):
    """A body that takes longer to read than a request may take."""

    def read(self, size: int | None = -1, /) -> bytes:
        threading.Event().wait(0.02)
        return super().read(size)


def test_pauses_of_our_own_do_not_count() -> None:
    def behave(connection: socket.socket, _: threading.Event) -> None:
        read_head(connection)
        take(connection, LARGE)
        connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n')

    with WireServer(behave) as server:
        store = at(server.endpoint)
        assert failure(lambda: store.put("k", Reluctant(bytes(LARGE)), size=LARGE, crc32c=0)) is None


@pytest.mark.parametrize("status", [500, 503])
def test_an_early_refusal_is_read_though_the_body_is_not_wanted(status: int) -> None:
    def behave(connection: socket.socket, _: threading.Event) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 %d No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % status)

    with WireServer(behave) as server:
        found = failure(lambda: put_large(at(server.endpoint)))
    assert isinstance(found, StoreError)
    assert str(status) in str(found)
