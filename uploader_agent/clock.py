"""The time that the agent states: the store's, as far as it is known, whatever this host's clock says.

All that others judge goes by it: when offsets were observed, a gap was found, an object was written. What is compared
with this host's files goes by this host's clock. There is one for the process.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from tidemark import timestamps
from tidemark.store import Store, clock

_skew = timedelta()


def measure(store: Store, host_now: Callable[[], datetime] | None = None) -> timedelta:
    """Compare this host's clock with the store's, by which :func:`utc_now` goes from now on; how far it is ahead.

    Raises:
        StoreError: the store failed; what was known before still counts.
    """
    global _skew  # noqa: PLW0603 - a process has one clock
    reading = clock.read(store, host_now)
    if reading is not None:
        _skew = reading.skew
    return _skew


def skew() -> timedelta:
    """How far this host's clock was ahead of the store's when it was last measured."""
    return _skew


def utc_now() -> datetime:
    """The time by the store's clock, aware, in UTC, to the millisecond."""
    return timestamps.utc_now() - _skew
