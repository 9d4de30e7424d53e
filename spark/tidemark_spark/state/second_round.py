"""The second round: a leaf of the state table, made of the old leaf and of the runs' records with its hashes."""

from __future__ import annotations

import io
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.errors import ContinuityError, FormatError
from tidemark.formats.table.state_ledger import PREFIX_BITS, HashRange, Leaf, range_of
from tidemark.store import Store, open_store
from tidemark_spark.convert.stored_file import StoredFile
from tidemark_spark.state.first_round import write_sorted
from tidemark_spark.state.last_records import DELETED, HASH, Newest, newest, with_hash
from tidemark_spark.state.model import LeafTask, Merged, StateJob, StoredFileName, run_schema, state_schema

_SPLIT_AT: Final = 2
"""A leaf of this multiple of its size becomes two."""


def merged_leaf(job: StateJob, task: LeafTask) -> Merged:
    """Carry out ``task``; it may be repeated.

    Raises:
        FormatError: a file cannot be read.
        ContinuityError: a leaf has rows of another leaf, or a stored file is not as it was written.
        StoreError: the store failed.
    """
    work = _SecondRound(job, open_store(job.lake_store, job.options))
    hashes = range_of(task.prefix)
    parts = [part for leaf in task.old for part in work.old_leaf(leaf)]
    parts += [work.part_of_run(run, hashes) for run in job.runs]
    found = newest(pa.concat_tables(parts))
    return Merged(tuple(work.written(task.prefix, found)), found.moved_keys)


class _SecondRound:
    def __init__(self, job: StateJob, store: Store) -> None:
        assert job.topic.state is not None
        self._job, self._store, self._most = job, store, _SPLIT_AT * job.topic.state.leaf
        self._rows, self._records = state_schema(job.topic), run_schema(job.topic)

    def old_leaf(self, leaf: Leaf) -> list[pa.Table]:
        """The records of a leaf: its rows and its reserve."""
        parts: list[pa.Table] = []
        if leaf.path:
            rows = with_hash(self._read(f"{self._job.root}/{leaf.path}", self._rows))
            there = pa.repeat(pa.scalar(False), len(rows))
            rows = rows.add_column(len(self._rows), pa.field(DELETED, pa.bool_(), nullable=False), there)
            parts.append(rows.cast(self._records))
        if leaf.reserve:
            parts.append(self._read(leaf.reserve, self._records))
        if sum(map(len, parts)) != leaf.rows + leaf.reserve_rows or any(_strays(part, leaf.hashes) for part in parts):
            rule = "has other rows than its ledger says; the state was not changed: rebuild it by state.py --rebuild"
            raise ContinuityError(f"{self._job.root}: leaf {leaf.prefix or 'of all keys'} {rule}")
        return parts

    def part_of_run(self, run: StoredFileName, hashes: HashRange) -> pa.Table:
        """The records of ``run`` with ``hashes``: only the row groups that may have some are read."""
        with StoredFile(self._store, run.key, run.size) as stored:
            try:
                parquet = pq.ParquetFile(pa.PythonFile(stored, "r"))
                near = [group for group in range(parquet.num_row_groups) if _may_have(parquet, group, hashes)]
                rows = parquet.read_row_groups(near).cast(self._records)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise FormatError(run.key, f"cannot be read: {' '.join(str(error).split())}; run it again") from error
        return rows.filter(_within(rows, hashes))

    def _read(self, key: str, schema: pa.Schema) -> pa.Table:
        body = self._store.get(key).body
        try:
            rows = pq.ParquetFile(io.BytesIO(body)).read()
        except (pa.ArrowException, OSError, ValueError) as error:
            rule = f"cannot be read: {' '.join(str(error).split())}; rebuild the state by state.py --rebuild"
            raise FormatError(key, rule) from error
        columns = [
            rows.column(field.name).cast(field.type)
            if field.name in rows.column_names
            else pa.chunked_array([pa.nulls(len(rows), field.type)])
            for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    def written(self, prefix: str, found: Newest) -> list[Leaf]:
        """Write a leaf; two of longer prefixes if it is too large."""
        rows = found.rows.select(self._rows.names)
        if rows.nbytes > self._most and len(prefix) < PREFIX_BITS and len(rows) > 1:
            halves = (prefix + bit for bit in "01")
            return [leaf for half in halves for leaf in self.written(half, _part(found, range_of(half)))]
        leaf = Leaf(prefix=prefix)
        name = f"{prefix or 'all'}-{self._job.attempt}.parquet"
        if len(rows):
            size = self._stored(f"{self._job.root}/{name}", rows)
            leaf = leaf.model_copy(update={"path": name, "rows": len(rows), "size": size})
        if len(found.reserve):
            key = f"{self._job.reserve_folder}{name}"
            size = self._stored(key, found.reserve)
            leaf = leaf.model_copy(update={"reserve": key, "reserve_rows": len(found.reserve), "reserve_size": size})
        return [leaf]

    def _stored(self, key: str, rows: pa.Table) -> int:
        """Write ``rows`` and read them back; the size of the file."""
        file = write_sorted(self._store, key, rows)
        if not self._read(key, rows.schema).equals(rows):
            raise ContinuityError(f"{key}: other rows are read back than were written; the state was not changed")
        return file.size


def _part(found: Newest, hashes: HashRange) -> Newest:
    rows, reserve = (part.filter(_within(part, hashes)) for part in (found.rows, found.reserve))
    return Newest(rows, reserve, 0)


def _within(rows: pa.Table, hashes: HashRange) -> Any:
    values = rows.column(HASH)
    last = pa.scalar(hashes.end - 1, pa.uint64())
    return pc.and_(pc.greater_equal(values, pa.scalar(hashes.start, pa.uint64())), pc.less_equal(values, last))


def _strays(rows: pa.Table, hashes: HashRange) -> bool:
    return not pc.all(_within(rows, hashes), min_count=0).as_py()


def _may_have(parquet: pq.ParquetFile, group: int, hashes: HashRange) -> bool:
    """True if the row group may have rows with ``hashes``; the hash is the last column."""
    limits: Any = parquet.metadata.row_group(group).column(parquet.metadata.num_columns - 1).statistics
    return bool(limits is None or (limits.min < hashes.end and limits.max >= hashes.start))
