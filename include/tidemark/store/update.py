"""Compare-and-set: several processes change one object without losing each other's changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from tidemark.errors import PreconditionFailed, StoreError, UnknownOutcome
from tidemark.store.base import Store

TRIES: Final = 8
"""The most tries: an object that others change more often in a row is left to the caller's next turn."""

log = logging.getLogger(__name__)


class _Stored(Protocol):
    def to_bytes(self) -> bytes: ...


Object = TypeVar("Object", bound=_Stored)


def update(
    store: Store,
    key: str,
    read: Callable[[], tuple[Object, str | None]],
    change: Callable[[Object], Object],
    *,
    then: str,
    tries: int = TRIES,
) -> Object:
    """Apply ``change`` to the object that ``read`` returns with its ETag, None if there is no object yet.

    Both are called again if another writer was faster, or if it is not known whether the object was written, so
    ``change`` must be repeatable. Nothing is written if it changes nothing. Returns the object after the change.

    Raises:
        PreconditionFailed: others were faster every time; ``then`` says what comes next.
        UnknownOutcome: the store does not say whether it has written.
    """
    failure: StoreError
    for _ in range(tries):
        before, etag = read()
        after = change(before)
        if after == before:
            return before
        try:
            store.put(key, after.to_bytes(), if_match=etag, if_none_match=etag is None)
        except PreconditionFailed:
            failure = PreconditionFailed(key, f"was changed by others {tries} times in a row; {then}")
        except UnknownOutcome as error:
            failure = error
        else:
            return after
        log.info("%s: read again, because it was changed in the meantime, or may have been", key)
    raise failure
