"""A large object in parts, under the conditions of a small one, and proved by a checksum of all its bytes.

Each part is verified by the server against its own CRC32C, and all parts together against that of the whole. If the
server's reply does not confirm that, the stored bytes are read back.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

from crc32c import crc32c as crc32c_of

from tidemark.errors import StoreError
from tidemark.store.s3.checksums import decoded, encoded
from tidemark.store.s3.errors import FAILURES

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from mypy_boto3_s3 import S3Client

_MOST_PARTS = 10_000
_CHUNK = 1 << 20


class Upload:
    """One multipart upload. ``target`` names bucket and key, ``creating`` adds the object's attributes."""

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
                ChecksumCRC32C=encoded(whole),
                ChecksumType="FULL_OBJECT",
                MpuObjectSize=size,
            )
        except BaseException:
            # If that fails, the parts are invisible, and the bucket's rule for incomplete uploads removes them.
            with suppress(*FAILURES):
                self._client.abort_multipart_upload(**upload)
            raise
        return reply["ETag"], None if decoded(reply) == whole else whole

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
                ChecksumCRC32C=encoded(checksum),
            )
            parts.append({"PartNumber": number, "ETag": reply["ETag"], "ChecksumCRC32C": encoded(checksum)})
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
