"""A segment's manifest: what it says, and how it gets into the store as the last object of its segment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tidemark.errors import NotFound, PreconditionFailed
from tidemark.formats.keys import PartitionKeys, TopicPartition
from tidemark.formats.manifest import ObjectSum, OpenTransaction, SegmentDamage, SegmentManifest
from tidemark.kafka_log import Lineage, SegmentSummary
from tidemark.kafka_log import UnfinishedTransaction as LogTransaction
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
    """What the broker says about a partition while one of its segments goes."""

    offsets: Offsets
    cleanup_policy: str
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found out about a segment's bytes and objects."""

    base_offset: int
    next_offset: int
    summary: SegmentSummary
    damage: SegmentDamage | None
    provisional: bool
    lineage: Lineage
    open_transactions: tuple[LogTransaction, ...]
    rotated_at: datetime | None
    objects: dict[str, ObjectSum]


def build(
    at: TopicPartition, keys: PartitionKeys, topic_id: str | None, broker: int, facts: Facts, seen: Observed
) -> SegmentManifest:
    """The manifest of a segment of ``at`` that lies under ``keys``."""
    summary = facts.summary
    return SegmentManifest(
        cluster=keys.cluster,
        topic=at.topic,
        topic_id=topic_id,
        partition=at.partition,
        base_offset=facts.base_offset,
        last_batch_end=summary.next_offset,
        next_offset=facts.next_offset,
        lineage=facts.lineage.truncated(facts.next_offset).entries,
        first_timestamp=summary.first_timestamp,
        max_timestamp=summary.max_timestamp,
        batch_count=summary.batch_count,
        magics=summary.magics,
        codecs=summary.codecs,
        open_transactions=tuple(OpenTransaction(**one._asdict()) for one in facts.open_transactions),
        log_start_offset=seen.offsets.log_start_offset or 0,
        high_watermark=seen.offsets.high_watermark,
        last_stable_offset=seen.offsets.last_stable_offset,
        offsets_from=seen.offsets.source,
        cleanup_policy=seen.cleanup_policy,
        rotated_at=facts.rotated_at,
        uploaded_at=utc_now(),
        broker=broker,
        agent_version=__version__,
        state="corrupt" if facts.damage else "provisional" if facts.provisional else "whole",
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
    """Make ``manifest`` that of its base offset; one that says the same of the same bytes is kept as it is.

    Another one is replaced only if the stored log is the one that ``manifest`` speaks of. It is looked at after the
    other manifest: whoever replaces the log later than that writes a manifest later than ours.

    Raises:
        PreconditionFailed: somebody else replaced the log, or wrote a manifest at the same time; look again.
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
        raise PreconditionFailed(keys.file(name), "was replaced by another agent meanwhile")
    return StoredManifest(manifest, replace(store, key, ours, there).etag)


def write_over(
    store: Store, keys: PartitionKeys, manifest: SegmentManifest, seen: StoredManifest | None
) -> StoredManifest:
    """Make ``manifest`` that of its base offset, where the store still has ``seen``, or still has none.

    Raises:
        PreconditionFailed: somebody else was there; look again.
    """
    key = keys.segment(manifest.base_offset, EXTENSION)
    content = Bytes(EXTENSION, manifest.to_bytes())
    ours = Summed(content, checksum(content))
    if seen is not None:
        there = ObjectInfo(key, len(seen.manifest.to_bytes()), seen.etag, utc_now())
        return StoredManifest(manifest, replace(store, key, ours, there).etag)
    made = create(store, key, ours)
    if not isinstance(made, ObjectSum):
        raise PreconditionFailed(key, "was written by another agent meanwhile")
    return StoredManifest(manifest, made.etag)


def _stands(stored: SegmentManifest, ours: SegmentManifest) -> bool:
    """Whether ``stored`` says what ours would say, or more, of the same bytes."""
    if stored.topic_id != ours.topic_id:
        return False
    if stored.state == "whole" and ours.state == "provisional":
        log = file_name(ours.base_offset, "log")
        return stored.objects.get(log) == ours.objects.get(log)
    return _speaks_of(stored) == _speaks_of(ours)


def says_the_same(stored: SegmentManifest, ours: SegmentManifest) -> bool:
    """Whether both say the same of the same bytes, whoever wrote them and whenever."""
    return stored.topic_id == ours.topic_id and _speaks_of(stored) == _speaks_of(ours)


def _speaks_of(manifest: SegmentManifest) -> tuple[object, ...]:
    """What makes two manifests the same, whoever wrote them and whenever."""
    return manifest.next_offset, manifest.state, manifest.lineage, manifest.open_transactions, manifest.objects
