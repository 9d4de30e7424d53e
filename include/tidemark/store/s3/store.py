"""A bucket on S3 or on a server with its protocol.

Writes are never repeated by the client library: a repeated conditional PUT would answer "precondition failed" after a
lost first reply, although it took effect. So a write is tried once, and an unknown outcome is reported as such;
answers, and missing ones, are translated to known or unknown outcomes. Reads are tried once, too:
:class:`tidemark.store.retrying.RepeatingStore` repeats them.

A large object is written in parts, under the conditions of a small one (:class:`MultipartUpload`).
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlencode

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    SSLError,
)
from crc32c import crc32c as crc32c_of
from urllib3.exceptions import HTTPError

from tidemark.errors import (
    AccessDenied,
    BucketMissing,
    NotFound,
    PreconditionFailed,
    Refused,
    SlowDown,
    StoreError,
    UnknownOutcome,
)
from tidemark.store.base import Fetched, ObjectInfo, check_size
from tidemark.store.options import LIMITS, RequestLimits, StoreOptions
from tidemark.store.retrying import prove
from tidemark.store.s3.clients import S3Clients, overrun
from tidemark.store.versions import ObjectLock, ObjectVersion

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from mypy_boto3_s3 import S3Client

FAILURES = (ClientError, BotoCoreError, HTTPError)
"""A client's errors. botocore lets urllib3's errors through if the body of an error's reply does not arrive."""

_NOT_FOUND = {"NoSuchKey", "NoSuchVersion", "404", "NotFound"}
_CONDITION = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409", "304"}
_SLOW_DOWN = {"SlowDown", "RequestLimitExceeded", "TooManyRequests", "TooManyRequestsException", "Throttling", "429"}
_UNKNOWN = {"RequestTimeout", "IncompleteBody"}
_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, ProfileNotFound)
_TOKENS = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId", "AccessDenied"}

_MOST_PARTS = 10_000
_CHUNK = 1 << 20

_PIECE = 256 << 10
"""The most bytes that are asked of a connection at a time: its client library copies each piece once."""


class S3Store:
    """A bucket; each request is tried once."""

    def __init__(self, bucket: str, clients: S3Clients, options: StoreOptions, limits: RequestLimits = LIMITS) -> None:
        self.url = f"s3://{bucket}"
        self._clients = clients
        self._multipart_from = limits.multipart_from
        self._part_size = options.part_size
        self._owner = options.expected_bucket_owner
        self._target: dict[str, Any] = {"Bucket": bucket}
        if self._owner is not None:
            self._target["ExpectedBucketOwner"] = self._owner
        self._attributes = _attributes(options)

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
        """See :meth:`tidemark.store.base.Store.put`."""
        conditions: dict[str, Any] = {}
        if if_match is not None:
            conditions["IfMatch"] = if_match
        if if_none_match:
            conditions["IfNoneMatch"] = "*"
        try:
            if size is not None and size > self._multipart_from and not isinstance(body, bytes):
                return self._put_in_parts(key, body, size, crc32c, conditions)
            extra: dict[str, Any] = {}
            if size is not None and not isinstance(body, bytes):
                body, extra["ContentLength"] = exactly(body, size), size
            if crc32c is not None:
                extra["ChecksumCRC32C"] = encoded_checksum(crc32c)
            return self._clients.write.put_object(
                **self._target, **self._attributes, **extra, **conditions, Key=key, Body=body
            )["ETag"]
        except FAILURES as error:
            failure = self._failed(key, error)
            if if_match is not None and isinstance(failure, NotFound):
                raise PreconditionFailed(failure.key, "is gone, and was to be replaced") from error
            raise failure from error

    def get(self, key: str, *, if_match: str | None = None, limit: int | None = None) -> Fetched:
        """Read an object, see :meth:`tidemark.store.base.Store.get`; compare the bytes with the stored checksum."""
        return self._get(key, if_match, limit, ChecksumMode="ENABLED")

    def get_range(self, key: str, start: int, end: int, *, if_match: str | None = None) -> bytes:
        """See :meth:`tidemark.store.base.Store.get_range`."""
        return self._get_range(key, start, end, if_match)

    def _get_range(self, key: str, start: int, end: int, if_match: str | None, **extra: Any) -> bytes:
        if start == end:
            return b""
        body = self._get(key, if_match, None, Range=f"bytes={start}-{end - 1}", **extra).body
        if len(body) != end - start:
            raise UnknownOutcome(
                self._name(key), f"asked for bytes {start} to {end}, got {len(body)} of {end - start}; read again"
            )
        return body

    @contextmanager
    def stream(
        self, key: str, start: int = 0, end: int | None = None, *, if_match: str | None = None
    ) -> Iterator[ReplyBody]:
        """See :meth:`tidemark.store.base.Store.stream`."""
        extra: dict[str, Any] = {"IfMatch": if_match} if if_match is not None else {}
        if start or end is not None:
            extra["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        try:
            reply = self._clients.read.get_object(**self._target, Key=key, **extra)
        except FAILURES as error:
            raise self._failed(key, error) from error
        with closing(ReplyBody(reply, self._name(key), FAILURES, lambda error: self._failed(key, error))) as body:
            if end is not None and body.size != end - start:
                raise UnknownOutcome(self._name(key), f"asked for bytes {start} to {end}, got {body.size}; read again")
            yield body

    def head(self, key: str) -> ObjectInfo:
        """See :meth:`tidemark.store.base.Store.head`."""
        try:
            reply = self._clients.read.head_object(**self._target, Key=key, ChecksumMode="ENABLED")
        except FAILURES as error:
            failure = self._failed(key, error)
            if isinstance(failure, NotFound):
                self._check_bucket(key)
            raise failure from error
        return ObjectInfo(key, reply["ContentLength"], reply["ETag"], reply["LastModified"], decoded_checksum(reply))

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """See :meth:`tidemark.store.base.Store.list`."""
        extra: dict[str, Any] = {"StartAfter": start_after} if start_after is not None else {}
        pages = self._clients.read.get_paginator("list_objects_v2").paginate(**self._target, Prefix=prefix, **extra)
        try:
            for page in pages:
                for item in page.get("Contents", ()):
                    yield ObjectInfo(item["Key"], item["Size"], item["ETag"], item["LastModified"])
        except FAILURES as error:
            raise self._not_listed(prefix, error, "s3:ListBucket") from error

    def now(self) -> datetime:
        """The store's time, see :meth:`tidemark.store.base.Store.now`. A refusal has the time as well."""
        refusal: ClientError | None = None
        try:
            reply: Any = self._clients.read.head_bucket(**self._target)
        except ClientError as error:
            reply, refusal = error.response, error
        except FAILURES as error:
            raise self._failed("", error) from error
        date = reply["ResponseMetadata"]["HTTPHeaders"].get("date")
        if date is None and refusal is not None:  # an answer from something between us and the store
            raise self._failed("", refusal) from refusal
        if date is None:
            raise StoreError(self.url, "the server's answers have no Date, so its clock cannot be asked for")
        return parsedate_to_datetime(date)

    def copy(self, source: str, target: str, *, source_etag: str) -> str:
        """See :meth:`tidemark.store.base.Store.copy`."""
        extra: dict[str, Any] = {}
        if self._owner is not None:
            extra["ExpectedSourceBucketOwner"] = self._owner
        if "Tagging" in self._attributes:
            extra["TaggingDirective"] = "REPLACE"
        try:
            reply = self._clients.write.copy_object(
                **self._target,
                **self._attributes,
                **extra,
                Key=target,
                CopySource={"Bucket": self._target["Bucket"], "Key": source},
                CopySourceIfMatch=source_etag,
            )
        except FAILURES as error:
            raise self._failed(source, error) from error
        return reply["CopyObjectResult"]["ETag"]

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        """See :meth:`tidemark.store.base.Store.delete`."""
        extra: dict[str, Any] = {"IfMatch": if_match} if if_match is not None else {}
        try:
            self._clients.write.delete_object(**self._target, Key=key, **extra)
        except FAILURES as error:
            raise self._failed(key, error) from error

    def versions(self, key: str) -> Sequence[ObjectVersion]:
        """See :meth:`tidemark.store.versions.VersionedStore.versions`."""
        return [version for name, version in self._versions(key) if name == key]

    def deleted(self, prefix: str) -> Mapping[str, Sequence[ObjectVersion]]:
        """See :meth:`tidemark.store.versions.VersionedStore.deleted`."""
        found: dict[str, list[ObjectVersion]] = {}
        stored: set[str] = set()
        for key, version in self._versions(prefix):
            found.setdefault(key, []).append(version)
            if version.latest and version.etag is not None:
                stored.add(key)
        return {key: versions for key, versions in found.items() if key not in stored}

    def _versions(self, prefix: str) -> Iterator[tuple[str, ObjectVersion]]:
        pages = self._clients.read.get_paginator("list_object_versions").paginate(**self._target, Prefix=prefix)
        try:
            for page in pages:
                found: list[Any] = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
                for each in found:
                    version = each["VersionId"], each.get("ETag"), each["IsLatest"], each.get("Size", 0)
                    yield each["Key"], ObjectVersion(*version)
        except FAILURES as error:
            raise self._not_listed(prefix, error, "s3:ListBucketVersions") from error

    def get_version(self, key: str, version: str, start: int, end: int) -> bytes:
        """See :meth:`tidemark.store.versions.VersionedStore.get_version`."""
        return self._get_range(key, start, end, None, VersionId=version)

    def delete_version(self, key: str, version: str) -> None:
        """See :meth:`tidemark.store.versions.VersionedStore.delete_version`."""
        try:
            self._clients.write.delete_object(**self._target, Key=key, VersionId=version)
        except FAILURES as error:
            raise self._failed(key, error) from error

    def lock(self, key: str, version: str) -> ObjectLock | None:
        """See :meth:`tidemark.store.versions.VersionedStore.lock`."""
        try:
            reply: Any = self._clients.read.head_object(**self._target, Key=key, VersionId=version)
        except FAILURES as error:
            raise self._failed(key, error) from error
        hold = reply.get("ObjectLockLegalHoldStatus") == "ON"
        if "ObjectLockRetainUntilDate" in reply:
            return ObjectLock(reply["ObjectLockMode"].lower(), reply["ObjectLockRetainUntilDate"].astimezone(UTC), hold)
        return ObjectLock(hold=True) if hold else None

    def _get(self, key: str, if_match: str | None, limit: int | None, **extra: Any) -> Fetched:
        if if_match is not None:
            extra["IfMatch"] = if_match
        try:
            reply = self._clients.read.get_object(**self._target, Key=key, **extra)
            with closing(reply["Body"]) as arriving:
                check_size(self._name(key), reply["ContentLength"], limit)
                body = arriving.read()
        except FAILURES as error:
            raise self._failed(key, error) from error
        if "ChecksumMode" in extra and decoded_checksum(reply) not in {None, crc32c_of(body)}:
            raise UnknownOutcome(self._name(key), "other bytes arrived than are stored; read again")
        return Fetched(body, reply["ETag"])

    def _put_in_parts(self, key: str, body: BinaryIO, size: int, crc32c: int | None, conditions: dict[str, Any]) -> str:
        upload = MultipartUpload(self._clients.write, self._name(key), {**self._target, "Key": key}, self._attributes)
        etag, unproved = upload.put(body, size, crc32c, self._part_size, conditions)
        if unproved is not None:
            prove(self, key, size, etag, unproved)
        return etag

    def _check_bucket(self, key: str) -> None:
        """Raise BucketMissing if the bucket is missing: a HEAD's reply has no body that would show that."""
        try:
            self._clients.read.head_bucket(**self._target)
        except FAILURES as error:
            if isinstance(self._failed(key, error), NotFound):
                raise BucketMissing(self._name(key)) from error

    def _failed(self, key: str, error: ClientError | BotoCoreError | HTTPError) -> StoreError:
        failure = translated(self._name(key), error)
        if isinstance(failure, AccessDenied):
            self._clients.renew()
        return failure

    def _not_listed(self, prefix: str, error: ClientError | BotoCoreError | HTTPError, right: str) -> StoreError:
        failure = self._failed(prefix, error)
        if isinstance(failure, AccessDenied):
            return AccessDenied(failure.key, f"{failure.reason}; to list it takes {right} on {self.url}")
        return failure

    def _name(self, key: str) -> str:
        return f"{self.url}/{key}"


def _attributes(options: StoreOptions) -> dict[str, Any]:
    """Attributes of every object that is written: parameters of PutObject, CreateMultipartUpload and CopyObject."""
    attributes: dict[str, Any] = {}
    if options.sse_kms_key_id is not None:
        attributes |= {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": options.sse_kms_key_id}
    if options.storage_class is not None:
        attributes["StorageClass"] = options.storage_class
    if options.tags:
        attributes["Tagging"] = urlencode(options.tags)
    return attributes


def translated(name: str, error: ClientError | BotoCoreError | HTTPError) -> StoreError:
    """The error of ours that states the known outcome."""
    if isinstance(error, ClientError):
        return _answered(name, error)
    if isinstance(error, _CREDENTIALS):
        rule = (
            "give credentials as AWS's own tools expect them, each machine of Spark's workers its own (docs/spark.md)"
        )
        return AccessDenied(name, f"{error}; {rule}")
    limit = overrun(error)
    if limit is None and isinstance(error, (ConnectTimeoutError, ReadTimeoutError)):  # the latter in TLS's handshake
        return UnknownOutcome(name, "no answer: no connection in time")
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):  # nothing was sent
        rule = "have AWS_CA_BUNDLE name a file with the authority of the store's certificate, and start this again"
        return Refused(name, f"{error}; {rule}")
    if isinstance(error, EndpointConnectionError):
        return UnknownOutcome(name, f"no answer: {error}; does the store run, and is store.endpoint_url right?")
    return UnknownOutcome(name, f"no answer: {limit or error}")


def _answered(name: str, error: ClientError) -> StoreError:
    code = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    reason = f"{code} {error.response.get('Error', {}).get('Message', '')}".strip()
    if code == "NoSuchBucket":
        return BucketMissing(name)
    if code in _NOT_FOUND:
        return NotFound(name, "there is no such object")
    if code in _CONDITION or status == 412:
        return PreconditionFailed(name, reason)
    if code in _SLOW_DOWN or status == 429:
        return SlowDown(name, reason)
    if code == "RequestTimeTooSkewed":
        rule = "this host's clock is too far from the store's; set it (NTP, chrony): the credentials are not the reason"
        return Refused(name, f"{reason}; {rule}")
    if code in _TOKENS or status in {401, 403}:
        return AccessDenied(name, f"{reason}; check the credentials and the policy of this role")
    if status >= 500 or code in _UNKNOWN:
        return UnknownOutcome(name, reason)
    return StoreError(name, reason)


def encoded_checksum(crc32c: int) -> str:
    """A CRC32C in S3's form: the base64 of its four bytes, most significant first."""
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


def decoded_checksum(reply: Any) -> int | None:
    """The checksum of all of an object's bytes, if the reply has it; a checksum of parts ends in ``-<parts>``."""
    text = reply.get("ChecksumCRC32C")
    return int.from_bytes(base64.b64decode(text), "big") if text and "-" not in text else None


class MultipartUpload:
    """One multipart upload. ``target`` names bucket and key, ``creating`` adds the object's attributes.

    It is proved by a checksum of all its bytes. Each part is verified by the server against its own CRC32C, and all
    parts together against that of the whole. If the server's reply does not confirm that, the stored bytes are read
    back.
    """

    def __init__(self, client: S3Client, name: str, target: dict[str, Any], creating: dict[str, Any]) -> None:
        self._client = client
        self._name = name
        self._target = target
        self._creating = creating

    def put(
        self, body: BinaryIO, size: int, crc32c: int | None, part_size: int, conditions: dict[str, Any]
    ) -> tuple[str, int | None]:
        """Send ``size`` bytes from the body's position; return the ETag, and the whole's CRC32C if that is unproved.

        Raises the client's errors, and StoreError if the bytes are not those of ``crc32c``; nothing is left then.
        """
        begun = self._client.create_multipart_upload(
            **self._target, **self._creating, ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT"
        )
        upload: dict[str, Any] = {**self._target, "UploadId": begun["UploadId"]}
        try:
            parts, whole = self._send_parts(upload, body, size, max(part_size, -(-size // _MOST_PARTS)))
            self._check(whole, crc32c)
            reply = self._client.complete_multipart_upload(
                **upload,
                **conditions,
                MultipartUpload={"Parts": parts},
                ChecksumCRC32C=encoded_checksum(whole),
                ChecksumType="FULL_OBJECT",
                MpuObjectSize=size,
            )
        except BaseException:
            # If that fails, the parts are invisible, and the bucket's rule for incomplete uploads removes them.
            with suppress(*FAILURES):
                self._client.abort_multipart_upload(**upload)
            raise
        return reply["ETag"], None if decoded_checksum(reply) == whole else whole

    def _check(self, whole: int, crc32c: int | None) -> None:
        if crc32c is not None and crc32c != whole:
            raise StoreError(self._name, f"CRC32C of the bytes is {whole:08x} and not {crc32c:08x}")

    def _send_parts(self, upload: dict[str, Any], body: BinaryIO, size: int, part_size: int) -> tuple[list[Any], int]:
        """Send all parts, one after the other; return the list that completes them, and the CRC32C of all bytes."""
        start, whole = body.tell(), 0
        parts: list[Any] = []
        for at in range(0, size, part_size):
            part = FilePart(body, start + at, min(part_size, size - at))
            checksum = 0
            for chunk in part.chunks():
                checksum, whole = crc32c_of(chunk, checksum), crc32c_of(chunk, whole)
            number = len(parts) + 1
            reply = self._client.upload_part(
                **upload,
                PartNumber=number,
                Body=io.BufferedReader(part, _CHUNK),
                ContentLength=part.size,
                ChecksumCRC32C=encoded_checksum(checksum),
            )
            parts.append({"PartNumber": number, "ETag": reply["ETag"], "ChecksumCRC32C": encoded_checksum(checksum)})
        return parts, whole


def exactly(body: BinaryIO, size: int) -> BinaryIO:
    """``body`` from its position on, ending after ``size`` bytes: an HTTP client reads a body to its end."""
    start = body.tell()
    end = body.seek(0, os.SEEK_END)
    body.seek(start)
    return body if end - start <= size else io.BufferedReader(FilePart(body, start, size), _CHUNK)


class FilePart(io.RawIOBase):
    """``size`` bytes of a file from ``start`` on, as a file of its own."""

    def __init__(self, body: BinaryIO, start: int, size: int) -> None:
        super().__init__()
        self._body = body
        self._start = start
        self._at = 0
        self.size = size

    def chunks(self) -> Iterator[bytes]:
        """All bytes of the part, once, in pieces of 1 MiB; the part is at its beginning afterwards."""
        self._body.seek(self._start)
        left = self.size
        while left and (chunk := self._body.read(min(_CHUNK, left))):
            left -= len(chunk)
            yield chunk

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill ``buffer``, up to the end of the part."""
        view = memoryview(buffer).cast("B")
        self._body.seek(self._start + self._at)
        data = self._body.read(min(len(view), self.size - self._at))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move within the part."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        return self._at

    def tell(self) -> int:
        """The position in the part."""
        return self._at

    def readable(self) -> bool:
        """True: it can be read."""
        return True

    def seekable(self) -> bool:
        """True: it can be moved in."""
        return True


class ReplyBody:
    """The body of an S3 client's reply. See :class:`tidemark.store.base.Body`."""

    def __init__(
        self, reply: Any, name: str, failures: tuple[type[Exception], ...], failed: Callable[[Any], StoreError]
    ) -> None:
        """``failed`` translates an error of the client, of a type in ``failures``, to the error raised here."""
        self._body = reply["Body"]
        self._name = name
        self._failures, self._failed = failures, failed
        self.etag: str = reply["ETag"]
        self.size: int = reply["ContentLength"]
        self._left = self.size

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read the reply, see :meth:`tidemark.store.base.Body.readinto`."""
        view = memoryview(buffer).cast("B")[: min(self._left, _PIECE)]
        if not view:
            return 0
        try:
            count = int(self._body.readinto(view))
        except self._failures as error:
            raise self._failed(error) from error
        if not count:
            raise UnknownOutcome(self._name, f"the reply ended {self._left} bytes early; read again")
        self._left -= count
        return count

    def close(self) -> None:
        """Give the connection back if all was read; else close it, as the rest would have to be received."""
        self._body.close()
