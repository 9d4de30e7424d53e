"""The stream of several files' rows: in order whatever overlaps, and as little of it in memory as one batch each."""

from __future__ import annotations

import gc
import io
import random
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.run.racer import make_rows
from tidemark.decode import SCHEMA
from tidemark.errors import ContinuityError, FormatError
from tidemark.formats.table.plan import StoredRange
from tidemark.store import Store, open_store
from tidemark_spark.convert.rewriting.merge import Input, merged


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return open_store(f"file://{tmp_path}")


def stored(store: Store, offsets: list[int], value: bytes | None = None, schema: pa.Schema = SCHEMA) -> Input:
    """A file with rows at ``offsets``, in row groups of seven."""
    rows = make_rows(0, offsets)
    if value is not None:
        at = SCHEMA.get_field_index("kafka_value")
        rows = rows.set_column(at, SCHEMA.field(at), pa.array([value] * len(rows), pa.binary()))
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_batches([rows]), sink, row_group_size=7)
    key = f"{offsets[0]}-{offsets[-1]}"
    store.put(key, sink.getvalue())
    part = StoredRange(
        store=store.url,
        key=key,
        etag="",
        base_offset=offsets[0],
        start=0,
        end=len(sink.getvalue()),
        from_offset=offsets[0],
        to_offset=offsets[-1] + 1,
        uploaded_at=datetime(2026, 2, 2, tzinfo=UTC),
    )
    return Input(store, part, schema)


def offsets_of(inputs: list[Input]) -> list[int]:
    """The offsets in the order of the stream."""
    return [row["kafka_offset"] for rows in merged(inputs) for row in rows.to_pylist()]


def test_rows_of_any_files_come_by_offset(store: Store, rng: random.Random) -> None:
    for _ in range(20):
        hands: list[list[int]] = [[] for _ in range(rng.randint(1, 6))]
        for offset in range(rng.randint(1, 120)):
            near = rng.choice([-1, 0, 0, 0, 1]) + offset // 25
            hands[near % len(hands)].append(offset)
        found = [one for one in hands if one]
        inputs = [stored(store, one) for one in rng.sample(found, len(found))]
        assert offsets_of(inputs) == sorted(offset for one in found for offset in one)


def test_two_rows_of_one_offset_are_refused(store: Store) -> None:
    with pytest.raises(ContinuityError, match=r"1-9, 5-12: record offsets from 1 on do not ascend"):
        offsets_of([stored(store, [1, 5, 9]), stored(store, [5, 12])])
    with pytest.raises(ContinuityError, match="do not ascend"):
        offsets_of([stored(store, [1, 9, 5, 12])])


def test_a_column_that_the_table_has_not_is_refused(store: Store) -> None:
    fewer = pa.schema([one for one in SCHEMA if one.name != "kafka_key"])
    with pytest.raises(FormatError, match="columns that the table has not: kafka_key"):
        offsets_of([stored(store, [1], schema=fewer)])


def test_a_file_is_read_when_its_turn_comes_and_leaves_nothing(store: Store) -> None:
    value = random.Random(1).randbytes(1 << 16)
    inputs = [stored(store, list(range(at, at + 21)), value) for at in range(0, 210, 21)]
    gc.collect()
    before = pa.total_allocated_bytes()
    most = 0
    for rows in merged(inputs):
        assert len(rows) <= 7
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 4 * 7 * len(value) < 10 * 21 * len(value) // 7
    del rows
    assert pa.total_allocated_bytes() - before < len(value)
