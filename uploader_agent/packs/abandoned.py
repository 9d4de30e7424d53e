"""The tails of partitions that this broker no longer leads: sealed from their packs, when no leader will do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from tidemark.errors import PreconditionFailed
from tidemark.formats.keys import PartitionKeys, TopicPartition
from tidemark.formats.raw import head as head_format
from tidemark.formats.raw.head import EntryKey, HeadEntry
from tidemark.formats.raw.pack import PackedRange
from tidemark.formats.raw.watermark import Watermark
from tidemark.kafka_log import Lineage
from tidemark.raw.objects import StoredWatermark
from tidemark.raw.packs import live_end
from tidemark.store import Store
from uploader_agent.broker.admin import Offsets
from uploader_agent.packs.broker_head import BrokerHead
from uploader_agent.packs.packed_run import known_ranges
from uploader_agent.packs.seal_packed import seal_packed
from uploader_agent.runtime import Runtime
from uploader_agent.stored import stored_log, watermark
from uploader_agent.stored.incarnations import TopicIncarnation
from uploader_agent.stored.manifests import Observed
from uploader_agent.stored.remote_state import RemoteState
from uploader_agent.upload.segment_upload import UploadRoute

logger = structlog.get_logger(__name__)

Resolve = Callable[[TopicPartition, str | None], tuple[TopicIncarnation, Store, PartitionKeys]]


class Abandoned:
    """Seals abandoned tails. ``is_deleted`` returns True if the cluster no longer has a topic id."""

    def __init__(
        self, broker: int, resolve: Resolve, is_deleted: Callable[[TopicPartition, str], bool], runtime: Runtime
    ) -> None:
        self._broker = broker
        self._resolve = resolve
        self._is_deleted = is_deleted
        self._runtime = runtime

    def is_sealed(self, head: BrokerHead, entry: HeadEntry) -> bool:
        """True if the head's ``entry`` may be removed. A tail that no leader seals is sealed first.

        Raises StoreError, FormatError and ContinuityError: the entry stays, and is looked at again.
        """
        tp = TopicPartition(entry.topic, entry.partition)
        _, store, keys = self._resolve(tp, entry.topic_id)
        stored = watermark.read(store, keys)
        if stored is None:
            return True  # somebody has removed the partition's objects
        tail = _AbandonedTail(self._broker, tp, entry, head, store, keys, stored)
        replaced = len(entry.restores) < len(stored.watermark.restores)
        if replaced or (entry.epoch, self._broker) not in stored.watermark.tails:
            tail.seal(entry.history, [entry])
            return True
        if self._is_deleted(tp, entry.topic_id):
            tail.publish(self._runtime)
        return False


class _AbandonedTail:
    """An entry, and the partition's objects in the store."""

    def __init__(
        self,
        broker: int,
        tp: TopicPartition,
        entry: HeadEntry,
        head: BrokerHead,
        store: Store,
        keys: PartitionKeys,
        stored: StoredWatermark,
    ) -> None:
        self._broker = broker
        self._tp = tp
        self._entry = entry
        self._head = head
        self._stored = stored
        self._store, self._keys = store, keys
        folder = Path(str(tp))
        self._route = UploadRoute(tp, entry.topic_id, folder, store, keys, broker)

    def seal(self, lineage: Lineage, entries: list[HeadEntry]) -> RemoteState:
        """Seal the offsets that only the packs of ``entries`` have on ``lineage``; return the state of the store."""
        lineage = lineage.with_history(self._stored.lineage)
        remote = self._survey(lineage)
        while True:
            start = remote.sealed_end
            ranges = self._ranges(entries, lineage, start)
            end = max((live_end(entry, lineage) for entry in entries), default=start)
            if not ranges or end <= start:
                return remote
            high_watermark = max(entry.high_watermark for entry in entries)
            seen = Observed(Offsets(high_watermark), "delete", self._entry.epoch)
            sealed = seal_packed(self._route, entries, ranges, lineage, start, end, seen, remote)
            if sealed is None:
                return remote
            remote.add(sealed, lineage)
            if remote.sealed_end <= start:
                return remote

    def publish(self, runtime: Runtime) -> None:
        """Seal all tails of a deleted topic on the lineage of ``offset.wm``, and write the result to ``offset.wm``."""
        before = self._stored.watermark
        lineage = before.history
        entries = self._entries(before)
        remote = self.seal(lineage, [*entries.values()])
        end = remote.sealed_end
        new = before.model_copy(
            update={
                "next_offset": max(before.next_offset, end),
                "ranges_above": tuple(watermark.above(remote.coverage.present, end)),
                "tails": tuple(tail for tail in before.tails if not _is_sealed(tail, entries, lineage, end)),
                "broker": self._broker,
                "written_at": runtime.utc_now(),
            }
        )
        if not watermark.says_more(new, before):
            return
        base = watermark.last_base(remote.readable_bases, new.next_offset, self._stored.base_offset)
        try:
            watermark.write(self._store, self._keys, base, new, self._stored)
        except PreconditionFailed:
            return  # another broker does the same; the next look sees the rest
        logger.info("deleted_topic_sealed", partition=str(self._tp), next_offset=new.next_offset)

    def _entries(self, before: Watermark) -> dict[tuple[int, int], HeadEntry]:
        """The entries of all leaderships that may have packed."""
        entries: dict[tuple[int, int], HeadEntry] = {}
        for epoch, broker in before.tails:
            key = EntryKey(self._entry.topic_id, self._tp.partition, epoch, len(before.restores))
            if broker == self._broker:
                known: Mapping[EntryKey, HeadEntry] = self._head.entries
            else:
                theirs = head_format.load(self._head.store, self._head.control, broker)
                known = theirs.value.by_key if theirs else {}
            if key in known:
                entries[epoch, broker] = known[key]
        return entries

    def _survey(self, lineage: Lineage) -> RemoteState:
        epoch = self._stored.watermark.leader_epoch + 1  # as the next leader, with a log on this lineage, would see it
        log = stored_log.load(
            self._store,
            self._keys,
            lineage,
            epoch,
            self._entry.topic_id,
            self._broker,
            lambda _: False,
            replaced=lineage.restores != self._stored.watermark.restores,
        )
        remote = RemoteState(self._broker)
        remote.survey(log, 0, 0)
        return remote

    def _ranges(self, entries: list[HeadEntry], lineage: Lineage, start: int) -> list[PackedRange]:
        return known_ranges(self._head.store, self._head.control, entries, lineage, start)


def _is_sealed(
    tail: tuple[int, int], entries: dict[tuple[int, int], HeadEntry], lineage: Lineage, sealed_end: int
) -> bool:
    """True if no part of a leadership's tail is left to seal: no agent packs a deleted topic any more."""
    entry = entries.get(tail)
    return entry is None or live_end(entry, lineage) <= sealed_end
