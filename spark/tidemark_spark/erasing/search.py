"""The search for the records that requests name: in the table's files that have the column, and else in raw.

A task reads a column of one file, or decodes ranges of raw. It returns (leader epoch, offset) pairs, and no value.
Where a file lacks the epoch, the partition's lineage has it; but not for offsets before its beginning, and not exactly
once Kafka has compacted the log: there raw answers. A state outlives the rows of a table: where raw is gone as well,
its files are searched, and the lineage is all that tells an epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.decode import decode_batches
from tidemark.decode.offset_mask import rows_at
from tidemark.erasure.matcher import Matcher, matchers
from tidemark.erasure.secret import Secret
from tidemark.errors import FormatError, SegmentError
from tidemark.formats.raw.erasure import KEY_COLUMN, ErasureRequest
from tidemark.formats.table.partitioning import DT, partition_values
from tidemark.formats.table.plan import SegmentTask
from tidemark.formats.table.state_ledger import RECORD
from tidemark.intervals import Intervals
from tidemark.kafka_log import BatchHeader, Lineage
from tidemark.parsers.base import column_at
from tidemark.planning.common import Key
from tidemark.planning.read import plan_reading
from tidemark.planning.state import cut_offsets
from tidemark.raw_topic import RawTopic
from tidemark.store import open_store
from tidemark.store.stored_file import StoredFile
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import EvidenceRow
from tidemark.table.state_envelopes import ENVELOPES
from tidemark.table.state_table import StateTable
from tidemark.topics import TopicSettings
from tidemark_spark.convert.classify import PartitionRules
from tidemark_spark.convert.date_partitioner import Numbers, numbers, take
from tidemark_spark.convert.guard import parsed
from tidemark_spark.convert.partition_columns import topic_parser
from tidemark_spark.convert.segment_reader import judged
from tidemark_spark.model import Executor, Job

_ROWS: Final = 65536
_CHUNK: Final = 8 << 20
_EPOCH: Final = "kafka_leader_epoch"
_PLACE: Final = RECORD[1:4]
_ELSEWHERE: Final = ("quarantined", "filtered", "expired", "aborted")
"""The classes of offsets whose records no file of the table has."""

_compute: Any = pc

Where = Literal["table", "raw", "state"]


class FileSearch(NamedTuple):
    """A file of the table to search.

    In a ``compacted`` partition the lineage does not give the epoch of each offset.
    """

    path: str
    size: int
    incarnation: int
    partition: int
    compacted: bool


class RawSearch(NamedTuple):
    """Ranges of raw to search, of a log with ``restores``."""

    task: SegmentTask
    restores: tuple[int, ...] = ()


class StateSearch(NamedTuple):
    """A file of the state table to search, of a leaf or of its reserve: its key in the lake, and its size."""

    key: str
    size: int


SearchTask = FileSearch | RawSearch | StateSearch


class SearchJob(NamedTuple):
    """What all tasks of a search share. The secrets are not in any object.

    Of files of the state only the records at ``outlived`` offsets are searched.
    """

    job: Job
    requests: tuple[ErasureRequest, ...]
    secrets: Mapping[str, Secret]
    outlived: Mapping[Key, Intervals] = {}


class Hit(NamedTuple):
    """A record that a request names, and the date of its row if the table has it.

    ``restores`` are those of the log that has the record.
    """

    request: str
    incarnation: int
    partition: int
    epoch: int
    offset: int
    where: Where
    dt: str = ""
    restores: tuple[int, ...] = ()

    @property
    def log(self) -> tuple[int, ...]:
        """The restores of the log at the record's offset: others with the same ones have this record."""
        return Lineage(restores=self.restores).restores_below(self.offset)

    @property
    def record(self) -> tuple[str, int, int, int]:
        """The request, and the record's place on the partition's branch."""
        return self.request, self.incarnation, self.partition, self.offset


@dataclass
class SearchResult:
    """The result of a task; ``unanswered`` is True for a file that lacks a column, which raw must answer for."""

    hits: list[Hit] = field(default_factory=list)
    rows: int = 0
    bytes_read: int = 0
    unanswered: bool = False
    unsearchable: int = 0
    task: SearchTask | None = None

    def refuse(self, _header: BatchHeader, _error: SegmentError) -> None:
        """Count a batch that cannot be decoded."""
        self.unsearchable += 1


def search(common: SearchJob, task: SearchTask) -> SearchResult:
    """Carry out ``task``.

    Raises:
        ConfigError: a column cannot be compared, or a request's secret is missing.
        FormatError: the file is damaged, or raw's bytes are.
        ContinuityError: raw lacks an offset of the task.
        StoreError: a store did not answer, or a file is gone.
    """
    found = SearchResult(task=task)
    wanted = matchers(common.job.topic.topic, common.requests, common.secrets)
    if isinstance(task, FileSearch):
        _search_file(common, task, wanted, found)
    elif isinstance(task, StateSearch):
        _search_state(common, task, wanted, found)
    else:
        _search_raw(common, task, wanted, found)
    return found


def _search_file(common: SearchJob, task: FileSearch, wanted: Sequence[Matcher], found: SearchResult) -> None:
    job = common.job
    key = f"{job.keys.root}/{task.path}"
    dt = partition_values(task.path)[DT] or ""
    rules = PartitionRules.of(job.partitions[task.incarnation, task.partition], job.options)
    with _opened(job, key, task.size, found, "audit its date, and rebuild it") as parquet:
        tops = {matcher.column: _top(matcher.column, parquet.schema_arrow.names) for matcher in wanted}
        exact = _EPOCH in parquet.schema_arrow.names
        if None in tops.values() or (task.compacted and not exact):
            found.unanswered = True
            return
        identity = ["kafka_offset", *([_EPOCH] if exact else [])]
        columns = [*identity, *dict.fromkeys(top for top in tops.values() if top)]
        restores = common.job.partitions[task.incarnation, task.partition].restores
        for rows in parquet.iter_batches(_ROWS, columns=columns, use_threads=False):
            found.rows += len(rows)
            offsets = numbers(rows.column("kafka_offset"))
            for matcher in wanted:
                for request, indices in matcher.rows(column_at(rows, matcher.column)).items():
                    hit = offsets[indices]
                    epochs = _epochs(rows)[indices] if exact else rules.epochs_at(hit)
                    if epochs is None:
                        found.hits, found.unanswered = [], True
                        return
                    found.hits += [
                        Hit(request, task.incarnation, task.partition, epoch, offset, "table", dt, restores)
                        for epoch, offset in zip(epochs.tolist(), hit.tolist(), strict=True)
                    ]


@contextmanager
def _opened(job: Job, key: str, size: int, found: SearchResult, remedy: str) -> Iterator[pq.ParquetFile]:
    """The file ``key`` of the lake, whose bytes count as read. Raises FormatError with ``remedy`` if it is damaged."""
    with StoredFile(open_store(job.lake_store, job.options), key, size) as file:
        try:
            yield pq.ParquetFile(pa.PythonFile(file, "r"), buffer_size=_CHUNK)
        except (pa.ArrowException, OSError, ValueError) as error:  # pyarrow's error depends on where the damage is
            reason = " ".join(str(error).split())
            raise FormatError(key, f"cannot be searched: {reason}; {remedy}") from error
        finally:
            found.bytes_read = file.bytes_read
            pa.default_memory_pool().release_unused()


def _search_state(common: SearchJob, task: StateSearch, wanted: Sequence[Matcher], found: SearchResult) -> None:
    plans = {key: common.job.partitions[key] for key in common.outlived}
    lineages = {key: Lineage(plan.lineage, plan.restores) for key, plan in plans.items()}
    with _opened(common.job, task.key, task.size, found, "rebuild the state by state.py --rebuild") as parquet:
        names = parquet.schema_arrow.names
        paths = {matcher.column: _path_in_state(common.job.topic, matcher.column) for matcher in wanted}
        tops = dict.fromkeys(top for path in paths.values() if (top := _top(path, names)))
        for whole in parquet.iter_batches(_ROWS, columns=list(dict.fromkeys((*_PLACE, *tops))), use_threads=False):
            found.rows += len(whole)
            rows = take(whole, np.flatnonzero(rows_at(whole, common.outlived)))
            places = list(zip(*(rows.column(name).to_pylist() for name in _PLACE), strict=True))
            for matcher in wanted:
                path = paths[matcher.column]
                values = column_at(rows, path) if _top(path, names) else pa.nulls(len(rows), pa.binary())
                if not _top(path, names):  # a null in a column that the state has is the record's own
                    found.unsearchable += len(rows)
                for request, indices in matcher.rows(values).items():
                    for incarnation, partition, offset in (places[row] for row in indices.tolist()):
                        epoch = _epoch_of(lineages[incarnation, partition], offset)
                        restores = lineages[incarnation, partition].restores
                        found.hits.append(
                            Hit(request, incarnation, partition, epoch, offset, "state", restores=restores)
                        )


def _path_in_state(topic: TopicSettings, column: str) -> str:
    """The path of a column of the topic's table in its state; empty if the state lacks it."""
    envelope = ENVELOPES.get(topic.state.envelope) if topic.state else None
    if envelope is None or column == KEY_COLUMN:
        return column
    return envelope.path_in_state(topic_parser(topic).columns, column)


def _epoch_of(lineage: Lineage, offset: int) -> int:
    """The epoch of a record of which only the state is left. Before the lineage's beginning it is that of its first.

    Once Kafka has compacted the log it may be an older one; the state drops its records at masked offsets of any epoch.
    """
    epoch = lineage.epoch_at(offset)
    if epoch is None:
        epoch = lineage.entries[0][0] if lineage.entries else -1
    return epoch


def _epochs(rows: pa.RecordBatch) -> Numbers:
    return numbers(rows.column(_EPOCH).cast(pa.int64()))


def _top(column: str, names: Sequence[str]) -> str | None:
    """The column of a file that holds ``column``; None if there is none."""
    return next((name for name in (column, column.partition(".")[0]) if name in names), None)


def _search_raw(common: SearchJob, task: RawSearch, wanted: Sequence[Matcher], found: SearchResult) -> None:
    job, whole = common.job, task.task
    rules = PartitionRules.of(job.partitions[whole.incarnation, whole.partition], job.options)
    parser = topic_parser(job.topic) if any(matcher.column != KEY_COLUMN for matcher in wanted) else None
    for part in whole.ranges:
        for window, verdict, expected in judged(open_store(part.store, job.options), part, rules):
            found.bytes_read += len(window.data)
            for rows in decode_batches(
                window.data,
                verdict.data,
                name=part.key,
                partition=whole.partition,
                incarnation=whole.incarnation,
                from_offset=max(part.from_offset, expected),
                to_offset=part.to_offset,
                position=window.position,
                on_refused=found.refuse,
            ):
                found.rows += len(rows)
                offsets = numbers(rows.column("kafka_offset"))
                epochs = _epochs(rows)
                read = parsed(parser, rows, None) if parser else None
                for matcher in wanted:
                    values = rows.column(KEY_COLUMN)
                    if matcher.column != KEY_COLUMN:
                        assert read is not None
                        values = column_at(read.columns, matcher.column)
                        # A null of a record that the parser read is the record's own, unless its value was a misfit.
                        found.unsearchable += len(read.refused) + read.unknown.get(matcher.column, 0)
                    for request, indices in matcher.rows(values).items():
                        at = request, whole.incarnation, whole.partition
                        found.hits += [
                            Hit(*at, int(epochs[row]), int(offsets[row]), "raw", restores=task.restores)
                            for row in indices.tolist()
                        ]


class Searched(NamedTuple):
    """The hits of a search and what it took. ``gone`` are offsets that neither a file nor raw has any more.

    What a bucket keeps of deleted objects may have their records.
    """

    hits: list[Hit]
    rows: dict[str, int]
    bytes_read: int
    unsearchable: int
    gone: dict[Key, Intervals]


def search_all(
    table: TopicTable,
    standing: EffectiveEvidence,
    requests: Sequence[ErasureRequest],
    secrets: Mapping[str, Secret],
    job: Job,
    executor: Executor,
) -> Searched:
    """Search all offsets below each partition's end in the ledger.

    Raises:
        ConfigError, FormatError, StoreError: see :func:`search`.
    """
    common = SearchJob(job, tuple(requests), secrets)
    tasks, elsewhere = _file_tasks(standing)
    results = executor.on_each(search, common, tasks)
    unanswered = {result.task.path for result in results if result.unanswered and isinstance(result.task, FileSearch)}
    for row in standing.landed_in(unanswered) if unanswered else ():
        elsewhere.setdefault(row.key, []).append((row.first, row.next))
    raw_tasks, gone = _raw_tasks(table, standing, elsewhere)
    results += executor.on_each(search, common, raw_tasks)
    outlived, state_tasks = _state_tasks(table, standing, gone)
    known = {hit.record for result in results for hit in result.hits}
    results += executor.on_each(search, common._replace(outlived=outlived), state_tasks)
    rows = {
        place: sum(result.rows for result in results if isinstance(result.task, kind))
        for place, kind in (("table", FileSearch), ("raw", RawSearch), ("state", StateSearch))
    }
    return Searched(
        [hit for result in results for hit in result.hits if hit.where != "state" or hit.record not in known],
        rows,
        sum(result.bytes_read for result in results),
        sum(result.unsearchable for result in results),
        {key: offsets for key, offsets in gone.items() if offsets},
    )


def _file_tasks(standing: EffectiveEvidence) -> tuple[list[SearchTask], dict[Key, list[tuple[int, int]]]]:
    """Tasks for the files of the table, and the offsets of the records that are in none of them."""
    files: dict[str, Key] = {}
    elsewhere: dict[Key, list[tuple[int, int]]] = {}
    compacted: set[Key] = set()
    for rows in standing.parts():
        kinds = rows["class"]
        landed = rows.filter(_compute.equal(kinds, "landed")).select(["incarnation", "partition", "file"])
        for row in landed.group_by(landed.column_names).aggregate([]).to_pylist():
            files[row["file"]] = row["incarnation"], row["partition"]
        others = rows.filter(_compute.is_in(kinds, pa.array([*_ELSEWHERE, "compacted"])))
        for other in EvidenceRow.of(others.drop_columns(["hash128", "configuration", "code"])):
            if other.offset_class == "compacted":
                compacted.add(other.key)
            elif other.segment is not None:
                elsewhere.setdefault(other.key, []).append((other.first, other.next))
    tasks: list[SearchTask] = [
        FileSearch(path, standing.live[path].size, *key, key in compacted) for path, key in sorted(files.items())
    ]
    return tasks, elsewhere


def _raw_tasks(
    table: TopicTable, standing: EffectiveEvidence, wanted: Mapping[Key, Iterable[tuple[int, int]]]
) -> tuple[list[SearchTask], dict[Key, Intervals]]:
    """Tasks for the offsets ``wanted`` of raw, and those that are gone."""
    tasks: list[SearchTask] = []
    gone: dict[Key, Intervals] = {}
    raw = RawTopic(table)
    for key, spans in sorted(wanted.items()):
        history = standing.ledger.by_partition[key].history
        reading = plan_reading(raw, raw.partition(key), history, Intervals(spans), committed=False)
        gone[key] = reading.gone
        tasks += [RawSearch(task, reading.plan.restores) for task in reading.tasks]
    return tasks, gone


def _state_tasks(
    table: TopicTable, standing: EffectiveEvidence, gone: Mapping[Key, Intervals]
) -> tuple[dict[Key, Intervals], list[SearchTask]]:
    """The offsets, of those ``gone`` from raw, of which the state may have records, and the tasks that search for them.

    The records of a branch that the partition has left since, the state's next run drops by itself.
    """
    if table.topic.state is None or not any(gone.values()):
        return {}, []
    state = StateTable.open(table)
    ledger = state.committed()
    if ledger is None:
        return {}, []
    cuts = cut_offsets(table, standing.ledger, ledger)
    outlived = {key: offsets - cuts.get(key, Intervals()) for key, offsets in gone.items()}
    return outlived, [StateSearch(key, size) for key, size in state.files(ledger).items()]
