from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa

from tidemark.decode.schema import TIMESTAMP_TYPE
from tidemark.onboarding.onboard import event_time_candidates
from tidemark.parsers.settings import EventTime

NOW = 1_795_000_000_000_000


def ranked(columns: dict[str, Any], count: int = 4) -> list[tuple[str, str | None]]:
    own: pa.Array[Any] = pa.array([NOW + second * 1_000_000 for second in range(count)], pa.int64()).cast(
        TIMESTAMP_TYPE
    )
    found = event_time_candidates(pa.RecordBatch.from_pydict(columns), own)
    return [(one.setting.field, one.setting.unit) for one in found]


def instants(*offsets: int | None) -> Any:
    values = [None if one is None else NOW + one for one in offsets]
    return pa.array(values, pa.int64()).cast(TIMESTAMP_TYPE)


def test_the_nearest_comes_first() -> None:
    columns = {
        "created": instants(-(10**10), -(10**10), -(10**10), -(10**10)),
        "sent": instants(0, 10**6, 2 * 10**6, 3 * 10**6),
        "born": instants(-(10**16), 0, -(10**16), -(10**16)),
    }
    assert ranked(columns) == [("sent", None), ("created", None)]


def test_whole_numbers_are_tried_in_each_unit() -> None:
    columns = {"ms": pa.array([NOW // 1000] * 4), "s": pa.array([NOW // 10**6] * 4), "id": pa.array([7, 8, 9, 1 << 62])}
    assert sorted(ranked(columns)) == [("ms", "ms"), ("s", "s")]


def test_a_column_that_is_mostly_null_is_none_and_one_with_nulls_is_not_sure() -> None:
    assert ranked({"a": instants(0, None, None, None)}) == []
    own = instants(0, 0, 0, 0)
    [found] = event_time_candidates(pa.RecordBatch.from_pydict({"a": instants(0, 0, 0, None)}), own)
    assert (found.filled, found.sure, found.median) == (0.75, False, timedelta())


def test_fields_of_structs_are_candidates() -> None:
    inner = pa.StructArray.from_arrays([instants(0, 0, 0, 0)], ["at"])
    [found] = event_time_candidates(pa.RecordBatch.from_pydict({"meta": inner}), instants(0, 0, 0, 0))
    assert (found.setting, found.sure) == (EventTime(field="meta.at"), True)
