"""The audit of a state table: a part of the keys is replayed from the topic's table, and compared with the leaves.

The replay knows no leaf, no reserve and no earlier run, and has a rule of its own for what records do
(:mod:`.audited_rows`): it sorts all last records of a part's keys. Keys are divided into AUDIT_PARTS by the first bits
of their hash, and each part has a report; the oldest of them tells how old the proof is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.decode.schema import empty_table
from tidemark.errors import ContinuityError
from tidemark.formats.table.state_ledger import RECORD, Leaf, Truncation
from tidemark.formats.table.statuses import AUDIT_PARTS, StateAudit, StateFinding
from tidemark.store import put_over
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.state_table import StateTable
from tidemark_spark.convert.row_checksums import as_bytes
from tidemark_spark.model import Executor
from tidemark_spark.state.first_round import last_of_files
from tidemark_spark.state.last_records import DELETED, HASH, Ranking, chosen
from tidemark_spark.state.leaf_files import LeafFiles, in_buckets
from tidemark_spark.state.model import BUCKET_BITS, StateJob
from tidemark_spark.state.record_columns import RecordColumns
from tidemark_spark.state.run import StateRun, is_touched
from tidemark_spark.state.status import tell_audited
from tidemark_spark.state.truncations import newest_truncation, plain, truncation_values

_SHOWN: Final = 20


class LeafAuditTask(NamedTuple):
    """The keys of ``leaf`` to compare that are in the job's buckets; if ``expired``, the table may lack records.

    Records before ``truncated`` do not count.
    """

    leaf: Leaf
    expired: bool
    truncated: Truncation | None = None


class LeafAudit(NamedTuple):
    """The result of a task."""

    rows: int
    unproved: int
    different: int
    findings: tuple[StateFinding, ...]


def buckets_of(part: int) -> range:
    """The buckets of the keys of ``part``."""
    width = (1 << BUCKET_BITS) // AUDIT_PARTS
    return range(part * width, (part + 1) * width)


def audit_leaf(job: StateJob, task: LeafAuditTask) -> LeafAudit:
    """Compare the rows of a leaf with the replay of the job's runs.

    Raises:
        FormatError: a file cannot be read.
        ContinuityError: the leaf has other rows than its ledger says.
        StoreError: the store failed.
    """
    files = LeafFiles(job)
    records = pa.concat_tables([empty_table(files.records), *files.of_runs(task.leaf.hashes)])
    if task.truncated is not None:
        records = chosen(records, _after(records, task.truncated, files.columns.ranking))
    rows, reserve = (chosen(part, in_buckets(part, job.again)) for part in files.of_leaf(task.leaf))
    names = [name for name in files.records.names if name not in {DELETED, HASH}]
    return _RowComparison(rows.select(names), reserve, records, files.columns.ranking, expired=task.expired).result()


def _after(records: pa.Table, truncation: Truncation, ranking: Ranking) -> NDArray[np.bool_]:
    """For each of ``records`` whether it counts after ``truncation``: compared one by one, the lowest value is null."""
    names = (*ranking.order, *RECORD[1:4])
    rows = zip(*(plain(records.column(name)).to_pylist() for name in names), strict=True)
    limit = truncation_values(truncation, ranking, records.schema)

    def counts(row: tuple[Any, ...]) -> bool:
        for value, least in zip(row, limit, strict=False):
            if value != least:
                return value is not None and value > least
        incarnation, partition, offset = row[len(limit) :]
        if incarnation != truncation.incarnation:
            return bool(incarnation > truncation.incarnation)
        return bool(partition != truncation.partition or offset > truncation.offset)

    return np.fromiter(map(counts, rows), np.bool_, len(records))


def replayed(records: pa.Table, ranking: Ranking) -> pa.Table:
    """The newest record of each key that is not deleted, by key: a sort of all last records of each partition."""
    last = _of_partitions(records, ranking)
    newest = _last(last, [ranking.key, *ranking.order, "kafka_incarnation", "kafka_timestamp", "kafka_partition"], 1)
    return newest.filter(pc.invert(newest.column(DELETED)))


def _of_partitions(records: pa.Table, ranking: Ranking) -> pa.Table:
    return _last(records, [ranking.key, *RECORD[1:3], *ranking.order, RECORD[3]], 3)


def _last(rows: pa.Table, names: Sequence[str], alike: int) -> pa.Table:
    """The last row, in the order of ``names``, of those that are equal in the first ``alike`` of them."""
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending", "at_start") for name in names])  # type: ignore[misc]  # the stubs are older
    rows = rows.take(order).combine_chunks()
    followed = np.ones(max(len(rows) - 1, 0), np.bool_)
    for name in names[:alike]:
        column = rows.column(name)
        followed &= pc.equal(column.slice(1), column.slice(0, max(len(rows) - 1, 0))).to_numpy().astype(np.bool_)
    return chosen(rows, ~np.append(followed, False)[: len(rows)])


class _RowComparison:
    """The rows that the state has, and those that the replay of ``records`` gives, by key."""

    def __init__(
        self, kept: pa.Table, reserve: pa.Table, records: pa.Table, ranking: Ranking, *, expired: bool
    ) -> None:
        self._kept, self._wanted, self._expired = kept, replayed(records, ranking).select(kept.column_names), expired
        self._ranking, self._key = ranking, ranking.key
        self._deleted, self._records = reserve.filter(reserve.column(DELETED)), records
        self._findings: list[StateFinding] = []

    def result(self) -> LeafAudit:
        """Compare."""
        at = pc.index_in(self._kept.column(self._key), value_set=self._wanted.column(self._key).combine_chunks())
        there = at.is_valid().to_numpy().astype(np.bool_)
        kept, wanted = chosen(self._kept, there), self._wanted.take(at.drop_null())
        same = _equal(kept, wanted)
        missing = self._wanted.filter(
            pc.invert(pc.is_in(self._wanted.column(self._key), value_set=self._kept.column(self._key).combine_chunks()))
        )
        other, unknown = chosen(kept, ~same), chosen(self._kept, ~there)
        lost = 0
        if self._expired:
            deleted = self._deleted.select(kept.column_names)
            deleted = deleted.filter(
                pc.is_in(deleted.column(self._key), value_set=missing.column(self._key).combine_chunks())
            )
            lost = self._newer(pa.concat_tables([other, unknown, deleted]))
        different = len(other) + len(unknown) + len(missing) - lost
        if different:
            for rule, rows in (("is not the newest record", other), ("no key has", unknown), ("is missing", missing)):
                self._tell(rule, rows)
        return LeafAudit(int(same.sum()), lost, different, tuple(self._findings[:_SHOWN]))

    def _newer(self, rows: pa.Table) -> int:
        """The number of keys with one of the ``rows`` newer than all that the table still has in its partition."""
        last = _of_partitions(pa.concat_tables([self._records.select(rows.column_names), rows]), self._ranking)
        newer = {*self._places(last)} & {*self._places(rows)} - {*self._places(self._records)}
        return len({key for key, *_ in newer})

    def _tell(self, rule: str, rows: pa.Table) -> None:
        for _, incarnation, partition, offset in self._places(rows.slice(0, _SHOWN)):
            place = {"incarnation": incarnation, "partition": partition, "offset": offset}
            self._findings.append(StateFinding(rule=rule, **place))

    def _places(self, rows: pa.Table) -> list[tuple[Any, ...]]:
        """The key and the place of each row."""
        return list(zip(*(rows.column(name).to_pylist() for name in (self._key, *RECORD[1:4])), strict=True))


def _equal(one: pa.Table, other: pa.Table) -> NDArray[np.bool_]:
    """For each row whether both tables have the same values."""
    same = np.ones(len(one), np.bool_)
    for name in one.column_names:
        left, right = one.column(name).combine_chunks(), other.column(name).combine_chunks()
        if not left.equals(right):
            pairs = zip(as_bytes(left).to_pylist(), as_bytes(right).to_pylist(), strict=True)
            same &= np.fromiter((a == b for a, b in pairs), np.bool_, len(one))
    return same


def audit_state(table: StateTable, part: int, executor: Executor) -> StateAudit:
    """Compare part ``part`` of the keys, and write the report.

    Raises:
        ContinuityError: since the state's commit a run has changed rows, or added some below its vector.
        StaleRun: a file of the topic's table was deleted meanwhile; audit the part again.
        FormatError, StoreError: an object cannot be read.
    """
    run, buckets = StateRun(table), buckets_of(part)
    state, topic = run.state, table.of.topic
    if state is None:
        return StateAudit(cluster=topic.cluster, topic=topic.topic, part=part, at=table.store.now(), n=0)
    change = run.change()
    if change.kind == "rebuild" or change.replays or change.removed:
        raise ContinuityError(
            f"{table.url}: the table has changed since the state's commit {state.n}: run state.py first"
        )
    ends = {through.key: (through.next_offset, through.next_offset) for through in state.through}
    job = replace(run.job(ends), again=frozenset(buckets), audited=True)
    runs = executor.on_each(last_of_files, job, run.first_tasks(change, job.again))
    files = tuple(file for made in runs for file in made.files)
    expired = bool(EffectiveEvidence.of(table.of).rows_by_date("expired"))
    columns = RecordColumns(topic)
    told = [truncation for made in runs for truncation in made.truncations]
    truncated = newest_truncation([*told, state.truncated if expired else None], columns.ranking, columns.records)
    near = [leaf for leaf in state.leaves if is_touched(leaf.prefix, buckets)]
    try:
        run.check_read(runs)
        tasks = [LeafAuditTask(leaf, expired, truncated) for leaf in near]
        found = executor.on_each(audit_leaf, replace(job, runs=files), tasks)
    finally:
        run.delete(files)
    report = StateAudit(
        cluster=topic.cluster,
        topic=topic.topic,
        part=part,
        at=table.store.now(),
        n=state.n,
        rows=sum(each.rows for each in found),
        unproved=sum(each.unproved for each in found),
        different=sum(each.different for each in found),
        findings=tuple(finding for each in found for finding in each.findings)[:_SHOWN],
    )
    put_over(table.store, table.of.keys.state_audit(part), report.to_bytes())
    tell_audited(table, report)
    return report
