"""A proxy between an S3 client and its server that does, by seeded chance, what networks and overloaded servers do.

It knows requests, not S3: it forwards each as it came (the ``Host`` header is signed), one at a time per connection,
and may do something to it first. What it injected, and into what, is in :attr:`FaultProxy.injected`.
"""

from __future__ import annotations

import io
import random
import select
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Self
from urllib.parse import unquote, urlsplit

from tests.support.ports import HOST
from tests.support.waiting import HUNG

_CHUNK = 64 << 10
_PATIENCE = 120.0
"""Seconds after which a socket of the proxy gives up, so that no thread outlives a test for long."""


class Fault(StrEnum):
    """What can happen to a request. Where the request has no body, what concerns bodies concerns the reply's."""

    DELAY = "delay"
    HANG_BEFORE_BODY = "hang before the body"
    HANG_MID_BODY = "hang mid-body"
    HANG_BEFORE_REPLY = "hang before the reply"
    """After the request took effect."""
    CUT_MID_BODY = "cut mid-body"
    LOSE_REPLY = "lose the reply"
    """After the request took effect."""
    CORRUPT = "corrupt a byte"
    TRICKLE = "trickle the reply"
    """After the request took effect."""
    ERROR = "500"
    UNAVAILABLE = "503"
    SLOW_DOWN = "503 SlowDown"
    FORBIDDEN = "403"
    CONFLICT = "409"
    PRECONDITION = "412"


_ANSWERS = {
    Fault.ERROR: (500, "InternalError"),
    Fault.UNAVAILABLE: (503, "ServiceUnavailable"),
    Fault.SLOW_DOWN: (503, "SlowDown"),
    Fault.FORBIDDEN: (403, "AccessDenied"),
    Fault.CONFLICT: (409, "ConditionalRequestConflict"),
    Fault.PRECONDITION: (412, "PreconditionFailed"),
}
FOR_WRITES = {Fault.CONFLICT, Fault.PRECONDITION}
"""Faults that no server gives to a request that does not write."""


class Request(NamedTuple):
    """A request's line and headers; ``path`` is unquoted, ``size`` the bytes of the body."""

    method: str
    path: str
    query: str
    size: int
    head: bytes
    waits: bool


class Injected(NamedTuple):
    """A fault, and what it happened to."""

    fault: Fault
    method: str
    path: str


Choose = Callable[[Request], Fault | None]


@dataclass(frozen=True)
class Rule:
    """``fault`` happens with chance ``share`` to each request for which ``where`` holds."""

    fault: Fault
    share: float = 1.0
    where: Callable[[Request], bool] = field(default=lambda _request: True)


class _Gone(Exception):
    """One side has closed its connection."""


class FaultProxy:
    """Listens on :attr:`endpoint`; usable with ``with``. Change :attr:`rules` at any time; none, and all is well.

    The first rule that applies and whose chance falls acts. A function may stand in for rules: it is asked for each
    request, by one thread at a time.
    """

    def __init__(self, upstream: str, rng: random.Random, rules: Sequence[Rule] | Choose = ()) -> None:
        url = urlsplit(upstream)
        self._upstream = (url.hostname or HOST, url.port or 80)
        self._rng = rng
        self.rules: Sequence[Rule] | Choose = rules
        self.requests = 0
        self.injected: list[Injected] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._listener = socket.create_server((HOST, 0), backlog=128)
        self._acceptor = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self.endpoint = f"http://{HOST}:{self._listener.getsockname()[1]}"

    def counts(self) -> Counter[Fault]:
        """How often each fault was injected."""
        with self._lock:
            return Counter(one.fault for one in self.injected)

    def __enter__(self) -> Self:
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(HUNG)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed: the proxy ends
            threading.Thread(target=self._serve, args=(connection,), name="proxy", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """All requests of one connection."""
        with suppress(OSError, _Gone), client, socket.create_connection(self._upstream, timeout=_PATIENCE) as server:
            client.settimeout(_PATIENCE)
            exchange = _Exchange(client, server, self._rng, self._ended)
            while (request := exchange.next()) is not None and not self._ended.is_set():
                exchange.carry_out(request, self._choose(request))

    def _choose(self, request: Request) -> Fault | None:
        with self._lock:
            self.requests += 1
            rules = self.rules
            fault = rules(request) if callable(rules) else self._drawn(rules, request)
            if fault is not None:
                self.injected.append(Injected(fault, request.method, request.path))
            return fault

    def _drawn(self, rules: Sequence[Rule], request: Request) -> Fault | None:
        for rule in rules:
            if rule.where(request) and self._rng.random() < rule.share:
                return rule.fault
        return None


class _Exchange:
    """One connection of a client, and ours to the server for it."""

    def __init__(
        self, client: socket.socket, server: socket.socket, rng: random.Random, ended: threading.Event
    ) -> None:
        self._client = client
        self._server = server
        self._rng = rng
        self._ended = ended
        self._from_client = client.makefile("rb")
        self._from_server = server.makefile("rb")

    def next(self) -> Request | None:
        """The next request's head; None when the client has gone."""
        head = _read_head(self._from_client)
        if not head:
            return None
        line, headers = _parsed(head)
        method, target, _ = line.split(" ", 2)
        url = urlsplit(target)
        kept = b"\r\n".join(part for part in head.split(b"\r\n") if not part.lower().startswith(b"expect:"))
        size = -1 if "chunked" in headers.get("transfer-encoding", "") else int(headers.get("content-length", "0"))
        return Request(method, unquote(url.path), url.query, size, kept, "expect" in headers)

    def carry_out(self, request: Request, fault: Fault | None) -> None:
        """Forward the request, or what is left of it. Raises _Gone when the connection is of no more use."""
        if fault is Fault.DELAY:
            self._ended.wait(self._rng.uniform(0.02, 0.3))
        if fault is Fault.HANG_BEFORE_BODY:
            self._hang()
        if fault in _ANSWERS:
            self._answer(request, *_ANSWERS[fault])
            return
        if request.waits:
            self._client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        spoils_body = fault if request.size else None
        self._server.sendall(request.head)
        self._copy(_body(self._from_client, request.size), request.size, self._server, spoils_body)
        head = _read_head(self._from_server)
        if not head or fault is Fault.LOSE_REPLY:
            raise _Gone
        if fault is Fault.HANG_BEFORE_REPLY:
            self._hang()
        if fault is Fault.TRICKLE:
            self._trickle(head)
        self._client.sendall(head)
        status, headers = _parsed(head)
        size = _reply_size(request.method, status, headers)
        self._copy(_body(self._from_server, size), size, self._client, None if request.size else fault)
        if "close" in headers.get("connection", ""):
            raise _Gone

    def _answer(self, request: Request, status: int, code: str) -> None:
        """Answer in the server's place; a client that waits to be asked for a body is not asked."""
        if not request.waits:
            deque(_body(self._from_client, request.size), maxlen=0)
        text = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        body = b"" if request.method == "HEAD" else text
        head = f"HTTP/1.1 {status} Injected\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
        self._client.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)
        raise _Gone

    def _copy(self, pieces: Iterator[bytes], size: int, target: socket.socket, fault: Fault | None) -> None:
        """Pass a body on, up to the middle if the fault is there."""
        at, middle = 0, max(0, size) // 2
        for piece in pieces:
            if fault is Fault.CORRUPT and at <= middle < at + len(piece):
                spoilt = bytearray(piece)
                spoilt[middle - at] ^= 1 << self._rng.randrange(8)
                target.sendall(spoilt)
            elif fault in {Fault.HANG_MID_BODY, Fault.CUT_MID_BODY} and at + len(piece) > middle:
                target.sendall(piece[: middle - at])
                if fault is Fault.HANG_MID_BODY:
                    self._hang()
                raise _Gone
            else:
                target.sendall(piece)
            at += len(piece)

    def _trickle(self, data: bytes) -> None:
        """A byte now and then, until the client has had enough."""
        for byte in data:
            self._client.sendall(bytes([byte]))
            self._ended.wait(0.05)
        self._hang()

    def _hang(self) -> None:
        """Do nothing until the client goes."""
        poll = select.poll()
        poll.register(self._client, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        while not self._ended.is_set() and not poll.poll(200):
            continue
        raise _Gone


def _read_head(stream: io.BufferedReader) -> bytes:
    """A request's or reply's first line and headers; empty at the end of the stream, and without 1xx replies."""
    while True:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = stream.readline(_CHUNK)
            if not line:
                return b""
            head += line
        if not head.startswith(b"HTTP/1.1 1"):
            return head


def _parsed(head: bytes) -> tuple[str, dict[str, str]]:
    line, *rest = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = dict(one.split(":", 1) for one in rest)
    return line, {name.lower(): value.strip().lower() for name, value in headers.items()}


def _reply_size(method: str, status: str, headers: dict[str, str]) -> int:
    code = int(status.split(" ", 2)[1])
    if method == "HEAD" or code in {204, 304}:
        return 0
    return -1 if "chunked" in headers.get("transfer-encoding", "") else int(headers.get("content-length", "0"))


def _body(stream: io.BufferedReader, size: int) -> Iterator[bytes]:
    """A body as it is on the wire: ``size`` bytes, or chunks if that is negative. Raises _Gone if it is cut short."""
    if size < 0:
        yield from _chunks(stream)
        return
    while size:
        piece = stream.read1(min(size, _CHUNK))
        if not piece:
            raise _Gone
        size -= len(piece)
        yield piece


def _chunks(stream: io.BufferedReader) -> Iterator[bytes]:
    while True:
        line = stream.readline(_CHUNK)
        if not line:
            raise _Gone
        yield line
        size = int(line.split(b";")[0], 16)
        if size == 0:
            while (trailer := stream.readline(_CHUNK)) not in {b"\r\n", b""}:
                yield trailer
            yield b"\r\n"
            return
        yield from _body(stream, size + 2)
