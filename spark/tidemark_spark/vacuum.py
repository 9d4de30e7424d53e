"""The vacuum of a table: deletes the objects that :mod:`tidemark.planning.vacuum` chooses, each as it was listed.

Reports and other words about runs that nobody can ask for (:mod:`tidemark.planning.old_reports`) go in any order.
Of the rest, data and quarantined files go first, then ledgers that nothing names
(:mod:`tidemark.planning.old_ledgers`) and those of dead attempts, then evidence and results, and plans last, because a
plan names the owner of the other objects. So a vacuum may be killed at any point, and the next one completes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import ClassVar, Final

from tidemark.concurrency import in_parallel
from tidemark.errors import ContinuityError, NotFound, PreconditionFailed
from tidemark.formats import object_sizes
from tidemark.formats.audit_report import AuditVerdict
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.ledger import Ledger, Published
from tidemark.formats.plan import RunPlan
from tidemark.planning import read_plan
from tidemark.planning.fold import plan_fold
from tidemark.planning.old_ledgers import NamedLedgers, old_ledgers
from tidemark.planning.old_reports import left_by_runs, old_audits, old_backfill_reports
from tidemark.planning.vacuum import GOES, RUN_OVER, Knowledge, Why, all_landed, judge
from tidemark.store.base import ObjectInfo
from tidemark.table.delta_table import TopicTable, ledger_of, live_files, oldest_ledger_in_log, open_delta
from tidemark.table.evidence import evidence_key
from tidemark.table.evidence_reader import evidence_that_counts
from tidemark.table.tampering import check_untampered
from tidemark_spark.run.fold import fold
from tidemark_spark.run.success_markers import update_markers

_NAMED: Final = ("landed", "quarantined")


class UnusedObject(Model):
    """An object and why it is deleted; for ``unknown`` ones, why they stay."""

    key: str
    size: int
    why: Why


class VacuumReport(StoredObject):
    """What a vacuum did or, for a dry run, would do.

    ``unknown`` objects stay: their owner is not known. ``ledgers`` are those removed of runs that had landed.
    ``reports`` counts the removed parts of reports, and what else told of runs.
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


def vacuum(table: TopicTable, *, dry_run: bool = False) -> VacuumReport:
    """Vacuum, and report the removed objects and ledgers, the fully removed dead attempts, and the folded landed ones.

    Raises:
        ContinuityError: evidence of a landed run is missing; nothing was removed.
        TableTampered: another program changed the table; nothing was removed.
        StoreError: the store did not answer; the next vacuum removes the rest.
    """
    now = table.store.now()
    plans = {plan.attempt: plan for plan in in_parallel(lambda key: read_plan(table, key), _keys(table))}
    delta = open_delta(table)
    ledger = ledger_of(table, delta)
    live = live_files(delta) if delta is not None else []
    check_untampered(table, ledger, live)
    named, authors = _evidence(table, ledger)
    known = Knowledge({one.path for one in live}, named, all_landed(ledger.landed, authors, plans), plans, now)
    there: set[str] = set()
    removed: list[UnusedObject] = []
    unknown: list[UnusedObject] = []
    doomed: list[ObjectInfo] = []
    for folder in (table.keys.root, table.keys.quarantine):
        objects = {one.key.removeprefix(f"{folder}/"): one for one in _listed(table, folder)}
        there.update(objects)
        for path, why in judge(known, objects).items():
            info = objects[path]
            if why in GOES:
                doomed.append(info)
                removed.append(UnusedObject(key=info.key, size=info.size, why=why))
            elif why == "unknown":
                unknown.append(UnusedObject(key=info.key, size=info.size, why=why))
    dead = known.dead()
    past = [*dead, *known.folded(ledger.landed)]
    # A plan whose files may still be read tells when they were replaced.
    finished = [one for one in past if not there.intersection(plans[one].replaced)]
    folds = plan_fold(table, ledger)
    ledgers, of_dead = _ledgers(table, ledger, dead, now)
    reports = _reports(table, ledger, now)
    if not dry_run:
        in_parallel(lambda info: _delete(table, info), doomed)
        in_parallel(table.store.delete, [*ledgers, *of_dead])
        in_parallel(table.store.delete, [evidence_key(table, one) for one in past])
        in_parallel(table.store.delete, [*_results(table, past, plans, now)])
        for step in reports:
            in_parallel(lambda info: _delete(table, info), step)
        in_parallel(table.store.delete, [table.keys.attempt(one) for one in finished])
        update_markers(table, ledger, ledger.dates)
        fold(table, folds)
    return VacuumReport(
        ledger_n=ledger.n,
        dry_run=dry_run,
        removed=tuple(removed),
        unknown=tuple(unknown),
        bytes=sum(one.size for one in removed),
        attempts=tuple(dead),
        ledgers=len(ledgers),
        folded=len(folds.folds),
        reports=sum(map(len, reports)),
    )


def _keys(table: TopicTable) -> list[str]:
    return [one.key for one in table.store.list(table.keys.attempts)]


def _ledgers(table: TopicTable, ledger: Ledger, dead: Collection[int], now: datetime) -> tuple[list[str], list[str]]:
    """The ledgers that nothing names any more, and those later ones that ``dead`` attempts wrote and did not commit."""
    try:
        published = Published.load(table.store, table.keys.published).n
    except NotFound:
        published = 0
    named = NamedLedgers(committed=ledger.n, in_log=oldest_ledger_in_log(table), published=published)
    listed = list(table.store.list(table.keys.ledgers))
    old = {info.key for info in old_ledgers(listed, named, now)}
    suffixes = tuple(f"-{one}.json" for one in dead)
    return sorted(old), [info.key for info in listed if info.key not in old and info.key.endswith(suffixes)]


def _results(table: TopicTable, past: Collection[int], plans: Mapping[int, RunPlan], now: datetime) -> Iterator[str]:
    """The results of ``past`` attempts, and old ones of attempts that had nothing to do and wrote no plan."""
    gone = {table.keys.result(one) for one in past}
    known = {table.keys.result(one) for one in plans}
    for info in table.store.list(table.keys.results):
        if info.key in gone or (info.key not in known and now - info.modified > RUN_OVER):
            yield info.key


def _reports(table: TopicTable, ledger: Ledger, now: datetime) -> list[list[ObjectInfo]]:
    """What nobody can ask for, in the steps in which it goes."""
    store, keys = table.store, table.keys
    try:
        failed = AuditVerdict.load(store, keys.deployment.verdict(table.topic.topic)).failed
    except NotFound:
        failed = {}
    named = {one.report.removeprefix(f"{table.deployment.lake_store}/") for one in failed.values()}
    dates = {dt for dt, state in ledger.dates.items() if state.rows}
    left = left_by_runs([*store.list(keys.deployment.hand_overs), *store.list(keys.all_progress)], now)
    requests, parts = old_backfill_reports(store.list(keys.reports), now)
    return [[*left, *old_audits(store.list(keys.audits), dates, named, now), *requests], parts]


def _listed(table: TopicTable, folder: str) -> Iterator[ObjectInfo]:
    log = f"{folder}/_delta_log/"
    return (one for one in table.store.list(f"{folder}/") if not one.key.startswith(log))


def _evidence(table: TopicTable, ledger: Ledger) -> tuple[set[str], set[int]]:
    """The files in counted evidence, and the attempts of its rows."""
    named: set[str] = set()
    authors: set[int] = set()
    found: set[int] = set()
    for attempt, evidence in evidence_that_counts(table, ledger.landed):
        found.add(attempt)
        authors.update(int(one) for one in evidence["attempt"].unique().to_pylist() if one is not None)
        files = zip(evidence["class"].to_pylist(), evidence["file"].to_pylist(), strict=True)
        named.update(str(file) for kind, file in files if kind in _NAMED)
    if len(found) != len(ledger.landed):
        raise ContinuityError(
            f"{table.url}: the evidence of {len(ledger.landed) - len(found)} landed runs is missing, which "
            "says which files count; restore the objects, because nothing is removed without them"
        )
    return named, authors


def _delete(table: TopicTable, info: ObjectInfo) -> None:
    """Delete exactly the listed object; one replaced or removed in the meantime is left to the next vacuum."""
    try:
        table.store.delete(info.key, if_match=info.etag)
    except (NotFound, PreconditionFailed):
        return
