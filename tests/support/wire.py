"""A server that does what a test says with each connection, for faults that no real server shows on demand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from tests.support.ports import HOST
from tests.support.waiting import HUNG

Behaviour = Callable[[socket.socket, threading.Event], None]


class WireServer:
    """Gives each connection to ``behave`` in a thread, with an event that is set when the server ends."""

    def __init__(self, behave: Behaviour) -> None:
        self._behave = behave
        self._listener = socket.create_server((HOST, 0))
        self._ended = threading.Event()
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self.endpoint = f"http://{HOST}:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with suppress(OSError):  # it is over already
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(HUNG)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # it was closed: the server ends
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client goes when it has had enough
            connection.settimeout(10)
            self._behave(connection, self._ended)


def read_head(connection: socket.socket) -> bytes:
    """A request's line and headers, read byte by byte so that nothing of the body is lost."""
    head = b""
    while not head.endswith(b"\r\n\r\n") and (byte := connection.recv(1)):
        head += byte
    return head


def never_replies(connection: socket.socket, ended: threading.Event) -> None:
    """It reads a request, and says nothing."""
    read_head(connection)
    ended.wait()


def replies_in_a_trickle(connection: socket.socket, ended: threading.Event) -> None:
    """It reads a request, and its reply never comes to the end of a header."""
    read_head(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Endless: ")
    while not ended.wait(0.05):
        connection.sendall(b"x")
