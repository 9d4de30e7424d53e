"""The plan of a run that merges small files of a table, row for row, with their neighbours.

Neighbours are files of one folder, incarnation and partition that follow one another by first offset. A file of at
least half the target stays as it is, and no merged file exceeds the target by much. In a closed date, any two
neighbours are merged. An open date still gets files: there, neighbours are merged once a partition has
:data:`OPEN_FILES` small files. A merge takes that many files or fills the target, and the merged file must be at least
twice as large as its largest part. So no row is written again more often than its file can double.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from tidemark.errors import ContinuityError
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import RunPlan, StoredRange, TableFileTask
from tidemark.planning.common import following
from tidemark.table.delta_table import LiveFile, TopicTable, ledger_of, live_files, open_delta
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.tampering import check_untampered

OPEN_FILES: Final = 32
"""The least number of small files of a partition in an open date that are merged: an hour of landings by the minute
leaves more, and a reader opens as few."""

TASK_FILES: Final = 1000
"""The most files that are merged into one."""

TASK_OVERLAP: Final = 8
"""The most of them that may have rows on both sides of an offset: all of these are read together, in memory."""

RUN_FILES: Final = 10_000
"""The most files that one run replaces, so that its plan and its evidence stay small. The next run takes the rest."""

RUN_BYTES: Final = 64 << 30
"""The most bytes of files that one run replaces."""


class PlacedFile(NamedTuple):
    """A live file and the offsets ``[first, next)`` of its rows; ``dt`` is ISO, ``path`` below the table.

    ``folder`` is the path without the file's name.
    """

    dt: str
    folder: str
    incarnation: int
    partition: int
    first: int
    next: int
    path: str
    size: int


def plan_compaction(
    table: TopicTable, dates: Collection[str] | None = None, *, attempt: int | None = None, files: int = OPEN_FILES
) -> RunPlan:
    """The merges of files of ``dates`` (ISO), or of all dates if None; empty if there are none.

    In an open date, partitions with ``files`` small files are merged.

    Raises:
        ContinuityError: evidence does not account for all rows of a file.
    """
    delta = open_delta(table)
    ledger = ledger_of(table, delta)
    live = live_files(delta)
    check_untampered(table, ledger, live)
    closed = {dt for dt, state in ledger.dates.items() if state.closed}
    target = table.topic.compaction.target
    candidates = _candidates((file for file in live if dates is None or file.dt in dates), closed, target, files)
    found: list[PlacedFile] = []
    if candidates:  # evidence is read from the store only if there is something to place
        evidence = EffectiveEvidence(table, ledger, live)
        found = placed(evidence, table, candidates)
    chosen = bounded(groups(found, closed, target, files))
    return RunPlan(
        **following(table, ledger, attempt),
        kind="compact",
        tasks=tuple(_task(table, ledger, group) for group in chosen),
        dates=tuple(sorted({file.dt for group in chosen for file in group})),
        removes=tuple(sorted(file.path for group in chosen for file in group)),
        columns=tuple(field.name for field in delta.schema().fields if field.name != "dt") if delta is not None else (),
    )


def groups(
    live: Iterable[PlacedFile], closed: Collection[str], target: int, files: int
) -> Iterator[tuple[PlacedFile, ...]]:
    """The files to merge, each group into one of up to ``target`` bytes.

    They come by date and folder, incarnation, partition and offset. In a date that is not ``closed``, the partition has
    ``files`` small ones at least.
    """
    for key, part in groupby(sorted(live), key=lambda file: file[:4]):
        least = 2 if key[0] in closed else files
        neighbours = list(part)
        if sum(_is_small(file.size, target) for file in neighbours) < least:
            continue
        for small, run in groupby(neighbours, key=lambda file: _is_small(file.size, target)):
            if small:
                yield from _packed(list(run), key[0] in closed, target, least)


def bounded(merges: Iterable[tuple[PlacedFile, ...]]) -> list[tuple[PlacedFile, ...]]:
    """The groups of one run: the first ones, up to :data:`RUN_FILES` and :data:`RUN_BYTES`, but one at least."""
    chosen: list[tuple[PlacedFile, ...]] = []
    files = size = 0
    for group in merges:
        files += len(group)
        size += sum(file.size for file in group)
        if chosen and (files > RUN_FILES or size > RUN_BYTES):
            break
        chosen.append(group)
    return chosen


def _is_small(size: int, target: int) -> bool:
    return 2 * size < target


def _packed(run: Sequence[PlacedFile], is_closed: bool, target: int, least: int) -> Iterator[tuple[PlacedFile, ...]]:
    """The groups of neighbouring small files: of ``least`` files, or of two that fill the target."""
    start = 0
    while start < len(run):
        end = _filled(run, start, target)
        sizes = [file.size for file in run[start:end]]
        if not is_closed and 2 * max(sizes) > sum(sizes):
            start += sizes.index(max(sizes)) + 1
            continue
        is_full = end < len(run)
        if len(sizes) >= (2 if is_full else least):
            yield tuple(run[start:end])
        start = end


def _filled(run: Sequence[PlacedFile], start: int, target: int) -> int:
    """The end of a group that begins at ``start``."""
    end, size = start, 0
    while end < len(run) and end - start < TASK_FILES:
        size += run[end].size
        overlapping = sum(file.next > run[end].first for file in run[start:end])
        if end > start and (size > target or overlapping >= TASK_OVERLAP):
            break
        end += 1
    return end


def _candidates(live: Iterable[LiveFile], closed: Collection[str], target: int, files: int) -> dict[str, LiveFile]:
    """The files of folders with enough small files, so that evidence need not be read for the other folders."""
    listed = list(live)
    small = Counter(file.folder for file in listed if _is_small(file.size, target))
    return {file.path: file for file in listed if small[file.folder] >= (2 if file.dt in closed else files)}


def placed(standing: EffectiveEvidence, table: TopicTable, files: dict[str, LiveFile]) -> list[PlacedFile]:
    """The offsets of ``files``, from the evidence.

    Raises:
        ContinuityError: it does not account for all rows of a file.
    """
    found: dict[str, PlacedFile] = {}
    rows: Counter[str] = Counter()
    for row in standing.landed_in(files):
        assert row.file is not None
        file = files[row.file]
        before = found.get(row.file)
        first = min(row.first, before.first) if before else row.first
        after = max(row.next, before.next) if before else row.next
        rows[row.file] += row.rows
        at = file.dt, file.folder, row.incarnation, row.partition
        found[row.file] = PlacedFile(*at, first, after, file.path, file.size)
    for path, file in files.items():
        if rows[path] != file.rows:
            raise ContinuityError(
                f"{table.url}/{path}: has {file.rows} rows, but evidence counts {rows[path]}; audit {file.dt}, and "
                "rebuild it"
            )
    return list(found.values())


def _task(table: TopicTable, ledger: Ledger, group: Sequence[PlacedFile]) -> TableFileTask:
    state = ledger.by_partition[group[0].incarnation, group[0].partition]
    return TableFileTask(
        incarnation=state.incarnation,
        topic_id=state.topic_id,
        partition=state.partition,
        ranges=tuple(
            StoredRange(
                store=table.deployment.lake_store,
                key=f"{table.keys.root}/{file.path}",
                etag="",
                base_offset=file.first,
                start=0,
                end=file.size,
                from_offset=file.first,
                to_offset=file.next,
                uploaded_at=ledger.committed_at,
            )
            for file in group
        ),
    )
