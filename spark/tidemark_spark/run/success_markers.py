"""``dt=.../_SUCCESS``: an empty object under each date that is closed, for readers who wait for a file.

It is a hint, and the ledger decides. It is taken away before each try of a commit that changes files of the date: by
then it is known which dates the rows are of, and what was written before is no row yet, be it by a task that dies or
runs twice. It is put after the commit that closes the date. Whoever dies in between leaves a closed date without it,
or a reopened one with it if another run put it meanwhile: the runs of the next days mend that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

from tidemark.concurrency import in_parallel
from tidemark.errors import NotFound, PreconditionFailed
from tidemark.formats.ledger import DateState, Ledger
from tidemark.store import put_once
from tidemark.table.delta_table import TopicTable, committed_ledger
from tidemark.timestamps import utc_now

_RECENT: Final = timedelta(days=2)
"""A run looks after dates that closed in this time; it outlasts what a scheduler does to run an attempt again."""


def take_away(table: TopicTable, dates: Collection[str]) -> None:
    """Remove the marks of ``dates``."""
    in_parallel(lambda dt: table.store.delete(table.keys.success(dt)), sorted(dates))


def mend(table: TopicTable, ledger: Ledger, dates: Iterable[str]) -> None:
    """Make the marks of ``dates``, and of all that any run looks after, what the table's ledger says.

    ``ledger`` may be outdated by now: a mark that was put is taken away again if the date has been reopened meanwhile.
    """
    since = utc_now() - _RECENT
    wanted = set(dates)
    states = {dt: one for dt, one in ledger.dates.items() if dt in wanted or _is_recent(one, since)}
    take_away(table, [dt for dt, one in states.items() if one.state in {"reopened", "expired"}])
    put = [dt for dt, one in states.items() if one.closed]
    if any(in_parallel(lambda dt: _put(table, dt), put)):
        now = committed_ledger(table).dates
        take_away(table, [dt for dt in put if not now[dt].closed])


def _is_recent(state: DateState, since: datetime) -> bool:
    return state.state == "reopened" or (state.closed and state.closed_at is not None and state.closed_at >= since)


def _put(table: TopicTable, dt: str) -> bool:
    """Put the mark unless it is there; whether it was put."""
    key = table.keys.success(dt)
    try:
        table.store.head(key)
    except NotFound:
        try:
            put_once(table.store, key, b"")
        except PreconditionFailed:
            return False
        return True
    return False
