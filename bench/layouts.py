"""Layouts of Parquet files: how fast a topic's rows are written and read, and how large the file is, by compression.

Rows with values of about 1 KB and 250 B, decoded beforehand, are written by the writer of the jobs to a local disk, in
one process. There are :data:`GIB` of values of each, of which a partition's are written: so much suffices for figures
that are per byte, and zstd 9 takes its time.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from bench.data import HOME, Data, Topic, data
from bench.decode import segment_of
from bench.measure import MB, Row
from demo.steps import Steps
from tidemark.decode import SCHEMA, decode_batches, scan_headers
from tidemark.formats.parquet_layout import ParquetLayout
from tidemark.formats.partitioning import Folder
from tidemark.store import open_store
from tidemark_spark.convert.date_partitioner import numbers
from tidemark_spark.convert.parquet_writer import FolderFiles

GIB: Final = 0.25
TOPICS: Final = (Topic("zstd", 1000), Topic("zstd", 250))
REPETITIONS: Final = 5
LAYOUTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "zstd 1": {},
    "zstd 3": {"level": 3},
    "zstd 9": {"level": 9},
    "lz4": {"compression": "lz4"},
    "snappy": {"compression": "snappy"},
    "none": {"compression": "none"},
    "zstd 1, sorted by key": {"sort": ["kafka_key"]},
    "zstd 1, Bloom filter of the key": {"bloom": ["kafka_key"]},
}

_DAY: Final = date(2026, 1, 1)


def measure(steps: Steps) -> list[Row]:
    """Each topic in each layout, alternating; the first round is dropped."""
    with data(GIB, TOPICS, steps) as made:
        return [row for topic in TOPICS for row in _measured(made, topic)]


def _measured(made: Data, topic: Topic) -> Iterator[Row]:
    segment = segment_of(made, topic)
    rows = [*decode_batches(segment, scan_headers(segment, "segment", 0), name="segment", partition=0, incarnation=0)]
    seconds: dict[str, list[float]] = {name: [] for name in LAYOUTS}
    reading: dict[str, list[float]] = {name: [] for name in LAYOUTS}
    sizes: dict[str, int] = {}
    for number in range(REPETITIONS + 1):
        for name, settings in LAYOUTS.items():
            path, spent = _written(rows, ParquetLayout.model_validate(settings))
            began = time.process_time()
            pq.read_table(path, use_threads=False)
            read = time.process_time() - began
            sizes[name] = path.stat().st_size
            if number:
                seconds[name].append(spent)
                reading[name].append(read)
    size = sum(one.nbytes for one in rows) / MB
    note = f"{size:.0f} MB of rows in memory, one process, CPU seconds, written to a local disk"
    part = f"layouts, values of {topic.size} B"
    for name in LAYOUTS:
        yield Row(part, f"{name}: written", "MB/CPU-s", tuple(size / one for one in seconds[name]), note)
        yield Row(part, f"{name}: read by pyarrow", "MB/CPU-s", tuple(size / one for one in reading[name]))
        yield Row(part, f"{name}: size of the file", "of that of zstd 1", (sizes[name] / sizes["zstd 1"],))


def _written(rows: Sequence[pa.RecordBatch], layout: ParquetLayout) -> tuple[Path, float]:
    """The file, and the seconds that it took."""
    folder = HOME / "layouts"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.process_time()
    with FolderFiles(open_store(f"file://{folder}"), SCHEMA, lambda *_: "file", lambda *_: None, layout) as files:
        for one in rows:
            offsets = numbers(one.column("kafka_offset"))
            files.add(Folder(_DAY), one, int(offsets[0]), int(offsets[-1]))
        files.close()
    return folder / "file", time.process_time() - began
