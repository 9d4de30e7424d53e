"""Finds a record's ``dt`` from its time: the date in the topic's time zone, or the reason for having none.

Rows of a date are then sorted by the other columns of ``partition_by``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.decode import exact_milliseconds
from tidemark.decode.schema import copied
from tidemark.formats.table.partitioning import DateFolder
from tidemark.parsers.base import Parsed
from tidemark.topics import SaneTimestamps
from tidemark_spark.convert.partition_columns import RowPartitions, hour_column, hours_of

_DAY: Final = 86_400_000
_EPOCH: Final = date(1970, 1, 1)
_NO_TIME: Final = "the record has no timestamp"
_YEAR_1: Final = -62_135_596_800_000
_YEAR_10000: Final = 253_402_300_800_000

Numbers = NDArray[np.int64]


class LocalDates:
    """Local times of instants in a time zone, correct at every change of its offset from UTC."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone
        self._changes: dict[int, tuple[int, int, int]] = {}

    def times(self, milliseconds: Numbers) -> Numbers:
        """Local time of each instant, both in milliseconds since 1970, between the years 1 and 9999."""
        utc_days, where = np.unique(milliseconds // _DAY, return_inverse=True)
        changes = np.array([self._change(day) for day in utc_days.tolist()], np.int64).reshape(-1, 3)[where]
        offset = np.where(milliseconds < changes[:, 1], changes[:, 0], changes[:, 2])
        local: Numbers = milliseconds + offset
        return local

    def _change(self, utc_day: int) -> tuple[int, int, int]:
        """(offset at the start of a UTC day, instant of its change, new offset), in milliseconds."""
        if utc_day not in self._changes:
            low, high = utc_day * _DAY, (utc_day + 1) * _DAY
            before, after = self._offset(low), self._offset(high)
            while before != after and high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self._offset(middle) == before else (low, middle)
            self._changes[utc_day] = before, high, after
        return self._changes[utc_day]

    def _offset(self, milliseconds: int) -> int:
        known = min(max(milliseconds, _YEAR_1 + _DAY), _YEAR_10000 - _DAY)  # both have a local time in each zone
        instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=known)
        offset = instant.astimezone(self._zone).utcoffset()
        return round((offset or timedelta()) / timedelta(milliseconds=1))


class Split(NamedTuple):
    """Indices of rows by class and folder.

    The folder of landed rows follows ``partition_by``; the folder of other rows is the row's own date. That is the date
    of its timestamp, or None if the timestamp is not sane, and does not depend on the parser. ``reasons`` has the
    reasons of refused rows, by index. ``hours`` is the column ``hour`` of landed rows, if the table has it.
    """

    landed: list[tuple[DateFolder, Numbers]]
    refused: list[tuple[DateFolder, Numbers]]
    filtered: list[tuple[DateFolder, Numbers]]
    reasons: Mapping[int, str]
    hours: pa.Array[Any] | None = None


class RowSplitter:
    """Sorts rows by ``dt``, and then by ``partitions`` if there are any.

    ``sane`` bounds the times; its upper bound counts from the segment's upload.
    """

    def __init__(self, zone: ZoneInfo, sane: SaneTimestamps, partitions: RowPartitions | None = None) -> None:
        self._dates = LocalDates(zone)
        self._partitions = partitions
        self._ahead = sane.ahead
        midnight = datetime(sane.earliest.year, sane.earliest.month, sane.earliest.day, tzinfo=zone)
        self._earliest = max(round(midnight.timestamp() * 1000), _YEAR_1)

    def split(self, rows: pa.RecordBatch, parsed: Parsed, uploaded_at: datetime) -> Split:
        """Split ``rows``, which have a column ``kafka_timestamp``; ``parsed`` is the parser's result for them."""
        own = _Times(*timestamps(rows), *self._bounds(uploaded_at))
        times = own if parsed.event_time is None else _with_events(own, parsed.event_time)
        refused = np.zeros(len(rows), np.bool_)
        refused[list(parsed.refused)] = True
        filtered = np.zeros(len(rows), np.bool_) if parsed.filtered is None else parsed.filtered & ~refused
        insane = ~times.sane & ~refused & ~filtered
        landed = ~(refused | filtered | insane)
        reasons = dict(parsed.refused)
        if insane.any():
            exact = exact_milliseconds(rows)
            for row in np.flatnonzero(insane).tolist():
                reasons[row] = _reason(row, exact, times)
        chosen = np.flatnonzero(landed)
        local = self._dates.times(times.milliseconds[chosen])
        by_date = list(_by_date(local, chosen))
        aside = self._by_own_date(own, refused | insane), self._by_own_date(own, filtered), reasons
        if self._partitions is None:
            return Split(by_date, *aside)
        hours = np.zeros(len(rows), np.int64)
        hours[chosen] = hours_of(local)
        by_folder = self._partitions.sorted(by_date, hours, parsed.columns)
        return Split(by_folder, *aside, hours=hour_column(hours) if self._partitions.has_hour else None)

    def _bounds(self, uploaded_at: datetime) -> tuple[int, int]:
        """The first sane millisecond, and the first millisecond after the sane ones."""
        return self._earliest, round((uploaded_at + self._ahead).timestamp() * 1000) + 1

    def _by_own_date(self, own: _Times, chosen: NDArray[np.bool_]) -> list[tuple[DateFolder, Numbers]]:
        if not chosen.any():
            return []
        dated = np.flatnonzero(chosen & own.sane)
        folders = list(_by_date(self._dates.times(own.milliseconds[dated]), dated))
        undated = np.flatnonzero(chosen & ~own.sane)
        return [*folders, (DateFolder(None), undated)] if len(undated) else folders


def _by_date(local: Numbers, indices: Numbers) -> Iterator[tuple[DateFolder, Numbers]]:
    """``indices`` grouped by the date of their local times."""
    days = local // _DAY
    for day in np.unique(days).tolist():
        yield DateFolder(_EPOCH + timedelta(days=day)), indices[days == day]


class _Times:
    """Times of rows in milliseconds since 1970, with masks of given times, event times and sane times."""

    def __init__(self, milliseconds: Numbers, given: NDArray[np.bool_], first: int, end: int) -> None:
        self.milliseconds, self.given, self.first, self.end = milliseconds, given, first, end
        self.event = np.zeros(len(given), np.bool_)
        self.sane: NDArray[np.bool_] = given & (milliseconds >= first) & (milliseconds < end)


def _with_events(own: _Times, event_time: pa.Array[Any]) -> _Times:
    """The event times, or the records' own times where there is no event time.

    A record's own time must then only be one that readers of the table can show.
    """
    has: NDArray[np.bool_] = event_time.is_valid().to_numpy(zero_copy_only=False)
    milliseconds = np.where(has, numbers(event_time) // 1000, own.milliseconds)
    times = _Times(milliseconds, has | own.given, own.first, own.end)
    times.event = has
    shown = own.given & (own.milliseconds >= _YEAR_1) & (own.milliseconds < _YEAR_10000)
    times.sane &= np.where(has, shown, own.sane)
    return times


def _reason(row: int, exact: Numbers, times: _Times) -> str:
    """The reason why the row's time is not sane; ``exact`` are the records' own times."""
    name, value = ("event time", times.milliseconds[row]) if times.event[row] else ("timestamp", exact[row])
    if value < times.first:
        return f"its {name} is before the earliest" if name != "timestamp" or value != -1 else _NO_TIME
    if value >= times.end:
        return f"its {name} is too far after the upload of its segment"
    return "its timestamp is outside the years 1 to 9999, which an event time does not correct"


def timestamps(rows: pa.RecordBatch) -> tuple[Numbers, NDArray[np.bool_]]:
    """``kafka_timestamp`` in milliseconds since 1970, and a mask of the given ones.

    The column has microseconds, and is null where these do not fit.
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
    return copied(rows, indices)
