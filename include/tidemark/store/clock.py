"""The store's clock, which all hosts use for times that one host writes and another compares, as hosts' clocks differ.

An agent asks the store for the time and writes times by it (:mod:`uploader_agent.clock`). Code that judges ages and
finality asks the store as well. It never takes a written time as later than the time at which the store got the object
that contains it. See docs/storage.md.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.errors import StoreError
from tidemark.store import Store, StoreOptions, open_store
from tidemark.store.retrying import RepeatingStore
from tidemark.timestamps import utc_now

MOST: Final = timedelta(minutes=1)
"""A larger difference is reported."""

LEAST: Final = timedelta(seconds=2)
"""A smaller difference is none: stores tell the time to the second, and an answer takes a while."""

_PROMPT: Final = timedelta(seconds=1)
"""When an answer that takes no longer was given is known well enough."""

_SECOND: Final = timedelta(seconds=1)


class ClockReading(NamedTuple):
    """What comparing the clocks gave: how far this host's is ahead, and the store's time.

    Where a slow answer proves only that the clocks differ, ``skew`` is the least that it proves, and not ``exact``.
    """

    skew: timedelta
    now: datetime
    exact: bool = True


def read(store: Store, host_now: Callable[[], datetime] | None = None) -> ClockReading | None:
    """Compare this host's clock with the store's; None if the answer took so long that it says nothing.

    The store told the time after it was asked and before it answered, so the skew lies between two bounds. They are as
    far apart as the answer took, however late the request or the answer was: slowness alone never looks like a skew.

    Raises:
        StoreError: the store failed.
    """
    host_now = host_now or utc_now
    asked_at = host_now()
    theirs = store.now()
    answered_at = host_now()
    least, most = asked_at - (theirs + _SECOND), answered_at - theirs  # the time was cut to the second
    now = theirs + _SECOND / 2
    if timedelta() <= answered_at - asked_at <= _PROMPT:
        skew = (least + most) / 2
        return ClockReading(skew if abs(skew) >= LEAST else timedelta(), now)
    if least > MOST:
        return ClockReading(least, now, exact=False)
    return ClockReading(most, now, exact=False) if most < -MOST else None


def problem(url: str, options: StoreOptions) -> str:
    """What a person should know of this host's clock, and whether it can be compared; empty if all is well.

    The store is asked once. A directory that is not there yet is not made.
    """
    if url.startswith("file://") and not Path(url.removeprefix("file://")).is_dir():
        return ""
    try:
        store = open_store(url, options)
        reading = read(store.inner if isinstance(store, RepeatingStore) else store)
    except (StoreError, OSError) as error:
        return f"this host's clock cannot be compared with the store's: {error}"
    if reading is None or abs(reading.skew) <= MOST:
        return ""
    return (
        f"this host's clock is {described(reading.skew)}: set it (NTP, chrony); times are stated by the store's clock"
    )


def described(skew: timedelta) -> str:
    """A difference as messages show it."""
    direction = "ahead of" if skew > timedelta() else "behind"
    return f"{round(abs(skew).total_seconds())} s {direction} the store's clock"
