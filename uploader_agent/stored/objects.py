"""Puts an object into the store exactly once: creates it, or finds it there. Replaces only objects of repairs.

The last object of a segment is its manifest. Stored and local bytes are compared by size and CRC32C alone. If the store
does not know an object's checksum, the bytes are read. If the store does not answer, the outcome is unknown, and the
object is read back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidemark.errors import FormatError, NotFound, PreconditionFailed, StoreError, UnknownOutcome
from tidemark.formats.keys import MANIFEST_EXTENSION
from tidemark.formats.raw.manifest import ObjectSum, SegmentManifest
from tidemark.kafka_log import Lineage
from tidemark.raw.objects import StoredManifest, stored_checksum
from tidemark.storage import PartitionStore
from tidemark.store import ObjectInfo, Store
from uploader_agent.disk.segment_files import Bytes, SegmentContent, checksum
from uploader_agent.runtime import utc_now


class Summed(NamedTuple):
    """Content with the checksum of all its bytes."""

    content: SegmentContent
    crc32c: int


def create(store: Store, key: str, ours: Summed, *, look_first: bool = False) -> ObjectSum | ObjectInfo:
    """Create ``key``. Return our object's sum if the key now holds our bytes, else the object that is there instead.

    With ``look_first``, look for an object before any bytes are sent, since there probably is one.
    """
    stored = find(store, key) if look_first else None
    if stored is None:
        try:
            etag = store.put(key, ours.content.body(), size=ours.content.size, crc32c=ours.crc32c, if_none_match=True)
        except (PreconditionFailed, UnknownOutcome) as error:
            stored = _read_back(store, key, error)
        else:
            return _summed(ours, etag)
    return _summed(ours, stored.etag) if _same(store, stored, ours) else stored


def replace(store: Store, key: str, ours: Summed, stored: ObjectInfo) -> ObjectSum:
    """Replace exactly the version ``stored``. Raises PreconditionFailed: that version has been replaced; look again."""
    try:
        etag = store.put(key, ours.content.body(), size=ours.content.size, crc32c=ours.crc32c, if_match=stored.etag)
    except UnknownOutcome as error:
        now = _read_back(store, key, error)
        if not _same(store, now, ours):
            raise
        etag = now.etag
    return _summed(ours, etag)


def create_derived(store: Store, key: str, ours: Summed) -> ObjectSum:
    """Create ``key``, which is derived from a ``.log``; an object that is there must be the same.

    Raises:
        FormatError: the object that is there differs.
    """
    created = create(store, key, ours)
    if isinstance(created, ObjectSum):
        return created
    raise FormatError(
        key, "differs from the object derived from its .log: run `tidemark-agent reupload` on a broker with a replica"
    )


def put_derived(store: Store, key: str, ours: Summed) -> ObjectSum:
    """Create ``key``, or replace the object there: for repairs, which make again objects derived from a ``.log``."""
    created = create(store, key, ours)
    return created if isinstance(created, ObjectSum) else replace(store, key, ours, created)


PutDerived = Callable[[Store, str, Summed], ObjectSum]
"""Stores an object derived from a ``.log``: :func:`create_derived`, or :func:`put_derived` in repairs."""


def _same(store: Store, stored: ObjectInfo, ours: Summed) -> bool:
    return stored.size == ours.content.size and stored_checksum(store, stored) == ours.crc32c


def find(store: Store, key: str) -> ObjectInfo | None:
    """The object's state; None without an object."""
    try:
        return store.head(key)
    except NotFound:
        return None


def _summed(ours: Summed, etag: str) -> ObjectSum:
    """The sum that proves our object in a manifest."""
    return ObjectSum(size=ours.content.size, crc32c=f"{ours.crc32c:08x}", etag=etag)


def _read_back(store: Store, key: str, error: StoreError) -> ObjectInfo:
    """The object that is there after ``error``. Raises ``error`` again if there is none."""
    try:
        return store.head(key)
    except NotFound:
        raise error from None


def write_manifest(partition: PartitionStore, manifest: SegmentManifest) -> StoredManifest:
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


def write_manifest_over(
    partition: PartitionStore, manifest: SegmentManifest, seen: StoredManifest | None
) -> StoredManifest:
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
