"""Brings a catalog up to date with a table: a snapshot for each commit of a run, in order, each exactly once.

Where the Delta log no longer has the versions in between, or somebody else has changed the catalog's table, one
snapshot lists what the table has now. So does the first one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Snapshot

from tidemark.catalogs import LONGEST_KEPT, CatalogSettings, delta_table
from tidemark.errors import MirrorError, TableTampered
from tidemark.formats.ledger import Ledger
from tidemark.formats.mirror_status import MirrorState
from tidemark.table.delta_table import TopicTable, ledger_of, live_files, open_delta
from tidemark.table.tampering import check_untampered
from tidemark_spark.mirror import glue_delta, hive_delta
from tidemark_spark.mirror.catalog import answering
from tidemark_spark.mirror.cleanup import remove_unused
from tidemark_spark.mirror.delta_versions import DeltaVersion, ListedFile, arrow_schema, listed_files, versions_from
from tidemark_spark.mirror.mirrored_table import Listed, MirroredTable

TRIES: Final = 5
"""Failures in a row without progress, after which the next run goes on."""

KEPT_SNAPSHOTS: Final = 100
"""A reader may go back so many commits, or to those of the time that the catalog's settings say if they are fewer."""

_SLACK: Final = 20
"""So many snapshots are expired at once at least, as each time costs a commit."""

_LEAST: Final = timedelta(hours=1)
"""A reader that has begun with a snapshot may read its metadata for so long after it was replaced."""

_LONGEST_PAUSE_SECONDS: Final = 2.0


class Step(NamedTuple):
    """The next snapshot: what it lists, and the files that come and go."""

    listed: Listed
    added: tuple[ListedFile, ...]
    removed: frozenset[str]


def mirror(table: TopicTable, settings: CatalogSettings, mirrored: MirroredTable) -> MirrorState | None:
    """List all commits of ``table`` in its catalog; None while nothing has landed.

    May be called again after any failure, and by several processes at once.

    Raises:
        MirrorError: the catalog does not answer or refuses; what is listed is right, and the next call goes on.
        TableTampered: another program changed the table; it is listed as it was before.
        FormatError: an object of the Delta log does not parse.
        StoreError: the store did not answer.
    """
    seen: Listed | None = None
    failures = 0
    while True:
        try:
            with answering(settings):
                return _caught_up(table, settings, mirrored)
        except MirrorError as error:
            now = seen
            with suppress(MirrorError), answering(settings):
                now = mirrored.listed() if mirrored.load() else None
            failures = failures + 1 if now == seen else 1
            seen = now
            if failures >= TRIES or not _may_pass(error):
                raise
            time.sleep(random.uniform(0, min(_LONGEST_PAUSE_SECONDS, 0.05 * 2**failures)))  # noqa: S311 - spreads


def _may_pass(error: MirrorError) -> bool:
    """Whether trying again at once may help: somebody else was faster, or the outcome is not known."""
    return error.__cause__ is not None


def _caught_up(table: TopicTable, settings: CatalogSettings, mirrored: MirroredTable) -> MirrorState | None:
    delta = open_delta(table)
    ledger = ledger_of(table, delta)
    if delta is None or not ledger.field_ids:
        return None  # a table of an older version gets its ids with the next commit
    if not mirrored.load():
        mirrored.create()
    mirrored.check_retries()
    # Those that the ledger does not know yet are in no file. All snapshots get the newest ones: older files lack them.
    columns = pa.schema([one for one in arrow_schema(delta.schema()) if one.name in ledger.field_ids])
    by = delta.metadata().partition_columns
    listed = mirrored.listed()
    for wanted in _steps(table, delta, listed):
        gone = _entries(mirrored, wanted) if wanted else None
        step = wanted if wanted and gone is not None else _difference(table, delta, ledger, mirrored)
        gone = _entries(mirrored, step) if gone is None else gone
        mirrored.commit(step.listed, columns, ledger.field_ids, by, step.added, gone or ())
        if not mirrored.load() or mirrored.listed() != step.listed:
            raise CommitFailedException("another process was faster")
        listed = step.listed
        if listed.version == delta.version():
            break
    if _expire(table, settings, mirrored):
        remove_unused(table, settings.name, mirrored)
    if settings.delta_suffix is not None:
        register = hive_delta.register if settings.kind == "hive" else glue_delta.register
        name = delta_table(table.topic.table, settings.delta_suffix)
        register(mirrored.catalog, settings, name, table.url, arrow_schema(delta.schema()), by)
    snapshot = mirrored.iceberg.current_snapshot()
    if listed is None or snapshot is None:
        raise CommitFailedException("the table is not there any more")
    return MirrorState(
        topic=table.topic.topic,
        catalog=settings.name,
        identifier=mirrored.name,
        ledger_n=listed.ledger,
        delta_version=listed.version,
        snapshot_id=snapshot.snapshot_id,
        at=table.store.now(),
    )


def _entries(mirrored: MirroredTable, step: Step) -> list[DataFile] | None:
    """What the catalog lists of the files that ``step`` removes; None if it does not list them all."""
    if not step.removed:
        return []
    there = mirrored.files({_dt(path) for path in step.removed})
    return [there[path] for path in sorted(step.removed)] if step.removed <= there.keys() else None


def _steps(table: TopicTable, delta: DeltaTable, listed: Listed | None) -> Iterator[Step | None]:
    """The snapshots that are to come after what is ``listed``; None if the log does not tell which."""
    target = delta.version()
    if listed is None or listed.version > target:
        yield None
        return
    versions = versions_from(table, listed.version, target)
    if versions is None:
        later = versions_from(table, listed.version + 1, target)
        yield from steps_of(later) if later is not None else [None]
    elif versions[0].attempt != listed.attempt:  # the table was removed and made again
        yield None
    else:
        yield from steps_of(versions[1:])


def steps_of(versions: Sequence[DeltaVersion]) -> Iterator[Step]:
    """A snapshot for each commit of a run.

    Raises:
        TableTampered: the last versions are a stranger's, who changed files.
    """
    added: dict[str, ListedFile] = {}
    removed: set[str] = set()
    for one in versions:
        for path in one.removed:
            if added.pop(path, None) is None:
                removed.add(path)
        for file in one.added:
            if file.path in removed:
                removed.remove(file.path)  # as it was: files never change
            else:
                added[file.path] = file
        if one.ledger:
            listed = Listed(one.version, one.ledger, one.attempt)
            yield Step(listed, tuple(added.values()), frozenset(removed))
            added, removed = {}, set()
    if added or removed:
        raise TableTampered(
            f"version {versions[-1].version} of the table was made by another program; catalogs list what was before"
        )


def _difference(table: TopicTable, delta: DeltaTable, ledger: Ledger, mirrored: MirroredTable) -> Step:
    """The snapshot after which the catalog lists what the table has now."""
    check_untampered(table, ledger, live_files(delta))
    there = mirrored.files()
    files = {one.path: one for one in listed_files(delta)}
    return Step(
        Listed(delta.version(), ledger.n, ledger.attempt),
        tuple(one for path, one in sorted(files.items()) if path not in there),
        frozenset(there.keys() - files.keys()),
    )


def _dt(path: str) -> str:
    return path.removeprefix("dt=").partition("/")[0]


def _expire(table: TopicTable, settings: CatalogSettings, mirrored: MirroredTable) -> bool:
    """Forget snapshots that were replaced long ago, some at a time; all before a vacuum removes files that they name.

    Returns whether there were any.
    """
    snapshots = sorted(mirrored.iceberg.snapshots(), key=lambda one: one.sequence_number or 0)
    now = round(table.store.now().timestamp() * 1000)

    def replaced(ago: timedelta, among: Sequence[tuple[Snapshot, Snapshot]]) -> set[int]:
        least = ago / timedelta(milliseconds=1)
        return {one.snapshot_id for one, after in among if now - after.timestamp_ms > least}

    pairs = list(pairwise(snapshots))
    named = {one.snapshot_id for one in mirrored.iceberg.metadata.refs.values()}  # also the current one
    past = (replaced(settings.keep, pairs) | replaced(_LEAST, pairs[:-KEPT_SNAPSHOTS])) - named
    if len(past) < _SLACK and not past & replaced(LONGEST_KEPT, pairs):
        return False
    mirrored.expire(sorted(past))
    return True
