"""The one way in which a table changes: exactly once, whoever else writes, whatever is killed or answers wrongly.

The table's own library does not promise that much. So each commit names its ledger and its attempt in the table's
transactions, on which all commits conflict; after any error the table is read again, and what it says counts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from deltalake.exceptions import DeltaError

from tidemark.errors import NotFound, PreconditionFailed, PublishError, StaleRun, StoreError, TableTampered
from tidemark.ledger import DateState, Ledger, PartitionState
from tidemark.planning.objects import in_parallel
from tidemark.runs import RUN_LIMIT, RunPlan
from tidemark.store import put_once
from tidemark.stored import utc_now
from tidemark.table import Lake, LiveFile, ledger_of, live_files
from tidemark_spark.delta import add_columns, commit, open_or_create, widened
from tidemark_spark.job import DataFile
from tidemark_spark.marks import take_away
from tidemark_spark.settle import Change

TRIES: Final = 12
"""Failures in a row, with the table not moving on, after which a run gives up; it may be run again as it is."""

_LONGEST_PAUSE_SECONDS: Final = 2.0


def publish(lake: Lake, plan: RunPlan, change: Change) -> Ledger:
    """Commit ``change``; returns the committed ledger that lists the attempt as landed.

    Safe to call again, from any process, with the same arguments.

    Raises:
        StaleRun: the table has moved on since the plan; nothing was committed.
        TableTampered: somebody changed the table behind Tidemark's back; nothing was committed.
        PublishError: a file is missing, or the commit failed again and again for no reason of the table's.
    """
    seen, failures = -1, 0
    while True:
        try:
            table = open_or_create(lake, whole=plan.whole)
            current = ledger_of(lake, table)
            if plan.attempt in current.landed:
                return current
            seen, failures = current.n, failures if current.n == seen else 0
            live = live_files(table)
            check_untampered(lake, current, live)
            check_fresh(plan, current, live)
            _check_files(lake, change.files)
            if add_columns(lake, table, whole=plan.whole):
                continue  # that was a commit of its own: nothing that was read before it counts
            removes = set(change.removes)
            removed = [one for one in live if one.path in removes]
            schema = widened(lake, table)
            if schema is not None and len(removed) < len(live):
                raise StaleRun("rows of the narrower type have landed since the plan")
            touched = _touched(plan, [*(file.dt.isoformat() for file in change.files), *(one.dt for one in removed)])
            take_away(lake, [dt for dt in touched if dt in current.dates and current.dates[dt].state != "open"])
            ledger = _written(lake, rebased(current, plan, change, removed))
            commit(table, ledger, change.files, removed, schema)
        except (DeltaError, OSError, StoreError) as error:
            failures += 1
            if failures >= TRIES:
                raise PublishError(f"{lake.url}: not committed in {TRIES} tries; run it again: {error}") from error
            pause = min(_LONGEST_PAUSE_SECONDS, 0.05 * 2**failures)
            time.sleep(random.uniform(0, pause))  # noqa: S311 - only spreads writers in time


def check_untampered(lake: Lake, ledger: Ledger, live: Iterable[LiveFile]) -> None:
    """Raise :class:`TableTampered` unless the live files have as many rows as the ledger says."""
    rows = sum(one.rows for one in live)
    if rows != ledger.rows:
        raise TableTampered(
            f"{lake.url}: has {rows} rows, and ledger {ledger.n} says {ledger.rows}: something other than Tidemark "
            "changed the table (RESTORE, DELETE); undo it, or rebuild the dates concerned"
        )


def check_fresh(plan: RunPlan, ledger: Ledger, live: Iterable[LiveFile]) -> None:
    """Raise :class:`StaleRun` unless the table still is as ``plan`` found it, as far as the plan goes."""
    if utc_now() - plan.created_at > RUN_LIMIT:
        raise StaleRun(f"attempt {plan.attempt} was planned more than {RUN_LIMIT} ago: its files may be gone")
    if plan.kind == "ingest":
        _check_partitions(plan, ledger)
    for dt in plan.supersedes:
        if ledger.superseded.get(dt, 0) > plan.ledger_n:
            raise StaleRun(f"refused rows of {dt or 'no date'} were rebuilt or replayed since the plan")
    if plan.closes and not (plan.partitions or plan.replaced or closed_by(ledger, plan)):
        raise StaleRun(f"dates {', '.join(plan.closes)} have changed since the plan")
    if not set(plan.folds) <= set(ledger.landed):
        raise StaleRun("another sweep folded the same attempts since the plan")
    gone = sorted(set(plan.removes) - {one.path for one in live})
    if gone:
        raise StaleRun(f"{gone[0]} was replaced since the plan")


def _check_partitions(plan: RunPlan, ledger: Ledger) -> None:
    for part in plan.partitions:
        state = ledger.by_partition.get(part.key)
        if state is None:
            continue
        if state.next_offset != part.landed_next or part.deleted_before_upload or part.expired:
            found = f"at {state.next_offset} by now, not at {part.landed_next}"
            raise StaleRun(f"partition {part.partition} goes on {found}")
        if state.branch != part.branch or state.leader_epoch > part.leader_epoch:
            raise StaleRun(f"partition {part.partition} follows leader epoch {state.leader_epoch} by now")


def rebased(current: Ledger, plan: RunPlan, change: Change, removed: Iterable[LiveFile]) -> Ledger:
    """The ledger after ``current``, if this change is what comes next. Only its time differs from call to call."""
    added: dict[str, int] = {}
    for file in change.files:
        added[file.dt.isoformat()] = added.get(file.dt.isoformat(), 0) + file.rows
    taken: dict[str, int] = {}
    for one in removed:
        taken[one.dt] = taken.get(one.dt, 0) + one.rows
    touched = _touched(plan, [*added, *taken])
    closed = {dt: state for dt, state in closed_by(current, plan).items() if dt not in touched}
    return Ledger(
        n=current.n + 1,
        attempt=plan.attempt,
        parent=current.as_parent(),
        cluster=plan.cluster,
        topic=plan.topic,
        table=plan.table,
        kind=plan.kind,
        generation=max(current.generation, plan.generation),
        partitions=_partitions(current, change.partitions),
        dates={**current.dates, **{dt: _date(current.dates, dt, added, taken, plan) for dt in touched}, **closed},
        dates_changed=tuple(sorted({*touched, *closed})),
        rows=current.rows + sum(added.values()) - sum(taken.values()),
        landed=tuple(_landed(current, plan)),
        superseded={**current.superseded, **dict.fromkeys(change.supersedes, current.n + 1)},
        configuration=plan.configuration,
        code=plan.code,
        committed_at=utc_now(),
    )


def _touched(plan: RunPlan, dates: Iterable[str]) -> set[str]:
    """The dates whose rows change, given those that get or lose files."""
    return {*dates, *(plan.dates if plan.kind == "retain" else ())} if plan.moves_rows else set()


def _landed(current: Ledger, plan: RunPlan) -> Iterator[int]:
    """The attempts whose evidence counts, in the order in which they landed; a fold stands where its first one was."""
    if not plan.folds:
        yield from current.landed
        yield plan.attempt
        return
    for one in current.landed:
        if one == plan.folds[0]:
            yield plan.attempt
        if one not in plan.folds:
            yield one


def _partitions(current: Ledger, fresh: Iterable[PartitionState]) -> tuple[PartitionState, ...]:
    states = current.by_partition
    for state in fresh:
        known = states.get(state.key)
        states[state.key] = state.model_copy(update={"start_offset": known.start_offset}) if known else state
    return tuple(states[key] for key in sorted(states))


def closed_by(current: Ledger, plan: RunPlan) -> dict[str, DateState]:
    """The dates that ``plan`` closes and that still are as it found them, as they are thereafter."""
    return {dt: one.after for dt, one in plan.closes.items() if current.dates.get(dt) == one.before}


def _date(
    dates: Mapping[str, DateState], dt: str, added: Mapping[str, int], taken: Mapping[str, int], plan: RunPlan
) -> DateState:
    """A date's state with its new rows; rows that come or are cut off after it was closed reopen it.

    Late rows are those by which it grows.
    """
    known = dates.get(dt, DateState(rows=0))
    fresh, cut = added.get(dt, 0), taken.get(dt, 0)
    update: dict[str, object] = {"rows": known.rows + fresh - cut}
    if plan.kind == "retain":
        if known.rows == cut:  # what has landed since the plan is the next run's
            update |= {"state": "expired", "closed_at": plan.created_at}
        return known.model_copy(update=update)
    if (plan.kind != "rebuild" or known.state == "expired") and (fresh or cut):
        update |= {"changed_at": plan.created_at}
        if known.state != "open":
            late = known.late_rows + max(0, fresh - cut)
            update |= {"state": "reopened", "late_rows": late, "unfinished": 0, "outstanding": 0}
    return known.model_copy(update=update)


def _check_files(lake: Lake, files: Iterable[DataFile]) -> None:
    in_parallel(lambda file: _check_file(lake, file), list(files))


def _check_file(lake: Lake, file: DataFile) -> None:
    key = f"{lake.keys.root}/{file.path}"
    try:
        size = lake.store.head(key).size
    except NotFound as error:
        raise PublishError(f"{key}: was written by this run and is gone") from error
    if size != file.size:
        raise PublishError(f"{key}: has {size} bytes, and {file.size} were written")


def _written(lake: Lake, ledger: Ledger) -> Ledger:
    """``ledger`` as it lies in the store: an earlier try of this attempt may have written it, at another time."""
    key = lake.keys.ledger(ledger.n, ledger.attempt)
    try:
        put_once(lake.store, key, ledger.to_bytes())
    except PreconditionFailed:
        there = Ledger.from_bytes(lake.store.get(key).body, key)
        if there.model_copy(update={"committed_at": ledger.committed_at}) != ledger:
            raise
        return there
    return ledger
