"""What a store lets these credentials do, tried without leaving anything behind.

Reading is tried. Writing is tried by a request that cannot succeed: to replace a version of an object that does not
exist. A store that lets us write answers that there is no such version; one that does not says so.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

from tidemark.errors import AccessDenied, NotFound, PreconditionFailed, Refused, StoreError
from tidemark.store import clock
from tidemark.store.base import Store
from tidemark.store.factory import open_store
from tidemark.store.options import StoreOptions
from tidemark.store.retrying import RepeatingStore

Outcome = Literal["yes", "no", "unknown", "not tried"]

_NO_VERSION: Final = '"00000000000000000000000000000000"'
"""An ETag that no object of the probe's key has, for there is no such object."""
CLOCK: Final = "this host's clock"
TRIED: Final = "tried with the credentials of this command"


class Tried(NamedTuple):
    """Whether something works; ``detail`` says how that is known, what was answered, or why it was not tried."""

    what: str
    outcome: Outcome
    detail: str

    @property
    def failed(self) -> bool:
        """Whether it was tried, and does not work."""
        return self.outcome in {"no", "unknown"}

    @property
    def line(self) -> str:
        """A line of what was tried; what failed is explained by :attr:`complaint`."""
        return f"{self.outcome:9}  {self.what}" + ("" if self.failed else f": {self.detail}")

    @property
    def complaint(self) -> str:
        """What failed, and why."""
        return f"{self.what}: {self.detail}"


def tried(what: str, ask: Callable[[], object]) -> Tried:
    """Whether the store did what ``ask`` asked."""
    try:
        ask()
    except Refused as error:
        return Tried(what, "no", error.reason)
    except (StoreError, OSError) as error:
        return Tried(what, "unknown", error.reason if isinstance(error, StoreError) else str(error))
    return Tried(what, "yes", TRIED)


def try_to_list(store: Store, folder: str) -> Tried:
    """Whether objects below ``folder`` can be listed."""
    return tried(f"list {store.url}", lambda: list(islice(store.list(folder), 1)))


def try_to_get(store: Store, key: str) -> Tried:
    """Whether the object ``key`` can be read, which need not exist."""
    return tried(f"get from {store.url}", lambda: _head(store, key))


def try_to_put(store: Store, folder: str) -> Tried:
    """Whether an object can be written below ``folder``, which does not end in a slash."""
    return tried(f"put to {store.url}/{folder}".rstrip("/"), lambda: _put_nothing(store, probe_key(folder)))


def probe_key(folder: str) -> str:
    """A key of nobody in ``folder``."""
    return f"{folder}/_probe/{secrets.token_hex(16)}".lstrip("/")


def try_store(url: str, options: StoreOptions, folder: str, *, writes: bool) -> Iterator[Tried]:
    """List, get, and put if ``writes``, in ``folder``; each asked once. What cannot be listed is left at that.

    A directory that is not there yet is not made.
    """
    if url.startswith("file://") and not Path(url.removeprefix("file://")).is_dir():
        yield Tried(f"list {url}", "not tried", "the directory does not exist yet; what writes there first makes it")
        return
    opened = open_store(url, options)
    store = opened.inner if isinstance(opened, RepeatingStore) else opened
    listed = try_to_list(store, f"{folder}/".lstrip("/"))
    yield listed
    if listed.failed:
        return
    yield try_to_get(store, probe_key(folder))
    if writes:
        yield try_to_put(store, folder)


def try_clock(url: str, options: StoreOptions) -> Tried:
    """Whether this host's clock is that of the store at ``url``, which answers."""
    problem = clock.problem(url, options)
    return Tried(CLOCK, "no", problem) if problem else Tried(CLOCK, "yes", "it is the store's, to a minute")


def _head(store: Store, key: str) -> None:
    with suppress(NotFound):  # the answer of a store that lets us look
        store.head(key)


def _put_nothing(store: Store, key: str) -> None:
    """Raises BucketMissing where the answer would be that of any bucket."""
    try:
        store.put(key, b"", if_match=_NO_VERSION)
    except PreconditionFailed:  # of a store that would let us write, or of one that looks at conditions first
        with suppress(AccessDenied):
            next(iter(store.list(key)), None)
    else:
        with suppress(Refused):
            store.delete(key)
        raise StoreError(key, "was written against the condition If-Match, which Tidemark needs: use another store")
