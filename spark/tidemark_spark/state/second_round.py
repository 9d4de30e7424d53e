"""The second round: a leaf of the state table, made of the old leaf and of the runs' records with its hashes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode.offset_mask import rows_at
from tidemark.decode.schema import constant_text, empty_table
from tidemark.formats.table.state_ledger import PREFIX_BITS, RECORD, Leaf, range_of
from tidemark_spark.state.last_records import chosen, merged
from tidemark_spark.state.leaf_files import LeafFiles, buckets_of, within
from tidemark_spark.state.model import SPLIT_AT, LeafTask, MadeLeaves, StateJob
from tidemark_spark.state.truncations import before

_UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Debezium's word for a value that the database's log lacks, such as a long one that a change left as it was."""


def removed_buckets(job: StateJob, leaf: Leaf) -> frozenset[int]:
    """The buckets of the keys of a leaf with a record that the job has ``removed``.

    Raises:
        FormatError: a file cannot be read.
        ContinuityError: the leaf has other rows than its ledger says.
        StoreError: the store failed.
    """
    records = pa.concat_tables(LeafFiles(job).of_leaf(leaf))
    return frozenset(np.unique(buckets_of(records)[rows_at(records, job.removed)]).tolist())


def merged_leaf(job: StateJob, task: LeafTask) -> MadeLeaves:
    """Carry out ``task``, and return the new leaves; it may be repeated.

    Raises:
        FormatError: a file cannot be read.
        ContinuityError: a leaf has rows of another leaf, or a stored file is not as it was written.
        StoreError: the store failed.
    """
    files = LeafFiles(job)
    old = [files.of_leaf(leaf) for leaf in task.old]
    rows = pa.concat_tables([empty_table(files.records), *(part for part, _ in old)])
    reserve = pa.concat_tables([empty_table(files.records), *(part for _, part in old)])
    runs = [_left(job, files, run) for run in files.of_runs(range_of(task.prefix))]
    rows, reserve = _left(job, files, rows), _left(job, files, reserve)
    lost = 0
    if job.removed:
        both = pa.concat_tables([rows, reserve])
        rows, reserve = (chosen(part, ~rows_at(part, job.removed)) for part in (rows, reserve))
        gone = chosen(both, rows_at(both, job.removed))
        lost = _lost(gone, pa.concat_tables([rows, reserve, *runs]), files.columns.ranking.key)
    return MadeLeaves(_written(job, files, task.prefix, rows, pa.concat_tables([reserve, *runs])), lost)


def _left(job: StateJob, files: LeafFiles, records: pa.Table) -> pa.Table:
    """The ``records`` that the job's truncation leaves."""
    if job.truncated is None:
        return records
    return chosen(records, ~before(records, job.truncated, files.columns.ranking))


def _lost(removed: pa.Table, records: pa.Table, key: str) -> int:
    """The number of keys with a record among ``removed``, and none of the same partition among ``records``."""
    place = [key, *RECORD[1:3]]
    left = removed.select(place).join(records.select(place), place, join_type="left anti", use_threads=False)
    return len(left.column(key).unique())


def _written(job: StateJob, files: LeafFiles, prefix: str, old: pa.Table, changes: pa.Table) -> list[Leaf]:
    """Write a leaf of ``old`` rows and of ``changes``; two of longer prefixes if it is too large."""
    assert job.topic.state is not None
    found = merged(old, changes, files.columns.ranking)
    rows = found.rows.select(files.columns.table.names)
    if rows.nbytes > SPLIT_AT * job.leaf and len(prefix) < PREFIX_BITS and len(rows) > 1:
        del found, rows  # memory that the halves need
        halves = (prefix + bit for bit in "01")
        return [leaf for half in halves for leaf in _written(job, files, half, _part(old, half), _part(changes, half))]
    unavailable = placeholders(rows) if job.topic.state.envelope == "debezium" else 0
    leaf = Leaf(
        prefix=prefix, moved_keys=found.moved_keys, outranked_keys=found.outranked_keys, unavailable=unavailable
    )
    name = f"{prefix or 'all'}-{job.attempt}.parquet"
    if len(rows):
        size = files.write(f"{job.root}/{name}", rows)
        leaf = leaf.model_copy(update={"path": name, "rows": len(rows), "size": size})
    if len(found.reserve):
        key = f"{job.reserve_folder}{name}"
        size = files.write(key, found.reserve)
        leaf = leaf.model_copy(update={"reserve": key, "reserve_rows": len(found.reserve), "reserve_size": size})
    return [leaf]


def placeholders(rows: pa.Table) -> int:
    """The number of values in ``rows``, also within lists and structs, that stand for ones Debezium did not know."""
    return sum(_placeholders(column.combine_chunks()) for column in rows.columns)


def _placeholders(values: Any) -> int:
    if isinstance(values.type, pa.StructType):
        return sum(map(_placeholders, values.flatten()))
    if isinstance(values.type, pa.ListType):
        return _placeholders(values.flatten())
    if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
        return 0
    return int(pc.sum(pc.equal(values, constant_text(_UNAVAILABLE, 1)[0].cast(values.type)), min_count=0).as_py())


def _part(records: pa.Table, prefix: str) -> pa.Table:
    return chosen(records, within(records, range_of(prefix)))
