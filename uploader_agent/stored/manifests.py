"""A segment's manifest: its making, its writing as the last object of its segment, and the open transactions in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Final

from tidemark.errors import PreconditionFailed
from tidemark.formats.keys import MANIFEST_EXTENSION, PartitionKeys, SegmentName, TopicPartition
from tidemark.formats.raw.manifest import (
    ObjectSum,
    Origin,
    PackedPart,
    SegmentDamage,
    SegmentManifest,
    compacts,
    last_batch_of,
)
from tidemark.kafka_log import Lineage, OpenTransaction, SegmentSummary, carry_forward, scan_batches
from tidemark.raw import objects
from tidemark.raw.objects import REACH, StoredManifest, pieces, read_manifest
from tidemark.store import ObjectInfo, Store
from uploader_agent import __version__
from uploader_agent.broker.admin import UNKNOWN_POLICY, Offsets
from uploader_agent.clock import utc_now
from uploader_agent.disk.segment_files import Bytes, checksum
from uploader_agent.stored.objects import Summed, create, find, replace
from uploader_agent.stored.stored_log import StoredSegment

_NEAREST_SEGMENTS: Final = 64
"""Segments below an offset that are read: a segment of each branch has it or ends there."""


def may_compact(cleanup_policy: str) -> bool:
    """True if the broker's cleaner may remove records, or the policy is unknown."""
    return cleanup_policy == UNKNOWN_POLICY or compacts(cleanup_policy)


@dataclass(frozen=True, slots=True)
class Observed:
    """The broker's statements about a partition at the time of an upload."""

    offsets: Offsets
    cleanup_policy: str
    leader_epoch: int
    origin: Origin = "disk"
    delete_retention_ms: int | None = None

    @property
    def may_compact(self) -> bool:
        """True if the broker's cleaner may remove records, or the policy is unknown."""
        return may_compact(self.cleanup_policy)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a segment's bytes and objects. It accounts for the offsets up to ``next_offset``."""

    name: SegmentName
    next_offset: int
    summary: SegmentSummary
    damage: SegmentDamage | None
    lineage: Lineage
    rotated_at: datetime | None
    objects: dict[str, ObjectSum]
    parts: tuple[PackedPart, ...] = ()


def build(
    tp: TopicPartition, keys: PartitionKeys, topic_id: str | None, broker: int, facts: Facts, seen: Observed
) -> SegmentManifest:
    """The manifest of a segment of ``tp`` that is stored under ``keys``."""
    summary = facts.summary
    return SegmentManifest(
        cluster=keys.cluster,
        topic=tp.topic,
        topic_id=topic_id,
        partition=tp.partition,
        base_offset=facts.name.base,
        suffix=facts.name.suffix,
        last_batch_end=summary.next_offset,
        next_offset=facts.next_offset,
        lineage=facts.lineage.truncated(facts.next_offset).entries,
        restores=facts.lineage.restores,
        first_timestamp=summary.first_timestamp,
        max_timestamp=summary.max_timestamp,
        batch_count=summary.batch_count,
        magics=summary.magics,
        codecs=summary.codecs,
        open_transactions=summary.open_transactions,
        log_start_offset=seen.offsets.log_start_offset or 0,
        high_watermark=seen.offsets.high_watermark,
        last_stable_offset=seen.offsets.last_stable_offset,
        offsets_from=seen.offsets.source,
        cleanup_policy=seen.cleanup_policy,
        delete_retention_ms=seen.delete_retention_ms,
        rotated_at=facts.rotated_at,
        uploaded_at=utc_now(),
        broker=broker,
        origin=seen.origin,
        agent_version=__version__,
        state="corrupt" if facts.damage else "whole",
        damage=facts.damage,
        objects=facts.objects,
        parts=facts.parts,
        last_batch=last_batch_of(summary.last),
    )


def write(store: Store, keys: PartitionKeys, manifest: SegmentManifest) -> StoredManifest:
    """Create ``manifest`` under its name, or return the stored one if it describes the same object.

    Raises:
        PreconditionFailed: the stored one describes another object, for example after a repair; look again.
    """
    key = keys.manifest(manifest.name)
    created = create(store, key, _content(manifest))
    if isinstance(created, ObjectSum):
        return StoredManifest(manifest, created.etag)
    stored = SegmentManifest.load(store, key, if_match=created.etag)
    ours = manifest.objects[manifest.log_name]
    if (stored.topic_id, stored.objects.get(manifest.log_name)) != (manifest.topic_id, ours):
        raise PreconditionFailed(key, f"describes another object than {manifest.log_name} of version {ours.etag}")
    return StoredManifest(stored, created.etag)


def write_over(
    store: Store, keys: PartitionKeys, manifest: SegmentManifest, seen: StoredManifest | None
) -> StoredManifest:
    """Write ``manifest`` under its name if the store still has ``seen``, or still has none: for repairs.

    Raises:
        PreconditionFailed: another agent wrote a manifest; look again.
    """
    key, ours = keys.manifest(manifest.name), _content(manifest)
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
    return manifest.next_offset, manifest.state, manifest.lineage, manifest.open_transactions, manifest.objects


def transactions_open_at(
    store: Store, keys: PartitionKeys, offset: int, lineage: Lineage
) -> tuple[OpenTransaction, ...] | None:
    """The transactions open at ``offset`` of the log with this ``lineage``; None if no stored segment tells them.

    A manifest lists those open at its segment's end. Inside a segment, its batches below ``offset`` tell the rest.

    Raises:
        FormatError: a segment is damaged.
        StoreError: the store failed.
    """
    if offset == 0:
        return ()
    for entry in reversed([*objects.manifests(store, keys, max(0, offset - REACH), offset)][-_NEAREST_SEGMENTS:]):
        stored = read_manifest(store, keys, entry.name)
        segment = StoredSegment.of(stored.manifest, lineage) if stored else None
        if segment is None or segment.state != "whole" or segment.readable_end < offset:
            continue
        if segment.next_offset == offset:
            return segment.open_transactions
        opened = transactions_open_at(store, keys, segment.base_offset, lineage)
        log = find(store, keys.segment(segment.name, "log"))
        if opened is not None and log is not None:
            batches = scan_batches(pieces(store, log), log.key, segment.base_offset)
            return carry_forward(opened, takewhile(lambda header: header.next_offset <= offset, batches))
    return None
