"""A segment's manifest: its making, its writing as the last object of its segment, and the open transactions in it."""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from tidemark.errors import PreconditionFailed
from tidemark.formats.keys import MANIFEST_EXTENSION
from tidemark.formats.raw.manifest import ObjectSum, SegmentManifest
from tidemark.kafka_log import Lineage, OpenTransaction, carry_forward, scan_batches
from tidemark.raw.objects import REACH, StoredManifest, pieces, read_manifest
from tidemark.storage import PartitionStore
from tidemark.store import ObjectInfo
from uploader_agent.disk.segment_files import Bytes, checksum
from uploader_agent.runtime import utc_now
from uploader_agent.stored.objects import Summed, create, find, replace
from uploader_agent.stored.stored_log import StoredSegment

_NEAREST_SEGMENTS: Final = 64
"""Segments below an offset that are read: a segment of each branch has it or ends there."""


def write(partition: PartitionStore, manifest: SegmentManifest) -> StoredManifest:
    """Create ``manifest`` under its name, or return the stored one if it describes the same object.

    Raises:
        PreconditionFailed: the stored one describes another object, for example after a repair; look again.
    """
    store, key = partition.store, partition.keys.manifest(manifest.name)
    created = create(store, key, _content(manifest))
    if isinstance(created, ObjectSum):
        return StoredManifest(manifest, created.etag)
    stored = SegmentManifest.load(store, key, if_match=created.etag)
    if (stored.topic_id, stored.log) != (manifest.topic_id, manifest.log):
        version = manifest.log.etag if manifest.log is not None else "nothing"
        raise PreconditionFailed(key, f"describes another object than {manifest.log_name} of version {version}")
    return StoredManifest(stored, created.etag)


def write_over(partition: PartitionStore, manifest: SegmentManifest, seen: StoredManifest | None) -> StoredManifest:
    """Write ``manifest`` under its name if the store still has ``seen``, or still has none: for repairs.

    Raises:
        PreconditionFailed: another agent wrote a manifest; look again.
    """
    store, key, ours = partition.store, partition.keys.manifest(manifest.name), _content(manifest)
    if seen is not None:
        stored = ObjectInfo(key, len(seen.manifest.to_bytes()), seen.etag, utc_now())
        return StoredManifest(manifest, replace(store, key, ours, stored).etag)
    created = create(store, key, ours)
    if not isinstance(created, ObjectSum):
        raise PreconditionFailed(key, "was written by another agent in the meantime")
    return StoredManifest(manifest, created.etag)


def _content(manifest: SegmentManifest) -> Summed:
    content = Bytes(MANIFEST_EXTENSION, manifest.to_bytes())
    return Summed(content, checksum(content))


def begins_on(manifest: SegmentManifest, lineage: Lineage) -> bool:
    """True if the segment's first batch is on ``lineage``."""
    return manifest.history.divergence(lineage, manifest.base_offset + 1) is None


def says_the_same(stored: SegmentManifest, ours: SegmentManifest) -> bool:
    """True if both describe the same bytes in the same way, regardless of their writer and time."""
    return stored.topic_id == ours.topic_id and _description(stored) == _description(ours)


def _description(manifest: SegmentManifest) -> tuple[object, ...]:
    return manifest.next_offset, manifest.state, manifest.lineage, manifest.open_transactions, manifest.sums


def transactions_open_at(
    partition: PartitionStore, offset: int, lineage: Lineage
) -> tuple[OpenTransaction, ...] | None:
    """The transactions open at ``offset`` of the log with this ``lineage``; None if no stored segment tells them.

    A manifest lists those open at its segment's end. Inside a segment, its batches below ``offset`` tell the rest.

    Raises:
        FormatError: a segment is damaged.
        StoreError: the store failed.
    """
    if offset == 0:
        return ()
    for entry in reversed([*partition.manifests(max(0, offset - REACH), offset)][-_NEAREST_SEGMENTS:]):
        stored = read_manifest(partition, entry.name)
        segment = StoredSegment.of(stored.manifest, lineage) if stored else None
        if segment is None or segment.state != "whole" or segment.readable_end < offset:
            continue
        if segment.next_offset == offset:
            return segment.open_transactions
        opened = transactions_open_at(partition, segment.base_offset, lineage)
        store, key = partition.located(stored.manifest, segment.name.file("log")) if stored else (partition.store, "")
        log = find(store, key) if opened is not None else None
        if opened is not None and log is not None:
            batches = scan_batches(pieces(store, log), log.key, segment.base_offset)
            return carry_forward(opened, takewhile(lambda header: header.next_offset <= offset, batches))
    return None
