"""Makes a manifest for a stored ``.log`` without one, from its bytes alone.

An agent that dies between a ``.log`` and its manifest leaves bytes without a manifest. They are a sealed run like any
other, which may end elsewhere than the next agent's. They are read in pieces and checked batch by batch against the
lineages that are known. A batch of the right leader epoch at an offset is the right batch: that is what Kafka's epochs
are for (KIP-101).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidemark.errors import FormatError, SegmentError
from tidemark.formats.keys import PartitionKeys
from tidemark.formats.manifest import ObjectSum
from tidemark.kafka_log import SegmentScanner, SegmentSummary, UnfinishedTransaction
from tidemark.raw.stored_bytes import pieces
from tidemark.store import ObjectInfo, Store
from uploader_agent.disk.segment_files import checksum, file_name
from uploader_agent.remote.lineage import BatchLineage, KnownLineages, lineage_of
from uploader_agent.remote.manifests import Facts
from uploader_agent.remote.objects import Summed, put_derived
from uploader_agent.upload.derived_indexes import DerivedIndexes


class NotRebuilt(FormatError):
    """The stored bytes are damaged: they are left as they are."""


def rebuild(
    store: Store,
    keys: PartitionKeys,
    base_offset: int,
    log: ObjectInfo,
    lineages: KnownLineages,
    open_before: Iterable[UnfinishedTransaction],
    fence: Callable[[], None],
) -> Facts:
    """Read the stored ``.log``, store its indexes, and return the facts for its manifest.

    ``open_before`` are the transactions open where it begins. ``fence`` raises if another leader has taken over.

    Raises:
        NotRebuilt: the bytes are damaged.
        OffLineage: they contradict the lineages.
        PreconditionFailed: the object has been replaced in the meantime: look again.
        StoreError: the store failed.
    """
    opened = tuple(open_before)
    scanner, indexes = (
        SegmentScanner(log.key, base_offset, open_before=opened),
        DerivedIndexes(base_offset, log.size, opened),
    )
    summary = _scan(store, log, scanner, indexes, BatchLineage(log.key, lineages))
    lineage = lineage_of(log.key, summary, lineages)
    objects = {file_name(base_offset, "log"): ObjectSum(size=log.size, crc32c=f"{summary.crc32c:08x}", etag=log.etag)}
    for content in indexes.files():
        objects[content.name] = put_derived(store, keys.file(content.name), Summed(content, checksum(content)), fence)
    return Facts(
        base_offset=base_offset,
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
                lineage.check(header)
                begin = (
                    header.position - window_start
                )  # a marker is small: it began in the former piece at the earliest
                indexes.add(header, lambda: window[begin : begin + header.size])  # noqa: B023 - called at once
            before, start = piece, start + len(piece)
        return scanner.finish()
    except SegmentError as error:
        raise NotRebuilt(error.name, error.rule) from error
