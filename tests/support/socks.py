"""A SOCKS5 proxy that resets connections within an answer, for clients whose brokers name their own addresses."""

from __future__ import annotations

import select
import socket
import struct
import threading
from typing import Self

from tests.support.wire import WireServer


class SocksProxy:
    """A proxy at :attr:`url`; usable with ``with``. :attr:`resets` counts the connections that it has reset."""

    def __init__(self) -> None:
        self._server = WireServer(self._serve)
        self._lock = threading.Lock()
        self._left: int | None = None
        self.url = self._server.endpoint.replace("http", "socks5")
        self.resets = 0

    def reset_after(self, size: int) -> None:
        """Reset the connection that gets the next byte after so many bytes of answers."""
        with self._lock:
            self._left = size

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *ended: object) -> None:
        self._server.__exit__(*ended)

    def _serve(self, client: socket.socket, ended: threading.Event) -> None:
        with client.makefile("rb", buffering=0) as asked:
            asked.read(3)  # version 5, one method: no login
            client.sendall(b"\5\0")
            address = struct.unpack(">4x4sH", asked.read(10))
        with socket.create_connection((socket.inet_ntoa(address[0]), address[1])) as server:
            client.sendall(b"\5\0\0\1" + bytes(6))
            while not ended.is_set():
                for source in select.select([client, server], [], [], 0.2)[0]:
                    data = source.recv(1 << 16)
                    passed = self._passed(len(data)) if source is server else len(data)
                    (client if source is server else server).sendall(data[:passed])
                    if passed < len(data):
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    if not data or passed < len(data):
                        return

    def _passed(self, size: int) -> int:
        """The part of an answer's next bytes that passes."""
        with self._lock:
            if self._left is None or size <= self._left:
                self._left = None if self._left is None else self._left - size
                return size
            passed, self._left, self.resets = self._left, None, self.resets + 1
            return passed
