"""A bucket on S3 or on a server that speaks its protocol.

Writes are never repeated by the client library: a repeated conditional PUT whose first reply was lost answers
"precondition failed" although it took effect. So a write is tried once, and what is unknown is reported as such.
Reads are repeated freely.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from tidemark.errors import AccessDenied, NotFound, PreconditionFailed, StoreError, UnknownOutcome
from tidemark.store.base import Fetched, ObjectInfo

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_NOT_FOUND = {"NoSuchKey", "404", "NotFound"}
_CONDITION = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409", "304"}
_DENIED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "403", "401", "ExpiredToken"}


class S3Store:
    """A bucket, by two boto3 clients: one that tries a write once, one that repeats reads."""

    def __init__(self, bucket: str, *, write: S3Client, read: S3Client) -> None:
        self.url = f"s3://{bucket}"
        self._bucket = bucket
        self._write = write
        self._read = read

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
        extra: dict[str, Any] = {}
        if size is not None:
            extra["ContentLength"] = size
        if crc32c is not None:
            extra["ChecksumCRC32C"] = base64.b64encode(crc32c.to_bytes(4, "big")).decode()
        if if_match is not None:
            extra["IfMatch"] = if_match
        if if_none_match:
            extra["IfNoneMatch"] = "*"
        try:
            return self._write.put_object(Bucket=self._bucket, Key=key, Body=body, **extra)["ETag"]
        except (ClientError, BotoCoreError) as error:
            raise _translated(self._name(key), error) from error

    def get(self, key: str, *, if_match: str | None = None) -> Fetched:
        """See :meth:`tidemark.store.base.Store.get`."""
        extra: dict[str, Any] = {"IfMatch": if_match} if if_match is not None else {}
        try:
            reply = self._read.get_object(Bucket=self._bucket, Key=key, **extra)
            return Fetched(reply["Body"].read(), reply["ETag"])
        except (ClientError, BotoCoreError) as error:
            raise _translated(self._name(key), error) from error

    def get_range(self, key: str, start: int, end: int, *, if_match: str | None = None) -> bytes:
        """See :meth:`tidemark.store.base.Store.get_range`."""
        extra: dict[str, Any] = {"IfMatch": if_match} if if_match is not None else {}
        if start == end:
            return b""
        try:
            reply = self._read.get_object(Bucket=self._bucket, Key=key, Range=f"bytes={start}-{end - 1}", **extra)
            body = reply["Body"].read()
        except (ClientError, BotoCoreError) as error:
            raise _translated(self._name(key), error) from error
        if len(body) != end - start:
            raise UnknownOutcome(
                self._name(key), f"asked for bytes {start} to {end}, got {len(body)} of {end - start}; read again"
            )
        return body

    def head(self, key: str) -> ObjectInfo:
        """See :meth:`tidemark.store.base.Store.head`."""
        try:
            reply = self._read.head_object(Bucket=self._bucket, Key=key, ChecksumMode="ENABLED")
        except (ClientError, BotoCoreError) as error:
            raise _translated(self._name(key), error) from error
        encoded = reply.get("ChecksumCRC32C")
        crc32c = int.from_bytes(base64.b64decode(encoded), "big") if encoded else None
        return ObjectInfo(key, reply["ContentLength"], reply["ETag"], reply["LastModified"], crc32c)

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """See :meth:`tidemark.store.base.Store.list`."""
        extra: dict[str, Any] = {"StartAfter": start_after} if start_after is not None else {}
        pages = self._read.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix, **extra)
        try:
            for page in pages:
                for item in page.get("Contents", ()):
                    yield ObjectInfo(item["Key"], item["Size"], item["ETag"], item["LastModified"])
        except (ClientError, BotoCoreError) as error:
            raise _translated(self._name(prefix), error) from error

    def copy(self, source: str, target: str, *, source_etag: str) -> str:
        """See :meth:`tidemark.store.base.Store.copy`."""
        try:
            reply = self._write.copy_object(
                Bucket=self._bucket,
                Key=target,
                CopySource={"Bucket": self._bucket, "Key": source},
                CopySourceIfMatch=source_etag,
            )
        except (ClientError, BotoCoreError) as error:
            raise _translated(self._name(source), error) from error
        return reply["CopyObjectResult"]["ETag"]

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        """See :meth:`tidemark.store.base.Store.delete`."""
        extra: dict[str, Any] = {"IfMatch": if_match} if if_match is not None else {}
        try:
            self._write.delete_object(Bucket=self._bucket, Key=key, **extra)
        except (ClientError, BotoCoreError) as error:
            raise _translated(self._name(key), error) from error

    def _name(self, key: str) -> str:
        return f"{self.url}/{key}"


def _translated(name: str, error: ClientError | BotoCoreError) -> StoreError:
    """The error of ours that says what is known about the outcome."""
    if isinstance(error, NoCredentialsError):
        return AccessDenied(name, "no credentials found; give them as AWS's own tools expect them")
    if not isinstance(error, ClientError):
        return UnknownOutcome(name, f"no answer: {error}")
    code = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    reason = f"{code} {error.response.get('Error', {}).get('Message', '')}".strip()
    if code in _NOT_FOUND:
        return NotFound(name, "there is no such object")
    if code == "NoSuchBucket":
        return StoreError(name, "the bucket does not exist; create it, or correct its name in the configuration")
    if code in _CONDITION or status == 412:
        return PreconditionFailed(name, reason)
    if code in _DENIED:
        return AccessDenied(name, f"{reason}; check the credentials and the policy of this role")
    if status >= 500 or code in {"RequestTimeout", "SlowDown"}:
        return UnknownOutcome(name, reason)
    return StoreError(name, reason)


@cache
def clients(
    endpoint_url: str | None, region: str | None, *, path_style: bool, connections: int
) -> tuple[S3Client, S3Client]:
    """(write, read) clients, shared by all buckets of a process; credentials from AWS's default chain."""
    from boto3.session import Session

    session = Session()  # not boto3's global one, which would keep the first credentials it ever found

    def client(attempts: int, *, sign_payload: bool | None = None) -> S3Client:
        config = Config(
            retries={"total_max_attempts": attempts, "mode": "standard"},
            connect_timeout=5,
            read_timeout=60,
            max_pool_connections=connections,
            s3=_s3_options(path_style=path_style, sign_payload=sign_payload),
        )
        return session.client("s3", endpoint_url=endpoint_url, region_name=region, config=config)

    return client(1, sign_payload=_needs_payload_signature(endpoint_url)), client(5)


def _s3_options(*, path_style: bool, sign_payload: bool | None) -> Any:
    return {"addressing_style": "path" if path_style else "auto", "payload_signing_enabled": sign_payload}


def _needs_payload_signature(endpoint_url: str | None) -> bool:
    """Whether a body must be hashed into the request's signature, which reads it once more.

    Every PUT carries a checksum that the server verifies, and the signature covers the checksum. Where TLS or the
    loopback interface keeps others off the wire that is enough; on an open wire a CRC could be forged.
    """
    url = urlsplit(endpoint_url or "https://")
    return url.scheme == "http" and url.hostname not in {"127.0.0.1", "::1", "localhost"}
