"""The bytes of a stored ``.log``, with batches of packs inserted at their offsets.

Batches are only added, or replaced by copies with at least as many records. So a program that replaces the stored bytes
by these, however late, removes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import NamedTuple

from tidemark.errors import TidemarkError
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.pack import PackedRange, read_range_bytes
from tidemark.kafka_log import BatchHeader, Lineage, scan_batches
from tidemark.kafka_log.same_batch import described, is_same
from tidemark.raw.sealed_packs import BatchId, claims, id_of
from tidemark.raw.stored_bytes import pieces, pieces_between
from tidemark.store import ObjectInfo, Store
from uploader_agent.disk.segment_files import OpenFile, opened


class PackBatch(NamedTuple):
    """A batch in the pack ``key``: its header, and the byte of the pack at which it begins."""

    header: BatchHeader
    key: str
    position: int


class OtherBatches(TidemarkError):
    """A pack has other batches at the offsets of the stored ones."""


class Edit(NamedTuple):
    """A batch that replaces the stored bytes ``[position, end)``."""

    position: int
    end: int
    batch: PackBatch


def batches_of(
    store: Store, ranges: Iterable[PackedRange], manifest: SegmentManifest, lineage: Lineage
) -> list[PackBatch]:
    """The batches of ``ranges`` that the segment claims on ``lineage``, by offset; of several copies the fullest.

    Raises:
        FormatError: a range is damaged.
        StoreError: the store failed.
    """
    batches: dict[BatchId, PackBatch] = {}
    for packed in ranges:
        for header in scan_batches([read_range_bytes(store, packed)], packed.key, packed.range.first):
            batch = id_of(header, packed.range.restores)
            if not claims(manifest, lineage, batch, header.next_offset):
                continue
            known = batches.get(batch)
            if known is None or header.record_count > known.header.record_count:
                batches[batch] = PackBatch(header, packed.key, packed.range.position + header.position)
    return [batches[batch_id] for batch_id in sorted(batches)]


def edits(store: Store, log: ObjectInfo, base: int, wanted: Iterable[PackBatch], gone: Mapping[int, int]) -> list[Edit]:
    """The edits with which the stored ``log`` holds all ``wanted`` batches, which are in the order of offsets.

    A batch that lacks no more than the records which are ``gone``, since they were erased, stays as it is.

    Raises:
        OtherBatches: a wanted batch is another one than the log has at its offsets.
        SegmentError: the log is damaged.
        StoreError: the store failed.
    """
    changes: list[Edit] = []
    left = deque(wanted)
    for stored in scan_batches(pieces(store, log), log.key, base):
        if left and _differs(left[0].header, stored):
            rule = f"has {described(stored)}, and {left[0].key} {described(left[0].header)}"
            raise OtherBatches(f"{log.key}: {rule}: of another history, which must not replace it")
        while left and left[0].header.base_offset < stored.base_offset:
            changes.append(Edit(stored.position, stored.position, left.popleft()))
        if left and _is_copy(left[0].header, stored):
            ours = left.popleft()
            same = (ours.header.size, ours.header.crc) == (stored.size, stored.crc)
            erased = gone.get(stored.base_offset, 0)
            same = same or (erased > 0 and ours.header.record_count <= stored.record_count + erased)
            if not same and ours.header.record_count >= stored.record_count:
                changes.append(Edit(stored.position, stored.end, ours))
    return [*changes, *(Edit(log.size, log.size, batch) for batch in left)]


def _is_copy(one: BatchHeader, other: BatchHeader) -> bool:
    """True if both are copies of one batch: the segment claims the first, so that they are of one log."""
    return (one.base_offset, one.leader_epoch) == (other.base_offset, other.leader_epoch)


def _differs(packed: BatchHeader, stored: BatchHeader) -> bool:
    overlaps = packed.base_offset <= stored.last_offset and stored.base_offset <= packed.last_offset
    return overlaps and is_same(packed, stored) is False


@contextmanager
def spliced(store: Store, log: ObjectInfo, name: str, changes: Iterable[Edit]) -> Iterator[OpenFile]:
    """The bytes of ``log`` with ``changes``, in order, in a temporary file under ``name``. Raises StoreError."""
    with TemporaryFile() as file:
        at = 0
        for change in changes:
            file.writelines(pieces_between(store, log.key, at, change.position, log.etag))
            batch = change.batch
            file.write(store.get_range(batch.key, batch.position, batch.position + batch.header.size))
            at = change.end
        file.writelines(pieces_between(store, log.key, at, log.size, log.etag))
        file.flush()
        yield opened(name, file.fileno())
