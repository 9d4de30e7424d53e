"""The offsets of a compacted topic that may have been deletions which Kafka removed before anybody had stored them.

Kafka's cleaner removes a deletion no sooner than ``delete.retention.ms`` after the first cleaning of its segment, and
with that first cleaning all older records of its key. So a state table still shows a deleted key only if an older
record was stored before the first cleaning, and the segment later than that time after it. An offset of class
``compacted`` is therefore certain if its segment was stored within ``delete.retention.ms`` of one of these times, all
of them before the first cleaning of a record that could do harm:

* that at which the partition's log, by an earlier segment's manifest, did not reach the offset yet;
* that up to which, by the ledger that the state was made of, all committed records had landed;
* that at which the partition was stored for the first time.

All others count, also where raw does not have the manifest any more: more than there are, rather than fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Final

from tidemark.errors import NotFound
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.table.ledger import Ledger, PartitionState
from tidemark.formats.table.state_ledger import StateLedger
from tidemark.raw import objects
from tidemark.raw.partition import RawPartition
from tidemark.raw.topic import RawTopic
from tidemark.store import Store, open_store
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import EvidenceRow

_SLACK: Final = timedelta(hours=1)
"""Time between the agent's look at a log and the manifest that tells of it, and allowance for clocks that differ."""

_RETENTION: Final = timedelta(days=1)
"""Kafka's default, where neither settings nor manifest state one."""

_MOST_MILLISECONDS: Final = 10**14
"""More than 3,000 years, which is for ever."""

_LOOK_BACK: Final = 32
"""Manifests before a segment that are read, the nearest first: the last one or two tell, unless the agent is behind."""

Key = tuple[int, int]


def uncertain_offsets(table: TopicTable, evidence: EffectiveEvidence, before: StateLedger | None) -> dict[Key, int]:
    """The number of uncertain offsets of each partition: those of the state ``before``, and what has landed since.

    A partition that has left a branch of its log since is counted from its beginning.

    Raises:
        FormatError: an object cannot be read.
        StoreError: the store failed.
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
    incarnations = raw.incarnations().incarnations
    for key, rows in new.items():
        part = raw.partition(partitions[key].topic_id, incarnations[key[0]].place, *key)
        log = _StoredLog(table, part, partitions[key], evidence.ledger.committed_at, reached.get(key))
        counts[key] = counts.get(key, 0) + log.uncertain(rows)
    return counts


def _reached(table: TopicTable, before: StateLedger | None) -> dict[Key, datetime]:
    """The times up to which all committed records were in the state ``before``, as far as they are known."""
    if before is None:
        return {}
    try:
        ledger = Ledger.load(table.store, table.keys.ledger(before.of.n, before.of.attempt))
    except NotFound:
        return {}
    return {state.key: state.as_of for state in ledger.partitions if state.as_of is not None}


class _StoredLog:
    """The manifests of a partition; ``reached`` is a time up to which all committed records are in the state."""

    def __init__(
        self, table: TopicTable, part: RawPartition, state: PartitionState, now: datetime, reached: datetime | None
    ) -> None:
        assert table.topic.state is not None
        self._retention = table.topic.state.delete_retention
        self._store: Store = open_store(part.keys.endpoint.store, table.deployment.store)
        self._keys, self._start, self._now, self._reached = part.keys, state.start_offset, now, reached

    @cached_property
    def _names(self) -> Sequence[SegmentName]:
        return [entry.name for entry in objects.manifests(self._store, self._keys)]

    def uncertain(self, rows: Sequence[EvidenceRow]) -> int:
        """The number of the offsets in ``rows`` that are not certain."""
        return sum(row.rows for row in rows if not self._is_certain(row))

    def _is_certain(self, row: EvidenceRow) -> bool:
        named = self._keys.segment_of(row.segment or "")
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
            kept = _RETENTION if told is None else timedelta(milliseconds=min(told, _MOST_MILLISECONDS))
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
        stored = objects.read_manifest(self._store, self._keys, name)
        return stored.manifest if stored else None
