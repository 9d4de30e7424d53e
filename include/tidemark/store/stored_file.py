"""An object of the store as a file for pyarrow, which reads only the parts that it needs."""

from __future__ import annotations

import io

from typing_extensions import override

from tidemark.store.base import Store


class StoredFile(io.RawIOBase):
    """The object ``key`` of ``size`` bytes; each read is a request. ``bytes_read`` counts their bytes."""

    def __init__(self, store: Store, key: str, size: int) -> None:
        super().__init__()
        self._store, self._key, self._size = store, key, size
        self._at = self.bytes_read = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    @override
    def tell(self) -> int:
        return self._at

    @override
    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._at + size, self._size)
        if end <= self._at:
            return b""
        body = self._store.get_range(self._key, self._at, end)
        self._at = end
        self.bytes_read += len(body)
        return body
