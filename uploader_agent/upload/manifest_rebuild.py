"""Makes a manifest for a stored ``.log`` without one, from its bytes alone.

An agent that dies between a ``.log`` and its manifest leaves bytes without a manifest. They are a sealed run like any
other, which may end elsewhere than the next agent's, or leave the live log at an election's cut. They are read in
pieces, and each batch is compared with the known lineages. A batch of the right leader epoch at an offset is the right
batch: that is the purpose of Kafka's epochs (KIP-101).
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.errors import FormatError, SegmentError
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.manifest import ObjectSum, SegmentManifest
from tidemark.kafka_log import Lineage, OpenTransaction, SegmentScanner, SegmentSummary
from tidemark.kafka_log.indexes import DerivedIndexes
from tidemark.raw.objects import pieces
from tidemark.storage import PartitionStore
from tidemark.store import ObjectInfo, Store
from uploader_agent.broker.admin import Cleanup, Offsets
from uploader_agent.disk.segment_files import Bytes, checksum
from uploader_agent.stored.lineage import BatchLineage, KnownLineages, lineage_of
from uploader_agent.stored.objects import PutDerived, Summed, create_derived
from uploader_agent.upload.route import UploadRoute


class NotRebuilt(FormatError):
    """The stored bytes are damaged: they are left as they are."""


def rebuild(
    route: UploadRoute,
    name: SegmentName,
    log: ObjectInfo,
    lineages: KnownLineages,
    open_before: Iterable[OpenTransaction],
    offsets: Offsets,
    cleanup: Cleanup,
    *,
    next_base: int | None = None,
    put: PutDerived = create_derived,
) -> SegmentManifest:
    """The manifest of the stored ``.log`` of the segment ``name``; its indexes are made again, see :func:`reindex`.

    ``offsets`` and ``cleanup`` are the broker's statements. With ``next_base`` the segment accounts for the offsets up
    to there: the cleaner has removed the records in between.
    """
    summary, lineage, objects = reindex(route.partition, name, log, lineages, open_before, put)
    end = max(summary.next_offset, next_base or 0)
    return route.manifest(name, summary, lineage, objects, offsets, cleanup, next_offset=end)


def reindex(
    partition: PartitionStore,
    name: SegmentName,
    log: ObjectInfo,
    lineages: KnownLineages,
    open_before: Iterable[OpenTransaction],
    put: PutDerived = create_derived,
) -> tuple[SegmentSummary, Lineage, dict[str, ObjectSum]]:
    """Read the stored ``.log`` of the segment ``name``, and store its indexes with ``put``.

    Return the summary of its batches, its lineage, and the sums of all its objects. ``open_before`` are the
    transactions open at its start. The lineage is that of the bytes, even where they leave the known lineages.

    Raises:
        NotRebuilt: the bytes are damaged, or there are none.
        OffLineage: their first batch is of another branch.
        PreconditionFailed: the object has been replaced in the meantime: look again.
        StoreError: the store failed.
    """
    opened = tuple(open_before)
    scanner = SegmentScanner(log.key, name.base, open_before=opened)
    indexes = DerivedIndexes(name.base, log.size, opened)
    branch = BatchLineage(log.key, lineages)
    summary = _scan(partition.store, log, scanner, indexes, branch)
    if not summary.batch_count:
        raise NotRebuilt(log.key, "has no record batch")
    lineage = lineage_of(log.key, summary, lineages, branch.left_at)
    objects = {name.file("log"): ObjectSum(size=log.size, crc32c=f"{summary.crc32c:08x}", etag=log.etag)}
    for extension, data in indexes.files():
        content = Bytes(name.file(extension), data)
        objects[content.name] = put(
            partition.store, partition.keys.file(content.name), Summed(content, checksum(content))
        )
    return summary, lineage, objects


def _scan(
    store: Store, log: ObjectInfo, scanner: SegmentScanner, indexes: DerivedIndexes, lineage: BatchLineage
) -> SegmentSummary:
    before, start = b"", 0
    try:
        for piece in pieces(store, log):
            window, window_start = before + piece, start - len(before)
            for header in scanner.batches(piece):
                lineage.follow(header)
                begin = header.position - window_start  # a marker is small: it begins in the former piece or this one
                indexes.add(header, window[begin : begin + header.size] if header.is_marker else b"")
            before, start = piece, start + len(piece)
        return scanner.finish()
    except SegmentError as error:
        raise NotRebuilt(error.name, error.rule) from error
