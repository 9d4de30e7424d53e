"""One task of an erasure in raw: writes a seal again without its masked records, under a new name, its manifest last.

No batch vanishes, and batches without a masked record are copied as bytes. Before the manifest is written, the stored
bytes are read back, and kept and erased records have number and hash of those before. The old seal is not touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from tempfile import TemporaryFile
from typing import IO, Final, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from tidemark.decode import decode_batches, row_hash_sum, scan_headers
from tidemark.decode.decompress import CorruptRecords
from tidemark.decode.offset_mask import OffsetMask
from tidemark.decode.rewrite import BatchRewriter
from tidemark.errors import FormatError, NotFound, PreconditionFailed, SegmentError, UnknownOutcome
from tidemark.formats.keys import PartitionKeys, SegmentName
from tidemark.formats.raw.manifest import ErasedRecords, ObjectSum, SegmentManifest
from tidemark.formats.table.plan import StoredMasks
from tidemark.kafka_log import BatchHeader, SegmentScanner, SegmentSummary
from tidemark.kafka_log.indexes import DerivedIndexes
from tidemark.raw.masks import mask_of
from tidemark.raw.objects import PIECE_BYTES, StoredManifest, pieces, read_checksum, stored_checksum
from tidemark.store import ObjectInfo, Store, StoreOptions, open_store, put_once
from tidemark_spark.convert.date_partitioner import take
from tidemark_spark.convert.row_checksums import Account

ADOPTED: Final = timedelta(days=1)
"""Age of objects without a manifest, which a killed pass has left, up to which another pass goes on with them."""

_COMPARED: Final = 4 << 20
"""Bytes of rewritten batches that are decoded and compared at a time."""


class SealTask(NamedTuple):
    """A seal to write again without the records of ``masks``; ``number`` is the first that its new name may have."""

    keys: PartitionKeys
    stored: StoredManifest
    masks: StoredMasks
    number: int


class SealOutcome(NamedTuple):
    """The result of a task: the new seal and the number of its erased records, or why there is none.

    A seal without any of the masked records needs no new one: then both are missing.
    """

    task: SealTask
    erased: int = 0
    size: int = 0
    new: SegmentManifest | None = None
    remains: str = ""


def rewrite(options: StoreOptions, task: SealTask) -> SealOutcome:
    """Carry out ``task``. A killed one may be repeated.

    Raises:
        FormatError: a mask does not parse.
        StoreError: a store failed.
    """
    manifest, store = task.stored.manifest, open_store(task.keys.endpoint.store, options)
    masks = open_store(task.masks.store, options)
    mask = OffsetMask((mask_of(masks, key) for key in task.masks.keys), restores=manifest.restores)
    refers = manifest.refers
    log = task.keys.file(manifest.log_name) if refers is None else refers.key
    source = store if refers is None else open_store(refers.store, options)
    work = _Rewriting(store, task, manifest, mask, (source, log))
    try:
        with TemporaryFile(prefix="tidemark-") as before, TemporaryFile(prefix="tidemark-") as after:
            return work.run(before, after)
    except (CannotRewrite, SegmentError) as error:
        return SealOutcome(task, remains=str(error))


class CannotRewrite(Exception):
    """The seal stays as it is, for the reason in words."""


@dataclass
class _Rewriting:
    """The steps of :func:`rewrite`. The log lies in another store than the seal's other objects, if it is another's."""

    store: Store
    task: SealTask
    manifest: SegmentManifest
    mask: OffsetMask
    source: tuple[Store, str]
    rewriter: BatchRewriter = field(default_factory=BatchRewriter)
    gone: dict[int, int] = field(default_factory=dict)

    def run(self, before: IO[bytes], after: IO[bytes]) -> SealOutcome:
        """Write the seal to ``after``, compare, store."""
        log = self._fetched(before)
        if not log.size:
            return SealOutcome(self.task)
        was = self._write(before, log.size, after)
        if not self.gone:
            return SealOutcome(self.task)
        after.flush()
        now, indexes = self._scanned(after, was)
        others = self._others(indexes)
        for number in count(self.task.number):
            sums = self._stored(self.manifest.name.rewritten(number), after, now, others)
            if sums is None:
                continue
            manifest = self._manifest(log, sums, now)
            try:
                put_once(self.store, self.task.keys.manifest(manifest.name), self._bytes(manifest))
            except PreconditionFailed:
                continue  # the same bytes, as the rewriting of another seal
            return SealOutcome(self.task, sum(self.gone.values()), now.size, manifest)
        raise AssertionError("unreachable")

    def _fetched(self, file: IO[bytes]) -> ObjectInfo:
        """The seal's log, which is now in ``file``."""
        described = self.manifest.sums[self.manifest.log_name]
        store, key = self.source
        try:
            log = store.head(key)
            if (log.size, log.etag) != (described.size, described.etag):
                raise CannotRewrite("is not the version that its manifest describes: tidemark-agent verify")
            crc = 0
            for piece in pieces(store, log):
                file.write(piece)
                crc = crc32c(piece, crc)
        except (NotFound, PreconditionFailed) as error:
            raise CannotRewrite("was replaced or removed meanwhile") from error
        if f"{crc:08x}" != described.crc32c:
            raise CannotRewrite("has other bytes than its manifest says: tidemark-agent verify --deep")
        file.flush()
        return log

    def _write(self, before: IO[bytes], size: int, after: IO[bytes]) -> SegmentSummary:
        """Write the batches of ``before`` to ``after``, without the masked records."""
        scanner = SegmentScanner(self.manifest.log_name, self.manifest.base_offset)
        compared = _Comparison(self.mask, self.manifest)
        expected = self.manifest.base_offset
        for start in range(0, size, PIECE_BYTES):
            for header in scanner.batches(_bytes_of(before, start, start + PIECE_BYTES)):
                batch = _bytes_of(before, header.position, header.end)
                wanted = self.mask.of_epoch(header.leader_epoch, min(expected, header.base_offset), header.next_offset)
                expected = header.next_offset
                if not len(wanted) or header.is_control:
                    after.write(batch)
                    continue
                after.write(self._without(header, batch, {*wanted.tolist()}, compared))
        compared.finish()
        return scanner.finish()

    def _without(self, header: BatchHeader, batch: bytes, offsets: set[int], compared: _Comparison) -> bytes:
        if header.magic < 2:
            raise CannotRewrite(f"has offset {header.base_offset} in message format v{header.magic}")
        try:
            new, gone = self.rewriter.without(batch, offsets)
        except CorruptRecords as error:
            raise CannotRewrite(f"cannot be decoded at offset {header.base_offset}: {error}") from error
        if gone:
            self.gone[header.base_offset] = gone
            compared.add(batch, new, gone)
        return new

    def _scanned(self, after: IO[bytes], was: SegmentSummary) -> tuple[SegmentSummary, dict[str, bytes]]:
        """The summary of the ``new`` bytes, which have all batches of those before, and their indexes."""
        base, size = self.manifest.base_offset, os.fstat(after.fileno()).st_size
        scanner, indexes = SegmentScanner(self.manifest.log_name, base), DerivedIndexes(base, size)
        for start in range(0, size, PIECE_BYTES):
            for header in scanner.batches(_bytes_of(after, start, start + PIECE_BYTES)):
                indexes.add(header, _bytes_of(after, header.position, header.end) if header.is_marker else b"")
        now = scanner.finish()
        if _shape(now) != _shape(was):
            raise CannotRewrite("would have other batches: nothing was written")
        return now, dict(indexes.files())

    def _others(self, indexes: dict[str, bytes]) -> dict[str, bytes]:
        """The content of the seal's objects but for the log, by extension."""
        others: dict[str, bytes] = {}
        for file, described in self.manifest.objects.items():
            parsed = SegmentName.parse(file)
            if parsed is None:
                raise CannotRewrite(f"has an object of another name, {file}")
            if file != self.manifest.log_name:
                others[parsed[1]] = indexes[parsed[1]] if parsed[1] in _BY_POSITION else self._read(file, described)
        return others

    def _stored(
        self, name: SegmentName, after: IO[bytes], now: SegmentSummary, others: dict[str, bytes]
    ) -> dict[str, ObjectSum] | None:
        """Store the objects as ``name``; None if other bytes have one of the names."""
        sums = {name.file("log"): self._create(name, "log", after, now.size, now.crc32c)}
        for extension, body in others.items():
            sums[name.file(extension)] = self._create(name, extension, body, len(body), crc32c(body))
        whole = {file: stored for file, stored in sums.items() if stored is not None}
        return whole if len(whole) == len(sums) else None

    def _read(self, file: str, described: ObjectSum) -> bytes:
        body = self.store.get(self.task.keys.file(file), if_match=described.etag).body
        if f"{crc32c(body):08x}" != described.crc32c:
            raise CannotRewrite(f"has a {file} with other bytes than its manifest says")
        return body

    def _create(
        self, name: SegmentName, extension: str, body: IO[bytes] | bytes, size: int, crc: int
    ) -> ObjectSum | None:
        """Create an object and read it back; None if another one has its name."""
        key = self.task.keys.segment(name, extension)
        try:
            if not isinstance(body, bytes):
                body.seek(0)
            self.store.put(key, body, size=size, crc32c=crc, if_none_match=True)  # type: ignore[arg-type]
        except (PreconditionFailed, UnknownOutcome) as error:
            try:
                there = self.store.head(key)
            except NotFound:
                raise error from None
            same = there.size == size and stored_checksum(self.store, there) == crc
            if not same or there.modified < self.store.now() - ADOPTED:
                return None
        stored = self.store.head(key)
        if stored.size != size or read_checksum(self.store, stored) != crc:
            raise FormatError(key, "has other bytes than were sent: nothing was deleted; run it again")
        return ObjectSum(size=size, crc32c=f"{crc:08x}", etag=stored.etag)

    def _manifest(self, log: ObjectInfo, sums: dict[str, ObjectSum], now: SegmentSummary) -> SegmentManifest:
        parsed = SegmentName.parse(next(iter(sums)))
        assert parsed is not None
        known, gone = self.manifest.erased, dict(self.manifest.gone)
        for base, records in self.gone.items():
            gone[base] = gone.get(base, 0) + records
        digests = {key.rpartition("-")[2].removesuffix(".json") for key in self.task.masks.keys}
        erased = ErasedRecords(
            replaces=self.manifest.log_name,
            etag=log.etag,
            masks=tuple(sorted({*digests, *(known.masks if known else ())})),
            batches=tuple(sorted(gone.items())),
        )
        return self.manifest.referring(None).model_copy(
            update={"suffix": parsed[0].suffix, "objects": sums, "codecs": now.codecs, "erased": erased}
        )

    def _bytes(self, manifest: SegmentManifest) -> bytes:
        body = manifest.to_bytes()
        if len(body) > SegmentManifest.most_bytes:
            raise CannotRewrite(f"has {len(self.gone)} batches with masked records, too many for a manifest")
        return body


def _bytes_of(file: IO[bytes], start: int, end: int) -> bytes:
    """The bytes of ``file`` from ``start`` up to ``end``, or to its end. A map would count as the worker's memory."""
    return os.pread(file.fileno(), end - start, start)


_BY_POSITION: Final = ("index", "timeindex")
"""Files whose content depends on the positions of batches. The others stay the same."""


def _shape(summary: SegmentSummary) -> tuple[object, ...]:
    """What a rewriting does not change."""
    return summary.batch_count, summary.next_offset, summary.magics, summary.epochs, summary.open_transactions


@dataclass
class _Comparison:
    """Decodes batches before and after, and compares number and hash of their records."""

    mask: OffsetMask
    manifest: SegmentManifest
    old: bytearray = field(default_factory=bytearray)
    new: bytearray = field(default_factory=bytearray)
    gone: int = 0

    def add(self, old: bytes, new: bytes, gone: int) -> None:
        """Add a batch."""
        self.old += old
        self.new += new
        self.gone += gone
        if len(self.old) >= _COMPARED:
            self.finish()

    def finish(self) -> None:
        """Compare what was added. Raises CannotRewrite if it differs."""
        erased, kept, after = Account(), Account(), Account()
        for part in self._decoded(self.old):
            masked = self.mask.rows(part)
            erased.add(_account(take(part, np.flatnonzero(masked))))
            kept.add(_account(take(part, np.flatnonzero(~masked))))
        for part in self._decoded(self.new):
            after.add(_account(part))
        if after != kept or erased.rows != self.gone:
            raise CannotRewrite("would have other records: nothing was written")
        self.old.clear()
        self.new.clear()
        self.gone = 0

    def _decoded(self, data: bytearray) -> Iterator[pa.RecordBatch]:
        if data:
            body, name = bytes(data), self.manifest.log_name
            headers = scan_headers(body, name, self.manifest.base_offset)
            yield from decode_batches(body, headers, name=name, partition=self.manifest.partition, incarnation=0)


def _account(rows: pa.RecordBatch) -> Account:
    """Number and hash of records."""
    return Account(len(rows), row_hash_sum(rows))
