"""Reads and removes the agents' objects of a partition: watermark, manifests, transaction indexes, masks, segments.

Relies on the agent's order of writing: a segment's manifest comes after its other objects, and the watermark after the
manifests that it covers. So a reader that reads the watermark before the manifests finds everything below it.
:mod:`tidemark.raw.heads` has the whole order. Nothing is retried, and nothing but masks is cached: they never change,
so a process reads each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Final, NamedTuple

from crc32c import crc32c

from tidemark.errors import FormatError, NotFound, PreconditionFailed
from tidemark.formats import object_sizes
from tidemark.formats.keys import MANIFEST_EXTENSION, OFFSET_DIGITS, ControlKeys, PartitionKeys, SegmentName
from tidemark.formats.raw import tombstones
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.masks import Mask, MaskIndex, read_index, read_mask
from tidemark.formats.raw.watermark import Watermark, parse
from tidemark.kafka_log import AbortedTransaction, Lineage, parse_txn_index
from tidemark.lru import Lru
from tidemark.raw.segments import Segment, segment_of
from tidemark.store import ObjectInfo, Store

REACH: Final = 1 << 31
"""Offsets that a segment can span (Kafka's ``LogSegment.canConvertToRelativeOffset``)."""

LOOK_BACK: Final = (1 << 12, 1 << 18, 1 << 24, REACH)
"""Distances below an offset at which to look for its segment."""

_MOST_MASKED_OFFSETS: Final = 4_000_000
"""Most offsets of the masks that a process remembers; about 36 bytes each."""

_known_masks: Final[Lru[tuple[str, str], Mask]] = Lru(_MOST_MASKED_OFFSETS, lambda mask: mask.count, at_least=1)

PIECE_BYTES: Final = 8 << 20
"""Bytes of an object that are in memory at a time."""


class StoredWatermark(NamedTuple):
    """``offset.wm`` as the store has it. Line 1 is the ``base_offset`` of the last segment below the first hole."""

    base_offset: int
    watermark: Watermark
    etag: str

    @property
    def lineage(self) -> Lineage:
        """The newest lineage."""
        return self.watermark.history


class OtherWatermark(NamedTuple):
    """The ``offset.wm`` of one line that another uploader wrote; ``etag`` is its ETag."""

    etag: str


class StoredManifest(NamedTuple):
    """A manifest and the ETag under which the store has it."""

    manifest: SegmentManifest
    etag: str


class ListedObject(NamedTuple):
    """An object of the segment ``name``, from a listing."""

    name: SegmentName
    extension: str
    info: ObjectInfo


class SegmentObjects(NamedTuple):
    """The objects of the segment ``name`` by extension, from a listing."""

    name: SegmentName
    objects: dict[str, ObjectInfo]


def incarnations(store: Store, control: ControlKeys, topic: str) -> TopicIncarnations:
    """The incarnations of a topic; an empty list if no agent has seen it."""
    key = control.incarnations(topic)
    try:
        return TopicIncarnations.load(store, key)
    except NotFound:
        return TopicIncarnations(topic=topic)


def find_watermark(
    store: Store, keys: PartitionKeys, known: StoredWatermark | None = None
) -> StoredWatermark | OtherWatermark | None:
    """The current ``offset.wm``, whoever wrote it; None if there is none. It is ``known`` if that is still there.

    Raises:
        FormatError: it does not parse.
    """
    try:
        body, etag = store.get(keys.watermark, limit=Watermark.most_bytes)
    except NotFound:
        return None
    if known is not None and known.etag == etag:
        return known
    base_offset, watermark = parse(body, keys.watermark)
    return OtherWatermark(etag) if watermark is None else StoredWatermark(base_offset, watermark, etag)


def read_watermark(
    store: Store, keys: PartitionKeys, topic_id: str | None, known: StoredWatermark | None = None
) -> StoredWatermark | None:
    """The :func:`find_watermark` of the incarnation ``topic_id``; None while nothing contiguous is uploaded.

    Raises:
        FormatError: the object does not parse, has Pinterest's format, or is of another incarnation.
    """
    key, stored = keys.watermark, find_watermark(store, keys, known)
    if isinstance(stored, OtherWatermark):
        raise FormatError(
            key, "has no second line: Pinterest's uploader wrote it; take its prefix over with tidemark-agent adopt"
        )
    if stored is not None and stored.watermark.topic_id != topic_id:
        rule = f"topic id is {stored.watermark.topic_id}, and that of this incarnation {topic_id}"
        raise FormatError(key, rule)
    return stored


def listed(store: Store, keys: PartitionKeys, first: int = 0, end: int | None = None) -> Iterator[ListedObject]:
    """The objects of the segments that start in ``[first, end)``, by base, from a listing."""
    # The keys of base offset `first` sort after its bare digits.
    for info in store.list(keys.folder, start_after=keys.file(f"{first:0{OFFSET_DIGITS}d}")):
        named = keys.segment_of(info.key)
        if named is None:
            continue
        if end is not None and named[0].base >= end:
            return
        yield ListedObject(*named, info)


def manifests(store: Store, keys: PartitionKeys, first: int = 0, end: int | None = None) -> Iterator[ListedObject]:
    """The manifests of the segments that start in ``[first, end)``, by base, from a listing."""
    return (entry for entry in listed(store, keys, first, end) if entry.extension == MANIFEST_EXTENSION)


def grouped(store: Store, keys: PartitionKeys, end: int | None = None) -> Iterator[SegmentObjects]:
    """The objects of each segment that starts below ``end``, by base, from a listing."""
    for _, members in groupby(listed(store, keys, 0, end), key=lambda entry: entry.name.base):
        for name, own in groupby(sorted(members, key=lambda entry: entry.name), key=lambda entry: entry.name):
            yield SegmentObjects(name, {entry.extension: entry.info for entry in own})


def read_manifest(store: Store, keys: PartitionKeys, name: SegmentName) -> StoredManifest | None:
    """The manifest of the segment ``name``; None if there is none. Raises FormatError if it does not parse."""
    try:
        return StoredManifest(*SegmentManifest.load_version(store, keys.manifest(name)))
    except NotFound:
        return None  # removed since the listing: counts as not listed


def read_segment(store: Store, keys: PartitionKeys, name: SegmentName) -> Segment | None:
    """The segment ``name``; None if it has no manifest."""
    stored = read_manifest(store, keys, name)
    return segment_of(stored.manifest, keys.manifest(name), store.url) if stored is not None else None


def read_segments(store: Store, keys: PartitionKeys, name: SegmentName) -> list[Segment]:
    """The segment ``name`` of a listing; if it is gone since, those that have its base now: it may be rewritten."""
    segment = read_segment(store, keys, name)
    if segment is not None:
        return [segment]
    now = (read_segment(store, keys, entry.name) for entry in manifests(store, keys, name.base, name.base + 1))
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


def first_left(store: Store, keys: PartitionKeys, start: int) -> int:
    """The start of raw: ``start``, unless retention has removed the segments there."""
    gone = tombstones.removed(store, keys)
    end = gone.contiguous_from(start)
    if end == start:
        return start
    buried = next(part for part in gone if part.end == end)
    left = next(manifests(store, keys, buried.start, end), None)
    return max(start, left.name.base) if left else end


def mask_index_of(store: Store, control: ControlKeys, place: str) -> MaskIndex:
    """The masks of an incarnation that count now; raises errors of :func:`~tidemark.formats.raw.masks.read_index`."""
    version = read_index(store, control, place)
    return version.value if version else MaskIndex(cluster=control.cluster, place=place)


def mask_of(store: Store, key: str) -> Mask:
    """The mask under ``key``; raises errors of :func:`~tidemark.formats.raw.masks.read_mask`."""
    name = store.url, key
    if (mask := _known_masks.get(name)) is None:
        mask = read_mask(store, key)
        _known_masks.keep(name, mask)
    return mask


def remove_segment(
    store: Store, keys: PartitionKeys, name: SegmentName, manifest_etag: str, etags: Mapping[str, str]
) -> bool:
    """Delete the segment ``name``, each object only in the version that ``etags`` has for its file name.

    The manifest goes first: without it, a segment no longer exists for any reader.

    False if its manifest was replaced: then all stays.
    """
    manifest = keys.manifest(name)
    try:
        store.delete(manifest, if_match=manifest_etag)
    except NotFound:
        pass  # another run beside this one was faster
    except PreconditionFailed:
        if _exists(store, manifest):
            return False
    for file, etag in etags.items():
        delete_version(store, keys.file(file), etag)
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
