"""The decision about a run of a state table: what has landed since its last commit, and which records went away.

Added rows are merged. Where an erasure or a cut at an unclean election took rows away, the state drops its records of
them, and reads the rows of their keys again. After a rebuild, a repair or new settings all rows are read again. The
state outlives rows that retention removed: of its own records it keeps those that evidence says have expired.

Of a compacted topic, Kafka may have removed deletions before anybody had stored them; :func:`uncertain_offsets` counts
the offsets that may have been such.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Final, Literal, NamedTuple

from tidemark.errors import StateStopped
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.table.ledger import Ledger, PartitionState
from tidemark.formats.table.state_ledger import StateLedger
from tidemark.intervals import Intervals
from tidemark.planning.common import Key, masked_offsets
from tidemark.raw import objects
from tidemark.raw_topic import RawTopic
from tidemark.storage import PartitionStore
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import EvidenceRow, offsets_of
from tidemark.table.evidence_index import Choice
from tidemark.table.evidence_reader import EvidenceReader
from tidemark.table.state_table import state_status

_ADDING: Final = {"ingest", "replay"}
_KEEPING: Final = {"compact", "fold", "retain"}
"""Kinds of runs that change no row, or that the state outlives."""

_HOURLY: Final = timedelta(hours=1)
_END: Final = (1 << 63) - 1

_SLACK: Final = timedelta(hours=1)
"""Time between the agent's look at a log and the manifest that tells of it, and allowance for clocks that differ."""

_DELETE_RETENTION: Final = timedelta(days=1)
"""Kafka's default, where neither settings nor manifest state one."""

_MOST_MILLISECONDS: Final = 10**14
"""More than 3,000 years, which is for ever."""

_LOOK_BACK: Final = 32
"""Manifests before a segment that are read, the nearest first: the last one or two tell, unless the agent is behind."""


class Meaning(NamedTuple):
    """Digests of the settings that choose a key's newest record, and of the columns."""

    settings: str
    columns: str


class StateChange(NamedTuple):
    """The change of a topic's table since the last commit of its state, or ``rebuild`` with the reason ``why``.

    ``bounds`` are by (incarnation, partition) the offsets ``[from, to)`` that landed since; the rows of ``replays``,
    which are attempts, lie below. The state's records at ``removed`` offsets do not count any more; those at others
    stay, but a rebuild without ``removed`` keeps none. If ``expired``, retention has removed rows of the table.
    """

    kind: Literal["nothing", "merge", "rebuild"]
    bounds: dict[Key, tuple[int, int]]
    replays: tuple[int, ...] = ()
    why: str = ""
    removed: Mapping[Key, Intervals] = {}
    expired: bool = False

    @property
    def keeps(self) -> bool:
        """True if records of the old state stay."""
        return self.kind == "merge" or bool(self.removed)


def state_change(
    table: TopicTable, ledger: Ledger, state: StateLedger | None, meaning: Meaning, *, rebuild: bool = False
) -> StateChange:
    """The change from ``state`` to the table's committed ``ledger``; ``meaning`` is the present one.

    With ``rebuild``, and without a state, it is all rows of the table.

    Raises:
        StateStopped: the settings have changed, but retention has removed rows of the table.
    """
    if state is None:
        return _all_rows(ledger, "there is none yet") if ledger.rows else StateChange("nothing", {})
    if rebuild:
        return made_again(table, ledger, state, meaning, "it was asked for")
    if (state.settings, state.columns) != meaning:
        return made_again(table, ledger, state, meaning, "the topic's settings have changed")
    chain = _chain(table, ledger, state)
    if chain is None:
        return made_again(table, ledger, state, meaning, "the ledgers since then are gone")
    if others := {since.kind for since in chain} - _ADDING - _KEEPING - {"erase"}:
        return made_again(table, ledger, state, meaning, f"a run of the kind {min(others)} has changed the table")
    return _merge(table, ledger, state, chain)


def made_again(table: TopicTable, ledger: Ledger, state: StateLedger, meaning: Meaning, why: str) -> StateChange:
    """The change that makes ``state`` again, for the reason ``why``: all rows of the table, and what has expired.

    Raises:
        StateStopped: what has expired has a place in the state by other settings.
    """
    standing = EffectiveEvidence.of(table)
    expired = _expired(standing)
    change = _all_rows(ledger, why)
    if not expired:
        return change
    if state.settings != meaning.settings:
        raise StateStopped(
            f"{table.url}: the state must be made again ({why}), but retention has removed rows of the table, and with "
            "them keys; nothing was changed: take the change back, or begin another state by another state.table"
        )
    for gone in (_masked(table, ledger), cut_offsets(table, ledger, state)):
        expired |= {key: expired.get(key, Intervals()) - offsets for key, offsets in gone.items()}
    removed = {through.key: Intervals([(0, _END)]) - expired.get(through.key, Intervals()) for through in state.through}
    return change._replace(removed=removed, expired=True)


def _all_rows(ledger: Ledger, why: str) -> StateChange:
    return StateChange("rebuild", {known.key: (0, known.next_offset) for known in ledger.partitions}, why=why)


def _expired(standing: EffectiveEvidence) -> dict[Key, Intervals]:
    """The offsets that retention removed from the table; those that are known to be of other classes are not.

    A row of evidence may stand for more offsets than it has rows: then classes share its offsets.
    """
    expired = offsets_of(standing.of_class("expired"))
    near = (row for row in standing.near(expired, ()) if row.offset_class != "expired")
    others = offsets_of(row for row in near if row.rows == row.next - row.first)
    return {key: offsets - others.get(key, Intervals()) for key, offsets in expired.items()}


def _masked(table: TopicTable, ledger: Ledger) -> dict[Key, Intervals]:
    """The offsets of all masks, of any leader epoch, since the state's records have none.

    So a record of another branch at the offset of an erased one goes as well, and is read again unless it has expired.
    """
    masks = RawTopic(table).masks_of(ledger, pending=False)
    offsets = {key: masked_offsets(table, stored) for key, stored in masks.items()}
    return {key: Intervals((offset, offset + 1) for offset in masked) for key, masked in offsets.items()}


def _chain(table: TopicTable, ledger: Ledger, state: StateLedger) -> list[Ledger] | None:
    """The ledgers since the one that ``state`` equals, from the newest back; None if one of them is gone."""
    since: list[Ledger] = []
    while ledger.n > state.of.n and ledger.parent is not None:
        since.append(ledger)
        parent = Ledger.load_or_none(table.store, table.keys.ledger(ledger.parent.n, ledger.parent.attempt))
        if parent is None:
            return None
        ledger = parent
    return since if (ledger.n, ledger.attempt) == (state.of.n, state.of.attempt) else None


def _merge(table: TopicTable, ledger: Ledger, state: StateLedger, chain: Sequence[Ledger]) -> StateChange:
    before = {through.key: through.next_offset for through in state.through}
    removed = cut_offsets(table, ledger, state)
    before |= {key: cut.parts[0].start for key, cut in removed.items()}
    if any(since.kind == "erase" for since in chain):
        for key, masked in _masked(table, ledger).items():
            removed[key] = removed.get(key, Intervals()) | masked
    replays = tuple(since.attempt for since in chain if since.kind == "replay")
    ends = {
        known.key: (min(before.get(known.key, 0), known.next_offset), known.next_offset) for known in ledger.partitions
    }
    bounds = {key: (start, end) for key, (start, end) in ends.items() if end > start or replays or removed}
    expired = bool(removed) and bool(EffectiveEvidence.of(table).rows_by_date("expired"))
    return StateChange("merge" if bounds else "nothing", bounds, replays, removed=removed, expired=expired)


def _left(ledger: Ledger, state: StateLedger) -> set[Key]:
    """The partitions that have left a branch since ``state``."""
    branches = {through.key: through.branch for through in state.through}
    return {known.key for known in ledger.partitions if known.branch != branches.get(known.key, known.branch)}


def cut_offsets(table: TopicTable, ledger: Ledger, state: StateLedger) -> dict[Key, Intervals]:
    """The offsets of ``state`` whose rows were cut off since, by the evidence of the runs since.

    Where the ledgers since are gone, each cut of the partition counts.

    Raises:
        StateStopped: the evidence of one of these runs is gone.
    """
    import pyarrow.compute as pc

    left = _left(ledger, state)
    if not left:
        return {}
    chain = _chain(table, ledger, state)
    attempts = {*ledger.landed} if chain is None else {since.attempt for since in chain}
    cuts: dict[Key, int] = {}
    choice = Choice(classes=("superseded",))
    for attempt, _, evidence in EvidenceReader().read(table, ledger.landed, [choice]):
        if evidence is None and attempt in attempts:
            rule = "is gone: which records an unclean election cut off is unknown; begin a state by another state.table"
            raise StateStopped(f"{table.url}: the evidence of attempt {attempt} {rule}")
        cut_off = pc.is_null(pc.field("file")) & (pc.field("class") == "superseded")
        for row in evidence.filter(cut_off).to_pylist() if evidence is not None else ():
            key = row["incarnation"], row["partition"]
            if key in left and (chain is None or row["attempt"] in attempts):
                cuts[key] = min(row["first"], cuts.get(key, row["first"]))
    ends = {through.key: through.next_offset for through in state.through}
    return {key: Intervals([(first, ends[key])]) for key, first in cuts.items() if first < ends.get(key, 0)}


def still_holds(table: TopicTable, ledger: Ledger, state: StateLedger) -> bool:
    """True if the rows that ``state`` was made of are still those of the table, whose newest ledger is ``ledger``."""
    chain = _chain(table, ledger, state)
    return chain is not None and not _left(ledger, state) and {since.kind for since in chain} <= _ADDING | _KEEPING


def is_due(table: TopicTable, now: datetime) -> bool:
    """True if the next hourly run would come later than ``state.every`` after the last commit, by the state's status.

    A run that died after its commit may have left an older status; the next one then has nothing to do.
    """
    topic, status = table.topic, state_status(table)
    if topic.state is None or status is None or status.committed_at is None or status.table != topic.state_table:
        return True
    return now - status.committed_at > topic.state.every - _HOURLY


def uncertain_offsets(table: TopicTable, evidence: EffectiveEvidence, before: StateLedger | None) -> dict[Key, int]:
    """The number of uncertain offsets of each partition: those of the state ``before``, and what has landed since.

    Kafka's cleaner removes a deletion no sooner than ``delete.retention.ms`` after the first cleaning of its segment,
    and with that first cleaning all older records of its key. So a state table still shows a deleted key only if an
    older record was stored before the first cleaning, and the segment later than that time after it. An offset of class
    ``compacted`` is therefore certain if its segment was stored within ``delete.retention.ms`` of one of these times,
    all of them before the first cleaning of a record that could do harm:

    * that at which the partition's log, by an earlier segment's manifest, did not reach the offset yet;
    * that up to which, by the ledger that the state was made of, all committed records had landed;
    * that at which the partition was stored for the first time.

    All others count, also where raw does not have the manifest any more: more than there are, rather than fewer.

    A partition that has left a branch of its log since is counted from its beginning.

    Raises FormatError and StoreError.
    """
    partitions = evidence.ledger.by_partition
    known = {through.key: through for through in (before.through if before else ())}
    same = {key: through for key, through in known.items() if partitions[key].branch == through.branch}
    counts = {key: through.uncertain for key, through in same.items() if through.uncertain}
    new: dict[Key, list[EvidenceRow]] = {}
    for row in evidence.of_class("compacted"):
        if row.key not in same or row.next > same[row.key].next_offset:
            new.setdefault(row.key, []).append(row)
    if not new:
        return counts
    reached = _reached(table, before)
    raw = RawTopic(table)
    for key, rows in new.items():
        store = raw.partition_store(raw.partition(key))
        log = _StoredLog(table, store, partitions[key], evidence.ledger.committed_at, reached.get(key))
        counts[key] = counts.get(key, 0) + log.uncertain(rows)
    return counts


def _reached(table: TopicTable, before: StateLedger | None) -> dict[Key, datetime]:
    """The times up to which all committed records were in the state ``before``, as far as they are known."""
    key = table.keys.ledger(before.of.n, before.of.attempt) if before is not None else None
    ledger = Ledger.load_or_none(table.store, key) if key is not None else None
    return {state.key: state.as_of for state in (ledger.partitions if ledger else ()) if state.as_of is not None}


class _StoredLog:
    """The manifests of a partition; ``reached`` is a time up to which all committed records are in the state."""

    def __init__(
        self,
        table: TopicTable,
        partition: PartitionStore,
        state: PartitionState,
        now: datetime,
        reached: datetime | None,
    ) -> None:
        assert table.topic.state is not None
        self._retention = table.topic.state.delete_retention
        self._partition, self._start, self._now, self._reached = partition, state.start_offset, now, reached

    @cached_property
    def _names(self) -> Sequence[SegmentName]:
        return [entry.name for entry in self._partition.manifests()]

    def uncertain(self, rows: Sequence[EvidenceRow]) -> int:
        """The number of the offsets in ``rows`` that are not certain."""
        return sum(row.rows for row in rows if not self._is_certain(row))

    def _is_certain(self, row: EvidenceRow) -> bool:
        named = self._partition.keys.segment_of(row.segment or "")
        if named is None:  # of a pack, which was shipped before it landed
            newest = self._read(self._names[-1]) if self._names else None
            return self._reached is not None and self._now - self._reached <= self._within(newest)
        manifest = self._read(named[0])
        if manifest is None:
            return False
        within, stored = self._within(manifest), manifest.uploaded_at
        if self._reached is not None and stored - self._reached <= within:
            return True
        return any(stored - at <= within for at in self._before(manifest, row.first))

    def _within(self, manifest: SegmentManifest | None) -> timedelta:
        """The time within which a deletion that was there at its beginning is stored."""
        kept = self._retention
        if kept is None:
            told = manifest.delete_retention_ms if manifest else None
            kept = _DELETE_RETENTION if told is None else timedelta(milliseconds=min(told, _MOST_MILLISECONDS))
        return kept - min(_SLACK, kept / 2)

    def _before(self, manifest: SegmentManifest, first: int) -> Iterator[datetime]:
        """Times before the first cleaning of a record that could do harm."""
        below = [name for name in self._names if name.base < manifest.base_offset]
        for before in islice(map(self._read, reversed(below)), _LOOK_BACK):
            if before is not None and before.high_watermark <= first:
                yield before.uploaded_at
                break
        oldest = self._read(below[0]) if below else manifest
        if oldest is not None and oldest.base_offset <= self._start:
            yield oldest.uploaded_at

    def _read(self, name: SegmentName) -> SegmentManifest | None:
        stored = objects.read_manifest(self._partition, name)
        return stored.manifest if stored else None
