"""A person's acknowledgement of a gap: its offsets are lost, and the partition may continue.

An acknowledgement is one object, written once; the leader's agent folds it into ``offset.wm``. Only offsets in an open
gap can be acknowledged, so that nobody gives up offsets by mistake that may still come. ``offset.wm`` has the agents'
gaps. The ledger has the gaps that only runs have found; they count while a plan would still find them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.errors import FormatError, PreconditionFailed, TidemarkError, UnknownOutcome
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.gaps import Acknowledgement, Gap
from tidemark.formats.raw.incarnations import Incarnation
from tidemark.formats.raw.watermark_index import merge
from tidemark.intervals import Intervals
from tidemark.storage import ClusterStore, OtherWatermark, PartitionStore, Storage
from tidemark.store.identity import identity
from tidemark.table.delta_table import TopicTable
from tidemark.timestamps import utc_now


class NotAGap(TidemarkError):
    """Offsets to be acknowledged are not in an open gap; the message shows the open gaps."""


@dataclass(frozen=True, slots=True)
class GapsOf:
    """One partition's gaps. ``open`` are those found by the agent; ``cluster`` has the acknowledgements."""

    table: TopicTable
    at: TopicPartition
    incarnation: int
    place: str
    cluster: ClusterStore
    open: tuple[Gap, ...]

    def acknowledge(self, start: int, end: int, by: str, reason: str) -> tuple[Acknowledgement, bool]:
        """Record that ``[start, end)`` is lost. Returns (the acknowledgement that counts, whether it is new).

        Raises:
            NotAGap: some of these offsets are not in an open gap.
            PreconditionFailed: these offsets have an acknowledgement by another person or with another reason.
            StoreError: the store failed.
        """
        key = self.cluster.keys.acknowledgement(self.place, self.at.partition, start, end)
        stored = self.acknowledgement(start, end)
        if stored is None:
            self.check(start, end)
            written = self._word(start, end, by, reason)
            try:
                self.cluster.store.put(key, written.to_bytes(), if_none_match=True)
            except (PreconditionFailed, UnknownOutcome):
                stored = self.acknowledgement(start, end)
            else:
                return written, True
        if stored is None:
            raise UnknownOutcome(key, "the store did not say whether it has the acknowledgement; try again")
        if (stored.by, stored.reason) != (by, reason):
            raise PreconditionFailed(
                key, f"{stored.by} acknowledged it at {stored.at:%Y-%m-%d %H:%M} UTC: {stored.reason!r}"
            )
        return stored, False

    def check(self, start: int, end: int) -> None:
        """Raise NotAGap unless all of ``[start, end)`` lies in open gaps. Raises StoreError if the store failed."""
        if start >= end:
            raise NotAGap(f"{start} to {end}: TO is the offset after the last lost one, so it must be above FROM")
        gaps = self.gaps_around(start, end)
        others = Intervals.of(gaps).missing(start, end)
        if others:
            named = ", ".join(f"{part.start} to {part.end}" for part in others)
            known = ", ".join(f"{gap.start} to {gap.end} ({gap.reason})" for gap in gaps) or "none"
            raise NotAGap(
                f"{self.at}: offsets {named} are in no open gap. Open gaps: {known}. Name one of them, or a part"
            )

    def gaps_around(self, start: int, end: int) -> tuple[Gap, ...]:
        """The open gaps of the agent, and those of the runs if the former do not cover ``[start, end)``."""
        if not Intervals.of(self.open).missing(start, end):
            return self.open
        from tidemark.planning.ingest import lost_gaps  # needed for the runs' gaps alone

        held_up = lost_gaps(self.table, self.incarnation, self.at.partition)
        return tuple(sorted({*self.open, *held_up}, key=lambda gap: (gap.start, gap.end, gap.reason)))

    def acknowledgement(self, start: int, end: int) -> Acknowledgement | None:
        """The stored acknowledgement of exactly these offsets, or None."""
        return self.cluster.acknowledgement(self.place, self.at.partition, start, end)

    def _word(self, start: int, end: int, by: str, reason: str) -> Acknowledgement:
        url, options = self.cluster.store.url, self.table.deployment.store
        statement = {"from": start, "to": end, "by": by, "written_as": identity(options, url), "at": utc_now()}
        place = {"cluster": self.cluster.keys.cluster, "place": self.place, "partition": self.at.partition}
        return Acknowledgement.model_validate({**place, **statement, "reason": reason})


def gaps_of(table: TopicTable, partition: int, incarnation: int | None = None) -> GapsOf:
    """Read the open gaps of a partition of ``table``'s topic, in ``incarnation`` or the newest.

    Raises:
        FormatError: there is no such topic or incarnation in the store, or an object does not parse.
        StoreError: the store failed.
    """
    storage = Storage(table.topic.cluster, table.deployment.raw, table.deployment.store)
    cluster, tp = storage.cluster_store(), TopicPartition(table.topic.topic, partition)
    incarnations = _incarnations(cluster, tp.topic)
    number = len(incarnations) - 1 if incarnation is None else incarnation
    if not 0 <= number < len(incarnations):
        rule = f"has incarnations 0 to {len(incarnations) - 1}, and not {number}"
        raise FormatError(cluster.keys.incarnations(tp.topic), rule)
    chosen = incarnations[number]
    gaps = _in_watermark(storage.partition_store(storage.partition_keys(*tp, chosen.place)))
    if gaps is None:
        gaps = _in_indexes(cluster, tp, chosen.topic_id)
    return GapsOf(table, tp, number, chosen.place, cluster, gaps)


def acknowledgements_of(
    cluster: ClusterStore, topic: str, keys: Iterable[tuple[int, int]]
) -> list[list[Acknowledgement]]:
    """The acknowledgements of each of ``keys``, which are (incarnation, partition); makes a listing for each key.

    Raises:
        FormatError: there is no such topic or incarnation in the store, or an object does not parse.
        StoreError: the store failed.
    """
    incarnations = _incarnations(cluster, topic)
    return [cluster.acknowledgements(incarnations[number].place, partition) for number, partition in keys]


def _incarnations(cluster: ClusterStore, topic: str) -> tuple[Incarnation, ...]:
    incarnations = cluster.incarnations(topic).incarnations
    if not incarnations:
        rule = "is missing: no agent has uploaded this topic; check its name and cluster"
        raise FormatError(cluster.keys.incarnations(topic), rule)
    return incarnations


def _in_watermark(partition: PartitionStore) -> tuple[Gap, ...] | None:
    stored = partition.watermark()
    if stored is None:
        return None
    return () if isinstance(stored, OtherWatermark) else stored.watermark.gaps


def _in_indexes(cluster: ClusterStore, tp: TopicPartition, topic_id: str | None) -> tuple[Gap, ...]:
    """The gaps in the leader's index. A partition without its very first offsets has no ``offset.wm`` yet."""
    indexes = cluster.indexes()
    entry = merge(indexes.kept.values()).get(tp)
    if entry is None and indexes.failures:
        raise next(iter(indexes.failures.values()))  # the partition's leader may be one of these brokers
    return entry.gaps if entry and entry.topic_id == topic_id else ()
