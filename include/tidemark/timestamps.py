"""Times in the form of stored objects and of their keys: UTC, to the millisecond."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """The time, aware, in UTC, to the millisecond."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def stamp(at: datetime) -> str:
    """A UTC time in the form of keys, to the millisecond: ``20261120T120000123Z``. Later times sort later."""
    return f"{at:%Y%m%dT%H%M%S}{at.microsecond // 1000:03d}Z"
