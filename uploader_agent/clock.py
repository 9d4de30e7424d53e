"""The time that the agent states: the store's time, once it is known, and not this host's.

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
"""When something was observed of which nobody knows when: no date is taken for complete by it."""

_skew = timedelta()


def measure(store: Store, host_now: Callable[[], datetime] | None = None) -> timedelta:
    """Compare this host's clock with the store's, and return how far it is ahead; :func:`utc_now` uses it from now on.

    A reading that is not exact replaces only one that it contradicts.

    Raises:
        StoreError: the store failed; what was known before still counts.
    """
    global _skew  # noqa: PLW0603 - a process has one clock
    reading = clock.read(store, host_now)
    if reading is not None and (reading.exact or abs(reading.skew - _skew) > clock.MOST):
        _skew = reading.skew
    return _skew


def skew() -> timedelta:
    """How far this host's clock was ahead of the store's when it was last measured."""
    return _skew


def utc_now() -> datetime:
    """The time by the store's clock, aware, in UTC, to the millisecond."""
    return timestamps.utc_now() - _skew
