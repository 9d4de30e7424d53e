"""Over HTTP: ``/-/healthy`` (the loop turns), ``/-/ready`` (it has seen broker and store), ``/metrics``.

Listens on 127.0.0.1 unless told otherwise, and only if it has a port.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


class Health:
    """When the loop last turned, and whether it is ready. ``limit`` seconds without a turn is no longer healthy."""

    def __init__(self, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._turned = clock()
        self.ready = False

    def turned(self) -> None:
        """The loop has turned once more."""
        self._turned = self._clock()

    @property
    def healthy(self) -> bool:
        """Whether the loop still turns."""
        return self._clock() - self._turned <= self._limit


class HttpServer:
    """Serves in a thread of its own; usable with ``with``."""

    def __init__(self, host: str, port: int, health: Health, registry: CollectorRegistry) -> None:
        """Bind at once, so that a port that is taken is an error at the start. Raises OSError."""

        class Handler(_Handler):
            pass

        Handler.health = health
        Handler.registry = registry
        self._server = ThreadingHTTPServer((host, port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    health: Health
    registry: CollectorRegistry
    timeout = 5

    def do_GET(self) -> None:
        """Answer."""
        if self.path == "/metrics":
            self._answer(200, generate_latest(self.registry), CONTENT_TYPE_LATEST)
        elif self.path == "/-/healthy":
            self._tell(self.health.healthy, b"the loop does not turn\n")
        elif self.path == "/-/ready":
            self._tell(self.health.ready, b"broker and store have not been seen yet\n")
        else:
            self._answer(404, b"try /-/healthy, /-/ready or /metrics\n", "text/plain")

    def _tell(self, good: bool, otherwise: bytes) -> None:
        self._answer(200 if good else 503, b"ok\n" if good else otherwise, "text/plain")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name for it
        """Requests are not logged."""
