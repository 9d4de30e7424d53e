"""``dt=.../_SUCCESS``: an empty object under each closed date, for readers who wait for a file.

The marker is a hint; the ledger decides. A run removes the markers of dates before each try of a commit that changes
their files; the files that tasks have written do not count yet at that point. It puts a marker after the commit that
closes the date. A run that dies in between leaves a closed date without a marker, or a reopened date with a marker that
another run put in the meantime. The runs of the next days correct that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

from tidemark.concurrency import in_parallel
from tidemark.errors import NotFound, PreconditionFailed
from tidemark.formats.table.ledger import DateState, Ledger
from tidemark.store import put_once
from tidemark.table.delta_table import TopicTable, committed_ledger
from tidemark.timestamps import utc_now

_RECENT: Final = timedelta(days=2)
"""A run corrects the markers of dates closed within this time. A scheduler's retries of an attempt end sooner."""


def take_away(table: TopicTable, dates: Collection[str]) -> None:
    """Remove the markers of ``dates``."""
    in_parallel(lambda dt: table.store.delete(table.keys.success(dt)), sorted(dates))


def update_markers(table: TopicTable, ledger: Ledger, dates: Iterable[str]) -> None:
    """Make the markers of ``dates``, and of recently closed dates, agree with the table's ledger.

    ``ledger`` may be outdated: a marker is removed again if its date has been reopened in the meantime.
    """
    since = utc_now() - _RECENT
    wanted = set(dates)
    states = {dt: state for dt, state in ledger.dates.items() if dt in wanted or _is_recent(state, since)}
    take_away(table, [dt for dt, state in states.items() if state.state in {"reopened", "expired"}])
    put = [dt for dt, state in states.items() if state.closed]
    if any(in_parallel(lambda dt: _put(table, dt), put)):
        now = committed_ledger(table).dates
        take_away(table, [dt for dt in put if not now[dt].closed])


def _is_recent(state: DateState, since: datetime) -> bool:
    return state.state == "reopened" or (state.closed and state.closed_at is not None and state.closed_at >= since)


def _put(table: TopicTable, dt: str) -> bool:
    """Put the marker unless it exists; True if it was put."""
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
