"""A run of a state table: what changed, two rounds of tasks, one commit.

A run writes its files under names of its own attempt, then the ledger, then the Delta commit that makes both count. A
run that dies leaves files that nothing names, which a later run deletes. Of two runs at once one commits; the other is
stale, and so is one whose rows were removed from the topic's table meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from tidemark.errors import NotFound, PublishError, StaleRun, StateStopped, StoreError
from tidemark.formats.base import StoredObject
from tidemark.formats.table.ledger import new_attempt
from tidemark.formats.table.state_ledger import PREFIX_BITS, CommitName, Leaf, StateLedger, Through, Truncation
from tidemark.formats.table.statuses import MirrorStatus
from tidemark.intervals import Intervals
from tidemark.planning.common import Key
from tidemark.planning.maintenance.vacuum import RUN_OVER, TOMBSTONES
from tidemark.planning.state import Meaning, StateChange, made_again, state_change, still_holds, uncertain_offsets
from tidemark.raw_topic import RawTopic
from tidemark.store import put_once
from tidemark.table.delta_table import LiveFiles, committed_ledger, ledger_of, live_paths, open_delta, path_in_log
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import read_evidence
from tidemark.table.state_table import StateTable
from tidemark_spark.model import Executor
from tidemark_spark.run.delta_log import milliseconds, naming
from tidemark_spark.state.first_round import last_of_files
from tidemark_spark.state.model import (
    BUCKET_BITS,
    LEAF_BYTES,
    SPLIT_AT,
    LeafTask,
    NewestTask,
    SortedRuns,
    StateJob,
    StoppingRecord,
    StoredFileName,
)
from tidemark_spark.state.record_columns import TRUNCATES, RecordColumns
from tidemark_spark.state.second_round import merged_leaf, removed_buckets
from tidemark_spark.state.status import COUNTS, tell_committed, tell_stopped
from tidemark_spark.state.truncations import newest_truncation

VERSIONS: Final = timedelta(days=1)
"""Time for which the files of a replaced commit stay, for readers that have opened it."""

_INPUT: Final = 64 << 20
"""Bytes of the topic's table that a task of the first round reads, at least a file."""


class StateResult(StoredObject):
    """The result of a run: ``empty`` if nothing had changed, ``stale`` if another run was first or rows went away.

    ``changed`` counts the last records that the first round found, ``keyless`` the new rows without a key,
    ``passed_over`` those with a value that names no operation of the envelope.
    ``lost_keys`` lost their last record of a partition to an erasure or a cut, and retention may have removed an older.
    The other counts are those of the state's ledger.
    """

    cluster: str
    topic: str
    table: str
    status: Literal["committed", "empty", "stale"]
    kind: Literal["nothing", "merge", "rebuild"]
    why: str = ""
    n: int = 0
    of: int = 0
    rows: int = 0
    changed: int = 0
    keyless: int = 0
    passed_over: int = 0
    moved_keys: int = 0
    outranked_keys: int = 0
    lost_keys: int = 0
    quarantined: int = 0
    unavailable: int = 0
    uncertain: int = 0
    leaves: int = 0
    bytes_read: int = 0


def run_state(table: StateTable, executor: Executor, *, rebuild: bool = False, leaf: int = LEAF_BYTES) -> StateResult:
    """Bring the state to the newest commit of the topic's table; with ``rebuild`` make it again from all rows.

    A leaf has about ``leaf`` bytes.

    Raises:
        ConfigError: the topic's columns do not fit its ``state``.
        StateStopped: the state cannot be made again, or must stop at a record.
        ContinuityError: a file has other rows than its ledger says.
        PublishError: the commit's outcome is unknown; run it again.
        FormatError, StoreError: an object cannot be read.
    """
    try:
        result, ledger = StateRun(table, leaf).done(executor, rebuild=rebuild)
    except StateStopped as stop:
        tell_stopped(table, stop)
        raise
    if result.status != "stale":
        tell_committed(table, ledger)
    return result


class StateRun:
    """The state and the topic's table as they are now, and the steps of a run from here."""

    def __init__(self, table: StateTable, leaf: int = LEAF_BYTES) -> None:
        """Read both ledgers; a leaf has ``leaf`` bytes. Raises ConfigError if the columns do not fit ``state``."""
        self._table = table
        self._leaf = leaf
        self._topic = table.of.topic
        self._columns = RecordColumns(self._topic)
        self._schema = self._columns.table
        self._meaning = _meaning(table, self._schema)
        self.attempt = new_attempt()
        source = open_delta(table.of)
        self._source_files = _source_files(source) if source is not None else []
        self.ledger = ledger_of(table.of, source)
        delta = table.delta()
        self.state = table.ledger(delta)

    def change(self, *, rebuild: bool = False) -> StateChange:
        """The change of the topic's table since the state's commit; see :func:`state_change`."""
        return state_change(self._table.of, self.ledger, self.state, self._meaning, rebuild=rebuild)

    def done(self, executor: Executor, *, rebuild: bool) -> tuple[StateResult, StateLedger | None]:
        """Bring the state to the newest commit, whose ledger is returned too; see :func:`run_state`."""
        change = self.change(rebuild=rebuild)
        if change.kind == "nothing":
            if self.state is not None:
                self._vacuum(self.state)
            return self._result("empty", change), self.state
        replayed = self._replayed(change)
        if replayed is None and self.state is not None:
            why = "replayed rows were merged into other files since"
            change = made_again(self._table.of, self.ledger, self.state, self._meaning, why)
        if self.state is not None and change.kind == "merge" and self._lost_truncation(change):
            why = "the truncation that it follows was removed"
            change = made_again(self._table.of, self.ledger, self.state, self._meaning, why)
        before = self.state.leaves if change.keeps and self.state else ()
        job = self.job(change.bounds, change.removed)
        if change.kind == "merge" and change.removed:
            job = replace(job, again=frozenset().union(*executor.on_each(removed_buckets, job, before)))
        runs = executor.on_each(last_of_files, job, self.first_tasks(change, job.again, replayed or ()))
        files = tuple(file for run in runs for file in run.files)
        try:
            self.check_read(runs)
            truncated, stops = self._truncated(change, runs)
            if stops := [*stops, *(run.stop for run in runs if run.stop)]:
                raise self._stopped_at(min(stops))
            every = change.kind == "rebuild" or (self.state is not None and truncated != self.state.truncated)
            tasks = self._leaf_tasks(change, runs, job.again, every=every)
            made = executor.on_each(merged_leaf, replace(job, runs=files, truncated=truncated), tasks)
            replaced = {leaf for task in tasks for leaf in task.old}
            leaves = [leaf for leaf in before if leaf not in replaced] + [leaf for each in made for leaf in each.leaves]
            leaves = sorted(leaves, key=lambda leaf: leaf.hashes) or [Leaf(prefix="")]
            ledger = self._next(change, tuple(leaves), truncated)
            self._commit(change, ledger)
        except StaleRun as error:
            return self._result("stale", change._replace(why=str(error)), runs), self.state
        finally:
            self.delete(files)
        self._vacuum(ledger)
        lost = sum(each.lost_keys for each in made) if change.expired else 0
        return self._result("committed", change, runs, ledger).model_copy(update={"lost_keys": lost}), ledger

    def check_read(self, runs: Sequence[SortedRuns]) -> None:
        """Check that the first round found all its files.

        Raises:
            StaleRun: the topic's table has another file in place of one of them, which was deleted meanwhile.
            NotFound: the topic's table still has a file that is not there.
        """
        missing = {run.missing for run in runs if run.missing}
        if not missing:
            return
        of = self._table.of
        delta = open_delta(of)
        live = {f"{of.keys.root}/{path}" for path in live_paths(delta)} if delta is not None else set()
        for key in sorted(missing & live):
            raise NotFound(key, "is not there, but the table has it; audit its date, and rebuild it")
        raise StaleRun(f"{', '.join(sorted(missing))} was deleted meanwhile")

    def _stopped_at(self, stop: StoppingRecord) -> StateStopped:
        incarnation, partition, offset = stop.place
        return StateStopped(
            f"{self._table.url}: the record at offset {offset} of partition {partition}, incarnation {incarnation}, "
            f"{stop.rule}; the state stays at commit {self.state.n if self.state else 0}",
            stop.place,
        )

    def job(
        self, bounds: Mapping[Key, tuple[int, int]], removed: Mapping[Key, Intervals] = MappingProxyType({})
    ) -> StateJob:
        """The job of a run over the rows in ``bounds``, without the ``removed`` records."""
        table = self._table
        return StateJob(
            topic=self._topic,
            lake_store=table.of.deployment.lake_store,
            options=table.of.deployment.store,
            attempt=self.attempt,
            root=table.root,
            run_folder=table.of.keys.state_run(self.attempt),
            reserve_folder=table.of.keys.state_reserve,
            bounds=dict(bounds),
            removed=dict(removed),
            leaf=self._leaf,
        )

    def delete(self, files: Iterable[StoredFileName]) -> None:
        """Delete the files of a first round."""
        for file in files:
            self._table.store.delete(file.key)

    def _replayed(self, change: StateChange) -> tuple[str, ...] | None:
        """The files of the change's replays; None if one is not live any more, or a fold has their evidence."""
        live = {file.path for file in self._source_files}
        files: set[str] = set()
        for attempt in change.replays:
            try:
                evidence = read_evidence(self._table.of, attempt)
            except NotFound:
                return None
            rows = zip(evidence["class"].to_pylist(), evidence["file"].to_pylist(), strict=True)
            files |= {file for kind, file in rows if kind == "landed" and file}
        return tuple(sorted(files)) if files <= live else None

    def first_tasks(
        self, change: StateChange, again: Collection[int] = (), replayed: Sequence[str] = ()
    ) -> list[NewestTask]:
        """The tasks of the first round: the files that may have rows of ``change``, and the ``replayed`` files.

        All files may have rows of keys in a bucket that is read ``again``.
        """
        fresh = [file for file in self._source_files if again or file.may_have(change)]
        below = [file for file in self._source_files if file.path in {*replayed}]
        groups = [(group, False) for group in _grouped(fresh)] + [(group, True) for group in _grouped(below)]
        root = self._table.of.keys.root
        return [
            NewestTask(number, tuple(StoredFileName(f"{root}/{file.path}", file.size) for file in group), whole)
            for number, (group, whole) in enumerate(groups)
        ]

    def _lost_truncation(self, change: StateChange) -> bool:
        """True if ``change`` removes the truncation that the state follows."""
        known = self.state.truncated if self.state else None
        return known is not None and known.offset in change.removed.get(
            (known.incarnation, known.partition), Intervals()
        )

    def _truncated(
        self, change: StateChange, runs: Sequence[SortedRuns]
    ) -> tuple[Truncation | None, list[StoppingRecord]]:
        """The newest truncation that the next state follows, and the first that it cannot follow.

        It follows one of a topic that has, or had when it was followed first, one partition.
        """
        found = {truncation for run in runs for truncation in run.truncations}
        followed = self.state.truncated if self.state else None
        known = followed if change.keeps and not self._lost_truncation(change) else None

        def newest(*truncations: Truncation | None) -> Truncation | None:
            return newest_truncation(truncations, self._columns.ranking, self._columns.records)

        last = newest(*found)
        if last is not None and newest(last, followed) != followed and not self._has_one_partition(last.incarnation):
            beyond = (each for each in found if newest(each, followed) != followed)
            places = ((each.incarnation, each.partition, each.offset) for each in beyond)
            return None, [StoppingRecord(min(places), TRUNCATES)]
        return newest(known, last), []

    def _has_one_partition(self, incarnation: int) -> bool:
        """True if the topic had one partition in ``incarnation``, as far as the store knows."""
        landed = {known.key for known in self.ledger.partitions}
        stored = {part.key for part in RawTopic(self._table.of).partitions(self.ledger)}
        return len({key for key in landed | stored if key[0] == incarnation}) == 1

    def _leaf_tasks(
        self, change: StateChange, runs: Sequence[SortedRuns], again: Collection[int], *, every: bool
    ) -> list[LeafTask]:
        """The leaves to make: in a merge those that get or lose records, or join; else as many as there are bytes.

        A rebuild that keeps records makes ``every`` leaf, and so does a truncation.
        """
        target, touched = self._leaf, {bucket for run in runs for bucket in run.buckets} | {*again}
        if change.keeps and self.state is not None:
            tasks = _joined(self.state.leaves, target)
            return [task for task in tasks if every or len(task.old) > 1 or is_touched(task.prefix, touched)]
        depth, size = 0, sum(run.memory for run in runs)
        while size >> depth > SPLIT_AT * target and depth < PREFIX_BITS:
            depth += 1
        return [LeafTask(f"{number:0{depth}b}" if depth else "", ()) for number in range(1 << depth)] if size else []

    def _next(self, change: StateChange, leaves: tuple[Leaf, ...], truncated: Truncation | None) -> StateLedger:
        source, state = self.ledger, self.state
        evidence = EffectiveEvidence(self._table.of, source, LiveFiles.of(()))  # which decide about landed rows alone
        uncertain = uncertain_offsets(self._table.of, evidence, state)
        return StateLedger(
            n=state.n + 1 if state else 1,
            attempt=self.attempt,
            parent=CommitName(n=state.n, attempt=state.attempt) if state else None,
            cluster=self._topic.cluster,
            topic=self._topic.topic,
            table=self._topic.state_table,
            kind="merge" if change.kind == "merge" else "rebuild",
            of=CommitName(n=source.n, attempt=source.attempt),
            through=tuple(
                Through(
                    incarnation=known.incarnation,
                    partition=known.partition,
                    next_offset=known.next_offset,
                    branch=known.branch,
                    uncertain=uncertain.get(known.key, 0),
                )
                for known in source.partitions
            ),
            leaves=leaves,
            settings=self._meaning.settings,
            columns=self._meaning.columns,
            quarantined=sum(evidence.rows_by_date("quarantined").values()),
            truncated=truncated,
            committed_at=self._table.store.now(),
        )

    def _commit(self, change: StateChange, ledger: StateLedger) -> None:
        """Commit ``ledger``.

        Raises:
            StaleRun: another run has committed, or the topic's table has lost rows since; nothing was committed.
            PublishError: the outcome is unknown.
        """
        table = self._table
        if not still_holds(table.of, committed_ledger(table.of), ledger):
            raise StaleRun("rows of the topic's table were removed or changed meanwhile")
        put_once(table.store, table.of.keys.state_ledger(ledger.n, ledger.attempt), ledger.to_bytes())
        try:
            delta = self._opened()
            if table.ledger(delta) != self.state:
                raise StaleRun("another run of the state has committed")
            with table.log.next_version(table.store, table.root):
                self._write_version(delta, change, ledger)
        except (DeltaError, OSError, StoreError) as error:
            committed = table.ledger(table.delta())
            if committed == ledger:
                return
            if committed != self.state:
                raise StaleRun("another run of the state has committed") from error
            raise PublishError(f"{table.url}: not committed; run it again: {error}") from error

    def _opened(self) -> DeltaTable:
        """The Delta table, created with its first commit."""
        table = self._table
        delta = table.delta()
        while delta is None:
            table.log.create(table.store, table.root, table.url, _nullable(self._schema), name=self._topic.state_table)
            delta = table.delta()
        return delta

    def _write_version(self, delta: DeltaTable, change: StateChange, ledger: StateLedger) -> None:
        there = live_paths(delta)
        new = {leaf.path: leaf for leaf in ledger.leaves if leaf.path}
        at = milliseconds(ledger.committed_at)
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=path,
                size=leaf.size,
                partition_values={},
                modification_time=at,
                data_change=True,
                stats=json.dumps({"numRecords": leaf.rows}),
            )
            for path, leaf in new.items()
            if path not in there
        ]
        properties = naming(ledger.n, ledger.attempt)
        if change.kind == "rebuild":  # the library replaces columns only together with all files
            schema = Schema.from_arrow(_nullable(self._schema))
            delta.create_write_transaction(actions, "overwrite", schema, [], commit_properties=properties)
            return
        old = {leaf.path: leaf for leaf in (self.state.leaves if self.state else ())}
        actions += [
            RemoveAction(path=path, data_change=True, deletion_timestamp=at, size=old[path].size, partition_values={})
            for path in sorted(there - {*new})
        ]
        delta.create_write_transaction(actions, "append", delta.schema(), [], commit_properties=properties)

    def _vacuum(self, ledger: StateLedger) -> None:
        """Delete the files and ledgers of commits older than :data:`VERSIONS`, and those that no running run may have.

        Commits that a catalog still lists count too, as long as the files of other tables would stay.
        """
        table, keys = self._table, self._table.of.keys
        now, listed = table.store.now(), self._oldest_listed()
        needed, old, young = set[str](), set[str](), True
        for read in self._commits(ledger):
            files = table.files(read)
            if not young:
                old |= {*files}
                continue
            needed |= {*files, keys.state_ledger(read.n, read.attempt)}
            age = now - read.committed_at
            young = age <= VERSIONS or (read.n > listed and age <= TOMBSTONES)
        for folder in (f"{table.root}/", keys.state_folder):
            for info in table.store.list(folder):
                data = not info.key.startswith((f"{table.root}/_", keys.state_audits)) and info.key not in needed
                if data and (info.key in old or info.modified < now - RUN_OVER):
                    table.store.delete(info.key)

    def _commits(self, ledger: StateLedger) -> Iterator[StateLedger]:
        """The ledgers of ``ledger`` and of the commits before it, the newest first, as far as they are there."""
        yield ledger
        while ledger.parent is not None:
            try:
                ledger = self._table.named_ledger(ledger.parent.n, ledger.parent.attempt)
            except NotFound:
                return
            yield ledger

    def _oldest_listed(self) -> int:
        """The number of the oldest commit that a catalog lists; larger than all if none lists one."""
        table = self._table
        if not table.of.deployment.catalogs_of(self._topic):
            return sys.maxsize
        status = MirrorStatus.load_or_none(table.store, table.of.keys.deployment.mirrors)
        mirrors = status.tables if status else ()
        ours = (mirror for mirror in mirrors if mirror.topic == self._topic.topic and mirror.state)
        return min((mirror.oldest_ledger for mirror in ours if mirror.oldest_ledger is not None), default=sys.maxsize)

    def _result(
        self,
        status: Literal["committed", "empty", "stale"],
        change: StateChange,
        runs: Sequence[SortedRuns] = (),
        ledger: StateLedger | None = None,
    ) -> StateResult:
        ledger = ledger or self.state
        return StateResult(
            cluster=self._topic.cluster,
            topic=self._topic.topic,
            table=self._topic.state_table,
            status=status,
            kind=change.kind,
            why=change.why,
            of=ledger.of.n if ledger else 0,
            **{name: getattr(ledger, name) for name in COUNTS if ledger},
            changed=sum(run.rows for run in runs),
            keyless=sum(run.keyless for run in runs),
            passed_over=sum(run.passed_over for run in runs),
            leaves=len(ledger.leaves) if ledger else 0,
            bytes_read=sum(run.read for run in runs),
        )


class _SourceFile(NamedTuple):
    """A live file of the topic's table; None where its statistics are missing."""

    path: str
    size: int
    partition: int | None
    last: int | None

    def may_have(self, change: StateChange) -> bool:
        """True if the file may have rows of the change's bounds."""
        if self.partition is None or self.last is None:
            return True
        spans = ((start, end) for (_, partition), (start, end) in change.bounds.items() if partition == self.partition)
        return any(start < end and self.last >= start for start, end in spans)


def _source_files(delta: DeltaTable) -> list[_SourceFile]:
    actions = delta.get_add_actions(flatten=True)
    names = actions.schema.names
    wanted = ("path", "size_bytes", "min.kafka_partition", "max.kafka_offset")
    columns = [
        actions.column(names.index(name)).to_pylist() if name in names else [None] * actions.num_rows for name in wanted
    ]
    return sorted(_SourceFile(path_in_log(path), *rest) for path, *rest in zip(*columns, strict=True))


def _grouped(files: Sequence[_SourceFile]) -> Iterator[list[_SourceFile]]:
    group: list[_SourceFile] = []
    for file in files:
        if group and sum(other.size for other in group) + file.size > _INPUT:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _joined(leaves: Sequence[Leaf], target: int) -> list[LeafTask]:
    """A task for each leaf; neighbours that together are less than half a leaf become one."""
    groups: dict[str, tuple[Leaf, ...]] = {leaf.prefix: (leaf,) for leaf in leaves}
    for prefix in sorted(groups, key=len, reverse=True):
        parent = prefix[:-1]
        halves = (f"{parent}0", f"{parent}1")
        if not prefix or any(half not in groups for half in halves):
            continue
        both = groups[halves[0]] + groups[halves[1]]
        if sum(leaf.size + leaf.reserve_size for leaf in both) < target // 2:
            del groups[halves[0]], groups[halves[1]]
            groups[parent] = both
    return [LeafTask(prefix, old) for prefix, old in sorted(groups.items())]


def is_touched(prefix: str, buckets: Collection[int]) -> bool:
    """True if keys with one of the ``buckets`` may belong to the leaf ``prefix``."""
    if len(prefix) >= BUCKET_BITS:
        return int(prefix[:BUCKET_BITS], 2) in buckets
    width = BUCKET_BITS - len(prefix)
    first = int(prefix or "0", 2) << width
    return any(first <= bucket < first + (1 << width) for bucket in buckets)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _meaning(table: StateTable, columns: pa.Schema) -> Meaning:
    chosen = table.settings.digest_of("key", "framing", "order", "envelope")
    settings = f"{chosen}\n{table.of.topic.state_table}"
    # As the Delta protocol writes them: another version of a library may word its own types otherwise.
    written = json.dumps(json.loads(Schema.from_arrow(_nullable(columns)).to_json()), sort_keys=True)
    if table.settings.envelope != "none":
        written += "\nonly a record without a value is a tombstone"  # states by an older rule are made again
    return Meaning(*(hashlib.sha256(part.encode()).hexdigest()[:16] for part in (settings, written)))
