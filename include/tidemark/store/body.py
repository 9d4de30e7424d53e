"""The bytes of an object, or of a range of it, as they arrive: for readers that bring their own buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

from tidemark.errors import StoreError, UnknownOutcome

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_PIECE = 256 << 10
"""The most bytes that are asked of a connection at a time: its client library copies each piece once."""


class FileBody:
    """Bytes of an open file, from its position on. See :class:`tidemark.store.base.Body`."""

    def __init__(self, file: BinaryIO, key: str, etag: str, size: int) -> None:
        """Give ``size`` bytes of ``file``."""
        self._file, self._key = file, key
        self.etag, self.size = etag, size
        self._left = size

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read the file, see :meth:`tidemark.store.base.Body.readinto`."""
        view = memoryview(buffer).cast("B")[: self._left]
        count = self._file.readinto(view) if view else 0  # type: ignore[attr-defined]  # of BinaryIO, typeshed lacks it
        if not count and view:
            raise UnknownOutcome(self._key, f"ended {self._left} bytes early: it was cut off; read again")
        self._left -= count
        return int(count)


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
