"""A bucket of Google Cloud Storage or a container of Azure Blob Storage, through obstore.

Operations that obstore lacks take more requests, or are proved by reading. docs/storage.md has the weaker guarantees:

* An update on Google Cloud Storage names the object's generation, which is looked up by its ETag first.
* No checksum is sent along: bytes that were written with a checksum are read back.
* Conditions hold for single requests alone. A large object that may only be created is written in parts under a
  temporary name, and copied from there on condition that its own name is free. A replacement takes one request.
* Neither a copy nor a removal can be conditional on the version: it is checked after a copy and before a removal.

obstore's errors become Tidemark's, which distinguish failed from unknown outcomes.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from io import BytesIO
from typing import TYPE_CHECKING, BinaryIO, Final

import obstore
from crc32c import crc32c as crc32c_of
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from tidemark.errors import (
    AccessDenied,
    BucketMissing,
    NotFound,
    PreconditionFailed,
    SlowDown,
    StoreError,
    UnknownOutcome,
)
from tidemark.store.base import Fetched, ObjectInfo, Traffic, check_key, check_size
from tidemark.store.obstore.clients import ObstoreClients
from tidemark.store.options import StoreOptions
from tidemark.store.retrying import prove, read_back

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from obstore import BytesStream, GetOptions, GetResult, ObjectMeta, PutMode

_HIDDEN: Final = ".tidemark-store"
"""The folder of incomplete objects. It is in no listing."""

_MOST_PARTS: Final = 10_000
_CHUNK: Final = 1 << 20
_PIECE: Final = 64 << 10
"""The least bytes of a reply that are received at a time."""

_KEYS: Final = 1000
"""The number of a listing's objects that are fetched at a time."""

log = logging.getLogger(__name__)

FAILURES: Final = (BaseError, FileNotFoundError, NotImplementedError, ValueError)
"""obstore's errors: a missing object is a FileNotFoundError, an invalid key a ValueError."""

_STATUS: Final = re.compile(r"status code: (\d{3})|\(code: (\d{3})\)")
"""A reply's status, which only obstore's message has; the second form is for a reply within Azure's batch."""

_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_SLOW_DOWN: Final = {429, 503}
_DENIED: Final = {401, 403}


class ObjectStore:
    """A bucket; each request is tried once."""

    def __init__(
        self,
        url: str,
        clients: ObstoreClients,
        options: StoreOptions,
        traffic: Traffic,
        now: Callable[[], datetime],
        *,
        by_generation: bool,
    ) -> None:
        """``now`` asks for the store's time. ``by_generation``: a version is replaced by its generation."""
        self.url = url
        self._clients = clients
        self._part_size = options.part_size
        self._traffic = traffic
        self._now = now
        self._by_generation = by_generation

    def put(
        self,
        key: str,
        body: bytes | BinaryIO,
        *,
        size: int | None = None,
        crc32c: int | None = None,
        if_match: str | None = None,
        if_none_match: bool = False,
    ) -> str:
        """Write an object, see :meth:`tidemark.store.base.Store.put`. With a checksum, its bytes are read back."""
        check_key(key)
        if isinstance(body, bytes):
            size, body = len(body), BytesIO(body)
        if if_match is None and size is not None and size > self._part_size:
            return self._put_in_parts(key, body, size, crc32c, if_none_match=if_none_match)
        data = bytearray()
        for chunk in CheckedChunks(self._name(key), body, size, crc32c, self._traffic):
            data += chunk
        mode = self._mode(key, if_match, if_none_match=if_none_match)
        with self._failing(key):
            self._traffic.request("PutObject")
            client = self._clients.write(len(data))
            etag = _quoted(obstore.put(client, key, data, mode=mode, use_multipart=False)["e_tag"])
        if crc32c is not None:
            prove(self, key, len(data), etag, crc32c)
        return etag

    def get(self, key: str, *, if_match: str | None = None, limit: int | None = None) -> Fetched:
        """Read an object, see :meth:`tidemark.store.base.Store.get`. More bytes than a part are read in parts."""
        result = self._open(key, 0, None, if_match)
        size, etag = result.meta["size"], _quoted(result.meta["e_tag"])
        check_size(self._name(key), size, limit)
        if size > self._part_size:
            step = self._part_size
            del result  # which ends its reply
            parts = (self.get_range(key, at, min(size, at + step), if_match=etag) for at in range(0, size, step))
            return Fetched(b"".join(parts), etag)
        with self._failing(key):
            body = bytes(result.bytes())
        return Fetched(self._whole(key, body, size), etag)

    def get_range(self, key: str, start: int, end: int, *, if_match: str | None = None) -> bytes:
        """See :meth:`tidemark.store.base.Store.get_range`."""
        if start == end:
            return b""
        result = self._open(key, start, end, if_match)
        with self._failing(key):
            body = bytes(result.bytes())
        return self._whole(key, body, end - start)

    @contextmanager
    def stream(
        self, key: str, start: int = 0, end: int | None = None, *, if_match: str | None = None
    ) -> Iterator[ChunkedBody]:
        """See :meth:`tidemark.store.base.Store.stream`."""
        result = self._open(key, start, end, if_match)
        first, last = result.range
        etag, chunks = _quoted(result.meta["e_tag"]), result.stream(_PIECE)
        del result
        with closing(ChunkedBody(chunks, self._name(key), etag, last - first)) as body:
            yield body

    def head(self, key: str) -> ObjectInfo:
        """The object's facts, see :meth:`tidemark.store.base.Store.head`; without a checksum, which obstore lacks."""
        try:
            return _info(self._head(key))
        except NotFound:
            self._check_bucket(key)
            raise

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """See :meth:`tidemark.store.base.Store.list`."""
        folder = prefix.rpartition("/")[0]
        with self._failing(prefix):
            self._traffic.request("ListObjectsV2")
            for page in obstore.list(self._clients.read(), folder or None, offset=start_after, chunk_size=_KEYS):
                for meta in page:
                    key = meta["path"]
                    if not key.startswith(prefix) or key.startswith(f"{_HIDDEN}/"):
                        continue
                    # A server that does not know Azure's startFrom lists all.
                    if start_after is None or key > start_after:
                        yield _info(meta)

    def now(self) -> datetime:
        """See :meth:`tidemark.store.base.Store.now`."""
        return self._now()

    def copy(self, source: str, target: str, *, source_etag: str) -> str:
        """Copy an object, see :meth:`tidemark.store.base.Store.copy`; compare the copy with the source by checksum."""
        check_key(target)
        with self._failing(source):
            self._traffic.request("CopyObject")
            obstore.copy(self._clients.write(), source, target)
        copied = self._head(target)
        try:
            self._check_copied(source, source_etag, copied)
        except (NotFound, PreconditionFailed):
            self.delete(target, if_match=_quoted(copied["e_tag"]))
            raise
        return _quoted(copied["e_tag"])

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        """Remove an object, see :meth:`tidemark.store.base.Store.delete`. Others may write after the version check."""
        check_key(key)
        try:
            if if_match is not None:
                etag = _quoted(self._head(key)["e_tag"])
                if etag != if_match:
                    raise PreconditionFailed(self._name(key), f"is another version now: {etag} and not {if_match}")
            with self._failing(key):
                self._traffic.request("DeleteObject")
                obstore.delete(self._clients.write(), key)
        except NotFound:
            return

    def _check_copied(self, source: str, etag: str, copied: ObjectMeta) -> None:
        """Raise PreconditionFailed if ``copied`` is not a copy of version ``etag`` of ``source``."""
        present = self._head(source)
        if _quoted(present["e_tag"]) != etag:
            raise PreconditionFailed(self._name(source), f"is another version now: {present['e_tag']} and not {etag}")
        if present["size"] != copied["size"]:
            rule = f"has {copied['size']} bytes of {present['size']}: it is not complete yet; copy it again"
            raise UnknownOutcome(self._name(copied["path"]), rule)
        checksum = read_back(self, source, present["size"], etag)
        prove(self, copied["path"], copied["size"], _quoted(copied["e_tag"]), checksum)

    def _open(self, key: str, start: int, end: int | None, if_match: str | None) -> GetResult:
        check_key(key)
        options: GetOptions = {}
        if if_match is not None:
            options["if_match"] = if_match
        if end is not None:
            options["range"] = (start, end)
        elif start:
            options["range"] = {"offset": start}
        with self._failing(key):
            self._traffic.request("GetObject")
            result = obstore.get(self._clients.read(), key, options=options)
        etag, size = _quoted(result.meta["e_tag"]), result.meta["size"]
        if if_match not in {None, etag}:
            raise PreconditionFailed(self._name(key), f"is another version now: {etag} and not {if_match}")
        if end is not None and end > size:
            raise StoreError(self._name(key), f"has no bytes {start} to {end}: it has {size}")
        return result

    def _head(self, key: str) -> ObjectMeta:
        check_key(key)
        with self._failing(key):
            self._traffic.request("HeadObject")
            return obstore.head(self._clients.read(), key)

    def _mode(self, key: str, if_match: str | None, *, if_none_match: bool) -> PutMode:
        """The condition of a write."""
        if if_none_match:
            return "create"
        if if_match is None:
            return "overwrite"
        if not self._by_generation:
            return {"e_tag": if_match}
        try:
            present = self._head(key)
        except NotFound as error:
            raise PreconditionFailed(self._name(key), "is gone, and was to be replaced") from error
        etag, generation = _quoted(present["e_tag"]), present["version"]
        if etag != if_match:
            raise PreconditionFailed(self._name(key), f"is another version now: {etag} and not {if_match}")
        if generation is None:
            raise StoreError(self._name(key), "the server tells no generation, by which alone it can be replaced")
        return {"e_tag": if_match, "version": generation}

    def _put_in_parts(self, key: str, body: BinaryIO, size: int, crc32c: int | None, *, if_none_match: bool) -> str:
        """Write a large body, a part at a time. Under a condition it is complete before it gets its name."""
        target = f"{_HIDDEN}/{uuid.uuid4().hex}" if if_none_match else key
        part = max(self._part_size, -(-size // _MOST_PARTS))
        chunks = CheckedChunks(self._name(key), body, size, crc32c, self._traffic)
        with self._failing(key):
            self._traffic.request("UploadPart")
            client = self._clients.write(part)
            written = obstore.put(client, target, chunks, use_multipart=True, chunk_size=part, max_concurrency=1)
        etag = _quoted(written["e_tag"])
        if if_none_match:
            etag = self._renamed(key, target)
        prove(self, key, size, etag, chunks.crc32c)
        if if_none_match:
            self._discard(target)
        return etag

    def _renamed(self, key: str, complete: str) -> str:
        """Give the bytes of ``complete`` the name ``key``, if that is free; return the new ETag."""
        try:
            with self._failing(key):
                self._traffic.request("CopyObject")
                obstore.copy(self._clients.write(), complete, key, overwrite=False)
        except PreconditionFailed:
            self._discard(complete)
            raise
        return _quoted(self._head(key)["e_tag"])

    def _discard(self, hidden: str) -> None:
        """Delete a hidden object; if that fails, the bucket's rule for the hidden folder removes it."""
        try:
            self.delete(hidden)
        except StoreError as error:
            log.info("left for the bucket's own clean-up: %s", error)

    def _whole(self, key: str, body: bytes, size: int) -> bytes:
        if len(body) != size:
            raise UnknownOutcome(self._name(key), f"asked for {size} bytes, got {len(body)}; read again")
        return body

    def _check_bucket(self, key: str) -> None:
        """Raise BucketMissing if the bucket is missing: a HEAD's reply has no body that would show that."""
        try:
            next(iter(self.list(f"{_HIDDEN}/none/")), None)
        except BucketMissing as error:
            raise BucketMissing(self._name(key)) from error
        except StoreError as error:
            log.info("whether the bucket is there is not known: %s", error)

    @contextmanager
    def _failing(self, key: str) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            failure = translated(self._name(key), error)
            if isinstance(failure, AccessDenied):
                self._clients.renew()
            raise failure from error

    def _name(self, key: str) -> str:
        return f"{self.url}/{key}"


class CheckedChunks:
    """The bytes of a body to write; the last are given only if all match the announcement. They are read once."""

    def __init__(self, name: str, body: BinaryIO, size: int | None, announced: int | None, traffic: Traffic) -> None:
        """Give ``size`` bytes of ``body``, or all, at the pace of ``traffic``; ``announced`` is their CRC32C."""
        self._name = name
        self._body, self._size = body, size
        self._announced = announced
        self._traffic = traffic
        self.crc32c = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes. Raises StoreError instead of the last ones if there are fewer, or others."""
        read, held = 0, b""
        while chunk := self._body.read(_CHUNK if self._size is None else min(_CHUNK, self._size - read)):
            self._await_turn(len(chunk))
            read, self.crc32c = read + len(chunk), crc32c_of(chunk, self.crc32c)
            if held:
                yield held
            held = chunk
        if self._size not in {None, read}:
            rule = f"the file has {read} bytes and not {self._size}; it changed while it was read"
            raise StoreError(self._name, rule)
        if self._announced not in {None, self.crc32c}:
            rule = f"CRC32C of the bytes is {self.crc32c:08x} and not {self._announced:08x}"
            raise StoreError(self._name, f"{rule}; read the file again")
        yield held

    def _await_turn(self, size: int) -> None:
        total = self._size or size
        while size:
            size -= self._traffic.admit(size, total)


class ChunkedBody:
    """The body of a reply that arrives in chunks. See :class:`tidemark.store.base.Body`."""

    def __init__(self, chunks: BytesStream, name: str, etag: str, size: int) -> None:
        self._chunks: Iterator[memoryview] = (memoryview(chunk) for chunk in chunks)
        self._chunk = memoryview(b"")
        self._name = name
        self.etag, self.size = etag, size
        self._left = size

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read the reply, see :meth:`tidemark.store.base.Body.readinto`."""
        view = memoryview(buffer).cast("B")[: self._left]
        if not view:
            return 0
        if not self._chunk:
            self._chunk = self._next()
        count = min(len(view), len(self._chunk))
        view[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        self._left -= count
        return count

    def close(self) -> None:
        """End the transfer: the rest is not received."""
        self._chunks, self._chunk = iter(()), memoryview(b"")

    def _next(self) -> memoryview:
        try:
            chunk = next(self._chunks, None)
        except FAILURES as error:
            raise translated(self._name, error) from error
        if not chunk:
            raise UnknownOutcome(self._name, f"the reply ended {self._left} bytes early; read again")
        return chunk


def _quoted(etag: str | None) -> str:
    """An ETag in HTTP's form; Azure's listings leave out the quotation marks."""
    if etag is None:
        raise UnknownOutcome("the store", "a reply has no ETag; is this the store that the URL says?")
    return etag if etag.endswith('"') else f'"{etag}"'


def _info(meta: ObjectMeta) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], _quoted(meta["e_tag"]), meta["last_modified"])


def translated(name: str, error: Exception) -> StoreError:
    """The error of ours that states the known outcome."""
    reason = _reason(error)
    match = _STATUS.search(reason)
    status = int(match[1] or match[2]) if match else None
    if status == 404 and any(words in reason for words in _NO_BUCKET):
        return BucketMissing(name)
    if isinstance(error, FileNotFoundError):
        return NotFound(name, "there is no such object")
    if isinstance(error, (AlreadyExistsError, PreconditionError, NotModifiedError)):
        return PreconditionFailed(name, reason)
    if "token request" in reason:
        return _without_credentials(name, reason, status)
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or status in _DENIED:
        return AccessDenied(name, f"{reason}; check the credentials and the role that they have")
    if status in _SLOW_DOWN:
        return SlowDown(name, reason)
    if isinstance(error, (NotImplementedError, ValueError)) or (status is not None and status < 500 and status != 408):
        return StoreError(name, reason)
    return UnknownOutcome(name, reason if status else f"no answer that proves anything: {reason}")


def _without_credentials(name: str, reason: str, status: int | None) -> StoreError:
    """The error of a server that issues tokens and refused, or did not answer; the store was not asked yet."""
    rule = f"{reason}; give credentials as docs/storage.md says"
    return UnknownOutcome(name, rule) if status is None or status >= 500 else AccessDenied(name, rule)


def _reason(error: Exception) -> str:
    """The message without the structure that obstore prints after it."""
    return " ".join(str(error).partition("Debug source:")[0].split())
