"""Rows that wait on disk until their file is written. A task has one temporary file for all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, NamedTuple, cast

import pyarrow as pa

_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


class SpilledRows(NamedTuple):
    """Position and size of spilled rows in the file, and their bytes in memory."""

    position: int
    size: int
    nbytes: int


class SpillFile:
    """The temporary file, opened for the first rows; ``close`` removes it."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None

    def write(self, rows: pa.Table, nbytes: int) -> SpilledRows:
        """Append ``rows``, which take ``nbytes`` in memory."""
        if self._file is None:
            self._file = cast("BinaryIO", tempfile.TemporaryFile(prefix="tidemark-"))  # noqa: SIM115 - until close
        position = self._file.seek(0, 2)
        sink: Any = self._file
        with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as stream:
            stream.write_table(rows)
        return SpilledRows(position, self._file.tell() - position, nbytes)

    def read(self, rows: SpilledRows) -> Iterator[pa.RecordBatch]:
        """The rows, in the order in which they were written."""
        assert self._file is not None, "rows were written"
        self._file.seek(rows.position)
        yield from pa.ipc.open_stream(self._file.read(rows.size))

    def close(self) -> None:
        """Remove the file; its rows are gone."""
        if self._file is not None:
            self._file.close()
