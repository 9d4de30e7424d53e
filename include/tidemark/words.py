"""Numbers, times and foreign texts in the words of messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_UNITS: Final = ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min"))


def plural(count: int, noun: str) -> str:
    """``count`` with ``noun``, which takes an s.

    >>> plural(1, "partition"), plural(5348, "offset")
    ('1 partition', '5,348 offsets')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(length: timedelta | float) -> str:
    """A length of time, in seconds or as a timedelta, in the largest unit that it has two of.

    >>> duration(20 / 3), duration(20), duration(150), duration(timedelta(hours=36)), duration(timedelta(days=31))
    ('6.7 s', '20 s', '2.5 min', '36 h', '31 days')
    """
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    size, unit = next((pair for pair in _UNITS if seconds >= 2 * pair[0]), (1.0, "s"))
    return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"


def printable(text: str) -> str:
    r"""``text`` in one line, with escapes for characters that a terminal would not print.

    >>> print(printable("a\tb"))
    a\tb
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def start_of(value: bytes | None, most: int) -> str:
    """The first ``most`` characters of a record's bytes as a :func:`printable` text; ``…`` stands for more.

    >>> start_of(b"seven", 3), start_of(None, 3)
    ('sev…', 'null')
    """
    if value is None:
        return "null"
    text = value[: 4 * most].decode("utf-8", "backslashreplace")
    return printable(text[:most]) + ("…" if len(value) > 4 * most or len(text) > most else "")


def utc_time(milliseconds: int) -> str:
    """A time in milliseconds since 1970 as people read it; the number itself outside of the years 1 to 9999.

    >>> utc_time(1_795_860_732_120), utc_time(1 << 62)
    ('2026-11-28 10:12:12.120 UTC', '4611686018427387904 ms')
    """
    try:
        at = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
    return f"{at:%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03d} UTC"
