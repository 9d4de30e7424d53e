"""Limits on every request, for any behaviour of the server: connecting, sending, waiting, and receiving.

``urllib3`` has a limit for connecting and one for each read. It sends with the socket's present limit, and has none for
a whole request, so that a server which takes or gives a byte now and then holds a thread for ever. Here every call on
the socket gets the rest of ``no_progress`` and of the time for the whole request. Only time spent in the socket counts,
so our own pauses (a slow disk, a bandwidth cap) never fail a request.
"""

from __future__ import annotations

import errno
import io
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from botocore.awsrequest import AWSHTTPConnection, AWSHTTPConnectionPool, AWSHTTPSConnection, AWSHTTPSConnectionPool

from tidemark.store.base import Traffic

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_BLOCK = 256 << 10
"""The bytes of a body that are read and sent at a time; http.client's 16 KiB cost a fifth more CPU."""

T = TypeVar("T")


class TimeLimits(NamedTuple):
    """Seconds, and bytes a second; see :class:`tidemark.store.options.RequestLimits`."""

    no_progress: float
    deadline: float
    min_rate: int


class Overrun(TimeoutError):
    """A request broke a limit, which the message names."""


class TimedSocket:
    """A connected socket with limited calls; replaces the plain socket in a connection."""

    def __init__(self, sock: socket.socket, limits: TimeLimits, traffic: Traffic) -> None:
        self._sock = sock
        self._limits = limits
        self._traffic = traffic
        self._left = self._allowed = limits.deadline
        self._total = 0

    def begin(self, size: int) -> None:
        """Start the time of a request with ``size`` bytes of body."""
        self._total = size
        self._left = self._allowed = self._limits.deadline + size / self._limits.min_rate

    def extend(self, size: int) -> None:
        """Add the time of a reply with ``size`` bytes of body."""
        self._left += size / self._limits.min_rate
        self._allowed += size / self._limits.min_rate

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
        within = min(self._limits.no_progress, self._left)
        if within <= 0:
            raise self._overrun()
        self._sock.settimeout(within)
        started = time.monotonic()
        try:
            return call()
        except TimeoutError as error:
            if within < self._limits.no_progress:
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

    limits: TimeLimits
    traffic: Traffic

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.blocksize = _BLOCK
        self._size = 0

    def connect(self) -> None:
        """Connect, within the time for that, and put the limits on all later calls."""
        super().connect()
        timed = TimedSocket(self.sock, self.limits, self.traffic)
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


def pool_classes(limits: TimeLimits, traffic: Traffic) -> dict[str, type]:
    """Connection pools by scheme, in ``urllib3``'s form, with requests that keep to ``limits``."""
    rules: dict[str, Any] = {"limits": limits, "traffic": traffic}
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
