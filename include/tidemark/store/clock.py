"""The store's clock, used for all times that one host writes and another compares, as hosts' clocks differ.

An agent asks the store for the time and writes times by it (:mod:`uploader_agent.runtime`). Code that judges ages and
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
"""A smaller difference counts as none: stores state the time to the second, and an answer takes a while."""

_PROMPT: Final = timedelta(seconds=1)
"""An answer that takes no longer than this has a well-known time."""

_SECOND: Final = timedelta(seconds=1)


class ClockReading(NamedTuple):
    """The result of comparing the clocks: the lead of this host's, and the store's time.

    If a slow answer proves only that the clocks differ, ``skew`` is the least proved difference, and not ``exact``.
    """

    skew: timedelta
    now: datetime
    exact: bool = True


def read(store: Store, host_now: Callable[[], datetime] | None = None) -> ClockReading | None:
    """Compare this host's clock with the store's; None if the answer was too slow to prove anything.

    The store read its clock after it was asked and before it answered, so the skew lies between two bounds. Their
    distance is the time of the whole exchange, so slowness alone never looks like a skew.

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
    """A warning about this host's clock, or that it cannot be compared; empty if all is well.

    The store is asked once. A missing directory is not made.
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
    """``skew`` as messages show it."""
    direction = "ahead of" if skew > timedelta() else "behind"
    return f"{round(abs(skew).total_seconds())} s {direction} the store's clock"
