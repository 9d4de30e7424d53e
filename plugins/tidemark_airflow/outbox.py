"""The outbox: commits of a table that other DAGs have yet to hear of, and the pointer that says how far they have.

The ledger is the outbox itself, a chain of commits; ``published.json`` points into it. The pointer moves only in a
task after the one whose success made Airflow store the events, so that a kill at any point repeats events and never
loses one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import NamedTuple

from tidemark.errors import FormatError, NotFound, PreconditionFailed, TableTampered, UnknownOutcome
from tidemark.ledger import Ledger, Published
from tidemark.stored import utc_now
from tidemark.table import Lake

_TRIES = 8

log = logging.getLogger(__name__)


class Pointer(NamedTuple):
    """``published.json`` and its ETag, None if it is not there yet."""

    value: Published
    etag: str | None


class News(NamedTuple):
    """What was committed since the pointer: the newest ledger's number and attempt, and the dates that changed."""

    n: int
    attempt: int
    dates: tuple[str, ...]
    rows: int


def read_published(lake: Lake) -> Pointer:
    """The outbox pointer; nothing is published while there is none."""
    key = lake.keys.published
    try:
        body, etag = lake.store.get(key)
    except NotFound:
        return Pointer(Published(at=utc_now()), None)
    return Pointer(Published.from_bytes(body, key), etag)


def update_published(lake: Lake, change: Callable[[Published], Published]) -> Published:
    """Apply ``change`` to the pointer, again if somebody else was faster; ``change`` must bear repetition.

    Raises:
        PreconditionFailed: others were faster every time.
    """
    key = lake.keys.published
    for _ in range(_TRIES):
        before, etag = read_published(lake)
        after = change(before).model_copy(update={"at": utc_now()})
        try:
            lake.store.put(key, after.to_bytes(), if_match=etag, if_none_match=etag is None)
        except (PreconditionFailed, UnknownOutcome) as error:
            log.info("the outbox pointer is read again: %s", error)
            continue
        return after
    raise PreconditionFailed(key, f"was changed by others {_TRIES} times in a row; the next run tries again")


def unpublished(lake: Lake, newest: Ledger) -> News | None:
    """What the commits after the pointer, up to ``newest``, did together; None if there are none.

    Raises:
        TableTampered: the table is behind what was published already.
        FormatError: a ledger is not the one that its child names.
    """
    published = read_published(lake).value
    if newest.n < published.n:
        rule = f"ledger {newest.n} is committed, but {published.n} was published"
        raise TableTampered(f"{lake.url}: {rule}: the table was restored to an older version; a person must decide")
    if newest.n == published.n:
        return None
    dates: set[str] = set()
    ledger: Ledger | None = newest
    while ledger is not None and ledger.n > published.n:
        dates.update(ledger.dates_changed)
        ledger = _parent(lake, ledger)
    return News(newest.n, newest.attempt, tuple(sorted(dates)), newest.rows)


def _parent(lake: Lake, ledger: Ledger) -> Ledger | None:
    if ledger.parent is None:
        return None
    key = lake.keys.ledger(ledger.parent.n, ledger.parent.attempt)
    body = lake.store.get(key).body
    if hashlib.sha256(body).hexdigest() != ledger.parent.sha256:
        raise FormatError(key, f"is not the parent that ledger {ledger.n} names: its SHA-256 differs")
    return Ledger.from_bytes(body, key)
