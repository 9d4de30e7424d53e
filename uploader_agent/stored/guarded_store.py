"""A store to which nothing is written without a right that the process may lose."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from typing_extensions import override

from tidemark.errors import Refused, StoreError, TidemarkError
from tidemark.retry import Retry
from tidemark.store import Store
from tidemark.store.retrying import RepeatingStore


class GuardedStore(RepeatingStore):
    """``store``, with a call of ``check`` before each write, which raises TidemarkError while the right is missing."""

    def __init__(self, store: Store, check: Callable[[], object]) -> None:
        super().__init__(store.inner if isinstance(store, RepeatingStore) else store, Retry())
        self._check = check

    @override
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
        """See :meth:`tidemark.store.base.Store.put`. Raises Refused without the right."""
        self._allow(key)
        return super().put(key, body, size=size, crc32c=crc32c, if_match=if_match, if_none_match=if_none_match)

    @override
    def copy(self, source: str, target: str, *, source_etag: str) -> str:
        """See :meth:`tidemark.store.base.Store.copy`. Raises Refused without the right."""
        self._allow(target)
        return super().copy(source, target, source_etag=source_etag)

    def _allow(self, key: str) -> None:
        try:
            self._check()
        except StoreError:
            raise
        except TidemarkError as error:
            raise Refused(key, str(error)) from error
