"""Carries out the tasks of a run: a large rebuild step by step, so that the next job goes on where one was killed.

A step is finished once its object exists, which is written last, and once. It is accounted for before that, and all
steps together once more by the driver. Who has too old a plan, or one that somebody has overtaken, stops before the
next step. See docs/architecture.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from hashlib import sha256
from itertools import islice
from typing import Final, NamedTuple, TypeGuard

import pyarrow as pa

from tidemark.concurrency import in_parallel
from tidemark.errors import ContinuityError, FormatError, NotFound, PreconditionFailed, StaleRun
from tidemark.formats import object_sizes
from tidemark.formats.table.plan import RunPlan, StoredTask
from tidemark.formats.table.steps import RunStep, StepOutcome, digest_of_tasks
from tidemark.planning.common import code_digest
from tidemark.planning.ingest import LIMIT_BYTES, LIMIT_TASKS
from tidemark.planning.maintenance.fold import has_landed
from tidemark.raw.byte_ranges import within
from tidemark.store import put_once
from tidemark.store.update import update
from tidemark.table.delta_table import ledger_of, live_files, open_delta
from tidemark.table.evidence import EvidenceRow, parse_evidence
from tidemark_spark.kinds.kind import Kind
from tidemark_spark.kinds.rebuild import Rebuild
from tidemark_spark.model import Executor, Job, Outcome
from tidemark_spark.run.progress import watched

RENEWED_AFTER: Final = timedelta(hours=1)
"""Age of the plan from which a step renews it: far less than RUN_LIMIT, and seldom enough for a plan of 100 MB."""

_NAME: Final = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)\.json", re.ASCII)


class Carried(NamedTuple):
    """The outcomes of all tasks, and the run with its plan as it is now: a rebuild in steps renews it."""

    kind: Kind
    outcomes: list[Outcome]


def takes_steps(kind: Kind) -> TypeGuard[Rebuild]:
    """True if it is a rebuild that exceeds the limits of an ingest."""
    tasks = kind.plan.tasks
    return isinstance(kind, Rebuild) and len(within(tasks, LIMIT_BYTES, LIMIT_TASKS)) < len(tasks)


def carry_out_steps(kind: Rebuild, executor: Executor) -> Carried:
    """Carry out all tasks of the plan that no job before has, step by step.

    Raises:
        ContinuityError: a step does not add up, or raw does not hold it any more; earlier steps stay.
        FormatError: a stored step is damaged.
        StaleRun: the run cannot commit any more.
        StoreError: a store did not answer, or refused.
        TableTampered: another program changed the table.
    """
    return _Steps(kind, executor).carry_out()


class _Span(NamedTuple):
    """The tasks ``[first, end)`` of a plan."""

    first: int
    end: int


class _Steps:
    def __init__(self, kind: Rebuild, executor: Executor) -> None:
        self._kind, self._executor = kind, executor
        self._table, self._plan = kind.table, kind.plan
        self._job = Job.of(kind.table, kind.plan)

    def carry_out(self) -> Carried:
        """All steps that are left, and the outcomes of all."""
        if self._plan.code != code_digest():
            raise StaleRun("the code of this installation is not the plan's, which may have other rows in its steps")
        tasks, stored, key = self._plan.tasks, self._stored(), self._table.keys.attempt(self._plan.attempt)
        sys.stderr.write(f"{len(tasks)} tasks in steps; if the job is killed, run_plan.py --plan {key} goes on\n")
        spans: list[_Span] = []
        at = 0
        while at < len(tasks):
            if (end := stored.get(at)) is None:
                before = min((first for first in stored if first > at), default=len(tasks))
                end = at + len(within(tasks[at : min(before, at + LIMIT_TASKS)], LIMIT_BYTES, LIMIT_TASKS))
                self._step(_Span(at, end))
            spans.append(_Span(at, end))
            at = end
        self._renew()
        outcomes = [outcome for step in in_parallel(self._read, spans) for outcome in step]
        return Carried(self._kind, outcomes)

    def _stored(self) -> dict[int, int]:
        """The end of each stored step by its first task; of two with the same first task, the longer."""
        found: dict[int, int] = {}
        for info in self._table.store.list(self._table.keys.steps_of(self._plan.attempt)):
            if match := _NAME.fullmatch(info.key.rpartition("/")[2]):
                first, end = int(match[1]), int(match[2])
                if first < end <= len(self._plan.tasks):
                    found[first] = max(end, found.get(first, 0))
        return found

    def _step(self, span: _Span) -> None:
        self._renew()
        tasks = self._plan.tasks[span.first : span.end]
        kind: Kind = self._kind
        with watched(self._job, len(self._plan.tasks), lambda: span.first + self._executor.finished()):
            made = self._executor.on_each(kind.work, self._job, tasks)
        self._write(span, tasks, _accounted(self._kind, tasks, made))

    def _renew(self) -> None:
        """Raise the errors of the commit's checks unless the run may still commit; renew its plan if it is old."""
        delta = open_delta(self._table)
        ledger, live = ledger_of(self._table, delta), live_files(delta)
        if has_landed(self._table, ledger, self._plan):
            raise StaleRun(f"attempt {self._plan.attempt} has landed in the meantime")
        self._kind.check_hands(ledger, live)
        self._kind.check_fresh(ledger, live)
        if self._table.store.now() - self._plan.created_at >= RENEWED_AFTER:
            self._kind = renewed(self._kind)
            self._plan = self._kind.plan

    def _write(self, span: _Span, tasks: Sequence[StoredTask], outcomes: Sequence[Outcome]) -> None:
        table, plan = self._table, self._plan
        evidence = self._kind.parquet(row for outcome in outcomes for row in outcome.evidence)
        step = RunStep(
            attempt=plan.attempt,
            first=span.first,
            end=span.end,
            tasks=digest_of_tasks(tasks),
            evidence=sha256(evidence).hexdigest(),
            outcomes=tuple(map(_stored_outcome, outcomes)),
        )
        try:
            put_once(table.store, table.keys.step_evidence(plan.attempt, *span), evidence)
            put_once(table.store, table.keys.step(plan.attempt, *span), step.to_bytes())
        except PreconditionFailed as error:
            raise StaleRun("raw has changed since this attempt first ran; plan again") from error

    def _read(self, span: _Span) -> list[Outcome]:
        """The outcomes of a stored step."""
        store, keys, attempt = self._table.store, self._table.keys, self._plan.attempt
        key, beside = keys.step(attempt, *span), keys.step_evidence(attempt, *span)
        tasks = self._plan.tasks[span.first : span.end]
        try:
            step = RunStep.load(store, key)
            evidence = store.get(beside, limit=object_sizes.EVIDENCE).body
        except NotFound as error:
            raise StaleRun(f"{error.key} is gone: the run has landed, or is too old") from error
        stated = step.attempt, step.first, step.end, len(step.outcomes), step.tasks, step.evidence
        if stated != (attempt, *span, len(tasks), digest_of_tasks(tasks), sha256(evidence).hexdigest()):
            raise FormatError(key, f"is no step of its plan: delete it and {beside}, and run the job again")
        rows = _rows(parse_evidence(evidence, beside))
        return _accounted(self._kind, tasks, [_outcome(outcome, rows) for outcome in step.outcomes])


def renewed(kind: Rebuild) -> Rebuild:
    """``kind`` with its plan as it is stored, and the current time; see docs/architecture.md on why that is safe.

    Raises:
        StaleRun: the stored plan is too old to commit anything, or gone, or another one.
        StoreError: the store failed.
    """
    table, plan = kind.table, kind.plan
    key = table.keys.attempt(plan.attempt)

    def read() -> tuple[RunPlan, str]:
        found = RunPlan.load_version_or_none(table.store, key)
        if found is None or found.value.model_copy(update={"created_at": plan.created_at}) != plan:
            raise StaleRun(f"{key} is gone, or another plan now")
        return found

    def change(stored: RunPlan) -> RunPlan:
        now = table.store.now()
        if now - stored.created_at < RENEWED_AFTER:  # by another job of this attempt
            return stored
        Rebuild(table, stored).check_age()
        return stored.model_copy(update={"created_at": now})

    return Rebuild(table, update(table.store, key, read, change, then="run the job again"))


def _accounted(kind: Rebuild, tasks: Sequence[StoredTask], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """``outcomes`` in the order of their ``tasks``.

    Raises:
        ContinuityError: a task has none or two, or one that ends elsewhere; or an offset has no class or two.
    """
    kind.account(outcomes)
    found = {_start(outcome): outcome for outcome in outcomes}
    whole = [
        start for task in tasks if (made := found.get(start := _start(task))) and made.next_offset == task.to_offset
    ]
    if not len(outcomes) == len(whole) == len(tasks):
        at = f"from offset {tasks[0].from_offset} of partition {tasks[0].partition} on"
        raise ContinuityError(
            f"{kind.table.url}: of a step of {len(tasks)} tasks {at}, {len(whole)} have reached their end, "
            f"with {len(outcomes)} outcomes; run it again, and report it"
        )
    return [found[start] for start in whole]


def _start(of: StoredTask | Outcome) -> tuple[int, int, int]:
    return of.incarnation, of.partition, of.from_offset


def _stored_outcome(outcome: Outcome) -> StepOutcome:
    return StepOutcome(
        incarnation=outcome.incarnation,
        partition=outcome.partition,
        from_offset=outcome.from_offset,
        next_offset=outcome.next_offset,
        evidence=len(outcome.evidence),
        files=outcome.files,
        bytes_read=outcome.bytes_read,
        other_rows=outcome.other_rows,
        unknown=dict(outcome.unknown),
    )


def _rows(evidence: pa.Table) -> Iterator[EvidenceRow]:
    """The rows of a step, as workers return them. They share their texts, of which Arrow makes one for each row."""
    texts: dict[str, str] = {}
    for row in EvidenceRow.of(evidence):
        segment, file = (None if text is None else texts.setdefault(text, text) for text in (row.segment, row.file))
        yield row._replace(segment=segment, file=file, configuration="", code="", attempt=0)


def _outcome(stored: StepOutcome, rows: Iterator[EvidenceRow]) -> Outcome:
    """The outcome that was ``stored``; its evidence is the next of ``rows``."""
    return Outcome(
        incarnation=stored.incarnation,
        partition=stored.partition,
        from_offset=stored.from_offset,
        next_offset=stored.next_offset,
        files=stored.files,
        evidence=tuple(islice(rows, stored.evidence)),
        stop=None,
        bytes_read=stored.bytes_read,
        other_rows=stored.other_rows,
        unknown=stored.unknown,
    )
