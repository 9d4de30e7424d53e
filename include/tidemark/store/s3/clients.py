"""The botocore clients of a process: made once for all buckets, limited, made again when credentials are refused.

The limits hold for any behaviour of the server: connecting, sending, waiting, and receiving. ``urllib3`` has a limit
for connecting and one for each read. It sends with the socket's present limit, and has none for a whole request, so
that a server which takes or gives a byte now and then holds a thread for ever. Here every call on the socket gets the
rest of ``no_progress`` and of the time for the whole request. Only time spent in the socket counts, so our own pauses
(a slow disk, a bandwidth cap) never fail a request.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Hashable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from botocore.awsrequest import AWSHTTPConnection, AWSHTTPConnectionPool, AWSHTTPSConnection, AWSHTTPSConnectionPool
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.loaders import JSONFileLoader
from botocore.session import Session
from typing_extensions import override

from tidemark.errors import ConfigError
from tidemark.store.base import Traffic
from tidemark.store.options import LIMITS, RequestLimits, StoreOptions
from tidemark.store.s3 import credentials as s3_credentials

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer
    from mypy_boto3_s3 import S3Client

_RENEWAL_SECONDS = 5.0
_ADDRESSING = {None: "auto", True: "path", False: "virtual"}
_NOBODY = Traffic()

_BLOCK = 256 << 10
"""The bytes of a body that are read and sent at a time; http.client's 16 KiB cost a fifth more CPU."""

T = TypeVar("T")

_UNPACKED_BY: Final[dict[str, Callable[[bytes], bytes]]] = {".json": bytes, ".json.gz": gzip.decompress}


class S3Clients:
    """A client for writes, and one for reads, which sign no hash of a body. Both keep to the limits. Thread-safe.

    A client keeps the credentials that it was made with, or their absence; those of a role it renews by itself.
    """

    def __init__(self, options: StoreOptions, traffic: Traffic = _NOBODY, limits: RequestLimits = LIMITS) -> None:
        self._options = options
        self._limits = limits
        self._traffic = traffic
        self._lock = threading.Lock()
        self._make()

    def renew(self) -> None:
        """Look for credentials again, after some were refused; at most every five seconds."""
        with self._lock:
            if time.monotonic() - self._made_at >= _RENEWAL_SECONDS:
                self._make()

    def _make(self) -> None:
        try:
            source = s3_credentials.source()
            create: Callable[..., Any]
            if source is None:
                create, options = session().create_client, self._options
            else:
                aws = source()
                create, options = aws.session.client, aws.reached(self._options)
            self.write = self._client(create, options, sign_payload=not options.is_private)
            self.read = self._client(create, options)
        except (BotoCoreError, ValueError) as error:
            rule = (
                f"no S3 client can be made: {error}; correct AWS's variables and files, or `store` in the configuration"
            )
            raise ConfigError("the environment", [("AWS_*", rule)]) from error
        self._made_at = time.monotonic()

    def _client(
        self, create: Callable[..., Any], options: StoreOptions, *, sign_payload: bool | None = None
    ) -> S3Client:
        """A client that tries a request once.

        Every PUT carries a checksum that the server verifies, and the signature covers the checksum. That is enough if
        others are off the wire; on an open wire a CRC could be forged, and the signature covers the body's hash.
        """
        addressing: Any = {"addressing_style": _ADDRESSING[options.path_style], "payload_signing_enabled": sign_payload}
        config = Config(
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=self._limits.connect_timeout.total_seconds(),
            read_timeout=self._limits.no_progress.total_seconds(),
            max_pool_connections=self._limits.connections,
            s3=addressing,
        )
        client: S3Client = create("s3", endpoint_url=options.endpoint_url, region_name=options.region, config=config)
        client.meta.events.register("before-send.s3", self._count)
        # botocore has no way to choose the connections' class; the tests of the limits show if this works.
        http: Any = client._endpoint.http_session  # type: ignore[attr-defined]
        http._pool_classes_by_scheme.update(pool_classes(self._limits, self._options.deadline, self._traffic))
        return client

    def _count(self, event_name: str, **_: object) -> None:
        self._traffic.request(event_name.rpartition(".")[2])


@cache
def _shared(connection: str, traffic: Hashable, limits: RequestLimits, _source: object) -> S3Clients:
    return S3Clients(StoreOptions.model_validate_json(connection), cast("Traffic", traffic), limits)


def clients(options: StoreOptions, traffic: Traffic = _NOBODY, limits: RequestLimits = LIMITS) -> S3Clients:
    """The process's clients for these options. Raises ConfigError if AWS's settings allow none."""
    return _shared(options.model_dump_json(), cast("Hashable", traffic), limits, s3_credentials.source())


def forget_clients() -> None:
    """Make new clients for all stores opened from now on; for a process with credentials that change."""
    _shared.cache_clear()


class _Undocumented(JSONFileLoader):
    """AWS's descriptions of its API, without their documentation, for botocore to send requests with.

    botocore keeps the description of a service for as long as a client lives, and half of it is documentation. It is
    left out while the file is parsed: dropping it afterwards would leave holes in the heap.
    """

    @override
    def load_file(self, file_path: str) -> Any:
        for extension, unpacked in _UNPACKED_BY.items():
            path = Path(f"{file_path}{extension}")
            if path.is_file():
                return json.loads(unpacked(path.read_bytes()), object_pairs_hook=_without_documentation)
        return None


def session() -> Session:
    """A session of botocore: not a global one, which would keep the first credentials that it ever found."""
    made = Session()
    made.get_component("data_loader").file_loader = _Undocumented()
    return made


def _without_documentation(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of the file without documentation; its name stays, as botocore looks for some."""
    return {sys.intern(name): "" if _is_documentation(name, value) else value for name, value in pairs}


def _is_documentation(name: str, value: object) -> bool:
    return name == "documentation" and isinstance(value, str)


class Overrun(TimeoutError):
    """A request broke a limit, which the message names."""


class TimedSocket:
    """A connected socket with limited calls; replaces the plain socket in a connection."""

    def __init__(self, sock: socket.socket, limits: RequestLimits, deadline: timedelta, traffic: Traffic) -> None:
        """A request has ``deadline`` and the time for its bytes, see :class:`RequestLimits`."""
        self._sock = sock
        self._no_progress = limits.no_progress.total_seconds()
        self._min_rate = limits.min_rate
        self._deadline = deadline.total_seconds()
        self._traffic = traffic
        self._left = self._allowed = self._deadline
        self._total = 0

    def begin(self, size: int) -> None:
        """Start the time of a request with ``size`` bytes of body."""
        self._total = size
        self._left = self._allowed = self._deadline + size / self._min_rate

    def extend(self, size: int) -> None:
        """Add the time of a reply with ``size`` bytes of body."""
        self._left += size / self._min_rate
        self._allowed += size / self._min_rate

    def sendall(self, data: ReadableBuffer) -> None:
        """Send all bytes, like a socket; any progress restarts ``no_progress``."""
        view = memoryview(data).cast("B")
        while view:
            piece = view[: self._traffic.admit(len(view), self._total)]
            while piece:
                sent = self.timed(lambda piece=piece: self._sock.send(piece))  # type: ignore[misc]  # a default is no argument
                piece, view = piece[sent:], view[sent:]

    def makefile(self, mode: str = "rb", buffering: int = -1) -> io.RawIOBase | io.BufferedReader:
        """The file that replies are read from."""
        assert mode == "rb"
        raw = self._sock.makefile("rb", buffering=0)
        return (
            _TimedReader(self, raw, eof_is_error=True) if buffering == 0 else io.BufferedReader(_TimedReader(self, raw))
        )

    def settimeout(self, seconds: float | None) -> None:
        """Do nothing: the limits of this class hold."""

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def timed(self, call: Callable[[], T]) -> T:
        """The result of ``call`` within the remaining time. Raises :class:`Overrun`."""
        within = min(self._no_progress, self._left)
        if within <= 0:
            raise self._overrun()
        self._sock.settimeout(within)
        started = time.monotonic()
        try:
            return call()
        except TimeoutError as error:
            if within < self._no_progress:
                raise self._overrun() from error
            raise Overrun(f"no byte moved for {within:g} s") from error
        finally:
            self._left -= time.monotonic() - started

    def _overrun(self) -> Overrun:
        return Overrun(f"was not over after {self._allowed:g} s (store.deadline, and the time for its bytes)")


class _TimedReader(io.RawIOBase):
    """The bytes that a timed socket receives.

    ``eof_is_error`` is for the unbuffered file on which botocore awaits ``100 Continue``: at the end of the stream it
    would read empty lines for ever.
    """

    def __init__(self, sock: TimedSocket, raw: io.RawIOBase, *, eof_is_error: bool = False) -> None:
        super().__init__()
        self._sock = sock
        self._raw = raw
        self._eof_is_error = eof_is_error

    def readable(self) -> bool:
        """True: it can be read."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Receive some bytes."""
        count = self._sock.timed(lambda: self._raw.readinto(buffer)) or 0
        if count == 0 and self._eof_is_error:
            raise ConnectionResetError(errno.ECONNRESET, "the server closed the connection before it replied")
        return count

    def close(self) -> None:
        """Release the socket."""
        self._raw.close()
        super().close()


class _Timed(AWSHTTPConnection):
    """The limits of our connections; mixed in before botocore's own classes."""

    limits: RequestLimits
    deadline: timedelta
    traffic: Traffic

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.blocksize = _BLOCK
        self._size = 0

    def connect(self) -> None:
        """Connect, within the time for that, and put the limits on all later calls."""
        super().connect()
        timed = TimedSocket(self.sock, self.limits, self.deadline, self.traffic)
        timed.begin(self._size)
        self.sock = cast("socket.socket", timed)

    def request(self, method: str, url: str, body: Any = None, headers: Any = None, *args: Any, **options: Any) -> Any:
        """Send a request; its time starts now."""
        self._size = int((headers or {}).get("Content-Length") or 0)
        if self.sock is not None:
            cast("TimedSocket", self.sock).begin(self._size)
        return super().request(method, url, body, headers, *args, **options)

    def getresponse(self) -> Any:
        """Await the reply; add the time that its size allows for its body."""
        timed = cast("TimedSocket", self.sock)
        response = super().getresponse()
        timed.extend(int(response.headers.get("Content-Length") or 0))
        return response


def pool_classes(limits: RequestLimits, deadline: timedelta, traffic: Traffic) -> dict[str, type]:
    """Connection pools by scheme, in ``urllib3``'s form, with requests that keep to ``limits`` and ``deadline``."""
    rules: dict[str, Any] = {"limits": limits, "deadline": deadline, "traffic": traffic}
    http = type("Http", (_Timed, AWSHTTPConnection), rules)
    https = type("Https", (_Timed, AWSHTTPSConnection), rules)
    return {
        "http": type("HttpPool", (AWSHTTPConnectionPool,), {"ConnectionCls": http}),
        "https": type("HttpsPool", (AWSHTTPSConnectionPool,), {"ConnectionCls": https}),
    }


def overrun(error: BaseException | None) -> Overrun | None:
    """The limit that caused ``error``; None if none did."""
    while error is not None and not isinstance(error, Overrun):
        error = error.__cause__ or error.__context__
    return error
