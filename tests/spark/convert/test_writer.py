"""The files of a task: how many are open at once, and what memory their rows hold."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.world import World, in_process
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.store import open_store
from tidemark_spark.convert.parquet_writer import MAX_OPEN, DateFiles
from tidemark_spark.run.driver import run

DAY = 86_400_000
DATES = 40
_FIELDS: list[pa.Field[Any]] = [pa.field("kafka_offset", pa.int64()), pa.field("kafka_value", pa.binary())]
SCHEMA = pa.schema(_FIELDS)


class Counted(pq.ParquetWriter):
    """A writer that knows how many others are open."""

    now, most = 0, 0

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        Counted.now += 1
        Counted.most = max(Counted.most, Counted.now)

    def close(self) -> None:
        Counted.now -= self.is_open
        super().close()


def interleaved(world: World, segments: int = 2) -> None:
    """In each segment 40 dates in turn, thrice, and many more rows of the first."""
    for number in range(segments):
        times = [T0 + (i % DATES) * DAY for i in range(3 * DATES)] + [T0] * 200
        world.raw.segment([batch(number * len(times), [Record(i, time, b"k%d" % i) for i, time in enumerate(times)])])


def test_a_task_of_forty_dates_has_eight_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark_spark.convert.parquet_writer.pq.ParquetWriter", Counted)
    made = []
    for name in ("one", "other"):
        world = World(tmp_path / name)
        interleaved(world)
        world.raw.publish()
        plan = world.plan(attempt=1)
        assert len(plan.tasks) == 1
        Counted.most = 0
        run(world.table, plan, in_process)
        assert (Counted.most, Counted.now) == (MAX_OPEN, 0)
        world.check()
        rows = world.rows()
        assert [row["kafka_offset"] for row in rows] == list(range(640))
        assert all(row["dt"] == f"{row['kafka_timestamp']:%Y-%m-%d}" for row in rows)
        landed = [row for row in world.evidence() if row["class"] == "landed"]
        made.append(
            {row["file"]: world.table.store.get(f"{world.table.keys.root}/{row['file']}").body for row in landed}
        )
    assert made[0] == made[1]
    assert DATES + MAX_OPEN < len(made[0]) <= 2 * DATES + 2


def files(root: Path, done: list[date | None]) -> DateFiles:
    """The writer of a task; ``done`` gets the dates of complete files."""
    return DateFiles(
        open_store(f"file://{root}"), SCHEMA, lambda dt, first, _: f"{dt}/{first}", lambda dt, *_: done.append(dt)
    )


def rows(first: int, count: int, size: int = 10) -> pa.RecordBatch:
    """Rows with offsets from ``first`` on."""
    values = [bytes(size)] * count
    return pa.RecordBatch.from_arrays([pa.array(range(first, first + count)), pa.array(values)], schema=SCHEMA)


def test_one_date_more_completes_the_largest_file(tmp_path: Path) -> None:
    done: list[date | None] = []
    days: list[date | None] = [None, *(datetime(2026, 1, 1, tzinfo=UTC).date() + timedelta(days=i) for i in range(9))]
    with files(tmp_path, done) as open_files:
        for number, dt in enumerate(days[:MAX_OPEN]):
            count = 50 if number == 3 else 5
            open_files.add(dt, rows(number * 50, count), number * 50, number * 50 + count - 1)
        assert done == []
        open_files.add(days[8], rows(450, 1), 450, 450)
        assert done == [days[3]]
        open_files.add(days[3], rows(500, 1), 500, 500)
        open_files.close()
    assert len(done) == 10
    bodies = [(tmp_path / f"{days[3]}/{first}").read_bytes() for first in (150, 500)]
    assert [pq.ParquetFile(io.BytesIO(body)).metadata.num_rows for body in bodies] == [50, 1]


def test_rows_that_wait_do_not_hold_the_batch_that_they_are_of(tmp_path: Path) -> None:
    pool = pa.default_memory_pool()
    with files(tmp_path, []) as open_files:
        before = pool.bytes_allocated()
        for number in range(20):
            whole = rows(number * 100, 100, 10_000)
            open_files.add(date(2026, 1, 1), whole.slice(0, 1), number * 100, number * 100)
            del whole
        held = pool.bytes_allocated() - before
        open_files.close()
    assert held < 2_000_000
