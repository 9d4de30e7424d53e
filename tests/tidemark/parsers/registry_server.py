"""A schema registry of the tests: a real HTTP or HTTPS server on 127.0.0.1 that answers what it is told to."""

from __future__ import annotations

import json
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Reply = tuple[int, Any]
"""A status, and a body: bytes, or an object to write as JSON."""

UNKNOWN: Reply = (404, {"error_code": 40403, "message": "Schema not found"})


@dataclass
class Registry:
    """``replies`` by path; the first ``failures`` requests are answered by 503. ``authorization`` is asked for."""

    replies: dict[str, Reply] = field(default_factory=dict)
    failures: int = 0
    authorization: str = ""
    url: str = ""
    asked: list[str] = field(default_factory=list)
    connections: set[int] = field(default_factory=set)
    seen: list[str] = field(default_factory=list)
    """The credentials that came."""

    def schema(self, number: int, schema: Any, **more: Any) -> None:
        """Have ``schema`` under this number, with ``more`` in the answer."""
        self.replies[f"/schemas/ids/{number}"] = 200, {"schema": json.dumps(schema), **more}

    def register(self, subject: str, number: int, version: int, schema: str, kind: str = "AVRO", **more: Any) -> None:
        """Have ``schema``, a text, as the newest of ``subject``, and under its number."""
        asks = "?format=serialized" if kind == "PROTOBUF" else ""
        document = {"schema": schema, **({"schemaType": kind} if kind != "AVRO" else {}), **more}
        found = {"subject": subject, "id": number, "version": version, **document}
        self.replies[f"/schemas/ids/{number}{asks}"] = 200, document
        for name in ("latest", version):
            self.replies[f"/subjects/{subject}/versions/{name}{asks}"] = 200, found

    @property
    def times(self) -> Counter[str]:
        """How often each path was asked for."""
        return Counter(self.asked)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # an answer is one packet, which no delayed acknowledgement holds up
    registry: Registry
    lock: threading.Lock

    def handle(self) -> None:
        with suppress(ConnectionError):  # a client may hang up
            super().handle()

    def do_GET(self) -> None:
        with self.lock:
            self.registry.asked.append(self.path)
            self.registry.connections.add(self.client_address[1])
            self.registry.seen.append(self.headers.get("Authorization", ""))
            failing = self.registry.failures > 0
            self.registry.failures -= failing
        if failing:
            self._answer(503, {})
        elif self.registry.authorization and self.registry.authorization != self.headers.get("Authorization"):
            self._answer(401, {"error_code": 401, "message": "Unauthorized"})
        else:
            self._answer(*self.registry.replies.get(self.path, UNKNOWN))

    def _answer(self, status: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        if status in {301, 302, 307}:
            self.send_header("Location", data.decode())
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def serving(registry: Registry, certificate: Path | None = None) -> Iterator[Registry]:
    """Serve ``registry``, whose ``url`` is set; by HTTPS with the certificate and key in a file."""
    handler = type("Handler", (_Handler,), {"registry": registry, "lock": threading.Lock()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True  # those of connections that clients keep open
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        registry.url = f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
