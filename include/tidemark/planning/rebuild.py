"""The plans of runs that make landed rows again: a rebuild from raw, and a replay of the quarantine.

A rebuild replaces the files of dates. Evidence lists the offsets in the live files of those dates, and the records of
those dates that were quarantined or filtered. All of these offsets are converted again, and any may get another class.
Rows of other dates are left out. The job refuses the commit unless the new classes hold exactly the rows of the files
that they replace. So if changed settings give rows another date, the dates that exchange rows are rebuilt together, or
all dates are. Rows that retention removed stay away, even if their date got other rows since: see :func:`expired_of`.

A replay parses quarantined rows again, without raw, after a parser, a schema or a setting was corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime
from itertools import groupby
from types import MappingProxyType

from tidemark.concurrency import in_parallel
from tidemark.errors import ConfigError, ContinuityError, NotFound
from tidemark.formats.table.ledger import Ledger, PartitionState
from tidemark.formats.table.plan import PartitionPlan, QuarantineTask, RunPlan, SegmentTask, StoredRange
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import Lineage
from tidemark.planning.common import Key, find_plan, following, spared_offsets
from tidemark.planning.maintenance.fold import landed_attempts
from tidemark.planning.partition_plan import clipped
from tidemark.planning.read import NO_LIMIT, deciding_for
from tidemark.raw.byte_ranges import BatchCut, ranges_of, tasks_of
from tidemark.raw.partition import RawPartition
from tidemark.raw.segments import Segment, SegmentPiece, aborted_from, cover, whole_lineage
from tidemark.raw_topic import RawTopic
from tidemark.store import Store
from tidemark.store.stored_file import StoredFile
from tidemark.table.delta_table import TopicTable, committed_ledger
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import PARSED, EvidenceRow
from tidemark.table.tampering import check_untampered
from tidemark.timestamps import utc_now


def plan_rebuild(table: TopicTable, dates: Iterable[str] | None, *, attempt: int | None = None) -> RunPlan:
    """The plan to rebuild ``dates`` of the table (ISO, empty for rows without a date), or all if None.

    The plan is empty if the dates have no rows.

    Raises:
        ConfigError: a date is invalid, or retention removed it from the table.
        ContinuityError: raw no longer holds all offsets of the dates, or no evidence names one of their files.
    """
    chosen = None if dates is None else {_checked(dt) for dt in dates}
    standing = EffectiveEvidence.of(table)
    check_untampered(table, standing.ledger, standing.files)
    ledger = standing.ledger
    expired, expired_rows = expired_of(standing)
    _check_there(table, expired, chosen or ())
    landed = standing.told(dates=chosen)
    removes = [file.path for file in standing.live.values() if chosen is None or file.dt in chosen]
    supersedes = files_by_date(landed.aside)
    known = {*supersedes, *(file.dt for file in standing.live.values())}
    unknown = sorted(set(removes) - landed.files)
    if unknown:
        rule = "no evidence names this file, so its offsets are unknown; bring back what was removed below"
        raise ContinuityError(f"{table.url}/{unknown[0]}: {rule} {table.deployment.lake_store}/{table.keys.evidence}")
    raw = RawTopic(table)
    spared = spared_offsets(raw, standing)
    planned = []
    for key, offsets in sorted(landed.offsets.items()):
        part, state = raw.partition(key), ledger.by_partition[key]
        left_out = expired_rows.get(key, {})
        planned.append(plan_partition(raw, part, state, offsets, join=True, spared=spared.get(key), expired=left_out))
    return RunPlan(
        **(following(table, ledger, attempt) | {"generation": ledger.generation + 1}),
        kind="rebuild",
        partitions=tuple(plan for plan, _ in planned),
        tasks=tuple(task for _, tasks in planned for task in tasks),
        dates=tuple(sorted(known if chosen is None else chosen)),
        whole=chosen is None,
        leaves=expired if chosen is None else (),
        removes=tuple(removes),
        supersedes=supersedes,
    )


def landed_parts(table: TopicTable, plan: RunPlan) -> list[RunPlan]:
    """The rebuilds of dates of ``plan`` that have landed since it was made: its parts, if it is carried out by date."""
    before = Ledger.load_or_none(table.store, table.keys.ledger(plan.ledger_n, plan.ledger_attempt))
    known = landed_attempts(table, before) if before else frozenset()
    since = sorted(landed_attempts(table, committed_ledger(table)) - known)
    found = [part for part in in_parallel(lambda attempt: find_plan(table, attempt), since) if part is not None]
    parts = [
        part
        for part in found
        if part.kind == "rebuild" and {*part.dates} <= {*plan.dates} and part.configuration == plan.configuration
    ]
    return sorted(parts, key=lambda part: part.ledger_n)


def files_by_date(rows: Iterable[EvidenceRow]) -> dict[str, tuple[str, ...]]:
    """The files of ``rows`` by date, without duplicates, in the form of a plan's ``supersedes``."""
    by_date: dict[str, set[str]] = {}
    for row in rows:
        if row.file is not None:
            by_date.setdefault(row.day, set()).add(row.file)
    return {dt: tuple(sorted(files)) for dt, files in sorted(by_date.items())}


def _check_there(table: TopicTable, expired: Iterable[str], wanted: Collection[str]) -> None:
    """Raise ConfigError if retention has removed all of one of the dates from the table."""
    gone = [dt for dt in expired if dt in wanted]
    if gone:
        rule = f"retention took {', '.join(gone)} from {table.url}, which a rebuild would undo; leave them out"
        raise ConfigError("dates", [("", rule)])


def expired_of(
    standing: EffectiveEvidence, gone: Collection[str] = ()
) -> tuple[tuple[str, ...], dict[Key, dict[str, Intervals]]]:
    """(The dates that retention removed as a whole, the removed rows of others by partition and date).

    An expired date may have late rows, even if only refused ones.

    Between the removed rows lie rows of other dates, and now and then a row that a replay brought into the date since.
    Evidence that covers nothing else tells such a row apart, and otherwise its file does, unless it is ``gone``.
    """
    removed: dict[tuple[Key, str], list[tuple[int, int]]] = {}
    there: dict[tuple[Key, str], list[EvidenceRow]] = {}
    for row in standing.of_class("expired"):
        if row.dt is not None:
            removed.setdefault((row.key, row.day), []).append((row.first, row.next))
    dates = {dt for dt, state in standing.ledger.dates.items() if state.state == "expired"}
    for row in standing.of_dates({*dates, *(dt for _, dt in removed)}):
        if row.offset_class in PARSED and row.file not in gone:
            there.setdefault((row.key, row.day), []).append(row)
    dates -= {dt for _, dt in there}
    rows: dict[Key, dict[str, Intervals]] = {}
    for (key, dt), spans in sorted(removed.items()):
        if dt not in dates:
            rows.setdefault(key, {})[dt] = _without(standing.table, Intervals(spans), there.get((key, dt), ()))
    return tuple(sorted(dates)), rows


def _without(table: TopicTable, removed: Intervals, there: Iterable[EvidenceRow]) -> Intervals:
    """The offsets ``removed`` without those of rows that are ``there``.

    Filtered rows are in no file: those with other offsets between them cannot be told apart.
    """
    spans: list[tuple[int, int]] = []
    files: set[str] = set()
    for row in there:
        if row.rows == row.next - row.first:
            spans.append((row.first, row.next))
        elif row.file is not None and row.offset_class != "filtered" and removed.clip(row.first, row.next):
            quarantined = row.offset_class == "quarantined"
            files.add(f"{table.keys.quarantine if quarantined else table.keys.root}/{row.file}")
    spans += [(offset, offset + 1) for file in files for offset in _offsets(table.store, file)]
    return removed - Intervals(spans)


def _offsets(store: Store, key: str) -> list[int]:
    """The offsets of the rows of a file of the table or of quarantine; none if the file is gone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        size = store.head(key).size
    except NotFound:
        return []
    with StoredFile(store, key, size) as file:
        parquet = pq.ParquetFile(pa.PythonFile(file, "r"))
        offsets: list[int] = parquet.read(["kafka_offset"], use_threads=False).column(0).to_numpy().tolist()
    return offsets


def _checked(text: str) -> str:
    try:
        return text and date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise ConfigError("dates", [("", f"{text!r} is not a date such as 2026-11-20")]) from error


def plan_partition(
    raw: RawTopic,
    part: RawPartition,
    state: PartitionState,
    offsets: Intervals,
    *,
    join: bool,
    spared: Intervals | None = None,
    expired: Mapping[str, Intervals] = MappingProxyType({}),
) -> tuple[PartitionPlan, list[SegmentTask]]:
    """The plan to convert ``offsets`` of a partition again.

    With ``join``, the offsets between them in the same byte ranges are converted too, so that there are as few tasks
    and files as ingest makes of such ranges. The rows between are of other dates, and the tasks leave them out.
    Masked offsets are left out, apart from ``spared`` ones, and rows of a date at its ``expired`` offsets.

    Raises:
        ContinuityError: raw no longer holds all of the offsets.
    """
    view = raw.view(part)
    if view is None:
        raise ContinuityError(f"{part.keys.watermark}: is gone, and with it the record of the segments that count")
    newest = view.lineage
    pieces: list[SegmentPiece] = []
    deciding: list[Segment] = []
    lineage = state.history
    for span in offsets:
        segments, _ = raw.segments(view, span.start, span.end, NO_LIMIT)
        lineage = whole_lineage(newest, lineage, segments)
        covered, hole = cover(segments, lineage, Intervals([span]))
        if hole:
            raise ContinuityError(f"{part.keys.folder}: {_gone(raw, part, hole)}")
        pieces += covered
        more, decided = deciding_for(raw, view, span, segments, state.verdicts_end)
        if decided < span.end:
            raise ContinuityError(f"{part.keys.folder}: raw does not show any more whether {span} was committed")
        deciding += more
    start, end = pieces[0].start, pieces[-1].end
    known: dict[str, list[BatchCut]] = {}

    def cuts(segment: Segment) -> list[BatchCut]:
        if segment.key not in known:
            known[segment.key] = raw.cuts(segment)
        return known[segment.key]

    pieces = clipped(_joined(pieces, lineage, cuts) if join else pieces, end)
    ranges = [range_ for piece in pieces for range_ in ranges_of(piece, cuts(piece.segment))]
    read = Intervals((range_.from_offset, range_.to_offset) for range_ in ranges)
    left_out = {dt: (spans & read).parts for dt, spans in expired.items()}
    plan = PartitionPlan(
        incarnation=part.incarnation,
        topic_id=part.topic_id,
        partition=part.keys.partition,
        start=start,
        end=end,
        leader_epoch=view.watermark.leader_epoch,
        lineage=lineage.entries,
        restores=lineage.restores,
        aborted=aborted_from(start, raw.aborted(deciding, newest)),
        expired_rows={dt: parts for dt, parts in left_out.items() if parts},
    )
    plan = raw.masked(part, plan, spared)
    return plan, tasks_of(part.incarnation, part.topic_id, part.keys.partition, ranges)


def _joined(
    pieces: list[SegmentPiece], lineage: Lineage, cuts: Callable[[Segment], list[BatchCut]]
) -> list[SegmentPiece]:
    """``pieces`` with the offsets between them that lie in the same byte ranges."""

    def read(some: Iterable[SegmentPiece]) -> set[tuple[str, int]]:
        return {(piece.segment.key, part.start) for piece in some for part in ranges_of(piece, cuts(piece.segment))}

    merged: list[SegmentPiece] = []
    for piece in pieces:
        if merged and merged[-1].end < piece.start:
            last = merged.pop()
            segments = {segment.key: segment for segment in (last.segment, piece.segment)}
            both, hole = cover(list(segments.values()), lineage, Intervals([(last.start, piece.end)]))
            merged += both if hole is None and read(both) == read([last, piece]) else [last, piece]
        else:
            merged.append(piece)
    return merged


def _gone(raw: RawTopic, part: RawPartition, hole: Interval) -> str:
    rule = f"raw holds no offsets {hole.start} to {hole.end} any more"
    tombstone = raw.removal(part, hole.start)
    return f"{rule}: retention removed them, see {tombstone}; their dates stay as they are" if tombstone else rule


def plan_replay(table: TopicTable, dates: Collection[str] | None = None) -> RunPlan:
    """The plan to parse the quarantined rows of ``dates`` (ISO, empty for rows without one) again, or all if None.

    A replay takes all rows of a date, or all rows if no dates are given. Rows that pass land, the others are
    quarantined again, and the earlier rows no longer count. Batches that could not be decoded are tried again as well.
    """
    standing = EffectiveEvidence.of(table)
    check_untampered(table, standing.ledger, standing.files)
    ledger = standing.ledger
    rows = [row for row in standing.set_aside(dates) if row.offset_class == "quarantined"]
    created = utc_now()
    tasks = [
        QuarantineTask(
            incarnation=incarnation,
            topic_id=ledger.by_partition[incarnation, partition].topic_id,
            partition=partition,
            ranges=tuple(_replay_range(table, row, created) for row in group),
        )
        for (incarnation, partition, _), group in groupby(rows, lambda row: (*row.key, row.day))
    ]
    return RunPlan(
        **following(table, ledger, created_at=created),
        kind="replay",
        partitions=tuple(
            _replay_partition(ledger, key, list(group))
            for key, group in groupby(tasks, lambda task: (task.incarnation, task.partition))
        ),
        tasks=tuple(tasks),
        supersedes=files_by_date(rows),
    )


def _replay_range(table: TopicTable, row: EvidenceRow, created: datetime) -> StoredRange:
    if row.file is None or row.segment is None or row.byte_start is None or row.byte_end is None:
        rule = f"evidence of refused records from offset {row.first} on does not state their bytes; audit the table"
        raise ContinuityError(f"{table.url}: {rule}")
    return StoredRange(
        store=table.deployment.lake_store,
        key=row.segment,
        etag="",
        base_offset=row.first,
        start=row.byte_start,
        end=row.byte_end,
        from_offset=row.first,
        to_offset=row.next,
        uploaded_at=created,
        quarantined=row.file,
    )


def _replay_partition(ledger: Ledger, key: tuple[int, int], tasks: list[QuarantineTask]) -> PartitionPlan:
    state = ledger.by_partition[key]
    start = min(task.from_offset for task in tasks)
    return PartitionPlan.of(state, start, max(part.to_offset for task in tasks for part in task.ranges))
