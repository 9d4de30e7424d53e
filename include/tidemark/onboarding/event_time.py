"""Which columns may be a record's event time, ranked by their distance from the record's own time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidemark.parsers.base import event_time_of
from tidemark.parsers.settings import EventTime

_FARTHEST: Final = timedelta(days=30)
"""Half of the values must be as near to the time of their records; what is farther away is not when they happened."""

_LEAST_FILLED: Final = 0.5
_SURE_NEAR: Final = timedelta(days=1)
_SURE_FILLED: Final = 1.0
_UNITS: Final = ("s", "ms", "us", "ns")


class Candidate(NamedTuple):
    """A column that may be the event time. Distances are absolute; ``filled`` is the part of the rows that has one."""

    setting: EventTime
    filled: float
    median: timedelta
    farthest: timedelta

    @property
    def sure(self) -> bool:
        """Whether it is taken unless a person says otherwise: each row has one, and most are within a day."""
        return self.filled >= _SURE_FILLED and self.median <= _SURE_NEAR

    def answer(self) -> dict[str, Any]:
        """For programs; distances in seconds."""
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
    found = [one for wanted in _possible(columns.schema) if (one := _candidate(columns, wanted, own)) is not None]
    return sorted(found, key=lambda one: (round(1 - one.filled, 2), one.median, one.setting.field))


def _possible(schema: pa.Schema) -> Iterator[EventTime]:
    for path, kind in _fields(schema):
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            yield EventTime(field=path)
        elif pa.types.is_int64(kind) or pa.types.is_int32(kind):
            yield from (EventTime(field=path, unit=unit) for unit in _UNITS)


def _fields(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """The fields of columns and of structs in them, by their path. JSON's columns have no structs."""
    waiting: list[tuple[str, pa.DataType]] = [(one.name, one.type) for one in reversed(list(schema))]
    while waiting:
        path, kind = waiting.pop()
        yield path, kind
        if pa.types.is_struct(kind):
            inner: Any = kind
            waiting += [(f"{path}.{one.name}", one.type) for one in reversed(list(inner))]


def _candidate(columns: pa.RecordBatch, wanted: EventTime, own: pa.Array[Any]) -> Candidate | None:
    times = event_time_of(columns, wanted)
    if times is None or not len(times):
        return None
    known: list[int | None] = own.to_pylist()
    found: list[int | None] = times.to_pylist()
    pairs = [(there, at) for there, at in zip(found, known, strict=True) if there is not None and at is not None]
    dated = sum(at is not None for at in known)
    if not dated or len(pairs) < _LEAST_FILLED * dated:
        return None
    # As Python's numbers: a count taken for seconds is far outside of int64.
    distances = sorted(abs(there - at) for there, at in pairs)
    median = distances[len(distances) // 2]
    if median > _FARTHEST / _MICROSECOND:
        return None
    return Candidate(wanted, len(pairs) / dated, median * _MICROSECOND, _length(distances[-1]))


_MICROSECOND: Final = timedelta(microseconds=1)
_LONGEST: Final = int(timedelta(days=36_500) / _MICROSECOND)


def _length(microseconds: int) -> timedelta:
    return min(microseconds, _LONGEST) * _MICROSECOND


def insane(times: pa.Array[Any] | None, earliest: int, latest: int) -> int:
    """How many of ``times`` lie outside; all in microseconds since 1970."""
    if times is None:
        return 0
    found = np.array([one for one in times.to_pylist() if one is not None], dtype=object)
    return int(((found < earliest) | (found > latest)).sum()) if len(found) else 0


def setting_of(found: EventTime) -> Mapping[str, str]:
    """As the topics file has it."""
    return {"field": found.field, **({"unit": found.unit} if found.unit else {})}
