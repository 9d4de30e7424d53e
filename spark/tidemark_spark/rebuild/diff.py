"""A comparison: the changes that a rebuild would make, row by row. Nothing is written.

The current rows of dates, landed with any settings and code, are compared with the rows that raw gives with the current
settings and code. A row is only in the table, only in the rebuild, or has other values in a column. Rows that would
move in from other dates are reported if they are among the same offsets. To find all of them, compare all dates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

from tidemark.backfill.report import Comparison, Differing
from tidemark.errors import ConfigError
from tidemark.formats.raw.hashsum import combine
from tidemark.formats.table.plan import RunPlan, SegmentTask
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import Kept
from tidemark_spark.audit.evidence import GROUP_TASKS
from tidemark_spark.audit.worker import FileTask
from tidemark_spark.convert.row_checksums import Cells
from tidemark_spark.model import Executor, Job
from tidemark_spark.rebuild.diff_worker import CompareTask, Difference, DiffPlace, compare
from tidemark_spark.run.progress import watched

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
            for place in sorted(differences, key=_order)
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


def _order(place: DiffPlace) -> tuple[int, int, str, str]:
    return place.incarnation, place.partition, place.dt, place.kind


def _differs(difference: Difference) -> bool:
    return bool(difference.only_before or difference.only_after or difference.changed or difference.others)


def _shown(place: DiffPlace, difference: Difference) -> Differing:
    return Differing(
        incarnation=place.incarnation,
        partition=place.partition,
        dt=place.dt,
        kind=place.kind,
        before=difference.before,
        after=difference.after,
        only_before=difference.only_before,
        only_after=difference.only_after,
        changed=difference.changed,
        others=difference.others,
        offsets={name: tuple(offsets) for name, offsets in sorted(difference.offsets.items())},
    )
