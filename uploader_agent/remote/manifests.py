"""A segment's manifest: what it says, and how it gets into the store as the last object of its segment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tidemark.errors import NotFound, PreconditionFailed
from tidemark.formats.keys import PartitionKeys, TopicPartition
from tidemark.formats.manifest import ObjectSum, OpenTransaction, SegmentDamage, SegmentManifest
from tidemark.kafka_log import Lineage, SegmentSummary
from tidemark.raw.objects import Listed
from tidemark.store import ObjectInfo, Store
from uploader_agent import __version__
from uploader_agent.broker.admin import Offsets
from uploader_agent.clock import utc_now
from uploader_agent.disk.segment_files import Bytes, checksum, file_name
from uploader_agent.remote.objects import Summed, create, find, replace

EXTENSION = "manifest.json"


class StoredManifest(NamedTuple):
    """A manifest and the ETag under which the store has it."""

    manifest: SegmentManifest
    etag: str


@dataclass(frozen=True, slots=True)
class Observed:
    """What the broker says about a partition while a segment is uploaded.

    ``log_end`` is the log end offset that was seen last; None if that is not known.
    """

    offsets: Offsets
    cleanup_policy: str
    leader_epoch: int
    log_end: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found out about a segment's bytes and objects."""

    base_offset: int
    next_offset: int
    summary: SegmentSummary
    damage: SegmentDamage | None
    lineage: Lineage
    rotated_at: datetime | None
    objects: dict[str, ObjectSum]


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
        base_offset=facts.base_offset,
        last_batch_end=summary.next_offset,
        next_offset=facts.next_offset,
        lineage=facts.lineage.truncated(facts.next_offset).entries,
        first_timestamp=summary.first_timestamp,
        max_timestamp=summary.max_timestamp,
        batch_count=summary.batch_count,
        magics=summary.magics,
        codecs=summary.codecs,
        open_transactions=tuple(OpenTransaction(**one._asdict()) for one in summary.open_transactions),
        log_start_offset=seen.offsets.log_start_offset or 0,
        high_watermark=seen.offsets.high_watermark,
        last_stable_offset=seen.offsets.last_stable_offset,
        offsets_from=seen.offsets.source,
        cleanup_policy=seen.cleanup_policy,
        rotated_at=facts.rotated_at,
        uploaded_at=utc_now(),
        broker=broker,
        agent_version=__version__,
        state="corrupt" if facts.damage else "whole",
        damage=facts.damage,
        objects=facts.objects,
    )


def read(store: Store, keys: PartitionKeys, base_offset: int) -> StoredManifest | None:
    """The manifest of ``base_offset``; None if there is none. Raises FormatError for one that does not parse."""
    key = keys.segment(base_offset, EXTENSION)
    try:
        return StoredManifest(*SegmentManifest.load_version(store, key))
    except NotFound:
        return None


def write(store: Store, keys: PartitionKeys, manifest: SegmentManifest) -> StoredManifest:
    """Write ``manifest`` under its base offset, unless one for the same log is stored.

    The manifest of another log is replaced only if the stored log is the one that ``manifest`` describes. The log is
    looked at after the other manifest: an agent that replaces the log later also writes its manifest later than ours.

    Raises:
        PreconditionFailed: another agent replaced the log, or wrote a manifest at the same time; look again.
    """
    key = keys.segment(manifest.base_offset, EXTENSION)
    content = Bytes(EXTENSION, manifest.to_bytes())
    ours = Summed(content, checksum(content))
    there = create(store, key, ours)
    if isinstance(there, ObjectSum):
        return StoredManifest(manifest, there.etag)
    stored = SegmentManifest.load(store, key, if_match=there.etag)
    if _stands(stored, manifest):
        return StoredManifest(stored, there.etag)
    name = file_name(manifest.base_offset, "corrupt" if manifest.damage else "log")
    log = find(store, keys.file(name))
    if log is None or log.etag != manifest.objects[name].etag:
        raise PreconditionFailed(keys.file(name), "was replaced by another agent in the meantime")
    return StoredManifest(manifest, replace(store, key, ours, there).etag)


def write_over(
    store: Store, keys: PartitionKeys, manifest: SegmentManifest, seen: StoredManifest | None
) -> StoredManifest:
    """Write ``manifest`` under its base offset if the store still has ``seen``, or still has none.

    Raises:
        PreconditionFailed: another agent wrote one; look again.
    """
    key = keys.segment(manifest.base_offset, EXTENSION)
    content = Bytes(EXTENSION, manifest.to_bytes())
    ours = Summed(content, checksum(content))
    if seen is not None:
        there = ObjectInfo(key, len(seen.manifest.to_bytes()), seen.etag, utc_now())
        return StoredManifest(manifest, replace(store, key, ours, there).etag)
    made = create(store, key, ours)
    if not isinstance(made, ObjectSum):
        raise PreconditionFailed(key, "was written by another agent in the meantime")
    return StoredManifest(manifest, made.etag)


def describes(manifest: SegmentManifest, log: Listed | None) -> bool:
    """Whether ``manifest`` describes the stored ``log``, or a ``.corrupt``, which is another object."""
    described = manifest.objects.get(file_name(manifest.base_offset, "log"))
    return described is None or (log is not None and log.info.etag == described.etag)


def _stands(stored: SegmentManifest, ours: SegmentManifest) -> bool:
    """Whether ``stored`` describes the same log as ours: then it stays, whoever wrote it."""
    name = file_name(ours.base_offset, "corrupt" if ours.damage else "log")
    same = (stored.topic_id, stored.state) == (ours.topic_id, ours.state)
    return same and stored.objects.get(name) == ours.objects[name]


def says_the_same(stored: SegmentManifest, ours: SegmentManifest) -> bool:
    """Whether both describe the same bytes in the same way, regardless of their writer and time."""
    return stored.topic_id == ours.topic_id and _speaks_of(stored) == _speaks_of(ours)


def _speaks_of(manifest: SegmentManifest) -> tuple[object, ...]:
    """The fields that make two manifests equal, regardless of their writer and time."""
    return manifest.next_offset, manifest.state, manifest.lineage, manifest.open_transactions, manifest.objects
