"""The time that the agent states: the store's time, once it is known, instead of this host's.

Every time that others read uses it: when offsets were observed, a gap was found, an object was written. Times that are
compared with this host's files use this host's clock. The process has one such clock.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from tidemark import timestamps
from tidemark.store import Store, clock

NEVER: Final = datetime.fromtimestamp(0, UTC)
"""The time of an observation at an unknown time: it makes no date complete."""

_skew = timedelta()


def measure(store: Store, host_now: Callable[[], datetime] | None = None) -> timedelta:
    """Measure and return the time by which this host's clock is ahead of the store's; :func:`utc_now` then uses it.

    An inexact reading replaces the former reading only if the two contradict each other.

    Raises:
        StoreError: the store failed; the former reading still counts.
    """
    global _skew  # noqa: PLW0603 - a process has one clock
    reading = clock.read(store, host_now)
    if reading is not None and (reading.exact or abs(reading.skew - _skew) > clock.MOST):
        _skew = reading.skew
    return _skew


def skew() -> timedelta:
    """The time by which this host's clock was ahead of the store's at the last measurement."""
    return _skew


def utc_now() -> datetime:
    """The current time of the store's clock, aware, in UTC, to the millisecond."""
    return timestamps.utc_now() - _skew
