"""The outbox: a table's commits that other DAGs do not know yet, and the pointer to the newest published commit.

The ledger is the outbox itself, a chain of commits; ``published.json`` points into it. Airflow stores a task's asset
events together with its success, after the last line of the task has run. So the pointer advances only with proof: each
event names its newest ledger, and the pointer moves to the newest ledger of the chain that an event in Airflow's own
record names. Until then the events are sent again: a kill at any point repeats events and never loses one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from tidemark.errors import FormatError, TableTampered
from tidemark.formats.table.ledger import DateState, Ledger, Published
from tidemark.store.update import update
from tidemark.table.delta_table import TopicTable
from tidemark.timestamps import utc_now


class Pointer(NamedTuple):
    """``published.json`` and its ETag, which is None while the object does not exist."""

    value: Published
    etag: str | None


class Commit(NamedTuple):
    """A ledger's identity: an attempt commits at most once, and another table may have the number too."""

    n: int
    attempt: int

    @classmethod
    def of(cls, ledger: Ledger) -> Commit:
        """The identity of ``ledger``."""
        return cls(ledger.n, ledger.attempt)


class UnpublishedCommits(NamedTuple):
    """The changes committed since the pointer, up to the ledger ``commit``.

    ``dates`` are the dates with changed rows, ``columns`` the new columns. ``closed`` are closed dates that were open
    before, or closed with other rows; a date that was closed and reopened in the meantime is not among them. ``rows``
    counts the table's rows.
    """

    commit: Commit
    dates: tuple[str, ...]
    closed: dict[str, DateState]
    rows: int
    columns: tuple[str, ...] = ()


def read_published(table: TopicTable) -> Pointer:
    """The outbox pointer; without one, nothing is published."""
    found = Published.load_version_or_none(table.store, table.keys.published)
    return Pointer(*found) if found else Pointer(Published(at=utc_now()), None)


def update_published(table: TopicTable, change: Callable[[Published], Published]) -> Published:
    """Apply ``change`` to the pointer, again if another process was faster.

    Raises:
        PreconditionFailed: other processes were faster every time.
    """

    def changed(before: Published) -> Published:
        return change(before).model_copy(update={"at": utc_now()})

    then = "the next run tries again"
    return update(table.store, table.keys.published, lambda: read_published(table), changed, then=then)


def unpublished(table: TopicTable, newest: Ledger, stored: Collection[Commit]) -> UnpublishedCommits | None:
    """The changes to send of the commits up to ``newest``, given the commits in stored events; None if there are none.

    Advances the pointer as far as stored events prove, or further if there is nothing to send.

    Raises:
        TableTampered: the table is behind the published commit.
        FormatError: a ledger is not the one that its child names.
    """
    published = read_published(table).value
    if newest.n < published.n:
        rule = f"ledger {newest.n} is committed, but {published.n} was published"
        raise TableTampered(f"{table.url}: {rule}: the table was restored to an older version; a person must decide")
    after: list[Ledger] = []
    known: Ledger | None = None
    for ledger in _chain(table, newest):
        if ledger.n <= published.n or Commit.of(ledger) in stored:
            known = ledger
            break
        after.append(ledger)
    news = _news(newest, after, known)
    sent = newest if not (news.dates or news.closed or news.columns) else known
    if sent is not None and sent.n > published.n:
        move(table, Commit.of(sent))
    return None if sent is newest else news


def _news(newest: Ledger, after: list[Ledger], known: Ledger | None) -> UnpublishedCommits:
    """The joint changes of ``after``, the ledgers beyond ``known``."""
    dates = {dt for ledger in after for dt in ledger.dates_changed}
    before = known.dates if known else {}
    closed = {
        dt: state
        for dt, state in sorted(newest.dates.items())
        if state.closed and (dt in dates or _closing(state) != _closing(before.get(dt)))
    }
    columns = tuple(sorted(_columns(newest) - _columns(known))) if known else ()
    return UnpublishedCommits(Commit.of(newest), tuple(sorted(dates)), closed, newest.rows, columns)


def _columns(ledger: Ledger) -> set[str]:
    """The table's top-level columns."""
    return {path for path in ledger.field_ids if "." not in path}


def _closing(state: DateState | None) -> object:
    return state and (state.state, state.closed_at)


def move(table: TopicTable, to: Commit) -> None:
    """Move the pointer forward to ``to``; never back."""

    def moved(pointer: Published) -> Published:
        return pointer.model_copy(update={"n": to.n, "attempt": to.attempt}) if to.n > pointer.n else pointer

    update_published(table, moved)


def mark_planned(table: TopicTable, digest: str) -> None:
    """Record ``digest``, of a state in which planning found nothing to land."""
    update_published(table, lambda pointer: pointer.model_copy(update={"settled": digest, "settled_at": utc_now()}))


def _chain(table: TopicTable, ledger: Ledger) -> Iterator[Ledger]:
    """``ledger`` and its predecessors, back to the first."""
    current: Ledger | None = ledger
    while current is not None:
        yield current
        current = _parent(table, current)


def _parent(table: TopicTable, ledger: Ledger) -> Ledger | None:
    if ledger.parent is None:
        return None
    key = table.keys.ledger(ledger.parent.n, ledger.parent.attempt)
    body = table.store.get(key, limit=Ledger.most_bytes).body
    if hashlib.sha256(body).hexdigest() != ledger.parent.sha256:
        raise FormatError(key, f"is not the parent that ledger {ledger.n} names: its SHA-256 differs")
    return Ledger.from_bytes(body, key)
