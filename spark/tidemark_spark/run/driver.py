"""A run from its plan to its result: convert, account, write evidence, publish.

Any process may run an attempt again after any failure: it finds the objects that were written and the commit that was
made.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from tidemark.errors import ContinuityError, NotFound, PreconditionFailed, StaleRun
from tidemark.formats.raw.hashsum import combine
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import MOST_UNKNOWN, RunPlan, RunResult
from tidemark.parsers.unknown_fields import largest
from tidemark.planning.maintenance.fold import has_landed
from tidemark.planning.maintenance.forgetting import Forgetting
from tidemark.planning.unread_status import record_unread, recording_failure
from tidemark.store import put_once, put_over
from tidemark.table.delta_table import TopicTable, committed_ledger, ledger_of, live_files, open_delta
from tidemark.table.effective_evidence import EffectiveEvidence, Told
from tidemark.table.evidence import PARSED, EvidenceRow, evidence_key, read_evidence, to_parquet
from tidemark.table.evidence_reader import evidence_that_counts, folded, rows_of
from tidemark.table.topic_columns import check_columns
from tidemark_spark.compaction.worker import evidence_of_merged
from tidemark_spark.erasing.evidence import evidence_of_erasure
from tidemark_spark.model import Executor, Job, Outcome
from tidemark_spark.run.accounting import TableChange, account
from tidemark_spark.run.commit import check_fresh, check_hands, publish
from tidemark_spark.run.progress import watched
from tidemark_spark.run.success_markers import update_markers
from tidemark_spark.worker import convert

log = logging.getLogger(__name__)

_PARSING: Final = {"ingest", "rebuild", "replay", "repair"}


def run(table: TopicTable, plan: RunPlan, executor: Executor, *, first: bool = False) -> RunResult:
    """Carry out ``plan``, whose object is already written unless it is empty, and write ``results/<attempt>.json``.

    ``first`` means that the caller has just made the plan, so it cannot
    have landed and is fresh enough to convert; the commit is checked in any case.

    Raises:
        ContinuityError: the offsets do not add up; nothing was committed.
        PublishError: nothing was committed; the message states the reason. :class:`StaleRun` becomes a result instead.
    """
    with recording_failure(table) if plan.kind == "ingest" else nullcontext():
        return _reported(table, plan, executor, first=first)


def _reported(table: TopicTable, plan: RunPlan, executor: Executor, *, first: bool) -> RunResult:
    ledger: Ledger | None = None
    try:
        earlier = _empty(plan) if plan.empty else None if first else _earlier(table, plan)
        result, ledger = (earlier, None) if earlier else _run(table, plan, executor)
    except StaleRun:
        # Another process may have carried out the same attempt in the meantime.
        result = _landed_before(table, plan, committed_ledger(table)) or _stale(plan, plan.unread)
    if result.status != "empty":
        ledger = ledger or committed_ledger(table)
        update_markers(table, ledger, {*result.dates, *plan.dates} - {""})
        # A hint for readers of many tables. If this run dies before the write, a later run corrects it.
        put_over(table.store, table.keys.deployment.committed_ledger(plan.topic), ledger.to_bytes())
    if plan.kind == "ingest":
        record_unread(table, plan.created_at, result.unread)
    _report(table, result)
    return result


def _report(table: TopicTable, result: RunResult) -> None:
    """Write the result, which replaces an earlier result of the attempt."""
    put_over(table.store, table.keys.result(result.attempt), result.to_bytes())


def _run(table: TopicTable, plan: RunPlan, executor: Executor) -> tuple[RunResult, Ledger | None]:
    """The result, and the last committed ledger if the run has committed or seen its commit."""
    seconds: dict[str, float] = {}
    job = Job.of(table, plan)
    with _timed(seconds, "convert"), watched(job, len(plan.tasks), executor.finished):
        outcomes = executor.on_each(convert, job, plan.tasks)
    with _timed(seconds, "publish"):
        change = account(plan, outcomes)
        _log_moved(plan, outcomes)
        if plan.kind == "retain":
            change = change._replace(evidence=tuple(_expired(table, plan)))
        elif plan.kind == "repair":
            change = change._replace(evidence=(*change.evidence, *_no_more(_checked(table, plan, change.evidence))))
        elif plan.kind == "erase":
            change = change._replace(evidence=tuple(evidence_of_erasure(table, plan, outcomes, executor)))
        elif plan.kind in {"rebuild", "replay"}:
            change = change._replace(evidence=(*change.evidence, *_superseded(table, plan, change.evidence)))
        elif plan.partitions and not _moves(plan, change):
            unread = _unread(plan, outcomes)
            return _landed_before(table, plan, committed_ledger(table)) or _stale(plan, unread), None
        elif change.supersedes:
            before = _told(table, plan, (file for files in change.supersedes.values() for file in files))
            change = change._replace(evidence=(*change.evidence, *_no_more(before.aside)))
        if plan.kind == "replay" and all(row.offset_class in {"quarantined", "superseded"} for row in change.evidence):
            return _empty(plan), None  # no row passes: the rows stay set aside
        _write_evidence(table, plan, change)
        ledger = publish(table, plan, change)
    read = sum(outcome.bytes_read for outcome in outcomes)
    landed = _landed_as(table, ledger, plan.attempt)
    unknown = largest(change.unknown, MOST_UNKNOWN)
    result = _summed(plan, landed, change.evidence, read, seconds, _unread(plan, outcomes), unknown)
    return result.model_copy(update={"bytes_written": sum(file.size for file in change.files)}), ledger


def _expired(table: TopicTable, plan: RunPlan) -> list[EvidenceRow]:
    """Rows of class ``expired`` for the offsets that ``plan`` removes, and rows that supersede set-aside rows.

    Raises:
        ContinuityError: the evidence and the files have different numbers of rows.
    """
    standing, replaced = EffectiveEvidence.of(table), frozenset(plan.replaced)
    counted = dict.fromkeys(plan.removes, 0)
    evidence: list[EvidenceRow] = []
    for row in standing.of_files(replaced):
        assert row.file is not None
        removed = row._replace(offset_class="expired", file=None)
        evidence.append(removed)
        if row.offset_class == "landed":
            counted[row.file] += row.rows
        else:
            evidence.append(removed._replace(offset_class="superseded", file=row.file))
    for path, count in counted.items():
        if path in standing.live and standing.live[path].rows != count:
            rows = standing.live[path].rows
            raise ContinuityError(f"{table.url}/{path}: has {rows} rows, but evidence counts {count}")
    return sorted(evidence, key=lambda row: (row.incarnation, row.partition, row.first, row.next, row.offset_class))


def _empty(plan: RunPlan) -> RunResult:
    return _result(plan, "empty", plan.ledger_n)


def _stale(plan: RunPlan, unread: tuple[str, ...]) -> RunResult:
    return _result(plan, "stale", plan.ledger_n, unread=unread)


def _earlier(table: TopicTable, plan: RunPlan) -> RunResult | None:
    """The result of this attempt if it has landed before. Raises StaleRun if it can no longer land."""
    delta = open_delta(table)
    ledger = ledger_of(table, delta)
    if result := _landed_before(table, plan, ledger):
        return result
    live = live_files(delta)
    check_hands(table, plan, ledger, live)
    if plan.kind in _PARSING and plan.configuration != table.topic.digest:
        raise StaleRun("the topic's settings, or the schema that it follows, have changed since the plan")
    check_fresh(plan, ledger, live, table.store.now())
    if delta is not None:
        check_columns(table, delta, whole=plan.whole)
    return None


def _landed_before(table: TopicTable, plan: RunPlan, ledger: Ledger) -> RunResult | None:
    """The result of this attempt if it has landed according to ``ledger``."""
    if not has_landed(table, ledger, plan):
        return None
    result = RunResult.load_or_none(table.store, table.keys.result(plan.attempt))
    if result is not None and result.status == "landed":
        return result
    # The run was killed between commit and result: its evidence holds the result, except for unknown fields.
    rows = [
        EvidenceRow(
            row["incarnation"], row["partition"], row["first"], row["next"], row["class"], row["rows"], file=row["file"]
        )
        for row in _evidence_of(table, plan, ledger)
        if row["attempt"] == plan.attempt
    ]
    return _summed(plan, _landed_as(table, ledger, plan.attempt), rows, 0, {})


def _evidence_of(table: TopicTable, plan: RunPlan, ledger: Ledger) -> Iterator[dict[str, Any]]:
    """The evidence of a landed attempt, among that of others if a fold has taken it over and its own is deleted."""
    try:
        yield from rows_of(read_evidence(table, plan.attempt))
    except NotFound:
        for _, evidence in evidence_that_counts(table, ledger.landed):
            yield from rows_of(evidence)


def _moves(plan: RunPlan, change: TableChange) -> bool:
    """True if the change commits anything: not if all partitions stopped at once at replaced segments."""
    starts = {part.key: part for part in plan.partitions}
    return any(
        state.next_offset > starts[state.key].start
        or state.gaps
        or state.branch > starts[state.key].branch
        or starts[state.key].start == starts[state.key].end
        for state in change.partitions
    )


def _log_moved(plan: RunPlan, outcomes: Iterable[Outcome]) -> None:
    """Log where partitions wait for objects that their manifests name and the store does not have."""
    for stop, partition in ((outcome.stop, outcome.partition) for outcome in outcomes):
        if stop and stop.kind == "moved":
            log.warning(
                "%s/%s partition %d waits at offset %d: %s; if this raw is a copy, run tidemark verify-copy",
                plan.cluster,
                plan.topic,
                partition,
                stop.offset,
                stop.detail,
            )


def _unread(plan: RunPlan, outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """Descriptions of damage at the live end, found by the plan and by its tasks."""
    stops = (outcome.stop for outcome in outcomes if outcome.stop)
    return (*plan.unread, *(stop.detail for stop in stops if stop.kind == "unread"))


def _superseded(table: TopicTable, plan: RunPlan, evidence: Iterable[EvidenceRow]) -> list[EvidenceRow]:
    """Evidence that supersedes the quarantined and filtered rows that ``plan`` replaces.

    Raises:
        ContinuityError: the run classified other rows than the replaced rows.
    """
    before = _told(table, plan, plan.replaced)
    sums = _sums(evidence)
    # Of a batch that cannot be decoded, only its offsets count, before and after.
    both = [*before.aside, *evidence]
    batches = {row.key for row in both if row.offset_class == "quarantined" and not row.dt}
    if any(_known(sums, key, batches) != _known(before.sums, key, batches) for key in {*sums, *before.sums}):
        rows = sum(count for count, _ in sums.values())
        replaced = sum(count for count, _ in before.sums.values())
        subject = f"dates {', '.join(dt or 'none' for dt in plan.dates)}" if plan.dates else "its quarantined rows"
        raise ContinuityError(
            f"{table.url}: {subject} hold {replaced} rows, and made again {rows}, or others; rows may have changed "
            "their date with the topic's settings or code: rebuild.py --extend makes again all dates that exchange "
            "rows, and rebuild.py --all makes all there are"
        )
    return _no_more(before.aside)


def _checked(table: TopicTable, plan: RunPlan, evidence: Iterable[EvidenceRow]) -> tuple[EvidenceRow, ...]:
    """The quarantined and filtered rows that a repair replaces.

    Raises:
        ContinuityError: after the repair, an offset of its partitions has no class or two.
    """
    standing, replaced = EffectiveEvidence.of(table), frozenset(plan.replaced)
    counted = Counter[_Key]()
    ends = {key: state.next_offset for key, state in standing.ledger.by_partition.items()}
    ends |= {part.key: part.end for part in plan.partitions if part.cut}
    for new in evidence:
        if new.offset_class in PARSED:
            counted[new.incarnation, new.partition] += new.rows
    for row in standing.rows():
        if row.file not in replaced and row.first < ends[row.key]:
            counted[row.key] += row.rows
    for key, end in ends.items():
        if counted[key] != end:
            raise ContinuityError(
                f"{table.url}: {counted[key]} of the {end} offsets of partition {key[1]} of incarnation {key[0]} would "
                "have a class after the repair; nothing was changed: audit the table, and report it"
            )
    return standing.told(files=replaced).aside


def _told(table: TopicTable, plan: RunPlan, files: Iterable[str]) -> Told:
    """Evidence of ``files``, which must still be in force."""
    wanted = frozenset(files)
    if not wanted:
        return Told({}, {}, frozenset(), ())
    standing = EffectiveEvidence.of(table)
    check_fresh(plan, standing.ledger, standing.files, table.store.now())
    return standing.told(files=wanted)


def _no_more(aside: Iterable[EvidenceRow]) -> list[EvidenceRow]:
    """Rows that supersede ``aside``."""
    return [row._replace(offset_class="superseded") for row in aside]


_Key = tuple[int, int]


def _sums(evidence: Iterable[EvidenceRow]) -> dict[_Key, tuple[int, int]]:
    """Number and hash of the landed, quarantined and filtered rows of ``evidence``, by (incarnation, partition)."""
    sums: dict[_Key, tuple[int, int]] = {}
    for row in evidence:
        if row.offset_class in PARSED and row.hash128 is not None:
            rows, total = sums.get((row.incarnation, row.partition), (0, 0))
            sums[row.incarnation, row.partition] = rows + row.rows, combine(total, row.hash128)
    return sums


def _known(sums: Mapping[_Key, tuple[int, int]], key: _Key, batches: Collection[_Key]) -> tuple[int, int]:
    """Number and hash of a partition's records; the hash is 0 if some records may be in ``batches``."""
    rows, total = sums.get(key, (0, 0))
    return rows, 0 if key in batches else total


def _write_evidence(table: TopicTable, plan: RunPlan, change: TableChange) -> None:
    if plan.folds:
        body = folded(table, plan.folds, Forgetting.of(table).rewritten if plan.forgets else None)
    elif plan.kind == "compact":
        body = evidence_of_merged(table, plan, change.evidence)
    else:
        body = to_parquet(
            change.evidence,
            configuration=plan.configuration,
            code=plan.code,
            attempt=plan.attempt,
            kept=plan.kind == "erase",
        )
    try:
        put_once(table.store, evidence_key(table, plan.attempt), body)
    except PreconditionFailed as error:
        raise StaleRun("raw has changed since this attempt first ran; plan again") from error


def _landed_as(table: TopicTable, newest: Ledger, attempt: int) -> Ledger | None:
    """The ledger that ``attempt`` committed, at or before ``newest``; None if a vacuum has removed it."""
    ledger: Ledger | None = newest
    while ledger is not None and ledger.attempt != attempt and ledger.parent:
        ledger = Ledger.load_or_none(table.store, table.keys.ledger(ledger.parent.n, ledger.parent.attempt))
    return ledger


def _summed(
    plan: RunPlan,
    ledger: Ledger | None,
    evidence: Iterable[EvidenceRow],
    bytes_read: int,
    seconds: dict[str, float],
    unread: tuple[str, ...] = (),
    unknown: Mapping[str, int] | None = None,
) -> RunResult:
    rows = list(evidence)
    landed = [row for row in rows if row.offset_class == "landed"]
    touched = {part.key for part in plan.partitions}
    return _result(
        plan,
        "landed",
        ledger.n if ledger else plan.ledger_n,
        rows=sum(row.rows for row in landed),
        files=len({row.file for row in landed}),
        bytes_read=bytes_read,
        quarantined=sum(row.rows for row in rows if row.offset_class == "quarantined"),
        erased=sum(row.rows for row in rows if row.offset_class == "erased"),
        truncated=sum(row.rows for row in rows if row.offset_class == "truncated"),
        dates=ledger.dates_changed if ledger else (),
        gaps=tuple(
            (*state.key, gap.start, gap.end)
            for state in (ledger.partitions if ledger else ())
            if state.key in touched
            for gap in state.gaps
        ),
        seconds={name: round(value, 3) for name, value in seconds.items()},
        unread=unread or plan.unread,
        unknown=unknown,
    )


def _result(plan: RunPlan, status: str, ledger_n: int, **more: object) -> RunResult:
    fields = {
        "attempt": plan.attempt,
        "status": status,
        "cluster": plan.cluster,
        "topic": plan.topic,
        "table": plan.table,
        "ledger_n": ledger_n,
        "unread": plan.unread,
        **more,
    }
    return RunResult.model_validate(fields)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[name] = time.monotonic() - start
