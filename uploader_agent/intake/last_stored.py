"""The stored end of a partition, and the batch before it, which the leader must have if a spool begins there."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from tidemark.formats.keys import SegmentName
from tidemark.kafka_log import BatchHeader, Lineage, OpenTransaction
from tidemark.raw import objects
from tidemark.raw.segments import segment_of
from tidemark.storage import PartitionStore, StoredWatermark
from uploader_agent.stored.histories import last_batch
from uploader_agent.stored.manifests import transactions_open_at
from uploader_agent.stored.stored_log import StoredSegment


class StoredEnd(NamedTuple):
    """The offset below which the store accounts for all offsets, and the batch before it, if a segment has all of it.

    ``opened`` are the transactions that are open there.
    """

    offset: int
    last: BatchHeader | None = None
    opened: tuple[OpenTransaction, ...] = ()


def stored_end(partition: PartitionStore, topic_id: str, lineage: Lineage) -> StoredEnd:
    """The stored end of a partition of this topic id, on this lineage. Raises StoreError and FormatError."""
    found = partition.watermark()
    if not isinstance(found, StoredWatermark) or found.watermark.topic_id != topic_id:
        return StoredEnd(0)
    end, lineage = found.watermark.next_offset, lineage.restored(found.watermark.restores)
    cut = found.lineage.divergence(lineage, end)
    if cut is not None:
        return StoredEnd(cut, opened=transactions_open_at(partition, cut, lineage) or ())
    base = found.base_offset
    # Then those of other branches, and what was rewritten.
    others = (listed.name for listed in partition.manifests(base, base + 1))
    for name in chain([SegmentName(base)], others):
        stored = objects.read_manifest(partition, name)
        known = StoredSegment.of(stored.manifest, lineage) if stored else None
        if stored and known and known.state == "whole" and known.readable_end == known.next_offset == end:
            last = last_batch(
                partition, segment_of(stored.manifest, partition.keys.manifest(name), partition.store.url), end
            )
            whole = last is not None and last.base_offset not in stored.manifest.gone
            return StoredEnd(end, last if whole else None, known.open_transactions)
    return StoredEnd(end, opened=transactions_open_at(partition, end, lineage) or ())
