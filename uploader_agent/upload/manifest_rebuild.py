"""Makes a manifest for a stored ``.log`` without one, from its bytes alone.

An agent that dies between a ``.log`` and its manifest leaves bytes without a manifest. They are a sealed run like any
other, which may end elsewhere than the next agent's, or leave the live log at an election's cut. They are read in
pieces, and each batch is compared with the known lineages. A batch of the right leader epoch at an offset is the right
batch: that is the purpose of Kafka's epochs (KIP-101).
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.errors import FormatError, SegmentError
from tidemark.formats.keys import PartitionKeys, SegmentName
from tidemark.formats.raw.manifest import ObjectSum
from tidemark.kafka_log import OpenTransaction, SegmentScanner, SegmentSummary
from tidemark.kafka_log.indexes import DerivedIndexes
from tidemark.raw.objects import pieces
from tidemark.store import ObjectInfo, Store
from uploader_agent.disk.segment_files import Bytes, checksum
from uploader_agent.stored.lineage import BatchLineage, KnownLineages, lineage_of
from uploader_agent.stored.manifests import Facts
from uploader_agent.stored.objects import PutDerived, Summed, create_derived


class NotRebuilt(FormatError):
    """The stored bytes are damaged: they are left as they are."""


def rebuild(
    store: Store,
    keys: PartitionKeys,
    name: SegmentName,
    log: ObjectInfo,
    lineages: KnownLineages,
    open_before: Iterable[OpenTransaction],
    put: PutDerived = create_derived,
) -> Facts:
    """Read the stored ``.log`` of the segment ``name``, store its indexes with ``put``, and return its facts.

    ``open_before`` are the transactions open at its start. The lineage is that of the bytes, even where they leave the
    known lineages.

    Raises:
        NotRebuilt: the bytes are damaged, or there are none.
        OffLineage: their first batch is of another branch.
        PreconditionFailed: the object has been replaced in the meantime: look again.
        StoreError: the store failed.
    """
    opened = tuple(open_before)
    scanner, indexes = (
        SegmentScanner(log.key, name.base, open_before=opened),
        DerivedIndexes(name.base, log.size, opened),
    )
    branch = BatchLineage(log.key, lineages)
    summary = _scan(store, log, scanner, indexes, branch)
    if not summary.batch_count:
        raise NotRebuilt(log.key, "has no record batch")
    lineage = lineage_of(log.key, summary, lineages, branch.left_at)
    objects = {name.file("log"): ObjectSum(size=log.size, crc32c=f"{summary.crc32c:08x}", etag=log.etag)}
    for extension, data in indexes.files():
        content = Bytes(name.file(extension), data)
        objects[content.name] = put(store, keys.file(content.name), Summed(content, checksum(content)))
    return Facts(
        name=name,
        next_offset=summary.next_offset,
        summary=summary,
        damage=None,
        lineage=lineage,
        rotated_at=None,
        objects=objects,
    )


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
                indexes.add(header, lambda: window[begin : begin + header.size])  # noqa: B023 - called at once
            before, start = piece, start + len(piece)
        return scanner.finish()
    except SegmentError as error:
        raise NotRebuilt(error.name, error.rule) from error
