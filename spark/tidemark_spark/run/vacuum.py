"""The vacuum of a table: deletes objects, each as it was listed.

:mod:`tidemark.planning.maintenance.vacuum` chooses them. Reports and other objects about runs that are no longer needed
(:mod:`tidemark.planning.maintenance.vacuum`) are deleted in any order. The rest is deleted in this order: data and
quarantined files; ledgers that nothing names (:mod:`tidemark.planning.maintenance.vacuum`) and ledgers of dead
attempts; evidence, results and steps; and plans last, because a plan names the owner of the other objects. Then
evidence is folded: without the sums of erased rows, once the files with them are gone. In a pass of erasure,
:mod:`tidemark_spark.erasing.lake` comes last. So a vacuum may be killed at any point, and the next vacuum completes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.concurrency import in_parallel
from tidemark.erasure.reports import Remaining
from tidemark.errors import ContinuityError
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.table.audit_report import AuditVerdict
from tidemark.formats.table.ledger import Ledger, Published
from tidemark.formats.table.plan import RunPlan
from tidemark.planning import read_plan
from tidemark.planning.maintenance.erasure import plan_forgetting
from tidemark.planning.maintenance.fold import plan_fold
from tidemark.planning.maintenance.vacuum import (
    GOES,
    REPORTS_KEPT,
    RUN_OVER,
    Knowledge,
    Why,
    all_landed,
    commits_of,
    erased_rows,
    judge,
    left_by_runs,
    old_audits,
    old_backfill_reports,
    old_ledgers,
    old_steps,
)
from tidemark.raw.objects import delete_listed
from tidemark.store.base import ObjectInfo
from tidemark.table.delta_table import (
    TopicTable,
    committed_ledger,
    ledger_of,
    live_files,
    oldest_ledger_in_log,
    open_delta,
)
from tidemark.table.evidence import evidence_key
from tidemark.table.evidence_reader import evidence_that_counts
from tidemark.table.state_table import StateTable
from tidemark.table.tampering import check_untampered
from tidemark_spark.erasing.lake import erase_versions
from tidemark_spark.run.driver import fold
from tidemark_spark.run.success_markers import update_markers


class UnusedObject(Model):
    """An object, and the reason for its deletion, or for keeping it if it is ``unknown``."""

    key: str
    size: int
    why: Why


class VacuumReport(StoredObject):
    """Objects that a vacuum removed or, in a dry run, would remove.

    ``unknown`` objects stay: their owner is not known. ``ledgers`` counts removed ledgers of landed runs. ``reports``
    counts the removed parts of reports and other objects about runs. ``remaining`` are the objects that stay for now,
    and hold erased rows, or may.
    """

    most_bytes: ClassVar[int] = object_sizes.REPORT

    ledger_n: int
    dry_run: bool
    removed: tuple[UnusedObject, ...] = ()
    unknown: tuple[UnusedObject, ...] = ()
    bytes: int = 0
    attempts: tuple[int, ...] = ()
    ledgers: int = 0
    folded: int = 0
    reports: int = 0
    remaining: tuple[Remaining, ...] = ()


def vacuum(table: TopicTable, *, dry_run: bool = False, versions: bool = False) -> VacuumReport:
    """Vacuum ``table``, and report removed objects, fully removed dead attempts, and folded landed attempts.

    With ``versions``, those that the bucket keeps of deleted objects with erased rows go as well.

    Raises:
        AccessDenied: the role may not delete versions, or something else.
        ContinuityError: evidence of a landed run is missing; nothing was removed.
        TableTampered: another program changed the table; nothing was removed.
        StoreError: the store did not answer; the next vacuum removes the rest.
    """
    now, attempts = table.store.now(), list(table.store.list(table.keys.attempts))
    plans = {plan.attempt: plan for plan in in_parallel(lambda info: read_plan(table, info.key), attempts)}
    delta = open_delta(table)
    ledger = ledger_of(table, delta)
    live = live_files(delta)
    check_untampered(table, ledger, live)
    named, aside, authors = _evidence(table, ledger)
    erased = erased_rows(table, ledger)
    known = Knowledge(
        {file.path for file in live}, named, aside, all_landed(ledger.landed, authors, plans), plans, now, erased
    )
    existing: set[str] = set()
    removed: list[UnusedObject] = []
    unknown: list[UnusedObject] = []
    doomed: list[ObjectInfo] = []
    remaining: list[Remaining] = []
    for folder in (table.keys.root, table.keys.quarantine):
        objects = {info.key.removeprefix(f"{folder}/"): info for info in _listed(table, folder)}
        existing.update(objects)
        known = replace(known, commits=commits_of(table, known.that_hid(objects.keys())))
        for path, verdict in judge(known, objects).items():
            info = objects[path]
            if verdict.why in GOES:
                doomed.append(info)
                removed.append(UnusedObject(key=info.key, size=info.size, why=verdict.why))
            elif verdict.why == "unknown":
                unknown.append(UnusedObject(key=info.key, size=info.size, why=verdict.why))
            if verdict.erased:
                remaining.append(Remaining(key=info.key, why=verdict.erased, until=verdict.until))
    dead = known.dead()
    past = [*dead, *known.folded(ledger.landed)]
    # While its replaced files exist, a plan is kept: it states when they were replaced.
    finished = [attempt for attempt in past if not existing.intersection(plans[attempt].replaced)]
    folds = plan_fold(table, ledger)
    ledgers, of_dead = _ledgers(table, ledger, dead, now)
    reports = _reports(table, ledger, now)
    steps = {info.key: info for info in table.store.list(table.keys.steps)}
    finished_steps = old_steps(known, steps.values())
    remaining += _with_sums(known, steps.keys() - {info.key for info in finished_steps})
    if not dry_run:
        delete_listed(table.store, doomed)
        in_parallel(table.store.delete, [*ledgers, *of_dead])
        in_parallel(table.store.delete, [evidence_key(table, attempt) for attempt in past])
        in_parallel(table.store.delete, [*_results(table, past, plans, now)])
        for step in (finished_steps, *reports):
            delete_listed(table.store, step)
        in_parallel(table.store.delete, [table.keys.attempt(attempt) for attempt in finished])
        update_markers(table, ledger, ledger.dates)
        fold(table, folds)
        if erased:
            remaining += _without_sums(table, known, erased.grace)
        if versions:
            remaining += erase_versions(table, known)
    return VacuumReport(
        ledger_n=ledger.n,
        dry_run=dry_run,
        removed=tuple(removed),
        unknown=tuple(unknown),
        bytes=sum(unused.size for unused in removed),
        attempts=tuple(dead),
        ledgers=len(ledgers),
        folded=len(folds.folds),
        reports=sum(map(len, reports)) + len(finished_steps),
        remaining=tuple(remaining),
    )


def _with_sums(known: Knowledge, steps: Iterable[str]) -> Iterator[Remaining]:
    """The evidence of ``steps``, by key, whose run began before records were erased that it may tell of."""
    for key in sorted(steps):
        plan = known.plans.get(int(key.split("/")[-2]))
        if plan is not None and known.erased is not None and known.erased.unknown_to(plan) and key.endswith(".parquet"):
            yield Remaining(key=key, why="its run may commit, or has died", until=plan.created_at + RUN_OVER)


def _without_sums(table: TopicTable, known: Knowledge, grace: timedelta) -> Iterator[Remaining]:
    """Fold evidence without the sums that tell of erased rows; what that replaces goes ``grace`` later, or remains."""
    fresh = plan_forgetting(table)
    for plan in fresh:
        fold(table, plan)
    landed = {*known.landed, *committed_ledger(table).landed}
    stored, now = {info.key for info in table.store.list(table.keys.evidence)}, table.store.now()
    for plan in (plan for plan in (*known.plans.values(), *fresh) if plan.forgets and plan.attempt in landed):
        until = plan.created_at + grace
        for key in stored.intersection(evidence_key(table, attempt) for attempt in plan.folds):
            if now >= until:
                table.store.delete(key)
            else:
                yield Remaining(key=key, why="has sums with erased rows, and a run may read it", until=until)


def _ledgers(table: TopicTable, ledger: Ledger, dead: Collection[int], now: datetime) -> tuple[list[str], list[str]]:
    """(old ledgers that nothing names, newer ledgers that ``dead`` attempts wrote and did not commit)."""
    pointer = Published.load_or_none(table.store, table.keys.published)
    published = pointer.n if pointer else 0
    state = StateTable.open(table).committed() if table.topic.state else None
    of_state, in_log = state.of.n if state else None, oldest_ledger_in_log(table)
    listed = list(table.store.list(table.keys.ledgers))
    gone = old_ledgers(listed, now, committed=ledger.n, in_log=in_log, published=published, state=of_state)
    old = {info.key for info in gone}
    suffixes = tuple(f"-{attempt}.json" for attempt in dead)
    return sorted(old), [info.key for info in listed if info.key not in old and info.key.endswith(suffixes)]


def _results(table: TopicTable, past: Collection[int], plans: Mapping[int, RunPlan], now: datetime) -> Iterator[str]:
    """Results of ``past`` attempts, and old results of attempts that had nothing to do and wrote no plan."""
    gone = {table.keys.result(attempt) for attempt in past}
    known = {table.keys.result(attempt) for attempt in plans}
    for info in table.store.list(table.keys.results):
        if info.key in gone or (info.key not in known and now - info.modified > RUN_OVER):
            yield info.key


def _reports(table: TopicTable, ledger: Ledger, now: datetime) -> list[list[ObjectInfo]]:
    """Objects about runs that are no longer needed, in the steps of their deletion."""
    store, keys = table.store, table.keys
    verdict = AuditVerdict.load_or_none(store, keys.deployment.verdict(table.topic.topic))
    failed = verdict.failed.values() if verdict else ()
    named = {audit.report.removeprefix(f"{table.deployment.lake_store}/") for audit in failed}
    dates = {dt for dt, state in ledger.dates.items() if state.rows}
    left = left_by_runs([*store.list(keys.deployment.hand_overs), *store.list(keys.all_progress)], now)
    left += [info for info in store.list(keys.datewise_rebuilds) if now - info.modified > REPORTS_KEPT]
    requests, parts = old_backfill_reports(store.list(keys.reports), now)
    return [[*left, *old_audits(store.list(keys.audits), dates, named, now), *requests], parts]


def _listed(table: TopicTable, folder: str) -> Iterator[ObjectInfo]:
    log = f"{folder}/_delta_log/"
    return (info for info in table.store.list(f"{folder}/") if not info.key.startswith(log))


def _evidence(table: TopicTable, ledger: Ledger) -> tuple[set[str], set[str], set[int]]:
    """The files in counted evidence, those of quarantined rows that nothing supersedes, and the rows' attempts."""
    files: dict[str, set[str]] = {"landed": set(), "quarantined": set(), "superseded": set()}
    authors: set[int] = set()
    counted: set[int] = set()
    for attempt, evidence in evidence_that_counts(table, ledger.landed):
        counted.add(attempt)
        authors.update(int(author) for author in evidence["attempt"].unique().to_pylist() if author is not None)
        for kind, named in files.items():
            of_kind = evidence.filter(pc.equal(evidence["class"], pa.scalar(kind)))
            named.update(map(str, of_kind["file"].unique().to_pylist()))
    if len(counted) != len(ledger.landed):
        raise ContinuityError(
            f"{table.url}: the evidence of {len(ledger.landed) - len(counted)} landed runs is missing, which "
            "says which files count; restore the objects, because nothing is removed without them"
        )
    return files["landed"] | files["quarantined"], files["quarantined"] - files["superseded"], authors
