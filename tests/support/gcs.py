"""Answers requests of Google Cloud Storage's XML API as its documentation says, from memory.

It is no proof of what Google's servers do: no emulator in a package serves what obstore sends. It holds our class, and
obstore below it, to what is documented: https://cloud.google.com/storage/docs/xml-api/reference-methods
"""

from __future__ import annotations

import hashlib
import itertools
import re
import threading
from contextlib import suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.ports import HOST

PAGE = 3
"""Keys on a page of a listing, so that short listings have several."""


class Stored(NamedTuple):
    """An object: its bytes and generation."""

    body: bytes
    generation: int

    @property
    def etag(self) -> str:
        """As of objects that were not composed: the MD5 of the bytes."""
        return f'"{hashlib.md5(self.body, usedforsecurity=False).hexdigest()}"'


class Bucket:
    """What a server has in its only bucket, and which requests it got."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.lock = threading.Lock()
        self._numbers = itertools.count(1_700_000_000_000_000)

    def put(self, key: str, body: bytes) -> Stored:
        """A new generation of ``key``."""
        self.objects[key] = Stored(body, next(self._numbers))
        return self.objects[key]


class GcsServer:
    """The server, with one bucket; its address is ``endpoint``."""

    def __init__(self, bucket: str = "raw") -> None:
        self.bucket = Bucket(bucket)
        handler = type("Handler", (_Handler,), {"bucket": self.bucket})
        self._server = ThreadingHTTPServer((HOST, 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.endpoint = f"http://{HOST}:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    bucket: ClassVar[Bucket]
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        with suppress(ConnectionError):  # the client goes when it has had enough
            super().handle_one_request()

    def log_message(self, *_: object) -> None:
        """Nothing: pytest shows what the test says."""

    def do_GET(self) -> None:
        self._answered()

    def do_HEAD(self) -> None:
        self._answered()

    def do_PUT(self) -> None:
        self._answered()

    def do_POST(self) -> None:
        self._answered()

    def do_DELETE(self) -> None:
        self._answered()

    def _answered(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        name, _, key = unquote(url.path).removeprefix("/").partition("/")
        self.query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.bucket.requests.append((self.command, self.path, headers))
        try:
            with self.bucket.lock:
                status, more, reply = self._served(name, key, body)
        except _Refused as error:
            status, more, reply = error.status, {}, f"<Error><Code>{error.code}</Code></Error>".encode()
        self.send_response(status)
        for field, value in {"Content-Length": str(len(reply)), **more}.items():
            self.send_header(field, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply)

    def _served(self, name: str, key: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if name != self.bucket.name:
            raise _Refused(404 if name else 400, "NoSuchBucket" if name else "InvalidURI")
        if not key:
            return 200, {}, self._listing()
        if "uploads" in self.query or "uploadId" in self.query:
            return self._part(key, body)
        if self.command == "PUT":
            return self._put(key, body)
        there = self.bucket.objects.get(key)
        if there is None:
            raise _Refused(404, "NoSuchKey")
        if self.command == "DELETE":
            del self.bucket.objects[key]
            return 204, {}, b""
        if self.headers.get("If-Match") not in {None, there.etag}:
            raise _Refused(412, "PreconditionFailed")
        return self._read(there)

    def _put(self, key: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        there = self.bucket.objects.get(key)
        wanted = self.headers.get("x-goog-if-generation-match")
        if wanted is not None and int(wanted) != (there.generation if there else 0):
            raise _Refused(412, "PreconditionFailed")
        source = self.headers.get("x-goog-copy-source")
        if source is not None:
            copied = self.bucket.objects.get(unquote(source).partition("/")[2])
            if copied is None:
                raise _Refused(404, "NoSuchKey")
            body = copied.body
        return 200, _headers(self.bucket.put(key, body)), b""

    def _read(self, there: Stored) -> tuple[int, dict[str, str], bytes]:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        size = len(there.body)
        if not asked:
            return 200, {**_headers(there), "Content-Length": str(size)}, there.body
        start, end = int(asked[1]), min(int(asked[2] or size - 1) + 1, size)
        if start >= size:
            raise _Refused(416, "InvalidRange")
        shown = {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
        return 206, {**_headers(there), **shown}, there.body[start:end]

    def _part(self, key: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        uploads, number = self.bucket.uploads, self.query.get("uploadId", "")
        if "uploads" in self.query:
            begun = f"upload-{len(self.bucket.requests)}"
            uploads[begun] = {}
            reply = f"<InitiateMultipartUploadResult><UploadId>{begun}</UploadId></InitiateMultipartUploadResult>"
            return 200, {}, reply.encode()
        if self.command == "PUT":
            uploads[number][int(self.query["partNumber"])] = body
            return 200, {"ETag": f'"{number}-{self.query["partNumber"]}"'}, b""
        if self.command == "DELETE":
            del uploads[number]
            return 204, {}, b""
        stored = self.bucket.put(key, b"".join(part for _, part in sorted(uploads.pop(number).items())))
        reply = f"<CompleteMultipartUploadResult><ETag>{stored.etag}</ETag></CompleteMultipartUploadResult>"
        return 200, _headers(stored), reply.encode()

    def _listing(self) -> bytes:
        after = max(self.query.get("start-after", ""), self.query.get("continuation-token", ""))
        prefix = self.query.get("prefix", "")
        keys = sorted(key for key in self.bucket.objects if key.startswith(prefix) and key > after)
        items = [
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.bucket.objects[key].body)}</Size>"
            f"<LastModified>2026-11-23T00:00:00.000Z</LastModified><ETag>{self.bucket.objects[key].etag}</ETag></Contents>"
            for key in keys[:PAGE]
        ]
        more = f"<NextContinuationToken>{escape(keys[PAGE - 1])}</NextContinuationToken>" if keys[PAGE:] else ""
        return f"<ListBucketResult>{''.join(items)}{more}</ListBucketResult>".encode()


def _headers(stored: Stored) -> dict[str, str]:
    return {
        "ETag": stored.etag,
        "x-goog-generation": str(stored.generation),
        "Last-Modified": formatdate(usegmt=True),
    }
