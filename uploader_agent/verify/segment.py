"""Checks a stored segment: its objects exist and match the manifest, and the bytes match the format.

A finding has one of the words of ``verify``. A segment that an erasure has rewritten is compared with the broker's own
bytes by :func:`difference_beside_erased`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from typing import NamedTuple

from tidemark.errors import FormatError, NotFound, PreconditionFailed, SegmentError
from tidemark.formats.keys import SegmentName, TopicPartition
from tidemark.formats.raw.manifest import OWNERS, ObjectSum, SegmentManifest
from tidemark.kafka_log import BatchHeader, Lineage, SegmentScanner
from tidemark.raw.objects import pieces, read_checksum, read_manifest
from tidemark.storage import PartitionStore
from tidemark.store import ObjectInfo, Store


class Severity(StrEnum):
    """The words for findings, ascending by severity; a partition gets the word of its worst finding."""

    OK = "OK"
    CLAIMED = "CLAIMED"
    """A leader has claimed the partition, and nothing of it is stored yet."""
    PACKED = "PACKED"
    """Offsets that packs hold, and no segment yet: the newest ones of a partition, until they are sealed."""
    LAGGING = "LAGGING"
    """Segments that may be sealed are not, or ``offset.wm`` is behind the stored segments."""
    COMPACTED = "COMPACTED"
    """Offsets that the broker's compaction has removed."""
    OVERLAP = "OVERLAP"
    """Two segments hold the same offsets of one log, as after a change of leader; readers take each offset once."""
    TRUNCATED = "TRUNCATED"
    """Offsets that an unclean election cut off the log; the stored bytes of the dead branch are not read."""
    TIERED = "TIERED"
    """Offsets that only Kafka's own remote tier has: not in the store, and not lost."""
    PARTED = "PARTED"
    """Bytes of another history than the disk's, or than another object's: Kafka gave the same offsets twice."""
    GAP = "GAP"
    """Offsets that no readable segment has."""
    LACKING = "LACKING"
    """A segment lacks records that packs of the same offsets have, for example since compaction had removed them."""
    CORRUPT = "CORRUPT"
    """An object that differs from its manifest, or bytes that break the format."""


class VerifyFinding(NamedTuple):
    """A finding about the offsets ``[offset, end)``, or about an object.

    ``wrong`` makes the command fail: a GAP that nobody has acknowledged, a LACKING or PARTED segment, or a CORRUPT
    object if no other segment has its offsets, or its own manifest vouches for it.
    """

    word: Severity
    offset: int
    end: int
    object: str | None
    detail: str
    wrong: bool = False


def other_history(tp: TopicPartition) -> str:
    """The cause and the remedy of a PARTED finding."""
    cause = "another history, as after a restore of brokers or their metadata from a backup"
    return f"{cause}: `tidemark-agent branch {tp.topic} {tp.partition}` shows both, and goes on with the disk's"


@dataclass(frozen=True, slots=True)
class Checked:
    """A segment's findings, and the offsets that a reader gets: ``[base_offset, readable_end)``.

    ``log`` is the sum that the broker's own file must have as well; None where that may differ: compacted, or not
    whole. ``gone`` counts the erased records that the file has beyond that, by the base offset of their batch; ``key``
    is the log's, in ``store``.
    """

    base_offset: int
    next_offset: int
    readable_end: int
    size: int = 0
    log: ObjectSum | None = None
    gone: Mapping[int, int] = field(default_factory=dict)
    key: str = ""
    store: Store | None = None
    findings: list[VerifyFinding] = field(default_factory=list)


def check(partition: PartitionStore, name: SegmentName, live: Lineage, *, deep: bool) -> Checked:
    """Check the segment ``name`` against the ``live`` lineage; ``deep`` reads all bytes.

    Raises:
        StoreError: the store failed.
    """
    key, base_offset = partition.keys.manifest(name), name.base
    try:
        stored = read_manifest(partition, name)
    except FormatError as error:
        wrong = VerifyFinding(Severity.CORRUPT, base_offset, base_offset, key, error.rule, wrong=True)
        return Checked(base_offset, base_offset, base_offset, findings=[wrong])
    if stored is None:
        return Checked(base_offset, base_offset, base_offset)
    return _Check(partition, stored.manifest, live).run(deep=deep)


class _Check:
    """The steps of :func:`check`."""

    def __init__(self, partition: PartitionStore, manifest: SegmentManifest, live: Lineage) -> None:
        self._partition = partition
        self._manifest = manifest
        self._live = live
        self._log = manifest.log_name
        self._findings: list[VerifyFinding] = []

    def run(self, *, deep: bool) -> Checked:
        manifest = self._manifest
        end = self._readable_end()
        readable = True
        for name, total in manifest.sums.items():
            broken = self._check_object(name, total, deep=deep)
            if broken is not None:
                self._findings.append(broken)
                readable = readable and name != self._log
        if manifest.log is None:
            key = self._partition.keys.manifest(manifest.name)
            self._add(Severity.CORRUPT, manifest.base_offset, manifest.next_offset, key, f"names no {self._log}")
            readable = False
        if manifest.last_batch_end < manifest.next_offset and not manifest.damage:
            self._add_missing(manifest.last_batch_end, manifest.next_offset)
        exact = manifest.state == "whole" and not manifest.compacted
        return Checked(
            manifest.base_offset,
            manifest.next_offset,
            end if readable else manifest.base_offset,
            sum(total.size for total in manifest.sums.values()),
            manifest.log if exact else None,
            manifest.gone,
            self._located(self._log)[1],
            self._located(self._log)[0],
            self._findings,
        )

    def _readable_end(self) -> int:
        manifest = self._manifest
        end = manifest.next_offset
        if manifest.damage is not None:
            end = manifest.damage.offset
            detail = f"kept as damaged: at byte {manifest.damage.position}, {manifest.damage.rule}"
            key = self._located(self._log)[1]
            self._findings.append(VerifyFinding(Severity.CORRUPT, end, manifest.next_offset, key, detail))
        diverged = manifest.history.divergence(self._live, end)
        if diverged is None:
            return end
        at = max(manifest.base_offset, diverged)
        self._findings.append(
            VerifyFinding(Severity.TRUNCATED, at, end, self._located(self._log)[1], "is of a dead branch")
        )
        return at

    def _check_object(self, name: str, total: ObjectSum, *, deep: bool) -> VerifyFinding | None:
        store, key = self._located(name)
        try:
            info = store.head(key)
        except NotFound:
            word = Severity.GAP if name == self._log else Severity.CORRUPT
            return self._wrong(word, key, "does not exist, although its manifest names it" + self._owned(name))
        try:
            rule = self._judge(name, info, total, deep=deep)
        except (PreconditionFailed, NotFound):
            rule = "was replaced while it was read: verify again"
        return None if rule is None else self._wrong(Severity.CORRUPT, key, rule)

    def _judge(self, name: str, info: ObjectInfo, total: ObjectSum, *, deep: bool) -> str | None:
        rule = _differs(info, total)
        if rule is not None or not deep:
            return rule
        store = self._located(name)[0]
        if name == self._log and not self._manifest.damage:
            return self._read_log(store, info, total)
        return self._read(store, info, total)

    def _located(self, name: str) -> tuple[Store, str]:
        return self._partition.located(self._manifest, name)

    def _owned(self, name: str) -> str:
        """Who may have deleted the object, if it is another system's."""
        refers = self._manifest.refers if name == self._log else None
        if refers is None:
            return ""
        return f": it belonged to {OWNERS[refers.owner]}, in {refers.store}, which deletes by its own retention"

    def _read(self, store: Store, info: ObjectInfo, total: ObjectSum) -> str | None:
        value = read_checksum(store, info)  # from the bytes, since the store's disks are to be verified
        return None if f"{value:08x}" == total.crc32c else f"has bytes of CRC32C {value:08x} and not {total.crc32c}"

    def _read_log(self, store: Store, info: ObjectInfo, total: ObjectSum) -> str | None:
        manifest, lineage = self._manifest, Lineage(self._manifest.lineage)
        scanner, expected = SegmentScanner(info.key, manifest.base_offset), manifest.base_offset
        try:
            for piece in pieces(store, info):
                for header in scanner.batches(piece):
                    if header.base_offset > expected:
                        self._add_missing(expected, header.base_offset)
                    if header.leader_epoch >= 0 and lineage.epoch_at(header.base_offset) not in {
                        header.leader_epoch,
                        None,
                    }:
                        return (
                            f"holds offset {header.base_offset} of leader epoch {header.leader_epoch}, off its lineage"
                        )
                    expected = header.next_offset
            summary = scanner.finish()
        except SegmentError as error:
            return f"is damaged at byte {error.position}, offset {error.offset}: {error.detail}"
        if expected != manifest.last_batch_end:
            return f"ends at offset {expected}, and its manifest says {manifest.last_batch_end}"
        sum_ = f"{summary.crc32c:08x}"
        return None if sum_ == total.crc32c else f"has bytes of CRC32C {sum_} and not {total.crc32c}"

    def _add_missing(self, start: int, end: int) -> None:
        key = self._located(self._log)[1]
        if self._manifest.compacted:
            self._findings.append(VerifyFinding(Severity.COMPACTED, start, end, key, "removed by compaction"))
        else:
            detail = f"not in the segment, and cleanup.policy was {self._manifest.cleanup_policy}"
            self._findings.append(VerifyFinding(Severity.GAP, start, end, key, detail, wrong=True))

    def _add(self, word: Severity, start: int, end: int, key: str, detail: str) -> None:
        self._findings.append(VerifyFinding(word, start, end, key, detail, wrong=True))

    def _wrong(self, word: Severity, key: str, detail: str) -> VerifyFinding:
        return VerifyFinding(word, self._manifest.base_offset, self._manifest.next_offset, key, detail, wrong=True)


def _differs(info: ObjectInfo, total: ObjectSum) -> str | None:
    """The difference of an object from its manifest that shows without its bytes; None if there is none."""
    if info.size != total.size:
        return f"has {info.size} bytes, and its manifest says {total.size}"
    if info.crc32c is not None and f"{info.crc32c:08x}" != total.crc32c:
        return f"has CRC32C {info.crc32c:08x}, and its manifest says {total.crc32c}"
    if info.etag != total.etag:
        return f"is version {info.etag}, and its manifest says {total.etag}; `reupload` corrects that"
    return None


def difference_beside_erased(
    stored: Iterator[BatchHeader], local: Iterator[BatchHeader], gone: Mapping[int, int], path: str
) -> str | None:
    """The first difference of a seal from ``path`` apart from the records that are ``gone`` from it, in words.

    An erasure has rewritten the seal, and the broker's own bytes have the erased records still. Batches without an
    erased record have the same bytes. Of the others the headers must agree, and the counts of records with those of the
    manifest; an agent decodes no record, so it does not see what else was changed in there.
    """
    left = dict(gone)
    for ours, theirs in zip_longest(stored, local):
        if ours is None or theirs is None:
            return f"has {'more' if theirs is None else 'fewer'} batches than {path}"
        erased = left.pop(ours.base_offset, 0)
        if not _is_same_beside_erased(ours, theirs, erased):
            return f"has another batch at offset {ours.base_offset} than {path}, beside erased records"
    if left:
        return f"has no batch at offset {min(left)}, of which its manifest says that records were erased"
    return None


def _is_same_beside_erased(ours: BatchHeader, theirs: BatchHeader, erased: int) -> bool:
    if not erased:
        return ours._replace(position=0) == theirs._replace(position=0)
    return _batch_identity(ours, ours.record_count + erased) == _batch_identity(theirs, theirs.record_count)


def _batch_identity(header: BatchHeader, records: int) -> tuple[object, ...]:
    producer = header.producer_id, header.producer_epoch, header.base_sequence
    kind = header.magic, header.is_transactional, header.is_control, header.timestamp_type
    return header.base_offset, header.next_offset, header.leader_epoch, producer, kind, records
