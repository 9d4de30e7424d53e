"""From a record's timestamp to its ``dt``: the date in the topic's time zone, or a reason why it has none."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.decode.columns import array
from tidemark.topics import SaneTimestamps

_DAY: Final = 86_400_000
_EPOCH: Final = date(1970, 1, 1)

Numbers = NDArray[np.int64]


class LocalDates:
    """Days since 1970 of instants, in a time zone. Right at every change of its offset from UTC."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone
        self._changes: dict[int, tuple[int, int, int]] = {}

    def days(self, milliseconds: Numbers) -> Numbers:
        """The local day of each instant, in milliseconds since 1970 UTC, between the years 1 and 9999."""
        utc_days, where = np.unique(milliseconds // _DAY, return_inverse=True)
        changes = np.array([self._change(day) for day in utc_days.tolist()], np.int64).reshape(-1, 3)[where]
        offset = np.where(milliseconds < changes[:, 1], changes[:, 0], changes[:, 2])
        days: Numbers = (milliseconds + offset) // _DAY
        return days

    def _change(self, utc_day: int) -> tuple[int, int, int]:
        """(offset at the start of a UTC day, the instant from which it is another, that one), in milliseconds."""
        if utc_day not in self._changes:
            low, high = utc_day * _DAY, (utc_day + 1) * _DAY
            before, after = self._offset(low), self._offset(high)
            while before != after and high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self._offset(middle) == before else (low, middle)
            self._changes[utc_day] = before, high, after
        return self._changes[utc_day]

    def _offset(self, milliseconds: int) -> int:
        instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
        offset = instant.astimezone(self._zone).utcoffset()
        return round((offset or timedelta()) / timedelta(milliseconds=1))


class Split(NamedTuple):
    """Rows by date, and the indices of those whose timestamp is not sane."""

    by_date: list[tuple[date, pa.RecordBatch]]
    insane: Numbers


class DateSplitter:
    """Sorts rows by ``dt``; ``sane`` bounds the record times, its upper bound counts from the segment's upload."""

    def __init__(self, zone: ZoneInfo, sane: SaneTimestamps) -> None:
        self._dates = LocalDates(zone)
        self._ahead = sane.ahead
        midnight = datetime(sane.earliest.year, sane.earliest.month, sane.earliest.day, tzinfo=zone)
        self._earliest = round(midnight.timestamp() * 1000)

    def bounds(self, uploaded_at: datetime) -> tuple[int, int]:
        """The first sane millisecond, and the first that is sane no more."""
        return self._earliest, round((uploaded_at + self._ahead).timestamp() * 1000) + 1

    def split(self, rows: pa.RecordBatch, uploaded_at: datetime) -> Split:
        """Split ``rows``, in their order, which have a column ``kafka_timestamp``."""
        milliseconds, valid = timestamps(rows)
        first, end = self.bounds(uploaded_at)
        sane = valid & (milliseconds >= first) & (milliseconds < end)
        if sane.all():
            return Split(list(self._by_date(rows, milliseconds)), np.empty(0, np.int64))
        kept = take(rows, np.flatnonzero(sane))
        return Split(list(self._by_date(kept, milliseconds[sane])), np.flatnonzero(~sane))

    def _by_date(self, rows: pa.RecordBatch, milliseconds: Numbers) -> Iterator[tuple[date, pa.RecordBatch]]:
        days = self._dates.days(milliseconds)
        for day in np.unique(days).tolist():
            yield _EPOCH + timedelta(days=day), take(rows, np.flatnonzero(days == day))


def timestamps(rows: pa.RecordBatch) -> tuple[Numbers, NDArray[np.bool_]]:
    """``kafka_timestamp`` in milliseconds since 1970, and which of them are given.

    The column has them in microseconds, and is null where those do not fit.
    """
    column = rows.column("kafka_timestamp")
    valid = np.ones(len(rows), np.bool_)
    if column.null_count:
        valid[:] = column.is_valid().to_pylist()
    return numbers(column) // 1000, valid


def numbers(column: pa.Array[Any]) -> Numbers:
    """The 64-bit numbers of a column, without a copy."""
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.empty(0, np.int64)
    return np.frombuffer(memoryview(data), np.int64, len(column), column.offset * 8)


def take(rows: pa.RecordBatch, indices: Numbers) -> pa.RecordBatch:
    """The rows at ascending ``indices``, without a copy where they are adjacent."""
    if len(indices) == 0:
        return rows.slice(0, 0)
    if indices[-1] - indices[0] + 1 == len(indices):
        return rows.slice(int(indices[0]), len(indices))
    return rows.take(array(pa.int64(), indices))
