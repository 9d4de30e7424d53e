"""A comparison: the changes that a rebuild would make, row by row. Nothing is written.

The current rows of dates, landed with any settings and code, are compared with the rows that raw gives with the current
settings and code. A row is only in the table, only in the rebuild, or has other values in a column. Rows that would
move in from other dates are reported if they are among the same offsets. To find all of them, compare all dates.

A task reads the current rows beside those of raw, offset by offset. The conversion's own code decodes, parses and dates
raw, and the rows of a file are read beside it in the order of their offsets, so memory is bounded by one window of a
segment and by the files of the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from itertools import groupby
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark import decode
from tidemark.backfill.report import Comparison, Differing
from tidemark.errors import ConfigError, ContinuityError
from tidemark.formats.raw.hashsum import combine
from tidemark.formats.table.base_columns import IDENTITY
from tidemark.formats.table.partitioning import DateFolder
from tidemark.formats.table.plan import RunPlan, SegmentRange, SegmentTask
from tidemark.kafka_log import BatchHeader
from tidemark.store import open_store
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import Kept
from tidemark.table.topic_columns import table_schema
from tidemark_spark.audit.evidence import GROUP_TASKS
from tidemark_spark.audit.worker import FileTask, landed_rows, refused_rows
from tidemark_spark.convert.conversion import Conversion
from tidemark_spark.convert.date_partitioner import Numbers, numbers, take
from tidemark_spark.convert.guard import parsed
from tidemark_spark.convert.partition_columns import topic_parser
from tidemark_spark.convert.row_checksums import Cells, as_bytes
from tidemark_spark.convert.row_sink import WantedRows, beside, offsets_of, splitter_of
from tidemark_spark.model import Executor, Job
from tidemark_spark.run.progress import watched

SHOWN: Final = 5
"""Most offsets reported for a difference, the lowest ones."""

_END: Final = 1 << 62


class CompareTask(NamedTuple):
    """Ranges of raw, and the files that now hold records of them."""

    task: SegmentTask
    files: tuple[FileTask, ...]


class DiffPlace(NamedTuple):
    """A class of records of a partition and date (ISO, empty for none)."""

    incarnation: int
    partition: int
    kind: Kept
    dt: str


@dataclass(slots=True)
class Difference:
    """The differences of a place before and after: records on one side only, or with other values.

    ``changed`` counts by column, ``offsets`` has the lowest of each kind. Of filtered records, a task knows only
    ``after`` and ``hash128``; ``others`` means an equal number with other content.
    """

    before: int = 0
    after: int = 0
    hash128: int = 0
    only_before: int = 0
    only_after: int = 0
    others: bool = False
    changed: dict[str, int] = field(default_factory=dict)
    offsets: dict[str, list[int]] = field(default_factory=dict)

    def add(self, other: Difference) -> None:
        """Add the differences of ``other`` to these."""
        self.before += other.before
        self.after += other.after
        self.hash128 = combine(self.hash128, other.hash128)
        self.only_before += other.only_before
        self.only_after += other.only_after
        for name, rows in other.changed.items():
            self.changed[name] = self.changed.get(name, 0) + rows
        for name, offsets in other.offsets.items():
            self.show(name, offsets)

    def show(self, name: str, offsets: Sequence[int]) -> None:
        """Remember the lowest of ``offsets``, which ascend."""
        if offsets:
            self.offsets[name] = sorted({*self.offsets.get(name, ()), *offsets[:SHOWN]})[:SHOWN]


class Compared(NamedTuple):
    """The result of a task."""

    found: dict[DiffPlace, Difference]
    bytes_read: int


def compare(job: Job, task: CompareTask) -> Compared:
    """Carry out ``task``.

    Raises:
        ContinuityError: raw no longer holds the ranges.
        StoreError: a store did not answer, or a file is gone.
    """
    comparing = _Comparing(job, task)
    conversion = Conversion(job, task.task, comparing)
    stop = conversion.run()
    if stop:
        raise ContinuityError(f"partition {task.task.partition}: cannot be converted again: {stop.detail}")
    comparing.close()
    return Compared(comparing.found, conversion.bytes_read + comparing.bytes_read)


class _Comparing:
    """Compares the records of a conversion with the rows of the files."""

    def __init__(self, job: Job, task: CompareTask) -> None:
        self._job, self._at = job, (task.task.incarnation, task.task.partition)
        self._wanted = WantedRows(job, task.task)
        self._parser = topic_parser(job.topic)
        self._splitter = splitter_of(job.topic, self._parser)
        self._names = table_schema(job.topic, self._parser).names
        self._rows: dict[DiffPlace, list[_Rows]] = {}
        self._batches: dict[bool, dict[int, int]] = {True: {}, False: {}}
        self.found: dict[DiffPlace, Difference] = {}
        self.bytes_read = 0
        ranges = task.task.ranges
        cells = Cells(tuple(part.from_offset for part in ranges), tuple(part.to_offset for part in ranges))
        for file in task.files:
            self._rows.setdefault(DiffPlace(*self._at, file.kind, file.dt), []).append(_Rows(self._read(file, cells)))

    def rows(self, _number: int, part: SegmentRange, rows: pa.RecordBatch, refusal: str | None) -> None:
        """Compare decoded rows with the files' rows."""
        columns = parsed(self._parser, rows, refusal)
        split = self._splitter.split(rows, columns, part.uploaded_at)
        whole = beside(rows, columns.columns, split.hours)
        after: dict[DiffPlace, pa.RecordBatch] = {}
        for dt, indices in _by_date(split.landed):
            after[self._place("landed", dt)] = take(whole, self._wanted.among(rows, dt, indices)).select(self._names)
        for own, indices in split.refused:
            after[self._place("quarantined", own.dt)] = take(rows, self._wanted.among(rows, own.dt, indices))
        for own, indices in split.filtered:
            if len(chosen := self._wanted.among(rows, own.dt, indices)):
                filtered = Difference(after=len(chosen), hash128=decode.row_hash_sum(take(rows, chosen)))
                self._found(self._place("filtered", own.dt)).add(filtered)
        end = int(numbers(rows.column("kafka_offset"))[-1]) + 1
        empty = rows.slice(0, 0)
        for place in {*after, *self._rows}:
            if self._job.wants(date.fromisoformat(place.dt) if place.dt else None):
                self._match(place, after.get(place, empty), end)

    def batch(
        self, _number: int, _part: SegmentRange, header: BatchHeader, _data: bytes, _rule: str, span: tuple[int, int]
    ) -> int:
        """Count a batch that cannot be decoded."""
        rows = offsets_of(header, span)
        if self._job.wants(None):
            self._batches[True][span[0]] = rows
        return rows

    def close(self) -> None:
        """Compare the remaining rows."""
        nothing = pa.RecordBatch.from_arrays([pa.array([], pa.int64())], names=["kafka_offset"])
        for place in self._rows:
            self._match(place, nothing, _END)
        after, before = self._batches[True], self._batches[False]
        if after or before:
            difference = self._found(self._place("quarantined", None))
            difference.add(Difference(before=sum(before.values()), after=sum(after.values())))
            gone, new = set(before) - set(after), set(after) - set(before)
            self._only(difference, "only_before", sorted(gone), sum(before[offset] for offset in gone))
            self._only(difference, "only_after", sorted(new), sum(after[offset] for offset in new))

    def _read(self, file: FileTask, cells: Cells) -> Iterator[pa.RecordBatch]:
        """The rows of a file that lie in ``cells``; batches that could not be decoded are only counted."""
        folder = self._job.keys.root if file.kind == "landed" else self._job.keys.quarantine
        body = open_store(self._job.lake_store, self._job.options).get(f"{folder}/{file.path}").body
        self.bytes_read += len(body)
        for rows, counted, names in landed_rows(body) if file.kind == "landed" else refused_rows(body):
            offsets = numbers(rows.column("kafka_offset"))
            inside = np.flatnonzero(cells.numbers(offsets) >= 0)
            if names and len(inside):
                yield take(rows.select(list(names)), inside)
            elif len(inside):
                self._batches[False][int(offsets[0])] = counted

    def _match(self, place: DiffPlace, after: pa.RecordBatch, end: int) -> None:
        """Compare ``after`` with the rows of the files of ``place`` below the offset ``end``."""
        difference = self._found(place)
        wanted = numbers(after.column("kafka_offset"))
        matched = np.zeros(len(wanted), np.bool_)
        for rows in self._rows.get(place, ()):
            for before in rows.below(end):
                stored = numbers(before.column("kafka_offset"))
                _, left, right = np.intersect1d(wanted, stored, return_indices=True)
                alone = np.ones(len(stored), np.bool_)
                matched[left], alone[right] = True, False
                difference.before += len(stored)
                self._only(difference, "only_before", stored[alone].tolist(), int(alone.sum()))
                if place.kind == "landed" and len(left):
                    _columns(difference, take(after, left), before.take(right))
        difference.after += len(wanted)
        self._only(difference, "only_after", wanted[~matched].tolist(), int((~matched).sum()))

    def _only(self, difference: Difference, name: str, offsets: list[int], rows: int) -> None:
        setattr(difference, name, getattr(difference, name) + rows)
        difference.show(name, offsets)

    def _found(self, place: DiffPlace) -> Difference:
        return self.found.setdefault(place, Difference())

    def _place(self, kind: Kept, dt: date | None) -> DiffPlace:
        return DiffPlace(*self._at, kind, dt.isoformat() if dt else "")


class _Rows:
    """The rows of a file, by ascending offset."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._left: pa.RecordBatch | None = None

    def below(self, offset: int) -> Iterator[pa.RecordBatch]:
        """Rows below ``offset`` that were not returned before."""
        while (rows := self._left or next(self._batches, None)) is not None:
            count = int(np.searchsorted(numbers(rows.column("kafka_offset")), offset))
            self._left = rows.slice(count) if count < len(rows) else None
            if count:
                yield rows.slice(0, count)
            if self._left is not None:
                return


def _by_date(split: Sequence[tuple[DateFolder, Numbers]]) -> Iterator[tuple[date | None, Numbers]]:
    """Rows by date, in the order of their offsets."""
    for dt, folders in groupby(split, key=lambda entry: entry[0].dt):
        yield dt, np.sort(np.concatenate([rows for _, rows in folders]))


def _columns(difference: Difference, after: pa.RecordBatch, before: pa.RecordBatch) -> None:
    """Count the rows with changed values, by column; a column that one side lacks is null there."""
    offsets: Numbers = numbers(after.column("kafka_offset"))
    differing = np.zeros(len(offsets), np.bool_)
    for name in dict.fromkeys([*after.schema.names, *before.schema.names]):
        if name in IDENTITY:
            continue
        kind = (after if name in after.schema.names else before).schema.field(name).type
        new = after.column(name) if name in after.schema.names else pa.nulls(len(after), kind)
        old = before.column(name) if name in before.schema.names else pa.nulls(len(before), kind)
        differ = _differ(new, old)
        if differ.any():
            difference.changed[name] = difference.changed.get(name, 0) + int(differ.sum())
            differing |= differ
    difference.show("changed", offsets[differing].tolist())


def _differ(new: pa.Array[Any], old: pa.Array[Any]) -> Any:
    """A mask of the differing values. If the types differ, ``old`` is cast to the type of ``new``."""
    if new.type != old.type:
        with suppress(pa.ArrowException):  # else they are compared as text
            old = old.cast(new.type)
    if new.equals(old):
        return np.zeros(len(new), np.bool_)
    left, right = as_bytes(new), as_bytes(old)
    comparison: Any = pc.not_equal(left, right)
    unequal = pc.fill_null(comparison, False).to_numpy(zero_copy_only=False)
    valid = left.is_valid().to_numpy(zero_copy_only=False) != right.is_valid().to_numpy(zero_copy_only=False)
    return valid | unequal


_NOWHERE: Final = Cells((), ())


def comparison(table: TopicTable, plan: RunPlan, executor: Executor) -> Comparison:
    """The changes that the rebuild ``plan`` would make.

    Raises:
        ConfigError: the plan does not read raw.
        ContinuityError: raw no longer holds the ranges.
        StoreError: a store did not answer, or a file is gone.
    """
    job = Job.of(table, plan)
    differences: dict[DiffPlace, Difference] = {}
    size = 0
    files, filtered = _files(table, plan)
    tasks = list(_tasks(plan, files))
    for start in range(0, len(tasks), GROUP_TASKS):
        group = tasks[start : start + GROUP_TASKS]
        with watched(job, len(group), executor.finished):
            found = executor.on_each(compare, job, group)
        for compared in found:
            size += compared.bytes_read
            for place, difference in compared.found.items():
                differences.setdefault(place, Difference()).add(difference)
    for place in {*filtered, *(place for place in differences if place.kind == "filtered")}:
        _compare_filtered(differences.setdefault(place, Difference()), *filtered.get(place, (0, 0)))
    return Comparison(
        cluster=plan.cluster,
        topic=plan.topic,
        table=plan.table,
        ledger_n=plan.ledger_n,
        configuration=plan.configuration,
        code=plan.code,
        dates=plan.dates,
        rows=sum(difference.before for place, difference in differences.items() if place.kind == "landed"),
        bytes_read=size,
        differences=tuple(
            _shown(place, differences[place])
            for place in sorted(
                differences, key=lambda place: (place.incarnation, place.partition, place.dt, place.kind)
            )
            if _differs(differences[place])
        ),
    )


Hulls = dict[tuple[int, int], list[tuple[int, int, FileTask]]]


def _files(table: TopicTable, plan: RunPlan) -> tuple[Hulls, dict[DiffPlace, tuple[int, int]]]:
    """Files to read with their records' offsets, by partition; and number and hash of filtered records, by place."""
    replaced = frozenset(plan.replaced)
    hulls: dict[str, tuple[int, int]] = {}
    tasks: dict[str, FileTask] = {}
    filtered: dict[DiffPlace, tuple[int, int]] = {}
    for row in EffectiveEvidence.of(table).of_files(replaced):
        assert row.file is not None
        place = DiffPlace(*row.key, cast("Kept", row.offset_class), row.day)  # no other class has a file
        if place.kind == "filtered":
            rows, total = filtered.get(place, (0, 0))
            filtered[place] = rows + row.rows, combine(total, row.hash128 or 0)
            continue
        first, after = hulls.get(row.file, (row.first, row.next))
        hulls[row.file] = min(first, row.first), max(after, row.next)
        tasks[row.file] = FileTask(place.kind, row.file, row.day, place.incarnation, place.partition, _NOWHERE)
    files: Hulls = {}
    for path, task in sorted(tasks.items()):
        files.setdefault((task.incarnation, task.partition), []).append((*hulls[path], task))
    return files, filtered


def _tasks(plan: RunPlan, files: Hulls) -> Iterator[CompareTask]:
    """Tasks, each with the files that have records of its ranges."""
    for task in plan.tasks:
        if not isinstance(task, SegmentTask):
            rule = f"a plan of the kind {plan.kind} does not read raw: only a rebuild or a repair can be compared"
            raise ConfigError(f"attempt {plan.attempt}", [("--compare", rule)])
        candidates = files.get((task.incarnation, task.partition), [])
        chosen = [file for first, after, file in candidates if first < task.to_offset and after > task.from_offset]
        yield CompareTask(task, tuple(chosen))


def _compare_filtered(difference: Difference, rows: int, total: int) -> None:
    """Compare the table's filtered records, ``rows`` with the hash ``total``, with the rebuild's."""
    difference.before = rows
    if (rows, total) != (difference.after, difference.hash128):
        difference.only_before, difference.only_after = max(0, rows - difference.after), max(0, difference.after - rows)
        difference.others = rows == difference.after


def _differs(difference: Difference) -> bool:
    return bool(difference.only_before or difference.only_after or difference.changed or difference.others)


def _shown(place: DiffPlace, difference: Difference) -> Differing:
    counted = {name: value for name, value in asdict(difference).items() if name != "hash128"}
    offsets = {name: tuple(offsets) for name, offsets in sorted(difference.offsets.items())}
    return Differing.model_validate({**place._asdict(), **counted, "offsets": offsets})
