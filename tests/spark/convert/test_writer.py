"""The files of a task: how many are open at once, and what memory their rows hold."""

from __future__ import annotations

import random
import tempfile
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from tests.spark.world import World, in_process
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.errors import ConfigError
from tidemark.formats.table.parquet_layout import ParquetLayout
from tidemark.formats.table.partitioning import DateFolder
from tidemark.store import open_store
from tidemark.table.topic_columns import table_schema
from tidemark.topics import TopicSettings
from tidemark_spark.convert import parquet_writer, spill
from tidemark_spark.convert.parquet_writer import MAX_OPEN, FolderFiles
from tidemark_spark.convert.row_order import by_offset
from tidemark_spark.run.driver import run

DAY = 86_400_000
DATES = 40
DATE = date(2026, 1, 1)
_FIELDS: list[pa.Field[Any]] = [pa.field("kafka_offset", pa.int64()), pa.field("kafka_value", pa.binary())]
SCHEMA = pa.schema(_FIELDS)


class Counted:
    """Temporary files, and how many of them were open at once."""

    def __init__(self) -> None:
        self.files: list[IO[bytes]] = []
        self.most = 0

    @property
    def now(self) -> int:
        return sum(not one.closed for one in self.files)

    def open(self, **options: Any) -> IO[bytes]:
        self.files.append(tempfile.TemporaryFile(**options))  # noqa: SIM115 - the writer closes it
        self.most = max(self.most, self.now)
        return self.files[-1]


def interleaved(world: World, segments: int = 2) -> None:
    """In each segment 40 dates in turn, thrice, and many more rows of the first."""
    for number in range(segments):
        times = [T0 + (i % DATES) * DAY for i in range(3 * DATES)] + [T0] * 200
        world.raw.segment([batch(number * len(times), [Record(i, time, b"k%d" % i) for i, time in enumerate(times)])])


def test_a_task_of_forty_dates_has_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for name in ("one", "other"):
        world = World(tmp_path / name)
        interleaved(world)
        world.raw.publish()
        plan = world.plan(attempt=1)
        assert len(plan.tasks) == 1
        counted = Counted()
        for module in (parquet_writer, spill):
            monkeypatch.setattr(module, "tempfile", SimpleNamespace(TemporaryFile=counted.open))
        run(world.table, plan, in_process)
        assert (counted.most, counted.now) == (MAX_OPEN, 0)
        world.check()
        rows = world.rows()
        assert [row["kafka_offset"] for row in rows] == list(range(640))
        assert all(row["dt"] == f"{row['kafka_timestamp']:%Y-%m-%d}" for row in rows)
        landed = [row for row in world.evidence() if row["class"] == "landed"]
        made.append(
            {row["file"]: world.table.store.get(f"{world.table.keys.root}/{row['file']}").body for row in landed}
        )
    assert made[0] == made[1]
    assert len(made[0]) == DATES


def files(root: Path, done: list[date | None], **layout: Any) -> FolderFiles:
    """The writer of a task; ``done`` gets the dates of complete files."""
    store = open_store(f"file://{root}")
    settings = ParquetLayout.model_validate(layout)
    return FolderFiles(
        store, SCHEMA, lambda folder, first, _: f"{folder.dt}/{first}", lambda one, *_: done.append(one.dt), settings
    )


def rows(first: int, count: int, size: int = 10) -> pa.RecordBatch:
    """Rows with offsets from ``first`` on."""
    values = [bytes(size)] * count
    return pa.RecordBatch.from_arrays([pa.array(range(first, first + count)), pa.array(values)], schema=SCHEMA)


def test_rows_of_more_folders_than_files_are_spilled_and_written_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    """Each folder gets one file with full row groups, whatever order its rows come in, and memory stays bounded."""
    pool, counted, most = pa.default_memory_pool(), Counted(), 0
    for module in (parquet_writer, spill):
        monkeypatch.setattr(module, "tempfile", SimpleNamespace(TemporaryFile=counted.open))
    monkeypatch.setattr(parquet_writer, "BUFFER_BYTES", 2 << 20)
    done: list[date | None] = []
    folders = [DateFolder(DATE + timedelta(days=day)) for day in range(20)]
    wanted: dict[DateFolder, list[int]] = {}
    before = pool.bytes_allocated()
    with files(tmp_path, done, row_group=1 << 20) as open_files:
        for number in range(800):
            folder = folders[rng.randrange(min(len(folders), 1 + number // 8))]
            open_files.add(folder, rows(number * 100, 100, 400), number * 100, number * 100 + 99)
            wanted.setdefault(folder, []).extend(range(number * 100, number * 100 + 100))
            most = max(most, pool.bytes_allocated() - before)
        open_files.close()
    assert (counted.most, counted.now) == (MAX_OPEN + 1, 0)
    opened = list(wanted)[:MAX_OPEN]  # the first to get rows; the others are spilled
    later = [one for one in wanted if one not in opened]
    assert done == [day for part in (opened, later) for day in sorted(one.dt for one in part if one.dt)]
    assert most < 12 << 20  # of 32 MB; each open file takes 0.7 MB beside its rows
    for folder, offsets in wanted.items():
        file = pq.ParquetFile(tmp_path / f"{folder.dt}/{offsets[0]}")
        assert file.read().column("kafka_offset").to_pylist() == offsets
        groups = [file.metadata.row_group(one).num_rows for one in range(file.num_row_groups)]
        if folder not in opened:
            assert len(groups) <= 1 + len(offsets) * 400 // (1 << 20)


def test_rows_that_wait_do_not_hold_the_batch_that_they_are_of(tmp_path: Path) -> None:
    pool = pa.default_memory_pool()
    with files(tmp_path, []) as open_files:
        before = pool.bytes_allocated()
        for number in range(20):
            whole = rows(number * 100, 100, 10_000)
            open_files.add(DateFolder(date(2026, 1, 1)), whole.slice(0, 1), number * 100, number * 100)
            del whole
        held = pool.bytes_allocated() - before
        open_files.close()
    assert held < 2_000_000


def written(root: Path, **layout: Any) -> pq.ParquetFile:
    """A file of 3,000 rows of 1 KB, the values in no order."""
    with files(root, [], **layout) as open_files:
        for first in range(0, 3000, 500):
            offsets = range(first, first + 500)
            values = [b"%04d" % (offset * 7919 % 3000) + bytes(1000) for offset in offsets]
            records = pa.RecordBatch.from_arrays([pa.array(offsets), pa.array(values)], schema=SCHEMA)
            open_files.add(DateFolder(DATE), records, first, first + 499)
        open_files.close()
    return pq.ParquetFile(root / f"{DATE}/0")


@pytest.mark.parametrize(
    ("compression", "found"), [("zstd", "ZSTD"), ("lz4", "LZ4"), ("snappy", "SNAPPY"), ("none", "UNCOMPRESSED")]
)
def test_a_file_is_compressed_as_the_topic_says(tmp_path: Path, compression: str, found: str) -> None:
    file = written(tmp_path, compression=compression)
    assert file.metadata.row_group(0).column(1).compression == found
    assert file.read().num_rows == 3000


def test_row_groups_are_as_large_as_the_topic_says(tmp_path: Path) -> None:
    assert written(tmp_path / "a").num_row_groups == 1
    assert written(tmp_path / "b", row_group=1 << 20).num_row_groups == 2


def test_a_page_index_is_written(tmp_path: Path) -> None:
    column = written(tmp_path).metadata.row_group(0).column(0)
    assert column.has_offset_index
    assert column.has_column_index


def test_statistics_are_written_of_the_columns_that_the_topic_names(tmp_path: Path) -> None:
    assert not written(tmp_path / "a").metadata.row_group(0).column(1).is_stats_set
    assert written(tmp_path / "b", statistics=["kafka_value"]).metadata.row_group(0).column(1).is_stats_set


def test_a_bloom_filter_is_as_large_as_the_rows_need(tmp_path: Path) -> None:
    plain, filtered = written(tmp_path / "a"), written(tmp_path / "b", bloom=["kafka_offset"])
    sizes = [(tmp_path / name / f"{DATE}/0").stat().st_size for name in ("a", "b")]
    assert plain.read() == filtered.read()
    assert 3000 < sizes[1] - sizes[0] < 10_000, "10 bits a row, to a power of two; not those of a million rows"


def test_a_binary_column_with_a_bloom_filter_has_no_statistics(tmp_path: Path) -> None:
    """DuckDB 1.5.5 finds no row by such a column where there are both."""
    value = "kafka_value"
    column = written(tmp_path, bloom=[value], statistics=[value]).metadata.row_group(0).column(1)
    assert not column.is_stats_set
    path, wanted = tmp_path / f"{DATE}/0", b"0000" + bytes(1000)
    query = f"SELECT count(*) FROM read_parquet('{path}') WHERE kafka_value = ?"  # noqa: S608 - our own path
    assert duckdb.connect().execute(query, [wanted]).fetchall() == [(1,)]


@pytest.mark.parametrize(("kind", "rule"), [("boolean", "for two values"), ("float", "-0.0"), ("double", "-0.0")])
def test_a_bloom_filter_that_loses_rows_or_cannot_be_is_refused(kind: str, rule: str) -> None:
    column = {"name": "x", "type": kind}
    fields = {"topic": "orders", "cluster": "east", "table": "orders", "parquet": {"bloom": ["x"]}}
    with pytest.raises(ValidationError, match=rf"parquet.bloom: x is a {kind}: .*{rule}"):
        TopicSettings.model_validate({**fields, "parser": {"kind": "json", "columns": [column]}})
    of_a_registry: Any = SimpleNamespace(columns=[pa.field("x", "bool" if kind == "boolean" else kind)])
    with pytest.raises(ConfigError, match=rf"parquet.bloom: x is a .*{rule}"):
        table_schema(TopicSettings.model_validate(fields), of_a_registry)


def test_rows_sorted_within_their_row_group_are_read_by_offset(tmp_path: Path) -> None:
    file = written(tmp_path, sort=["kafka_value"], row_group=1 << 20)
    groups = [file.read_row_group(group).column("kafka_value") for group in range(file.num_row_groups)]
    for values in (*groups, file.read().column("kafka_value")):
        ascends = values.to_pylist() == values.sort().to_pylist()
        assert ascends == (len(values) < 3000), "within a row group, and not within the file"
    offsets = [
        one for rows in by_offset(file, 100, f"dt={DATE}/file") for one in rows.column("kafka_offset").to_pylist()
    ]
    assert offsets == list(range(3000))


def test_a_column_that_older_files_lack_is_left_out_of_the_layout(tmp_path: Path) -> None:
    assert written(tmp_path, sort=["added"], bloom=["added"], statistics=["added"]).read().num_rows == 3000


def test_a_layout_that_names_no_column_of_the_table_is_refused() -> None:
    fields = {"topic": "orders", "cluster": "east", "table": "orders", "parquet": {"bloom": ["kafka_headers", "user"]}}
    with pytest.raises(ConfigError, match=r"parquet.bloom: kafka_headers is not a column .* with one value") as raised:
        table_schema(TopicSettings.model_validate(fields))
    assert "user is not a column" in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"compression": "gzip"}, "compression"),
        ({"compression": "lz4", "level": 3}, "only zstd has levels"),
        ({"level": 23}, "level"),
        ({"sort": ["kafka_key", "kafka_key"]}, "sort: each column may be named once"),
        ({"row_group": "1GiB"}, "row_group"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        ParquetLayout.model_validate(settings)
