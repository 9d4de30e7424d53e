"""Probes of the rights that a store grants these credentials, without leaving anything behind.

Reading is tried. Writing is tried by a request that cannot succeed: to replace a version of an object that does not
exist. A store that lets us write answers that there is no such version; a store that does not answers so.

Objects that are created once are tried by an object that is deleted again. Some servers keep the condition for small
objects, and ignore it where a multipart upload is completed.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

from tidemark.errors import AccessDenied, NotFound, PreconditionFailed, Refused, StoreError
from tidemark.store import clock
from tidemark.store.base import Store
from tidemark.store.options import LIMITS, StoreOptions
from tidemark.store.retrying import RepeatingStore
from tidemark.store.schemes import open_store

Outcome = Literal["yes", "no", "unknown", "not tried"]

_NO_VERSION: Final = '"00000000000000000000000000000000"'
"""An ETag that no object has under the probe's key, as there is no such object."""

_LEAST: Final = 5 << 20
"""The least bytes of a part, and of an object that is put in parts."""

CLOCK: Final = "this host's clock"
TRIED: Final = "tried with the credentials of this command"


class Tried(NamedTuple):
    """A probe's outcome; ``detail`` is the reason for it, the store's answer, or the reason not to try."""

    what: str
    outcome: Outcome
    detail: str

    @property
    def failed(self) -> bool:
        """True if it was tried, and does not work."""
        return self.outcome in {"no", "unknown"}

    @property
    def line(self) -> str:
        """A line about the probe; :attr:`complaint` explains a failure."""
        return f"{self.outcome:9}  {self.what}" + ("" if self.failed else f": {self.detail}")

    @property
    def complaint(self) -> str:
        """The failed operation, and the reason."""
        return f"{self.what}: {self.detail}"


def tried(operation: str, ask: Callable[[], object]) -> Tried:
    """The outcome of the request ``ask``."""
    try:
        ask()
    except Refused as error:
        return Tried(operation, "no", error.reason)
    except (StoreError, OSError) as error:
        return Tried(operation, "unknown", error.reason if isinstance(error, StoreError) else str(error))
    return Tried(operation, "yes", TRIED)


def try_to_list(store: Store, folder: str) -> Tried:
    """Try to list objects below ``folder``."""
    return tried(f"list {store.url}", lambda: list(islice(store.list(folder), 1)))


def try_to_get(store: Store, key: str) -> Tried:
    """Try to read the object ``key``, which need not exist."""
    return tried(f"get from {store.url}", lambda: _head(store, key))


def try_to_put(store: Store, folder: str) -> Tried:
    """Try to write an object below ``folder``, which does not end in a slash."""
    return tried(f"put to {store.url}/{folder}".rstrip("/"), lambda: _put_nothing(store, probe_key(folder)))


def try_to_create(url: str, options: StoreOptions, folder: str) -> Tried:
    """Try whether objects below ``folder`` are created once, whatever their size: an existing one is not replaced."""
    what, key = f"create once in {url}/{folder}".rstrip("/"), probe_key(folder)
    store = open_store(url, options)
    may_delete = tried(what, lambda: store.delete(key))
    if may_delete.failed:
        rule = "without the right to delete, an object would be left behind: let somebody try it who has that right"
        return Tried(what, "not tried", rule)
    least, limits = options.model_copy(update={"part_size": _LEAST}), replace(LIMITS, multipart_from=_LEAST)

    replaced: list[str] = []

    def create() -> None:
        store.put(key, b"created once", if_none_match=True)
        for again, body, size, way in (
            (store, b"created twice", None, "in one request"),
            (
                open_store(url, least, limits=limits),
                io.BytesIO(bytes(_LEAST + 1)),
                _LEAST + 1,
                "by a multipart upload, completed",
            ),
        ):
            with suppress(PreconditionFailed):
                again.put(key, body, size=size, if_none_match=True)
                replaced.append(f"was replaced {way} with If-None-Match, so files could be lost: use another store")

    try:
        found = tried(what, create)
        return Tried(what, "no", f"{key} {replaced[0]}") if replaced else found
    finally:
        with suppress(StoreError):
            store.delete(key)


def probe_key(folder: str) -> str:
    """A key in ``folder`` that no object has."""
    return f"{folder}/_probe/{secrets.token_hex(16)}".lstrip("/")


def try_store(url: str, options: StoreOptions, folder: str, *, writes: bool) -> Iterator[Tried]:
    """Try to list, get, and put if ``writes``, in ``folder``; only list if that fails. No directory is made."""
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
        put = try_to_put(store, folder)
        yield put
        if not put.failed and not url.startswith("file://"):
            yield try_to_create(url, options, folder)


def try_clock(url: str, options: StoreOptions) -> Tried:
    """Compare this host's clock with that of the store at ``url``, which answers."""
    problem = clock.problem(url, options)
    return Tried(CLOCK, "no", problem) if problem else Tried(CLOCK, "yes", "it is the store's, to a minute")


def _head(store: Store, key: str) -> None:
    with suppress(NotFound):  # the answer of a store that lets us look
        store.head(key)


def _put_nothing(store: Store, key: str) -> None:
    """Try a write that cannot succeed. Raises BucketMissing if any bucket's answer would be the same."""
    try:
        store.put(key, b"", if_match=_NO_VERSION)
    except PreconditionFailed:  # from a store that would let us write, or that checks conditions first
        with suppress(AccessDenied):
            next(iter(store.list(key)), None)
    else:
        with suppress(Refused):
            store.delete(key)
        raise StoreError(key, "was written against the condition If-Match, which Tidemark needs: use another store")
