"""Columns that may be a record's event time, ranked by their distance from the record's own time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidemark.parsers.base import event_time_of
from tidemark.parsers.settings import EventTime

_FARTHEST: Final = timedelta(days=30)
"""The most distance of the median from the time of its record; values farther away are not the time of an event."""

_LEAST_FILLED: Final = 0.5
_SURE_NEAR: Final = timedelta(days=1)
_SURE_FILLED: Final = 1.0
_UNITS: Final = ("s", "ms", "us", "ns")


class Candidate(NamedTuple):
    """A column that may be the event time. Distances are absolute; ``filled`` is the part of the rows with a value."""

    setting: EventTime
    filled: float
    median: timedelta
    farthest: timedelta

    @property
    def sure(self) -> bool:
        """True if it is taken unless a person chooses another: each row has a value, and most are within a day."""
        return self.filled >= _SURE_FILLED and self.median <= _SURE_NEAR

    def answer(self) -> dict[str, Any]:
        """The column for programs; distances in seconds."""
        return {
            "field": self.setting.field,
            "unit": self.setting.unit,
            "filled": self.filled,
            "median_distance": self.median.total_seconds(),
            "farthest_distance": self.farthest.total_seconds(),
        }


def candidates(columns: pa.RecordBatch, timestamps: pa.Array[Any]) -> list[Candidate]:
    """The columns that may be an event time, the most likely first.

    ``timestamps`` are the records' own, of ``kafka_timestamp``'s type. A row without a value or a time is left out.
    """
    own = timestamps.cast(pa.int64())
    likely = [
        column for wanted in _possible(columns.schema) if (column := _candidate(columns, wanted, own)) is not None
    ]
    return sorted(likely, key=lambda column: (round(1 - column.filled, 2), column.median, column.setting.field))


def _possible(schema: pa.Schema) -> Iterator[EventTime]:
    for path, kind in _fields(schema):
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            yield EventTime(field=path)
        elif pa.types.is_int64(kind) or pa.types.is_int32(kind):
            yield from (EventTime(field=path, unit=unit) for unit in _UNITS)


def _fields(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """The fields of columns and of structs in them, by their path. JSON's columns have no structs."""
    waiting: list[tuple[str, pa.DataType]] = [(field.name, field.type) for field in reversed(list(schema))]
    while waiting:
        path, kind = waiting.pop()
        yield path, kind
        if pa.types.is_struct(kind):
            inner: Any = kind
            waiting += [(f"{path}.{field.name}", field.type) for field in reversed(list(inner))]


def _candidate(columns: pa.RecordBatch, wanted: EventTime, own: pa.Array[Any]) -> Candidate | None:
    times = event_time_of(columns, wanted)
    if times is None or not len(times):
        return None
    known: list[int | None] = own.to_pylist()
    in_column: list[int | None] = times.to_pylist()
    pairs = [(event, at) for event, at in zip(in_column, known, strict=True) if event is not None and at is not None]
    dated = sum(at is not None for at in known)
    if not dated or len(pairs) < _LEAST_FILLED * dated:
        return None
    # As Python's numbers: a count taken for seconds is far outside of int64.
    distances = sorted(abs(event - at) for event, at in pairs)
    median = distances[len(distances) // 2]
    if median > _FARTHEST / _MICROSECOND:
        return None
    return Candidate(wanted, len(pairs) / dated, median * _MICROSECOND, min(distances[-1], _LONGEST) * _MICROSECOND)


_MICROSECOND: Final = timedelta(microseconds=1)
_LONGEST: Final = int(timedelta(days=36_500) / _MICROSECOND)


def insane(times: pa.Array[Any] | None, earliest: int, latest: int) -> int:
    """The number of ``times`` outside of the bounds; all in microseconds since 1970."""
    if times is None:
        return 0
    given = np.array([time for time in times.to_pylist() if time is not None], dtype=object)
    return int(((given < earliest) | (given > latest)).sum()) if len(given) else 0


def setting_of(event_time: EventTime) -> Mapping[str, str]:
    """The setting of an event time, as the topics file has it."""
    return {"field": event_time.field, **({"unit": event_time.unit} if event_time.unit else {})}
