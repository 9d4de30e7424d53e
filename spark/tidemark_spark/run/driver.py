"""A run from its plan to its result: convert, account, write evidence, publish.

Any process may run an attempt again after any failure: it finds the objects that were written and the commit that was
made.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from tidemark.errors import NotFound, PreconditionFailed, StaleRun
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import MOST_UNKNOWN, RunPlan, RunResult
from tidemark.parsers.unknown_fields import largest
from tidemark.planning import write_plan
from tidemark.planning.maintenance.fold import has_landed
from tidemark.planning.unread_status import record_unread, recording_failure
from tidemark.store import put_once, put_over
from tidemark.table.delta_table import TopicTable, committed_ledger, ledger_of, live_files, open_delta
from tidemark.table.evidence import EvidenceRow, evidence_key, read_evidence
from tidemark.table.evidence_reader import evidence_that_counts, rows_of
from tidemark.table.topic_columns import check_columns
from tidemark_spark.kinds.kind import Kind, TableChange
from tidemark_spark.kinds.registry import kind_of
from tidemark_spark.model import CarriedOut, Executor, Job, Outcome
from tidemark_spark.run.commit import publish
from tidemark_spark.run.progress import watched
from tidemark_spark.run.steps import carry_out_steps, takes_steps
from tidemark_spark.run.success_markers import update_markers

log = logging.getLogger(__name__)


def run(table: TopicTable, plan: RunPlan, executor: Executor, *, first: bool = False) -> RunResult:
    """Carry out ``plan``, whose object is already written unless it is empty, and write ``results/<attempt>.json``.

    ``first`` means that the caller has just made the plan, so it cannot have landed and is fresh enough to convert; the
    commit is checked in any case.

    Raises:
        ContinuityError: the offsets do not add up; nothing was committed.
        PublishError: nothing was committed; the message states the reason. :class:`StaleRun` becomes a result instead.
    """
    kind, seconds = kind_of(table, plan), dict[str, float]()
    ledger: Ledger | None = None
    with recording_failure(table) if kind.lands else nullcontext():
        try:
            result = _empty(plan) if plan.empty else None if first else _earlier(kind)
            if result is None:
                with _timed(seconds, "convert"):
                    if takes_steps(kind):
                        kind, outcomes = carry_out_steps(kind, executor)
                    else:
                        job, total = Job.of(table, plan), len(plan.tasks)
                        with watched(job, total, executor.finished) if kind.awaited else nullcontext():
                            outcomes = executor.on_each(kind.work, job, plan.tasks)
                result, ledger = _published(kind, outcomes, executor, seconds)
        except StaleRun:
            # Another process may have carried out the same attempt in the meantime.
            result = _landed_before(table, plan, committed_ledger(table)) or _stale(plan, plan.unread)
        if result.status != "empty":
            ledger = ledger or committed_ledger(table)
            update_markers(table, ledger, {*result.dates, *plan.dates} - {""})
            # A hint for readers of many tables. If this run dies before the write, a later run corrects it.
            put_over(table.store, table.keys.deployment.committed_ledger(plan.topic), ledger.to_bytes())
        if kind.lands:
            record_unread(table, plan.created_at, result.unread)
        _report(table, result)
    return result


def _report(table: TopicTable, result: RunResult) -> None:
    """Write the result, which replaces an earlier result of the attempt."""
    put_over(table.store, table.keys.result(result.attempt), result.to_bytes())


def _published(
    kind: Kind, outcomes: Sequence[Outcome], executor: Executor, seconds: dict[str, float]
) -> tuple[RunResult, Ledger | None]:
    """The result, and the last committed ledger if the run has committed."""
    table, plan = kind.table, kind.plan
    with _timed(seconds, "publish"):
        _log_moved(plan, outcomes)
        change = kind.change(outcomes, executor)
        unread = _unread(plan, outcomes)
        if change == "empty":
            return _empty(plan), None
        if change == "stale":
            return _landed_before(table, plan, committed_ledger(table)) or _stale(plan, unread), None
        _write_evidence(kind, change)
        ledger = publish(kind, change)
    read = sum(outcome.bytes_read for outcome in outcomes)
    landed = _landed_as(table, ledger, plan.attempt)
    unknown = largest(change.unknown, MOST_UNKNOWN)
    result = _summed(plan, landed, change.evidence, read, seconds, unread, unknown)
    return result.model_copy(update={"bytes_written": sum(file.size for file in change.files)}), ledger


def _empty(plan: RunPlan) -> RunResult:
    return _result(plan, "empty", plan.ledger_n)


def _stale(plan: RunPlan, unread: tuple[str, ...]) -> RunResult:
    return _result(plan, "stale", plan.ledger_n, unread=unread)


def _earlier(kind: Kind) -> RunResult | None:
    """The result of this attempt if it has landed before. Raises StaleRun if it can no longer land."""
    table, plan = kind.table, kind.plan
    delta = open_delta(table)
    ledger = ledger_of(table, delta)
    if result := _landed_before(table, plan, ledger):
        return result
    live = live_files(delta)
    kind.check_hands(ledger, live)
    if kind.parses and plan.configuration != table.topic.digest:
        raise StaleRun("the topic's settings, or the schema that it follows, have changed since the plan")
    kind.check_fresh(ledger, live)
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


def _write_evidence(kind: Kind, change: TableChange) -> None:
    table, body = kind.table, kind.stored_evidence(change)
    try:
        put_once(table.store, evidence_key(table, kind.plan.attempt), body)
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


def fold(table: TopicTable, plan: RunPlan) -> None:
    """Commit ``plan`` unless it is empty or another process has made the same fold.

    Raises:
        TableTampered: another program changed the table; nothing was committed.
        PublishError: the commit failed repeatedly.
        StoreError: the store failed.
    """
    if not plan.empty:
        write_plan(table, plan)
        run(table, plan, CarriedOut())
