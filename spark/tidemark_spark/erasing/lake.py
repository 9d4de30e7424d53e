"""What the lake has of erased rows beside the files of the table: versions of deleted files, and the state table.

A deleted file is recognized by its name, which tells partition and offsets, so a kill needs no list: the next pass
finds the versions that are left. Those go of files that nothing counts and no run may still commit, and of evidence
that no ledger names. A live file that somebody deleted has no erased row: its versions stay.

Retention may have deleted records that a request names, from the table and from raw, so that no mask has them. No
search can see what a bucket keeps of deleted objects: the pass names what may hold them. A store that does not tell is
named by a note: the request stays open until a person, who has looked, deletes that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple

from tidemark.erasure.reports import Remaining
from tidemark.erasure.requests import ErasureFolder
from tidemark.intervals import Intervals
from tidemark.planning.common import Key
from tidemark.planning.maintenance.vacuum import RUN_OVER, Knowledge, commits_of, judge, span_of
from tidemark.planning.state import still_holds
from tidemark.raw_topic import RawTopic
from tidemark.retry import Retry
from tidemark.store import Store, put_once
from tidemark.store.versions import ObjectVersion, VersionedStore, delete_all_versions, versioned
from tidemark.table.delta_table import TopicTable, committed_ledger
from tidemark.table.evidence import evidence_key
from tidemark.table.state_table import StateTable, former_states

_NOTE: Final = (
    "names stores that do not tell what they keep of deleted objects (versions, soft deletion): once nothing else of "
    "the request remains, and they keep nothing that was deleted until then, delete this note"
)


class Unseen(NamedTuple):
    """The ``offsets`` that a search found neither in a file nor in raw, and what earlier passes ``named`` for such."""

    offsets: Mapping[Key, Intervals]
    named: Collection[str]

    def may_be_in(self, partition: int, first: int, last: int) -> bool:
        """True if a file with these offsets may hold unseen records."""
        return any(key[1] == partition and offsets.clip(first, last + 1) for key, offsets in self.offsets.items())


NOTHING: Final = Unseen({}, ())


def notes(table: TopicTable, attempt: int, *, erases: bool) -> Iterator[Remaining]:
    """The notes that nobody has deleted yet; a pass that ``erases`` writes its own. Raises StoreError."""
    work = ErasureFolder.of(table.deployment, table.topic.cluster)
    folder = work.cluster.keys.untold(table.topic.topic)
    if erases and (urls := sorted({store.url for store in _stores(table) if versioned(store) is None})):
        put_once(work.cluster.store, f"{folder}{attempt}.txt", "\n".join([*urls, ""]).encode())
    yield from (Remaining(key=info.key, why=_NOTE) for info in work.cluster.store.list(folder))


def _stores(table: TopicTable) -> Iterator[Store]:
    """The stores of the lake and of each partition."""
    yield table.store
    raw = RawTopic(table)
    for state in committed_ledger(table).partitions:
        yield raw.partition_store(raw.partition(state.key)).store


Versions = Mapping[str, Sequence[ObjectVersion]]

_UNSEEN: Final = (
    "is deleted, but the bucket keeps it, and nothing has searched it: the lifecycle removes it, or a person as undo"
)
_STATE: Final = "may have an erased key until state.py has made the state again, and a day longer"
_FORMER: Final = "is not searched, since topics.yaml does not name this former state table any more: delete its folder"


def erase_versions(table: TopicTable, known: Knowledge) -> Iterator[Remaining]:
    """Delete the versions of deleted objects of the lake that may hold erased rows, or sums of them; yields what stays.

    Raises:
        AccessDenied: the role may not list or delete versions, or may not see locks.
        StoreError: the store failed; the next pass goes on.
    """
    store = versioned(table.store)
    if store is None or known.erased is None:
        return
    doomed: dict[str, Sequence[ObjectVersion]] = {}
    for folder in (f"{table.keys.root}/", f"{table.keys.quarantine}/"):
        former = {key.removeprefix(folder): versions for key, versions in _former(store, folder).items()}
        paths = [path for path in former if known.erased.may_be_in(path)]
        known = replace(known, commits=commits_of(table, known.that_hid(paths)))
        for path, verdict in judge(known, paths).items():
            if verdict.why == "young" and verdict.erased:
                why = f"is deleted, but the bucket keeps it: {verdict.erased}"
                yield Remaining(key=f"{folder}{path}", why=why, until=verdict.until)
            elif verdict.why in {"left out", "dead", "replaced", "unknown"}:
                doomed[f"{folder}{path}"] = former[path]
    counted = {evidence_key(table, attempt) for attempt in committed_ledger(table).landed}
    doomed |= _without(_former(store, table.keys.evidence), counted)
    if table.topic.state:
        state = StateTable.open(table)
        former_files = [_former(store, folder) for folder in _folders_of(state)]
        ledger = state.committed()  # after the listings: what it names stays
        for files in former_files:
            doomed |= _without(files, state.files(ledger) if ledger else ())
    yield from (Remaining(**version._asdict()) for version in delete_all_versions(store, doomed))


def unseen_files(table: TopicTable, unseen: Unseen) -> Iterator[Remaining]:
    """The deleted files of the table and of quarantine of which the bucket keeps versions that nothing has searched.

    Raises:
        AccessDenied: the role may not list versions.
        StoreError: the store failed.
    """
    store = versioned(table.store)
    if store is None or not any(unseen):
        return
    for folder in (f"{table.keys.root}/", f"{table.keys.quarantine}/"):
        for key, versions in _former(store, folder).items():
            span = span_of(key)
            chosen = key in unseen.named or (span is not None and unseen.may_be_in(*span))
            if chosen and any(version.etag for version in versions):
                yield Remaining(key=key, why=_UNSEEN)


def state_files(table: TopicTable, erased_at: datetime) -> Iterator[Remaining]:
    """The files of the state table that may have keys which an erasure at ``erased_at`` took out of the table.

    Of a table that was the topic's state before, nothing is searched or removed: its folder is named.

    Raises:
        FormatError: a ledger does not parse.
        StoreError: the store failed.
    """
    for folder in former_states(table):
        if any(_is_data(info.key) for info in table.store.list(f"{folder}/")):
            yield Remaining(key=f"{folder}/", why=_FORMER)
    if not table.topic.state:
        return
    state = StateTable.open(table)
    ledger = state.committed()
    clean = state.files(ledger) if ledger and still_holds(table, committed_ledger(table), ledger) else ()
    for folder in _folders_of(state):
        for info in table.store.list(folder):
            # A run that began before the erasure may write files that it can commit no more.
            if _is_data(info.key) and info.key not in clean and info.modified < erased_at + RUN_OVER:
                yield Remaining(key=info.key, why=_STATE)


def _former(store: VersionedStore, prefix: str) -> Versions:
    found = Retry().call(lambda: store.deleted(prefix))
    return {key: versions for key, versions in found.items() if _is_data(key)}


def _is_data(key: str) -> bool:
    return key.endswith(".parquet") and "/_delta_log/" not in key


def _without(former: Versions, keys: Collection[str]) -> Versions:
    return {key: versions for key, versions in former.items() if key not in keys}


def _folders_of(state: StateTable) -> tuple[str, str]:
    return f"{state.root}/", state.of.keys.state_folder
