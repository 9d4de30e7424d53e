"""Brings a catalog up to date with a table: a snapshot for each commit of a run, in order, each exactly once.

A single snapshot lists the table's current files at first, when the Delta log no longer has the versions in between,
and when another program has changed the catalog's table. Then the metadata go that no snapshot needs any more:
pyiceberg's expiry forgets snapshots and deletes nothing, and a failed commit leaves its objects. An object goes if the
table's current metadata does not name it and it is two days old: until then, a reader of an older version or a commit
whose reply was lost may need it.
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
from deltalake.exceptions import DeltaError
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Snapshot

from tidemark.backoff import Backoff
from tidemark.catalogs import CatalogSettings, delta_table
from tidemark.errors import MirrorError, TableTampered
from tidemark.formats.table.audit_report import AuditFinding
from tidemark.formats.table.statuses import MirrorState
from tidemark.raw.objects import delete_listed
from tidemark.table.delta_table import TopicTable, live_files, open_delta
from tidemark.table.topic_columns import DT
from tidemark_spark.convert.field_ids import with_columns
from tidemark_spark.mirror.catalog import answering
from tidemark_spark.mirror.delta_entry import register_in_glue, register_in_hive
from tidemark_spark.mirror.delta_versions import DeltaVersion, ListedFile, arrow_schema, listed_files, versions_from
from tidemark_spark.mirror.listed_table import ListedCommit, ListedTable
from tidemark_spark.mirror.mirrored_table import ListedVersion, MirroredTable, file_name

TRIES: Final = 5
"""Failures in a row without progress, after which the next run continues."""

KEPT_SNAPSHOTS: Final = 100
"""Most commits that a reader may go back."""

KEPT: Final = timedelta(days=1)
"""Time for which a snapshot stays after it was replaced: no longer than the files of a state, which it names."""

_LONGEST_KEPT: Final = timedelta(days=5)
"""A vacuum removes replaced files after seven days. By then no snapshot may name one, however few there are."""

_NAMED: Final = 3
"""Most files that a finding of a difference names."""

_SLACK: Final = 20
"""Least number of snapshots to expire at once, as each expiry costs a commit."""

_LEAST: Final = timedelta(hours=1)
"""Time for which a reader of a replaced snapshot may still read its metadata."""

_BACKOFF: Final = Backoff(0.1, 2.0)


class SnapshotStep(NamedTuple):
    """The next snapshot: its version, and the added and removed files."""

    listed: ListedVersion
    added: tuple[ListedFile, ...]
    removed: frozenset[str]


def mirror(listing: ListedTable, settings: CatalogSettings, mirrored: MirroredTable) -> MirrorState | None:
    """List all commits of the table of ``listing`` in its catalog; None while nothing has landed.

    May be called again after any failure, and by several processes at once.

    Raises:
        MirrorError: the catalog does not answer or refuses; the listed files are right, and the next call continues.
        TableTampered: another program changed the table; the catalog lists the files from before.
        FormatError: an object of the Delta log does not parse.
        StoreError: the store did not answer.
    """
    seen: ListedVersion | None = None
    failures = 0
    while True:
        try:
            with answering(settings):
                return _caught_up(listing, settings, mirrored)
        except MirrorError as error:
            now = seen
            with suppress(MirrorError), answering(settings):
                now = mirrored.listed() if mirrored.load() else None
            failures = failures + 1 if now == seen else 1
            seen = now
            if failures >= TRIES or error.__cause__ is None:
                raise  # else another process was faster, or the outcome is not known: another try may help
            time.sleep(random.uniform(0, _BACKOFF.after(failures)))  # noqa: S311 - spreads


def _caught_up(listing: ListedTable, settings: CatalogSettings, mirrored: MirroredTable) -> MirrorState | None:
    table = listing.table
    delta = open_delta(table)
    commit = listing.committed(delta) if delta is not None else None
    if delta is None or commit is None:
        return None
    columns, by = arrow_schema(delta.schema()), delta.metadata().partition_columns
    if not mirrored.load():
        mirrored.create(DT if by else columns.field(0), partitioned=bool(by))
    mirrored.check_retries()
    ids = commit.field_ids if commit.field_ids is not None else with_columns(mirrored.ids(), columns)
    # No file has columns that the ledger does not know. All snapshots get the newest columns: older files lack them.
    columns = pa.schema([field for field in columns if field.name in ids])
    listed = mirrored.listed()
    for wanted in _steps(table, delta, listed):
        gone = _entries(mirrored, wanted) if wanted else None
        step = wanted if wanted and gone is not None else _difference(listing, delta, commit, mirrored)
        gone = _entries(mirrored, step) if gone is None else gone
        mirrored.commit(step.listed, columns, ids, by, step.added, gone or ())
        if not mirrored.load() or mirrored.listed() != step.listed:
            raise CommitFailedException("another process was faster")
        listed = step.listed
        if listed.version == delta.version():
            break
    if _expire(listing, settings, mirrored):
        _remove_unused(table, settings.name, mirrored)
    if settings.delta_suffix is not None:
        register = register_in_hive if settings.kind == "hive" else register_in_glue
        name = delta_table(table.topic.table, settings.delta_suffix)
        register(mirrored.catalog, settings, name, table.url, arrow_schema(delta.schema()), by)
    snapshot = mirrored.iceberg.current_snapshot()
    if listed is None or snapshot is None:
        raise CommitFailedException("the table no longer exists")
    return MirrorState(
        topic=table.topic.topic,
        catalog=settings.name,
        identifier=mirrored.name,
        state=listing.is_state,
        ledger_n=listed.ledger,
        delta_version=listed.version,
        snapshot_id=snapshot.snapshot_id,
        oldest_ledger=min(mirrored.ledger(each) for each in mirrored.iceberg.snapshots()),
        refs=mirrored.refs(),
        at=table.store.now(),
    )


def _entries(mirrored: MirroredTable, step: SnapshotStep) -> list[DataFile] | None:
    """The catalog's entries of the files that ``step`` removes; None if it does not list them all."""
    if not step.removed:
        return []
    entries = mirrored.files({_dt(path) for path in step.removed})
    return [entries[path] for path in sorted(step.removed)] if step.removed <= entries.keys() else None


def _steps(table: TopicTable, delta: DeltaTable, listed: ListedVersion | None) -> Iterator[SnapshotStep | None]:
    """The snapshots after the ``listed`` one; None if the log does not have them."""
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


def steps_of(versions: Sequence[DeltaVersion]) -> Iterator[SnapshotStep]:
    """A snapshot for each commit of a run.

    Raises:
        TableTampered: another program made the last versions, and changed files.
    """
    added: dict[str, ListedFile] = {}
    removed: set[str] = set()
    for version in versions:
        for path in version.removed:
            if added.pop(path, None) is None:
                removed.add(path)
        for file in version.added:
            if file.path in removed:
                removed.remove(file.path)  # as it was: files never change
            else:
                added[file.path] = file
        if version.ledger:
            listed = ListedVersion(version.version, version.ledger, version.attempt)
            yield SnapshotStep(listed, tuple(added.values()), frozenset(removed))
            added, removed = {}, set()
    if added or removed:
        raise TableTampered(
            f"version {versions[-1].version} of the table was made by another program; catalogs list what was before"
        )


def _difference(listing: ListedTable, delta: DeltaTable, commit: ListedCommit, mirrored: MirroredTable) -> SnapshotStep:
    """The snapshot that makes the catalog list the table's current files."""
    listing.check(delta)
    in_catalog = mirrored.files()
    files = {file.path: file for file in listed_files(delta)}
    return SnapshotStep(
        ListedVersion(delta.version(), commit.n, commit.attempt),
        tuple(file for path, file in sorted(files.items()) if path not in in_catalog),
        frozenset(in_catalog.keys() - files.keys()),
    )


def _dt(path: str) -> str:
    return path.removeprefix("dt=").partition("/")[0]


def _expire(listing: ListedTable, settings: CatalogSettings, mirrored: MirroredTable) -> bool:
    """Forget snapshots that were replaced long ago, some at a time; True if there were any.

    All of them are forgotten before a vacuum removes files that they name: also those that list erased rows.
    """
    table = listing.table
    snapshots = sorted(mirrored.iceberg.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
    now = round(table.store.now().timestamp() * 1000)

    def replaced(ago: timedelta, among: Sequence[tuple[Snapshot, Snapshot]]) -> set[int]:
        least = ago / timedelta(milliseconds=1)
        return {snapshot.snapshot_id for snapshot, after in among if now - after.timestamp_ms >= least}

    pairs = list(pairwise(snapshots))
    erased_in = listing.erased_in() if pairs else 0
    named = {ref.snapshot_id for ref in mirrored.iceberg.metadata.refs.values()}  # also the current snapshot
    due = replaced(_LONGEST_KEPT, pairs)
    due |= replaced(table.topic.retention.erased, [pair for pair in pairs if mirrored.ledger(pair[0]) < erased_in])
    past = (replaced(KEPT, pairs) | replaced(_LEAST, pairs[:-KEPT_SNAPSHOTS]) | due) - named
    if len(past) < _SLACK and not past & due:
        return False
    mirrored.expire(sorted(past))
    return True


UNUSED: Final = timedelta(days=2)


def _remove_unused(table: TopicTable, catalog: str, mirrored: MirroredTable) -> None:
    """Remove the objects in ``catalog`` that ``mirrored``, as loaded, does not need.

    Raises:
        StoreError: the store did not answer; the next call removes the rest.
    """
    folder = f"{table.keys.catalog_metadata(catalog)}/"
    now = table.store.now()
    past = [info for info in table.store.list(folder) if now - info.modified > UNUSED]
    needed = mirrored.metadata_files() if past else ()
    unused = [info for info in past if file_name(info.key) not in needed]
    delete_listed(table.store, unused)


def check_mirror(table: TopicTable, settings: CatalogSettings, mirrored: MirroredTable) -> list[AuditFinding]:
    """Differences between the catalog's current snapshot and the version of the Delta log that it lists.

    Empty while the table is not listed.

    Raises:
        MirrorError: the catalog does not answer, or the log no longer has that version.
    """
    if open_delta(table) is None:
        return []
    with answering(settings):
        if not mirrored.load():
            return []
        listed = mirrored.listed()
        in_catalog = {path: (file.file_size_in_bytes, file.record_count) for path, file in mirrored.files().items()}
    where = f"{mirrored.name} in catalog {settings.name}"
    if listed is None:
        return [AuditFinding(kind="catalog_differs", detail=f"{where}: its current snapshot is not Tidemark's")]
    try:
        delta = table.by_delta_rs(listed.version)
    except (DeltaError, OSError) as error:
        rule = f"lists version {listed.version}, which the Delta log no longer has; list it again with mirror.py"
        raise MirrorError(f"{where} {rule}") from error
    live = {file.path: (file.size, file.rows) for file in live_files(delta)}
    findings = []
    for difference, paths in (
        ("is not listed", live.keys() - in_catalog.keys()),
        ("is listed, and is not in the Delta log", in_catalog.keys() - live.keys()),
        (
            "is listed with another size or number of rows",
            {path for path in live if in_catalog.get(path, live[path]) != live[path]},
        ),
    ):
        if paths:
            files = tuple(sorted(paths))
            detail = f"{where}: version {listed.version}: {files[0]} {difference}, and {len(files) - 1} more"
            findings.append(AuditFinding(kind="catalog_differs", files=files[:_NAMED], detail=detail))
    return findings
