"""Parquet files, one for each folder, written row group by row group to a temporary file and uploaded when complete.

The bytes depend only on the rows, on the layout and on pyarrow's version. A file's name contains its offsets and a
digest of its sources, so a task that runs twice writes the same objects. Memory is bounded by two row groups of waiting
rows, or :data:`BUFFER_BYTES`, and by :data:`MAX_OPEN` files. The rows of further folders are spilled, and their files
are written at the end, one after the other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, BinaryIO, Final, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.decode import SCHEMA as KAFKA
from tidemark.decode.schema import array
from tidemark.formats.table.base_columns import BASE_COLUMNS, BOUNDED
from tidemark.formats.table.parquet_layout import ParquetLayout
from tidemark.formats.table.partitioning import DateFolder
from tidemark.store import Store
from tidemark.table.topic_columns import DT
from tidemark_spark.convert.field_ids import numbered, with_ids
from tidemark_spark.convert.quarantine import SCHEMA as QUARANTINE
from tidemark_spark.convert.spill import SpilledRows, SpillFile
from tidemark_spark.convert.upload import upload_once

BUFFER_BYTES: Final = 64 << 20
MAX_OPEN: Final = 8
BLOOM_FPP: Final = 0.01
"""Probability that a Bloom filter reports a value that is absent: 10 bits for each row."""

_HEADER_KEYS: Final = "kafka_headers.list.element.key"
"""Parquet's column of the headers' keys."""

_DICTIONARY: Final = {
    **{
        column.name: _HEADER_KEYS if column.type == "headers" else column.name
        for column in BASE_COLUMNS
        if column.encoding == "dictionary"
    },
    "reason": "reason",
    DT.name: DT.name,
}
_OURS: Final = {*KAFKA.names, *QUARANTINE.names, DT.name}
_STATISTICS: Final = {DT.name, *BOUNDED}
_EPOCH: Final = date(1970, 1, 1)
_DELTA_ENCODED: Final = {column.name for column in BASE_COLUMNS if column.encoding == "delta"}


@dataclass
class _Target:
    """A file in the making: its waiting rows, and its offsets. Without a ``file`` the other rows are spilled."""

    file: BinaryIO | None
    parquet: pq.ParquetWriter | None = None
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    spilled: list[SpilledRows] = field(default_factory=list)
    first: int = -1
    last: int = -1


def leaves(path: str, kind: pa.DataType) -> list[str]:
    """Parquet's columns for a column of ``kind``."""
    if isinstance(kind, pa.StructType):
        return [leaf for child in kind for leaf in leaves(f"{path}.{child.name}", child.type)]
    if isinstance(kind, pa.ListType):
        return leaves(f"{path}.list.element", kind.value_type)
    return [path]


class FolderFiles:
    """The files of one task, used with ``with``, which removes unfinished files.

    ``key_of(folder, first, last)`` names a file by its offsets; ``done(folder, key, size)`` is called for each file
    that is complete in the store. With ``field_ids``, files have ``dt`` behind the columns of ``schema``, and each
    column its id.
    """

    def __init__(
        self,
        store: Store,
        schema: pa.Schema,
        key_of: Callable[[DateFolder, int, int], str],
        done: Callable[[DateFolder, str, int], None],
        layout: ParquetLayout,
        field_ids: Mapping[str, int] | None = None,
    ) -> None:
        self._store = store
        self._dated = field_ids is not None
        if field_ids is not None:
            schema = with_ids(pa.schema([*schema, DT]), numbered(field_ids, schema))
        self._schema = schema
        self._key_of = key_of
        self._done = done
        self._layout = layout = layout.of(schema.names)
        self._buffer_bytes = max(BUFFER_BYTES, 2 * layout.row_group)
        self._targets: dict[DateFolder, _Target] = {}
        self._waiting = 0
        self._spill = SpillFile()
        parsed = [column for column in schema if column.name not in _OURS]
        inner = [path for column in parsed for path in leaves(column.name, column.type)]
        self._dictionary: Any = [_DICTIONARY[name] for name in schema.names if name in _DICTIONARY] + inner
        # DuckDB before 2.0 reads a Bloom filter of bytes wrongly, but only where there are statistics.
        filtered = {name for name in layout.bloom if pa.types.is_binary(schema.field(name).type)}
        counted = (_STATISTICS | {*inner, *layout.statistics}) - filtered
        self._statistics: Any = [name for name in (*schema.names, *inner) if name in counted]
        self._sorting = [pq.SortingColumn(place) for place in places(schema, layout.sort)]

    def add(self, folder: DateFolder, rows: pa.RecordBatch, first: int, last: int) -> None:
        """Append ``rows``, which account for offsets from ``first`` to ``last``."""
        target = self._targets.get(folder) or self._start(folder)
        target.first = first if target.first < 0 else min(target.first, first)
        target.last = max(target.last, last)
        self._take(target, [_of_its_own(rows)], rows.nbytes)
        if target.waiting_bytes >= self._layout.row_group:
            self._release(folder, target)
        elif self._waiting >= self._buffer_bytes:
            self._release_most()

    def close(self) -> None:
        """Complete all files, by folder: open files first."""
        if any(target.spilled for target in self._targets.values()):
            self._spill_all()  # frees memory for reading the rows back
        for folder in sorted(self._targets, key=lambda folder: (self._targets[folder].file is None, folder.order)):
            self._complete(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._spill.close()
        for target in self._targets.values():
            if target.file is not None:
                target.file.close()

    def _start(self, folder: DateFolder) -> _Target:
        self._targets[folder] = _Target(_temporary() if len(self._targets) < MAX_OPEN else None)
        return self._targets[folder]

    def _take(self, target: _Target, rows: Iterable[pa.RecordBatch], nbytes: int) -> None:
        target.waiting += rows
        target.waiting_bytes += nbytes
        self._waiting += nbytes

    def _taken(self, target: _Target) -> pa.Table:
        """Remove and return the waiting rows."""
        rows = pa.Table.from_batches(target.waiting)
        self._waiting -= target.waiting_bytes
        target.waiting, target.waiting_bytes = [], 0
        return rows

    def _release(self, folder: DateFolder, target: _Target) -> None:
        """Write the waiting rows as one row group, or spill them."""
        if not target.waiting:
            return
        nbytes = target.waiting_bytes
        if target.file is None:
            target.spilled.append(self._spill.write(self._taken(target).combine_chunks(), nbytes))
        else:
            self._write(folder, target, target.file)

    def _release_most(self) -> None:
        """Release the open file with most waiting rows, or all spilled folders if these have more together."""
        folder, target = max(
            self._targets.items(), key=lambda entry: entry[1].file is not None and entry[1].waiting_bytes
        )
        if sum(other.waiting_bytes for other in self._targets.values() if other.file is None) >= target.waiting_bytes:
            self._spill_all()
        else:
            self._release(folder, target)

    def _spill_all(self) -> None:
        for folder, target in self._targets.items():
            if target.file is None:
                self._release(folder, target)

    def _write(self, folder: DateFolder, target: _Target, file: BinaryIO) -> None:
        """Write the waiting rows as one row group."""
        table = self._taken(target)
        if self._layout.sort:
            table = table.sort_by([(name, "ascending") for name in self._layout.sort])  # stable: then by offset
        if self._dated:
            assert folder.dt is not None, "a row of the table has a date"
            days = np.full(table.num_rows, (folder.dt - _EPOCH).days, np.int32)
            table = table.append_column(DT, array(DT.type, days))
        target.parquet = target.parquet or self._writer(file, table.num_rows)
        target.parquet.write_table(table, row_group_size=table.num_rows)

    def _writer(self, file: BinaryIO, rows: int) -> pq.ParquetWriter:
        """The Parquet writer of a file; its first row group has ``rows`` rows, the size of its Bloom filters."""
        layout = self._layout
        return pq.ParquetWriter(
            file,
            self._schema,
            compression=layout.compression,
            compression_level=layout.compression_level,
            use_dictionary=self._dictionary,
            write_statistics=self._statistics,
            write_page_index=True,
            sorting_columns=self._sorting or None,
            bloom_filter_options={name: {"ndv": rows, "fpp": BLOOM_FPP} for name in layout.bloom} or None,
            column_encoding={name: "DELTA_BINARY_PACKED" for name in self._schema.names if name in _DELTA_ENCODED},
        )

    def _complete(self, folder: DateFolder) -> None:
        target = self._targets.pop(folder)
        with target.file or _temporary() as file:
            for spilled in target.spilled:
                self._take(target, self._spill.read(spilled), spilled.nbytes)
                if target.waiting_bytes >= self._layout.row_group:
                    self._write(folder, target, file)
            if target.waiting:
                self._write(folder, target, file)
            assert target.parquet is not None, "a file is opened for rows"
            target.parquet.close()
            key = self._key_of(folder, target.first, target.last)
            self._done(folder, key, upload_once(self._store, key, file))


def _temporary() -> BinaryIO:
    return cast("BinaryIO", tempfile.TemporaryFile(prefix="tidemark-"))


def places(schema: pa.Schema, names: Sequence[str]) -> list[int]:
    """Indices of the columns ``names`` among Parquet's columns."""
    counts = [len(leaves(column.name, column.type)) for column in schema]
    return [sum(counts[: schema.get_field_index(name)]) for name in names]


def _of_its_own(rows: pa.RecordBatch) -> pa.RecordBatch:
    """``rows``, copied if they are a minor part of a larger batch, whose memory would wait with them."""
    if rows.get_total_buffer_size() <= 2 * rows.nbytes:
        return rows
    return rows.take(array(pa.int64(), np.arange(len(rows))))
