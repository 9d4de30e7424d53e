"""Reads and removes the agents' objects of a partition: watermark, manifests, transaction indexes, segments.

:mod:`tidemark.raw.heads` has the order in which a reader asks for them. Nothing is retried or cached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from crc32c import crc32c

from tidemark.concurrency import in_parallel
from tidemark.errors import FormatError, NotFound, PreconditionFailed
from tidemark.formats import object_sizes
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.kafka_log import AbortedTransaction, parse_txn_index
from tidemark.raw import tombstones
from tidemark.raw.segments import Segment, segment_of
from tidemark.storage import OtherWatermark, PartitionStore, StoredWatermark
from tidemark.store import ObjectInfo, Store

REACH: Final = 1 << 31
"""Offsets that a segment can span (Kafka's ``LogSegment.canConvertToRelativeOffset``)."""

LOOK_BACK: Final = (1 << 12, 1 << 18, 1 << 24, REACH)
"""Distances below an offset at which to look for its segment."""

PIECE_BYTES: Final = 8 << 20
"""Bytes of an object that are in memory at a time."""


class StoredManifest(NamedTuple):
    """A manifest and the ETag under which the store has it."""

    manifest: SegmentManifest
    etag: str


class SegmentObjects(NamedTuple):
    """The objects of the segment ``name`` by extension, from a listing."""

    name: SegmentName
    objects: dict[str, ObjectInfo]


def read_watermark(
    partition: PartitionStore, topic_id: str | None, known: StoredWatermark | None = None
) -> StoredWatermark | None:
    """The :meth:`~PartitionStore.watermark` of the incarnation ``topic_id``; None while nothing contiguous is uploaded.

    Raises:
        FormatError: the object does not parse, has Pinterest's format, or is of another incarnation.
    """
    key, stored = partition.keys.watermark, partition.watermark(known)
    if isinstance(stored, OtherWatermark):
        raise FormatError(
            key, "has no second line: Pinterest's uploader wrote it; take its prefix over with tidemark-agent adopt"
        )
    if stored is not None and stored.watermark.topic_id != topic_id:
        rule = f"topic id is {stored.watermark.topic_id}, and that of this incarnation {topic_id}"
        raise FormatError(key, rule)
    return stored


def grouped(partition: PartitionStore, end: int | None = None) -> Iterator[SegmentObjects]:
    """The objects of each segment that starts below ``end``, by base, from a listing."""
    for _, members in groupby(partition.objects(end=end), key=lambda entry: entry.name.base):
        for name, own in groupby(sorted(members, key=lambda entry: entry.name), key=lambda entry: entry.name):
            yield SegmentObjects(name, {entry.extension: entry.info for entry in own})


def read_manifest(partition: PartitionStore, name: SegmentName) -> StoredManifest | None:
    """The manifest of the segment ``name``; None if there is none. Raises FormatError if it does not parse."""
    try:
        return StoredManifest(*SegmentManifest.load_version(partition.store, partition.keys.manifest(name)))
    except NotFound:
        return None  # removed since the listing: counts as not listed


def read_segment(partition: PartitionStore, name: SegmentName) -> Segment | None:
    """The segment ``name``; None if it has no manifest."""
    stored = read_manifest(partition, name)
    return (
        segment_of(stored.manifest, partition.keys.manifest(name), partition.store.url) if stored is not None else None
    )


def read_segments(partition: PartitionStore, name: SegmentName) -> list[Segment]:
    """The segment ``name`` of a listing; if it is gone since, those that have its base now: it may be rewritten."""
    segment = read_segment(partition, name)
    if segment is not None:
        return [segment]
    now = (read_segment(partition, entry.name) for entry in partition.manifests(name.base, name.base + 1))
    return [segment for segment in now if segment is not None]


def aborts_of(store: Store, segment: Segment) -> list[AbortedTransaction]:
    """All aborted transactions that the segment lists, itself or in its ``.txnindex``.

    Raises:
        PreconditionFailed: the index is not the version that the manifest describes.
    """
    if segment.aborts is None:
        return [*segment.aborted]
    key, described = segment.sibling("txnindex"), segment.aborts
    body = store.get(key, limit=object_sizes.SEGMENT_INDEX).body
    if (len(body), f"{crc32c(body):08x}") != (described.size, described.crc32c):
        raise PreconditionFailed(key, "is not the version that its manifest describes")
    return parse_txn_index(body, key)


def first_left(partition: PartitionStore, start: int) -> int:
    """The start of raw: ``start``, unless retention has removed the segments there."""
    gone = tombstones.removed(partition)
    end = gone.contiguous_from(start)
    if end == start:
        return start
    buried = next(part for part in gone if part.end == end)
    left = next(partition.manifests(buried.start, end), None)
    return max(start, left.name.base) if left else end


def remove_segment(partition: PartitionStore, name: SegmentName, manifest_etag: str, etags: Mapping[str, str]) -> bool:
    """Delete the segment ``name``, each object only in the version that ``etags`` has for its file name.

    The manifest goes first: without it, a segment no longer exists for any reader.

    False if its manifest was replaced: then all stays.
    """
    manifest = partition.keys.manifest(name)
    try:
        partition.store.delete(manifest, if_match=manifest_etag)
    except NotFound:
        pass  # another run beside this one was faster
    except PreconditionFailed:
        if _exists(partition.store, manifest):
            return False
    for file, etag in etags.items():
        delete_version(partition.store, partition.keys.file(file), etag)
    return True


def _exists(store: Store, key: str) -> bool:
    """Some servers answer 412 and not 404 to a conditional deletion of an object that is gone."""
    try:
        store.head(key)
    except NotFound:
        return False
    return True


def delete_version(store: Store, key: str, etag: str) -> None:
    """Delete the object if it is this very version, and otherwise do nothing."""
    try:
        store.delete(key, if_match=etag)
    except (NotFound, PreconditionFailed):
        return


def delete_listed(store: Store, objects: Sequence[ObjectInfo]) -> None:
    """Delete ``objects`` as they were listed, side by side; one that was replaced since stays."""
    in_parallel(lambda info: delete_version(store, info.key, info.etag), objects)


def pieces(store: Store, version: ObjectInfo) -> Iterator[bytes]:
    """The bytes of exactly that version, 8 MiB at a time.

    Raises:
        PreconditionFailed: the object was replaced meanwhile.
        NotFound: the object was removed.
        StoreError: the store failed.
    """
    return pieces_between(store, version.key, 0, version.size, version.etag)


def pieces_between(store: Store, key: str, start: int, end: int, etag: str | None) -> Iterator[bytes]:
    """The bytes ``[start, end)`` of the version ``etag`` of an object; None: of the current one, whatever it is.

    Raises:
        PreconditionFailed, NotFound, StoreError: as :func:`pieces`.
    """
    for at in range(start, end, PIECE_BYTES):
        yield store.get_range(key, at, min(at + PIECE_BYTES, end), if_match=etag)


def read_checksum(store: Store, version: ObjectInfo) -> int:
    """CRC32C of the bytes of exactly that version; reads them. Raises errors of :func:`pieces`."""
    value = 0
    for piece in pieces(store, version):
        value = crc32c(piece, value)
    return value


def stored_checksum(store: Store, version: ObjectInfo) -> int:
    """CRC32C of exactly that version; reads its bytes only if the store does not know the checksum."""
    return read_checksum(store, version) if version.crc32c is None else version.crc32c
