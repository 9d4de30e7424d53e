"""Commits changes of a table: exactly once, despite other writers, killed processes and lost answers.

The table's library does not guarantee that. So each commit names its ledger and its attempt in the table's
transactions, and all commits conflict on them. After any error the table is read again, and its content decides.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, cast

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.concurrency import in_parallel
from tidemark.errors import FormatError, NotFound, PreconditionFailed, PublishError, StaleRun, StoreError
from tidemark.formats.table.ledger import Fold, Ledger, PartitionState
from tidemark.formats.table.plan import RunPlan
from tidemark.formats.table.steps import DataFile
from tidemark.installation import VERSION
from tidemark.planning.maintenance.fold import has_landed
from tidemark.planning.maintenance.vacuum import RUN_OVER
from tidemark.retry import Backoff
from tidemark.store import put_once
from tidemark.store.schemes import DIRECTORY, scheme_of
from tidemark.table.delta_table import LiveFile, LiveFiles, TopicTable, live_files, stored_ledger
from tidemark.table.topic_columns import table_schema, widened
from tidemark.timestamps import utc_now
from tidemark_spark.convert.field_ids import disagree, numbered
from tidemark_spark.kinds.kind import Kind, TableChange
from tidemark_spark.run.delta_log import add_columns, commit, name_bounds, open_or_create
from tidemark_spark.run.success_markers import take_away

TRIES: Final = 12
"""Failures in a row without a change of the table, after which a run gives up. The run may be started again."""

_BACKOFF: Final = Backoff(0.1, 2.0)


def publish(kind: Kind, change: TableChange) -> Ledger:
    """Commit ``change``, and return the committed ledger that lists the attempt as landed.

    Safe to call again, from any process, with the same arguments.

    Raises:
        StaleRun: the table has moved on since the plan; nothing was committed.
        TableTampered: another program changed the table; nothing was committed.
        PublishError: a file is missing, or the commit failed repeatedly although the table did not change.
    """
    table, plan = kind.table, kind.plan
    seen, failures = -1, 0
    while True:
        try:
            delta = open_or_create(table, whole=plan.whole)
            current, reference = stored_ledger(table, delta)
            if has_landed(table, current, plan):
                return current
            seen, failures = current.n, failures if current.n == seen else 0
            live = live_files(delta)
            kind.check_hands(current, live)
            kind.check_fresh(current, live)
            _check_files(table, change.files)
            if name_bounds(table, delta) or add_columns(table, delta, whole=plan.whole):
                continue  # that was a separate commit: read everything again
            removed = live.named(change.removes)
            check_removable(table, delta, removed)
            schema = widened(table, delta)
            if schema is not None and len(removed) < len(live):
                raise StaleRun("rows of the narrower type have landed since the plan")
            field_ids = check_field_ids(table, delta, current, plan)
            told = {"field_ids": field_ids, "parent": reference}
            ledger = rebased(kind, current, change, live).model_copy(update=told)
            closed = {dt for dt in kind.closes(current) if ledger.dates[dt] == plan.closes[dt].after}
            touched = set(ledger.dates_changed) - closed
            take_away(table, [dt for dt in touched if dt in current.dates and current.dates[dt].state != "open"])
            ledger = _written(table, ledger)
            commit(table, delta, ledger, change.files, removed, schema)
        except (DeltaError, OSError, StoreError, FormatError) as error:
            failures += 1
            if failures >= TRIES:
                raise PublishError(f"{table.url}: not committed in {TRIES} tries; run it again: {error}") from error
            time.sleep(random.uniform(0, _BACKOFF.after(failures)))  # noqa: S311 - only spreads writers in time
        else:
            return ledger


def check_removable(table: TopicTable, delta: DeltaTable, removed: Collection[LiveFile]) -> None:
    """Raise :class:`PublishError` if files are to be removed from a table that was made append-only."""
    append_only = delta.metadata().configuration.get("delta.appendOnly", "false").lower() == "true"
    if removed and append_only:
        raise PublishError(
            f"{table.url}: has the property delta.appendOnly = true, and {len(removed)} files must be replaced; unset "
            "it (ALTER TABLE ... UNSET TBLPROPERTIES ('delta.appendOnly')) and run it again"
        )


def check_field_ids(table: TopicTable, delta: DeltaTable, current: Ledger, plan: RunPlan) -> dict[str, int]:
    """Ids of all columns of ``table``, including the columns in the files of ``plan``.

    Raises:
        StaleRun: another run has given these ids to other columns since the plan.
    """
    ours = numbered(plan.field_ids, table_schema(table.topic))
    if disagree(ours, current.field_ids):
        raise StaleRun("columns were added since the plan, which have the numbers of others in its files")
    columns = pa.schema(cast("Any", delta.schema().to_arrow()))  # an arro3 schema, read over Arrow's C interface
    return numbered(current.field_ids | ours, columns)


def rebased(kind: Kind, current: Ledger, change: TableChange, live: LiveFiles) -> Ledger:
    """The ledger after ``current`` with this change applied; only its time differs between calls.

    ``live`` are the table's files before the change.
    """
    plan = kind.plan
    files = [LiveFile(file.path, file.size, file.rows, file.dt.isoformat()) for file in change.files]
    removed = live.named(change.removes)
    added, taken = _rows_by_date(files), _rows_by_date(removed)
    rows = Counter(live.rows_by_date())
    rows.update(added)
    rows.subtract(taken)
    touched = kind.touched([*added, *taken], current, rows)
    closed = {dt: state for dt, state in kind.closes(current).items() if dt not in touched}
    dates = {dt: kind.date(current.dates.get(dt), rows[dt], added[dt], taken[dt]) for dt in touched}
    return Ledger(
        n=current.n + 1,
        attempt=plan.attempt,
        cluster=plan.cluster,
        topic=plan.topic,
        table=plan.table,
        kind=plan.kind,
        generation=max(current.generation, plan.generation),
        partitions=_partitions(current, change.partitions),
        dates={**current.dates, **{dt: state for dt, state in dates.items() if state is not None}, **closed},
        dates_changed=tuple(sorted({*touched, *closed})),
        rows=sum(rows.values()),
        files=live.digest_after(removed, files),
        landed=tuple(_landed(current, plan)),
        folds=tuple(_folds(current, plan)),
        superseded={**current.superseded, **dict.fromkeys(change.supersedes, current.n + 1)},
        masks=kind.masks(current),
        configuration=plan.configuration,
        code=plan.code,
        version=VERSION,
        committed_at=utc_now(),
    )


def _rows_by_date(files: Iterable[LiveFile]) -> Counter[str]:
    """The number of rows of each date with files, also if it is 0."""
    rows = Counter[str]()
    for file in files:
        rows[file.dt] += file.rows
    return rows


def _landed(current: Ledger, plan: RunPlan) -> Iterator[int]:
    """The counted attempts in landing order; a fold takes the position of its first attempt."""
    if not plan.folds:
        yield from current.landed
        yield plan.attempt
        return
    for attempt in current.landed:
        if attempt == plan.folds[0]:
            yield plan.attempt
        if attempt not in plan.folds:
            yield attempt


def _folds(current: Ledger, plan: RunPlan) -> Iterator[Fold]:
    """The folds of attempts that might still be run again."""
    for fold in current.folds:
        if plan.created_at - fold.at <= RUN_OVER:
            yield fold
    if plan.folds:
        yield Fold(attempt=plan.attempt, at=plan.created_at)


def _partitions(current: Ledger, fresh: Iterable[PartitionState]) -> tuple[PartitionState, ...]:
    states = current.by_partition
    for state in fresh:
        known = states.get(state.key)
        states[state.key] = _after(known, state) if known else state
    return tuple(states[key] for key in sorted(states))


def _after(known: PartitionState, state: PartitionState) -> PartitionState:
    """``state`` merged with ``known``; ``as_of`` of a branch that was left is dropped.

    The start moves down with a branch that is left below it, and to the first offset that lands after that.
    """
    left, none_landed = known.branch != state.branch, known.next_offset <= known.start_offset
    times = [at for at in (state.as_of, None if left else known.as_of) if at is not None]
    start = state.start_offset if none_landed else known.start_offset
    start = min(known.start_offset, state.start_offset) if left else start
    return state.model_copy(update={"start_offset": start, "as_of": max(times, default=None)})


def _check_files(table: TopicTable, files: Iterable[DataFile]) -> None:
    """Check that files in a directory are there: a worker's may have been another machine's of the same name.

    Any other store is the same for all machines, so the answer to a worker's write proves its file, see
    :func:`tidemark_spark.convert.upload.upload_once`, and :meth:`.Kind.check_fresh` that no vacuum takes it for a
    leftover.
    """
    if scheme_of(table.url) == DIRECTORY:
        in_parallel(lambda file: _check_file(table, file), list(files))


def _check_file(table: TopicTable, file: DataFile) -> None:
    key = f"{table.keys.root}/{file.path}"
    try:
        size = table.store.head(key).size
    except NotFound as error:
        raise PublishError(f"{key}: was written by this run and is gone") from error
    if size != file.size:
        raise PublishError(f"{key}: has {size} bytes, and {file.size} were written")


def _written(table: TopicTable, ledger: Ledger) -> Ledger:
    """``ledger`` as stored; an earlier try of this attempt may have written it, at another time, by another version."""
    key = table.keys.ledger(ledger.n, ledger.attempt)
    try:
        put_once(table.store, key, ledger.to_bytes())
    except PreconditionFailed:
        stored = Ledger.load(table.store, key)
        if stored.model_copy(update={"committed_at": ledger.committed_at, "version": ledger.version}) != ledger:
            raise
        return stored
    return ledger
