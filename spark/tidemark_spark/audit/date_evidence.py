"""The evidence that an audit of some dates compares, found without reading that of the other dates.

An audit of a date compares whole ranges of bytes, so it needs more than the rows of the date. These belong together:

* the rows of the date, and those of files in its folder;
* all rows of a range of bytes of which it has one, and all rows whose offsets overlap these, whatever date they have;
* all rows of files with a row among these, and all rows whose offsets overlap those of such a file.

So two claims for the same offsets are seen together, even if they are of different dates, attempts or objects. The rows
of a range of bytes are found by their offsets, or because an object has them together, as the attempt that landed the
range wrote them. Only rows of a range that no object has together, and between which there is no evidence, are not
found; an audit of the whole table compares these, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.intervals import Interval
from tidemark.planning.read import joined
from tidemark.table.effective_evidence import EffectiveEvidence, is_of_days
from tidemark.table.evidence import PARSED, EvidenceRow
from tidemark.table.evidence_index import Choice, Spans, first_characters, folder_day
from tidemark.table.evidence_reader import RowsByPartition
from tidemark_spark.audit.evidence import hulls_of

Key = tuple[int, int]
"""(incarnation, partition)."""

_RECORDS: Final = (*PARSED, "expired")
_RANGE: Final = ["incarnation", "partition", "segment", "byte_start", "byte_end"]
_compute: Any = pc


class _Near(NamedTuple):
    """What is known to belong to the dates: spans of offsets by partition, files and segments."""

    spans: Mapping[Key, list[Interval]]
    files: frozenset[str]
    segments: frozenset[str]


def evidence_of(standing: EffectiveEvidence, dates: Collection[str]) -> RowsByPartition:
    """The effective rows that an audit of ``dates`` compares, or without dates, all; see :func:`rows_around`."""
    return rows_around(standing, dates) if dates else RowsByPartition(standing.parts())


def rows_around(standing: EffectiveEvidence, dates: Collection[str]) -> RowsByPartition:
    """The effective rows that belong to ``dates``, by partition and in the order of landing.

    Dates are ISO, and empty for records without one. There may be more rows, but none that overlaps a range of bytes
    of the dates.
    """
    near = _Near({}, frozenset(), frozenset())
    while True:
        rows, torn = _read(standing, dates, near)
        found = _near(rows, dates)
        found = found._replace(segments=found.segments | torn)
        if found == near:
            return rows
        near = found


def _read(standing: EffectiveEvidence, dates: Collection[str], near: _Near) -> tuple[RowsByPartition, frozenset[str]]:
    """The rows of ``dates``, and those that touch what is ``near``; and the segments of ranges that span some of it.

    None of the rows of such a range may touch it, if there are others between them.
    """
    spans = Spans(near.spans)
    hulls: list[pa.Table] = []
    files, segments = (pa.array(sorted(names), pa.string()) for names in near[1:])
    found: list[pa.Table] = []
    days = {*dates, *map(folder_day, near.files)}
    for rows in standing.parts(Choice(days=days), Choice(spans=spans)):
        chosen: Any = pa.array(spans.touched_rows(rows))
        for mask in (
            _of_dates(rows, dates),
            _compute.is_in(rows["file"], files),
            _compute.is_in(rows["segment"], segments),
        ):
            chosen = _compute.or_(chosen, mask)
        found.append(rows.filter(chosen))
        hulls.append(_hulls_of_ranges(rows))
    return RowsByPartition(found), _spanning(hulls, spans)


def _hulls_of_ranges(rows: pa.Table) -> pa.Table:
    """The offsets that each range of bytes spans, as far as ``rows`` are of one."""
    of_ranges = rows.select([*_RANGE, "first", "next"]).filter(_compute.is_valid(rows["segment"]))
    hulls = of_ranges.group_by(_RANGE).aggregate([("first", "min"), ("next", "max")])
    return hulls.rename_columns({"first_min": "first", "next_max": "next"})


def _spanning(hulls: Sequence[pa.Table], spans: Spans) -> frozenset[str]:
    """The segments of the ranges of bytes that touch ``spans``; ``hulls`` may have parts of a range."""
    if not hulls:
        return frozenset()
    whole = _hulls_of_ranges(pa.concat_tables(hulls))
    names = whole["segment"].filter(pa.array(spans.touched_rows(whole)))
    return frozenset(str(name) for name in names.to_pylist())


def _of_dates(rows: pa.Table, dates: Collection[str]) -> Any:
    """A mask of the rows of ``dates``, and of files in the folders of these."""
    dated = is_of_days(rows, dates)
    if "" in dates:  # as records may be, but most rows of other classes are
        records = _compute.is_in(rows["class"], pa.array(_RECORDS))
        dated = _compute.and_(dated, _compute.or_(records, _compute.is_valid(rows["dt"])))
    folders = pa.array([f"dt={day}/".encode() for day in sorted(dates)], pa.binary())
    in_folder = _compute.is_in(first_characters(rows["file"]), folders)
    return _compute.or_(dated, in_folder)


def _near(found: Mapping[Key, list[EvidenceRow]], dates: Collection[str]) -> _Near:
    """What belongs to ``dates``, as far as rows of it are ``found``."""
    spans: dict[Key, list[Interval]] = {}
    files: set[str] = set()
    segments: set[str] = set()
    for key, rows in found.items():
        hulls = hulls_of(rows)
        wanted = joined((row.first, row.next) for row in rows if _is_of(row, dates))
        chosen = _touching(hulls, wanted)
        within = _overlaps(chosen)
        its_files = {row.file for row in rows if row.file and within(row.first, row.first + 1)}
        of_files = _hulls_of_files(rows, its_files)
        reach = joined([*chosen, *of_files])
        spans[key] = joined([*reach, *_touching(hulls, reach)])
        within = _overlaps(spans[key])
        files |= its_files
        segments |= {row.segment for row in rows if row.segment and within(row.first, row.first + 1)}
    return _Near({key: parts for key, parts in spans.items() if parts}, frozenset(files), frozenset(segments))


def _is_of(row: EvidenceRow, dates: Collection[str]) -> bool:
    """True if the row is of ``dates``; rows of other classes than records have no date."""
    return row.day in dates and (row.dt is not None or row.offset_class in _RECORDS)


def _touching(hulls: Iterable[Interval], spans: Sequence[Interval]) -> list[Interval]:
    overlaps = _overlaps(spans)
    return [hull for hull in hulls if overlaps(*hull)]


def _overlaps(spans: Sequence[Interval]) -> Callable[[int, int], bool]:
    """A test if offsets ``[start, end)`` overlap one of ``spans``, which are disjoint and ascending: for many."""
    starts, ends = [span.start for span in spans], [span.end for span in spans]

    def overlaps(start: int, end: int) -> bool:
        last = bisect_left(starts, end) - 1
        return last >= 0 and ends[last] > start

    return overlaps


def _hulls_of_files(rows: Iterable[EvidenceRow], files: Collection[str]) -> list[Interval]:
    hulls: dict[str, Interval] = {}
    for row in rows:
        if row.file is not None and row.file in files:
            before = hulls.get(row.file, Interval(row.first, row.next))
            hulls[row.file] = Interval(min(before.start, row.first), max(before.end, row.next))
    return list(hulls.values())
