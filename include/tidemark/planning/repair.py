"""The plan of a run that restores a table from raw after another program changed it, and the files that a table lost.

The ledger and the evidence stay valid: below a partition's next offset, every offset has one class. So the damage shows
in two sets. First, live files that no evidence names (DELETE, UPDATE, OPTIMIZE or an overwrite wrote them): the run
removes them. Second, offsets to which the remaining evidence gives no class, or several: the run converts them again.
These are the offsets of the lost files, with all offsets in their byte ranges. The rest of the table stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from tidemark.concurrency import in_parallel
from tidemark.errors import ContinuityError, NotFound
from tidemark.formats.table.ledger import Ledger, PartitionState
from tidemark.formats.table.plan import PartitionPlan, RunPlan, SegmentTask
from tidemark.intervals import Intervals
from tidemark.planning.common import following, spared_offsets
from tidemark.planning.partition_plan import cut_of, decided_below, left_at
from tidemark.planning.read import spans_of
from tidemark.planning.rebuild import expired_of, files_by_date, plan_partition
from tidemark.raw.partition import StoredPartition
from tidemark.raw_topic import RawTopic
from tidemark.table.delta_table import LiveFile, TopicTable, ledger_of, live_files, open_delta
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import PARSED, EvidenceRow, offsets_of
from tidemark.table.evidence_reader import RowsByPartition
from tidemark.table.tampering import is_untampered, unknown_files

_VERSIONS: Final = 100
"""Most versions of the table that are searched for the last intact one."""

_Key = tuple[int, int]


def plan_repair(table: TopicTable) -> RunPlan:
    """The plan to restore the table; empty if it is as Tidemark left it, and all its files are there.

    Raises:
        ContinuityError: raw no longer holds all the offsets; names the dates that miss rows, and the choice.
    """
    delta = open_delta(table)
    ledger = ledger_of(table, delta)
    live = live_files(delta)
    lost = {file for files in lost_files(table, {file.dt for file in live}).values() for file in files}
    nothing = RunPlan(**following(table, ledger), kind="repair")
    if not lost and is_untampered(ledger, live):
        return nothing
    standing = EffectiveEvidence(table, ledger, live)
    gone = {*unknown_files(standing), *_expired_again(standing), *(lost & {file.path for file in live})}
    try:
        search = _RepairSearch(standing, gone)
    except ContinuityError as error:
        raise ContinuityError(f"{error}. {_choice(table, ledger, live, gone)}") from error
    return nothing.model_copy(
        update={
            "generation": ledger.generation + 1,
            "partitions": tuple(plan for plan, _ in search.planned),
            "tasks": tuple(task for _, tasks in search.planned for task in tasks),
            "leaves": search.expired,
            "removes": tuple(file.path for file in live if file.path in gone | search.files),
            "supersedes": files_by_date(standing.told(files=search.files).aside),
            "found": live.digest,
        }
    )


def _expired_again(standing: EffectiveEvidence) -> set[str]:
    """The live files with rows that retention has removed from the table: another program has restored them."""

    def identity(row: EvidenceRow) -> tuple[object, ...]:
        return *row.key, row.first, row.next, row.dt, row.hash128

    removed = [row for row in standing.of_class("expired") if row.segment is not None]
    expired = {*map(identity, removed)}
    near = standing.near(offsets_of(removed), ("landed",))
    landed = {identity(row): row.file for row in near if row.file is not None}
    return {file for of, file in landed.items() if of in expired}


class _RepairSearch:
    """The offsets to convert again, by partition, and the ``files`` that this replaces.

    If an unclean election made a partition's log leave the landed branch, the partition returns to before the cut.
    The next ingest lands the new branch from there.
    """

    def __init__(self, standing: EffectiveEvidence, gone: Collection[str]) -> None:
        table, ledger, evidence = standing.table, standing.ledger, RowsByPartition(standing.parts())
        self.planned: list[tuple[PartitionPlan, list[SegmentTask]]] = []
        self.files: set[str] = set()
        self._raw = RawTopic(table)
        self._spared = spared_offsets(self._raw, standing)
        self.expired, self._expired_rows = expired_of(standing, gone)
        for key, state in ledger.by_partition.items():
            rows = [row for row in evidence.get(key, ()) if _file_of(row) not in gone]
            if offsets := _without_one_class(rows, state.next_offset):
                self._plan(key, state, rows, offsets)

    def _plan(self, key: _Key, state: PartitionState, rows: list[EvidenceRow], offsets: Intervals) -> None:
        part = self._raw.partition(key)
        view = self._raw.view(part)
        left = left_at(view.watermark, state) if view else None
        end = state.next_offset
        if view is not None and left is not None:
            end = self._end_before(view, state, rows, left)
        below = [row for row in rows if row.first < end]
        wanted, files = _whole(below, offsets.clip(0, end))
        self.files |= files | {_file_of(row) for row in rows if row.first >= end} - {""}
        spared, expired = self._spared.get(key), self._expired_rows.get(key, {})
        plan, tasks = (
            plan_partition(self._raw, part, state, wanted, join=False, spared=spared, expired=expired)
            if wanted
            else (PartitionPlan.of(state, end, end), [])
        )
        if left is not None:
            plan = plan.model_copy(update={"end": end, "branch": state.branch, "cut": cut_of(state, left)})
        self.planned.append((plan, tasks))

    def _end_before(self, view: StoredPartition, state: PartitionState, rows: list[EvidenceRow], left: int) -> int:
        """The last offset up to ``left`` that no row or file spans, and below which all transactions are decided."""
        end = decided_below(self._raw, view, state, left)
        if end is None:
            raise ContinuityError(
                f"{view.place.keys.folder}: raw holds nothing right below {left}, where the log left it"
            )
        hulls: dict[object, tuple[int, int]] = {}
        for number, row in enumerate(rows):
            before = hulls.get(name := _file_of(row) or number, (row.first, row.next))
            hulls[name] = min(before[0], row.first), max(before[1], row.next)
        while across := [first for first, after in hulls.values() if first < end < after]:
            end = min(across)
        return end


def _file_of(row: EvidenceRow) -> str:
    """The file of a valid row; empty if it has none, such as one that retention has removed from its file."""
    return (row.file or "") if row.offset_class in PARSED else ""


def _whole(rows: list[EvidenceRow], offsets: Intervals) -> tuple[Intervals, set[str]]:
    """(the offsets of all files with rows in ``offsets``, without offsets that no segment ever held; these files)."""
    while True:
        files = {_file_of(row) for row in rows if offsets.clip(row.first, row.next)} - {""}
        hulls = Intervals((row.first, row.next) for row in rows if _file_of(row) in files)
        if not hulls - offsets:
            break
        offsets |= Intervals(span for span in spans_of(rows) if hulls.clip(*span))
    return offsets - Intervals((row.first, row.next) for row in rows if row.segment is None), files


def _without_one_class(rows: Iterable[EvidenceRow], end: int) -> Intervals:
    """The offsets below ``end`` without a row, or in spans with more or fewer rows than offsets."""
    counted: dict[int, int] = {}
    rows = sorted(rows, key=lambda row: row.first)
    spans = spans_of(rows)
    remaining = iter(spans)
    span = next(remaining, None)
    for row in rows:
        while span is not None and row.first >= span.end:
            span = next(remaining, None)
        assert span is not None
        counted[span.start] = counted.get(span.start, 0) + row.rows
    right = Intervals(span for span in spans if counted[span.start] == span.size)
    return right.missing(0, end)


def _choice(table: TopicTable, ledger: Ledger, live: Iterable[LiveFile], replaced: Collection[str]) -> str:
    """The choice that a person has about dates that raw cannot restore."""
    rows: dict[str, int] = {}
    for file in live:
        if file.path not in replaced:
            rows[file.dt] = rows.get(file.dt, 0) + file.rows
    dates = [dt for dt, state in sorted(ledger.dates.items()) if rows.get(dt, 0) != state.rows]
    state = f"So these dates cannot all be made again from raw: {', '.join(dates) or 'none'}; nothing was changed. "
    version = _last_right(table, ledger)
    if version is None:
        return f"{state}The table's log has no version any more that was right: restore raw or the table from a backup"
    return (
        f"{state}Version {version} of the table is the last that was right: RESTORE it to that version, as long as "
        "VACUUM has not taken its files; then it needs no repair"
    )


def _last_right(table: TopicTable, ledger: Ledger) -> int | None:
    """The newest version of the table with the files that the ledger's commit left, or None."""
    from deltalake.exceptions import DeltaError

    newest = open_delta(table)
    if newest is None:
        return None
    for version in range(newest.version() - 1, max(-1, newest.version() - _VERSIONS), -1):
        try:
            delta = table.by_delta_rs(version)
        except DeltaError:
            return None  # the log was cleaned up
        if live_files(delta).digest == ledger.files:
            return version
    return None


def lost_files(table: TopicTable, dates: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The files of the table and of its quarantine that are missing or have the wrong size, by date (ISO).

    The table's log or its evidence names them, and the store lacks them or has another size. Ingestion lands uploaded
    offsets above the ledger, and every offset below it has a class. So a landed date can miss only files, and a rebuild
    of the dates with missing files restores them.

    One listing for each date that has files, and a request for each file of quarantine.
    """
    standing = EffectiveEvidence.of(table)
    lost: dict[str, list[str]] = {}
    for dt in sorted({file.dt for file in standing.live.values()} & set(dates)):
        listed = {info.key: info.size for info in table.store.list(f"{table.keys.root}/dt={dt}/")}
        for file in standing.live.values():
            if file.dt == dt and listed.get(f"{table.keys.root}/{file.path}") != file.size:
                lost.setdefault(dt, []).append(file.path)
    aside = (row for row in standing.set_aside(dates) if row.offset_class == "quarantined")
    refused = {row.file: row.day for row in aside if row.file is not None}
    gone = in_parallel(lambda file: not _is_there(table, f"{table.keys.quarantine}/{file}"), list(refused))
    for (name, dt), is_gone in zip(refused.items(), gone, strict=True):
        if is_gone:
            lost.setdefault(dt, []).append(name)
    return {dt: tuple(sorted(files)) for dt, files in sorted(lost.items())}


def _is_there(table: TopicTable, key: str) -> bool:
    try:
        table.store.head(key)
    except NotFound:
        return False
    return True


def waiting_offsets(table: TopicTable, ledger: Ledger) -> int:
    """Number of offsets sealed or packed and not landed, from the brokers' indexes; ingestion will land them."""
    landed = {key: state.next_offset for key, state in ledger.by_partition.items()}
    ends = {key: entry.least_stored_end for key, entry in RawTopic(table).entries.items()}
    return sum(max(0, end - landed.get(key, 0)) for key, end in ends.items())
