"""One clock for all: the store's. Hosts' clocks differ; what one host states and another judges goes by this one.

An agent asks the store for the time, and states times by it (:mod:`uploader_agent.clock`). Whoever judges ages and
finality asks the store as well, and takes no statement for later than the object that carries it: the store says when
it got that. See docs/storage.md.
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
"""People are told of a larger difference."""

LEAST: Final = timedelta(seconds=2)
"""A smaller difference is none: stores tell the time to the second, and an answer takes a while."""

_PROMPT: Final = timedelta(seconds=1)
"""An answer that takes longer says too little: when it was given is known to half of that."""

_HALF_SECOND: Final = timedelta(milliseconds=500)


class ClockReading(NamedTuple):
    """What comparing the clocks gave: how far this host's is ahead, and the store's time."""

    skew: timedelta
    now: datetime


def read(store: Store, host_now: Callable[[], datetime] | None = None) -> ClockReading | None:
    """Compare this host's clock with the store's; None if the answer took so long that it says nothing.

    Raises:
        StoreError: the store failed.
    """
    host_now = host_now or utc_now
    asked_at = host_now()
    theirs = store.now() + _HALF_SECOND  # it was cut to the second
    answered_at = host_now()
    if not timedelta() <= answered_at - asked_at <= _PROMPT:
        return None
    skew = asked_at + (answered_at - asked_at) / 2 - theirs
    return ClockReading(skew if abs(skew) >= LEAST else timedelta(), theirs)


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
    return f"this host's clock is {described(reading.skew)}: set it (NTP, chrony); what is stated goes by the store's"


def described(skew: timedelta) -> str:
    """A difference as people are told of it."""
    direction = "ahead of" if skew > timedelta() else "behind"
    return f"{round(abs(skew).total_seconds())} s {direction} the store's clock"
