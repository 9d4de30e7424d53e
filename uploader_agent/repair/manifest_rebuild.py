"""A manifest for bytes that are in the store without one, made from these bytes alone.

An agent that dies between a ``.log`` and its manifest leaves bytes that do not count, or that no longer match the
manifest of a shorter version. The next agent sends the segment again; but once retention has taken the file, the stored
bytes are all there is. They are read in pieces, checked batch by batch, and their indexes are made anew as Kafka does.

Source: Kafka's ``LogSegment.recover`` and ``append`` (indexes), ``UnifiedLog.updateProducers``, ``ControlRecordType``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct

from tidemark.errors import FormatError, SegmentError
from tidemark.formats.keys import PartitionKeys
from tidemark.formats.manifest import ObjectSum
from tidemark.kafka_log import (
    AbortedTransaction,
    BatchHeader,
    Lineage,
    SegmentScanner,
    SegmentSummary,
    TransactionTracker,
    UnfinishedTransaction,
)
from tidemark.store import ObjectInfo, Store
from uploader_agent.disk.segment_files import Bytes, checksum, file_name
from uploader_agent.remote.lineage import BatchLineage, lineage_of
from uploader_agent.remote.manifests import Facts
from uploader_agent.remote.objects import READ_SIZE, Summed, put_derived

_INDEX_INTERVAL = 4096
"""Kafka's default ``index.interval.bytes``."""

_INDEX_ENTRY, _TIME_ENTRY, _ABORTED_ENTRY = Struct(">ii"), Struct(">qi"), Struct(">hqqqq")
_BATCH_HEADER = 61
_ABORT = 0


class NotRebuilt(FormatError):
    """The stored bytes are damaged: they are left as they are."""


@dataclass(slots=True)
class _Indexes:
    """The index files of a log, grown batch by batch."""

    base_offset: int
    tracker: TransactionTracker
    index: bytearray = field(default_factory=bytearray)
    times: bytearray = field(default_factory=bytearray)
    aborted: bytearray = field(default_factory=bytearray)
    _indexed: int = 0
    _largest: tuple[int, int] = (-1, 0)
    _last_time: int = -1

    def add(self, header: BatchHeader, batch: bytes) -> None:
        """The next batch; ``batch`` are its bytes, asked for only if it is a transaction's marker."""
        if header.max_timestamp > self._largest[0]:
            self._largest = header.max_timestamp, header.last_offset
        if header.position - self._indexed > _INDEX_INTERVAL:
            self.index += _INDEX_ENTRY.pack(header.last_offset - self.base_offset, header.position)
            self._add_time()
            self._indexed = header.position
        if header.is_control and header.is_transactional and _is_abort(batch):
            self.aborted += self._aborted(header)
        self.tracker.observe(header)

    def finished(self) -> Iterator[Bytes]:
        """The files, under their names."""
        self._add_time()
        yield Bytes(file_name(self.base_offset, "index"), bytes(self.index))
        yield Bytes(file_name(self.base_offset, "timeindex"), bytes(self.times))
        if self.aborted:
            yield Bytes(file_name(self.base_offset, "txnindex"), bytes(self.aborted))

    def _add_time(self) -> None:
        timestamp, offset = self._largest
        if timestamp > self._last_time:
            self.times += _TIME_ENTRY.pack(timestamp, offset - self.base_offset)
            self._last_time = timestamp

    def _aborted(self, marker: BatchHeader) -> bytes:
        first = next((one.first_offset for one in self.tracker.open if one.producer_id == marker.producer_id), None)
        if first is None:
            return b""
        others = (one.first_offset for one in self.tracker.open if one.producer_id != marker.producer_id)
        stable = min(others, default=marker.next_offset)
        entry = AbortedTransaction(marker.producer_id, first, marker.base_offset, stable)
        return _ABORTED_ENTRY.pack(0, *entry)


def rebuild(
    store: Store,
    keys: PartitionKeys,
    base_offset: int,
    log: ObjectInfo,
    lineages: tuple[Lineage, int, Lineage],
    open_before: Iterable[UnfinishedTransaction],
    fence: Callable[[], None],
) -> Facts:
    """Read the stored ``.log``, put its indexes, and say what its manifest must say.

    ``lineages`` are that of ``offset.wm``, the offset up to which it speaks, and the leader's own. ``fence`` raises if
    another leader has taken over.

    Raises:
        NotRebuilt: the bytes are damaged.
        OffLineage: they contradict the lineages.
        PreconditionFailed: the object is replaced meanwhile: look again.
        StoreError: the store failed.
    """
    indexes = _Indexes(base_offset, TransactionTracker(open_before))
    summary = _scan(store, log, indexes, BatchLineage(log.key, *lineages))
    lineage = lineage_of(log.key, summary, *lineages)
    objects = {file_name(base_offset, "log"): ObjectSum(size=log.size, crc32c=f"{summary.crc32c:08x}", etag=log.etag)}
    for content in indexes.finished():
        objects[content.name] = put_derived(store, keys.file(content.name), Summed(content, checksum(content)), fence)
    return Facts(
        base_offset=base_offset,
        next_offset=summary.next_offset,
        summary=summary,
        damage=None,
        provisional=False,
        lineage=lineage,
        open_transactions=indexes.tracker.open,
        rotated_at=None,
        objects=objects,
    )


def _scan(store: Store, log: ObjectInfo, indexes: _Indexes, lineage: BatchLineage) -> SegmentSummary:
    scanner = SegmentScanner(log.key, indexes.base_offset)
    before, start = b"", 0
    try:
        for at in range(0, log.size, READ_SIZE):
            piece = store.get_range(log.key, at, min(log.size, at + READ_SIZE), if_match=log.etag)
            window, window_start = before + piece, start
            for header in scanner.batches(piece):
                lineage.check(header)
                begin = header.position - window_start
                indexes.add(header, window[begin : begin + header.size] if header.is_control else b"")
            before, start = piece, at  # a marker is small: it began in this piece at the earliest
        return scanner.finish()
    except SegmentError as error:
        raise NotRebuilt(error.name, error.rule) from error


def _is_abort(batch: bytes) -> bool:
    """By the key of a marker's only record: version and type, two bytes each. Markers are never compressed."""
    at = _after_varint(batch, _BATCH_HEADER) + 1  # length, attributes
    for _ in range(3):
        at = _after_varint(batch, at)  # timestamp delta, offset delta, key length
    return int.from_bytes(batch[at + 2 : at + 4], "big") == _ABORT


def _after_varint(data: bytes, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1
