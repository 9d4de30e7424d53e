"""The stored end of a partition, and the batch that ends there, which the leader must have if a spool begins there."""

from __future__ import annotations

from typing import NamedTuple

from tidemark.errors import NotFound
from tidemark.formats.keys import PartitionKeys
from tidemark.kafka_log import BatchHeader, Lineage, UnfinishedTransaction, parse_offset_index, scan_batches
from tidemark.raw import objects
from tidemark.raw.objects import StoredWatermark, find_watermark
from tidemark.raw.segments import Segment
from tidemark.store import Store
from uploader_agent.stored.open_transactions import open_in_store


class StoredEnd(NamedTuple):
    """The offset below which the store accounts for all offsets, and the batch that ends there, if a segment has it.

    ``opened`` are the transactions that are open there.
    """

    offset: int
    last: BatchHeader | None = None
    opened: tuple[UnfinishedTransaction, ...] = ()


def stored_end(store: Store, keys: PartitionKeys, topic_id: str, lineage: Lineage) -> StoredEnd:
    """The stored end of a partition of this topic id, on this lineage. Raises StoreError and FormatError."""
    found = find_watermark(store, keys)
    if not isinstance(found, StoredWatermark) or found.watermark.topic_id != topic_id:
        return StoredEnd(0)
    end = found.watermark.next_offset
    cut = found.lineage.divergence(lineage, end)
    opened = open_in_store(store, keys, end if cut is None else cut, lineage) or ()
    if cut is not None:
        return StoredEnd(cut, opened=opened)
    for listed in objects.manifests(store, keys, found.base_offset, found.base_offset + 1):
        segment = objects.read_segment(store, keys, listed.name)
        if segment is not None and segment.end == end:
            return StoredEnd(end, _last_batch(store, segment), opened)
    return StoredEnd(end, opened=opened)


def _last_batch(store: Store, segment: Segment) -> BatchHeader | None:
    """The last batch of a segment, found by its index."""
    entries = []
    if segment.has_index:
        try:
            body = store.get(key := segment.sibling("index")).body
        except NotFound:
            return None
        entries = parse_offset_index(body, segment.base, segment.size, key)
    start = entries[-1].position if entries else 0
    if start == segment.size:
        return None
    log = store.get_range(segment.key, start, segment.size, if_match=segment.etag)
    *_, last = scan_batches([log], segment.key, segment.base)
    return last
