"""Checks a stored segment: its objects exist and match the manifest, and the bytes match the format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.errors import FormatError, NotFound, PreconditionFailed, SegmentError
from tidemark.formats.keys import PartitionKeys, SegmentName
from tidemark.formats.raw.manifest import ObjectSum, SegmentManifest
from tidemark.kafka_log import Lineage, SegmentScanner
from tidemark.raw.objects import read_manifest
from tidemark.raw.stored_bytes import pieces, read_checksum
from tidemark.store import ObjectInfo, Store
from uploader_agent.verify.findings import Severity, VerifyFinding


@dataclass(frozen=True, slots=True)
class Checked:
    """A segment's findings, and the offsets that a reader gets: ``[base_offset, readable_end)``.

    ``log`` is the sum that the broker's own file must have as well; None where that may differ: compacted, or not
    whole. ``gone`` counts the erased records that the file has beyond that, by the base offset of their batch; ``key``
    is the log's.
    """

    base_offset: int
    next_offset: int
    readable_end: int
    size: int = 0
    log: ObjectSum | None = None
    gone: Mapping[int, int] = field(default_factory=dict)
    key: str = ""
    findings: list[VerifyFinding] = field(default_factory=list)


def check(store: Store, keys: PartitionKeys, name: SegmentName, live: Lineage, *, deep: bool) -> Checked:
    """Check the segment ``name`` against the ``live`` lineage; ``deep`` reads all bytes.

    Raises:
        StoreError: the store failed.
    """
    key, base_offset = keys.manifest(name), name.base
    try:
        stored = read_manifest(store, keys, name)
    except FormatError as error:
        wrong = VerifyFinding(Severity.CORRUPT, base_offset, base_offset, key, error.rule, wrong=True)
        return Checked(base_offset, base_offset, base_offset, findings=[wrong])
    if stored is None:
        return Checked(base_offset, base_offset, base_offset)
    return _Check(store, keys, stored.manifest, live).run(deep=deep)


class _Check:
    """The steps of :func:`check`."""

    def __init__(self, store: Store, keys: PartitionKeys, manifest: SegmentManifest, live: Lineage) -> None:
        self._store = store
        self._keys = keys
        self._manifest = manifest
        self._live = live
        self._log = manifest.log_name
        self._findings: list[VerifyFinding] = []

    def run(self, *, deep: bool) -> Checked:
        manifest = self._manifest
        end = self._readable_end()
        readable = True
        for name, total in manifest.objects.items():
            broken = self._check_object(name, total, deep=deep)
            if broken is not None:
                self._findings.append(broken)
                readable = readable and name != self._log
        if self._log not in manifest.objects:
            key = self._keys.manifest(manifest.name)
            self._add(Severity.CORRUPT, manifest.base_offset, manifest.next_offset, key, f"names no {self._log}")
            readable = False
        if manifest.last_batch_end < manifest.next_offset and not manifest.damage:
            self._add_missing(manifest.last_batch_end, manifest.next_offset)
        exact = manifest.state == "whole" and not manifest.compacted
        return Checked(
            manifest.base_offset,
            manifest.next_offset,
            end if readable else manifest.base_offset,
            sum(total.size for total in manifest.objects.values()),
            manifest.objects.get(self._log) if exact else None,
            manifest.gone,
            self._keys.file(self._log),
            self._findings,
        )

    def _readable_end(self) -> int:
        manifest = self._manifest
        end = manifest.next_offset
        if manifest.damage is not None:
            end = manifest.damage.offset
            detail = f"kept as damaged: at byte {manifest.damage.position}, {manifest.damage.rule}"
            key = self._keys.file(self._log)
            self._findings.append(VerifyFinding(Severity.CORRUPT, end, manifest.next_offset, key, detail))
        diverged = manifest.history.divergence(self._live, end)
        if diverged is None:
            return end
        at = max(manifest.base_offset, diverged)
        self._findings.append(
            VerifyFinding(Severity.TRUNCATED, at, end, self._keys.file(self._log), "is of a dead branch")
        )
        return at

    def _check_object(self, name: str, total: ObjectSum, *, deep: bool) -> VerifyFinding | None:
        key = self._keys.file(name)
        try:
            info = self._store.head(key)
        except NotFound:
            word = Severity.GAP if name == self._log else Severity.CORRUPT
            return self._wrong(word, key, "does not exist, although its manifest names it")
        try:
            rule = self._judge(name, info, total, deep=deep)
        except (PreconditionFailed, NotFound):
            rule = "was replaced while it was read: verify again"
        return None if rule is None else self._wrong(Severity.CORRUPT, key, rule)

    def _judge(self, name: str, info: ObjectInfo, total: ObjectSum, *, deep: bool) -> str | None:
        rule = _differs(info, total)
        if rule is not None or not deep:
            return rule
        return self._read_log(info) if name == self._log and not self._manifest.damage else self._read(info, total)

    def _read(self, info: ObjectInfo, total: ObjectSum) -> str | None:
        value = read_checksum(self._store, info)  # from the bytes, since the store's disks are to be verified
        return None if f"{value:08x}" == total.crc32c else f"has bytes of CRC32C {value:08x} and not {total.crc32c}"

    def _read_log(self, info: ObjectInfo) -> str | None:
        manifest, lineage = self._manifest, Lineage(self._manifest.lineage)
        scanner, expected = SegmentScanner(info.key, manifest.base_offset), manifest.base_offset
        try:
            for piece in pieces(self._store, info):
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
        expected_sum = manifest.objects[self._log].crc32c
        return None if sum_ == expected_sum else f"has bytes of CRC32C {sum_} and not {expected_sum}"

    def _add_missing(self, start: int, end: int) -> None:
        key = self._keys.file(self._log)
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
