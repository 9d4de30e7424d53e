"""Checks all offsets of a partition together: each is stored, once, on the live log, and without undue lag.

Beyond the segments, the packed tail holds them. It is found as a reader finds it, from the heads of the brokers that
``offset.wm`` lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from tidemark.errors import FormatError, NotFound, PreconditionFailed, SegmentError, StoreError
from tidemark.formats.keys import PartitionKeys
from tidemark.formats.raw.gaps import REMOTE_TIER
from tidemark.formats.raw.manifest import ObjectSum
from tidemark.formats.raw.pack import PackedRange
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage, scan_batches
from tidemark.kafka_log.batch import described
from tidemark.raw import tombstones
from tidemark.raw.heads import LiveEnd
from tidemark.raw.objects import pieces
from tidemark.raw.packs import chain, live_part, packed_end, read_range_bytes
from tidemark.raw.partition import StoredPartition
from tidemark.storage import PartitionStore, StoredWatermark
from tidemark.store import ObjectInfo, Store
from tidemark.timestamps import utc_now
from uploader_agent.disk.log_dirs import LocalSegment
from uploader_agent.disk.segment_files import OpenFile, PartitionFiles, SegmentChanged, checksum, file_name
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.stored import watermark
from uploader_agent.stored.histories import first_difference, local_batches
from uploader_agent.upload.local_run import SealRun, open_run
from uploader_agent.verify.segment import (
    Checked,
    Severity,
    VerifyFinding,
    check,
    difference_beside_erased,
    other_history,
)

Item = TypeVar("Item")

_AT_A_TIME = 64
"""Segments that are checked before the next are listed."""


class VerifyVerdict(NamedTuple):
    """A partition's verdict; its word is that of its worst finding.

    ``bytes`` are those of its ``segments``. Up to ``packed_end``, packs hold offsets that segments do not, in
    ``ranges``.
    """

    partition: str
    word: Severity
    wrong: int
    segments: int
    bytes: int
    next_offset: int | None
    high_watermark: int | None
    ranges: int
    packed_bytes: int
    packed_end: int | None

    def in_words(self) -> str:
        """The verdict's counts and offsets, for a person."""
        parts = [f"{self.segments} segments, {self.bytes} bytes"]
        if self.packed_end is not None:
            parts.append(f"packed up to {self.packed_end} in {self.ranges} ranges, {self.packed_bytes} bytes")
        parts.append("no offset.wm" if self.next_offset is None else f"next offset {self.next_offset}")
        return ", ".join([*parts, f"high watermark {self.high_watermark}"])


def verify(
    partition: LedPartition,
    pool: ThreadPoolExecutor,
    tell: Callable[[VerifyFinding], None],
    progress: Callable[[int], None],
    live_end: LiveEnd,
    lacking: Iterable[VerifyFinding] = (),
    *,
    deep: bool,
) -> VerifyVerdict:
    """Verify a surveyed ``partition``; ``tell`` gets each finding, ``progress`` the segments done so far.

    ``live_end`` has the heads that partitions share, ``lacking`` are findings of :func:`compare_packs`. Raises
    StoreError, FormatError of ``offset.wm``, SegmentChanged if the partition is gone.
    """
    verification = _Verification(partition, pool, tell, progress, live_end, deep=deep)
    for finding in lacking:
        verification.say(finding)
    return verification.run()


class _Verification:
    """The steps of :func:`verify`."""

    def __init__(
        self,
        partition: LedPartition,
        pool: ThreadPoolExecutor,
        tell: Callable[[VerifyFinding], None],
        progress: Callable[[int], None],
        live_end: LiveEnd,
        *,
        deep: bool,
    ) -> None:
        self._live_end = live_end
        self._partition = partition
        self._pool = pool
        self._tell = tell
        self._progress = progress
        self._deep = deep
        self._worst = Severity.OK
        self._wrong = self._segments = self._bytes = 0
        self._covered = Intervals()
        self._line_1: int | None = None
        self._line_1_is_there = False

    def run(self) -> VerifyVerdict:
        """Check segments, packs, holes and the watermark in turn; findings are reported as they come."""
        partition = self._partition.uploader.where
        look = self._live_end.look(partition, lambda: watermark.read(partition))
        stored, tail = look.stored if look else None, CheckedTail()
        live = self._partition.uploader.lineage()
        if stored is not None:
            live = live.with_history(stored.lineage)
            self._line_1 = stored.base_offset
            self._report_gaps(stored)
        for checked in self._check_segments(partition, live):
            self._take(checked)
        self._take_removed(partition)
        if (parting := self._partition.uploader.parting) is not None:
            detail = f"{parting}: {other_history(self._partition.tp)}"
            end = max(parting.stored_end, parting.log_end)
            self.say(VerifyFinding(Severity.PARTED, parting.at, end, None, detail, wrong=True))
        if look is not None:
            tail = self._check_tail(look, partition, live)
            self._check_holes(look.stored, partition.keys)
        self._check_lag(stored)
        offsets = self._partition.offsets
        return VerifyVerdict(
            str(self._partition.tp),
            self._worst,
            self._wrong,
            self._segments,
            self._bytes,
            stored.watermark.next_offset if stored else None,
            offsets.high_watermark if offsets else None,
            tail.ranges,
            tail.size,
            tail.end or None,
        )

    def say(self, finding: VerifyFinding) -> None:
        """Report and count ``finding``."""
        order = list(Severity)
        if order.index(finding.word) > order.index(self._worst):
            self._worst = finding.word
        self._wrong += finding.wrong
        self._tell(finding)

    def _report_gaps(self, stored: StoredWatermark) -> None:
        current = stored.watermark
        for start, end in current.remote_tier:
            detail = (
                f"{REMOTE_TIER}: the partition begins at {current.start_offset} in the store, and consumers get them"
            )
            self.say(VerifyFinding(Severity.TIERED, start, end, None, detail))
        for gap in current.gaps:
            word = Severity.TIERED if gap.in_remote_tier else Severity.GAP
            detail = f"{gap.reason}, since {gap.detected_at:%Y-%m-%d %H:%M} UTC"
            self.say(VerifyFinding(word, gap.start, gap.end, None, detail, wrong=not gap.in_remote_tier))
        for gap in current.acknowledged_gaps:
            word = Severity.TIERED if gap.in_remote_tier else Severity.GAP
            self.say(VerifyFinding(word, gap.start, gap.end, None, f"{gap.reason}, acknowledged"))

    def _check_segments(self, partition: PartitionStore, live: Lineage) -> Iterator[Checked]:
        check_segment = partial(check, partition, live=live, deep=self._deep)
        names = (entry.name for entry in partition.manifests())
        for chunk in _chunks(names, _AT_A_TIME):
            yield from self._pool.map(check_segment, chunk)

    def _take(self, checked: Checked) -> None:
        self._segments += 1
        self._bytes += checked.size
        self._progress(self._segments)
        self._line_1_is_there |= checked.base_offset == self._line_1
        for finding in checked.findings:
            self.say(finding)
        own = Intervals([(checked.base_offset, checked.readable_end)])
        for part in own & self._covered:
            detail = f"also in segments before {checked.base_offset}"
            self.say(VerifyFinding(Severity.OVERLAP, part.start, part.end, None, detail))
        self._covered |= own
        self._compare_with_disk(checked)

    def _take_removed(self, partition: PartitionStore) -> None:
        """Count offsets that retention removed as covered. Offsets of an invalid tombstone are a hole."""
        try:
            self._covered |= tombstones.removed(partition)
        except FormatError as error:
            self.say(VerifyFinding(Severity.CORRUPT, 0, 0, error.name, error.rule, wrong=True))

    def _check_tail(self, look: StoredPartition, partition: PartitionStore, live: Lineage) -> CheckedTail:
        """Check the packed offsets beyond the segments."""
        current = look.stored.watermark
        known = self._covered | Intervals.of(current.gaps) | Intervals.of(current.acknowledged_gaps)
        sealed_end = known.contiguous_from(current.next_offset)
        tail = check_tail(look, partition, live, sealed_end, deep=self._deep)
        for finding in tail.findings:
            self.say(finding)
        for part in tail.covered - self._covered:
            self.say(VerifyFinding(Severity.PACKED, part.start, part.end, None, "in packs, and not sealed yet"))
        if not self._segments and not tail.end:
            detail = (
                f"claimed by broker {current.broker} under leader epoch {current.leader_epoch}; nothing is stored yet"
            )
            self.say(VerifyFinding(Severity.CLAIMED, sealed_end, sealed_end, partition.keys.watermark, detail))
        for hole in (known | tail.covered).missing(sealed_end, tail.end):
            detail = f"leads to packs up to {tail.end}, but neither a segment nor a readable pack has them"
            self.say(VerifyFinding(Severity.GAP, hole.start, hole.end, tail.head, detail, wrong=True))
        return tail

    def _compare_with_disk(self, checked: Checked) -> None:
        """Check that the broker's own file of the same offsets has the same bytes, unless the log is compacted."""
        base, end, log = checked.base_offset, checked.next_offset, checked.log
        segments = (segment for segment in self._partition.segments if segment.base_offset <= base)
        local = next((segment for segment in segments if _holds(segment, end)), None)
        if log is None or local is None or checked.readable_end < end:
            return  # an election has cut off its end
        with PartitionFiles(self._partition.folder, self._partition.led.topic_id) as files:
            path = files.path(file_name(local.base_offset, "log"))
            try:
                run = open_run(files, SealRun(base, end, local.base_offset, local.next_offset))
            except SegmentChanged:
                return  # the segment is only held, or was deleted or rolled just now
            if run is None or run.base_offset != base:
                return
            rule = self._difference(checked, log, run.log, path)
            other = self._other_history(checked, files) if rule is not None else None
        if other is not None:
            self.say(other)
        elif rule is not None:
            self.say(VerifyFinding(Severity.CORRUPT, base, end, checked.key, rule, wrong=True))

    def _other_history(self, checked: Checked, files: PartitionFiles) -> VerifyFinding | None:
        """That the stored segment is of another history than the disk's, if a batch of the disk shows that."""
        assert checked.log is not None
        log = ObjectInfo(checked.key, checked.log.size, checked.log.etag, utc_now())
        store = checked.store or self._partition.uploader.where.store
        stored = scan_batches(pieces(store, log), checked.key, checked.base_offset)
        try:
            found = first_difference(stored, local_batches(files, checked.base_offset))
        except (NotFound, PreconditionFailed, SegmentError):
            return None
        if found is None:
            return None
        theirs, ours = found
        at = min(theirs.base_offset, ours.base_offset)
        differ = f"has {described(theirs)}, and the disk {described(ours)}"
        detail = f"{differ}: {other_history(self._partition.tp)}"
        return VerifyFinding(Severity.PARTED, at, checked.next_offset, checked.key, detail, wrong=True)

    def _difference(self, checked: Checked, log: ObjectSum, local: OpenFile, path: str) -> str | None:
        """The difference of the stored ``log`` from the broker's file, apart from erased records."""
        if not checked.gone:
            if local.size != log.size:
                return f"has {log.size} bytes, and {path} {local.size}"
            if self._deep and f"{checksum(local):08x}" != log.crc32c:
                return f"has CRC32C {log.crc32c}, and {path} another one"
        elif self._deep:
            store = checked.store or self._partition.uploader.where.store
            version = ObjectInfo(checked.key, log.size, log.etag, utc_now())
            ours = scan_batches(pieces(store, version), checked.key, checked.base_offset)
            try:
                return difference_beside_erased(
                    ours, scan_batches(local.chunks(), path, checked.base_offset), checked.gone, path
                )
            except (NotFound, PreconditionFailed):
                return "was replaced while it was read: verify again"
            except SegmentError as error:
                return str(error)
        return None

    def _check_holes(self, stored: StoredWatermark, keys: PartitionKeys) -> None:
        """Check that all offsets of ``offset.wm`` are stored, and that it lists the missing ones above as gaps.

        Line 1 names a segment, or the start while no segment lies below the next offset.
        """
        current = stored.watermark
        listed = Intervals.of(current.gaps) | Intervals.of(current.acknowledged_gaps)
        uncovered = self._covered.missing(current.start_offset, current.next_offset) - listed
        acknowledged = self._partition.uploader.acknowledged() if uncovered else Intervals()
        for hole in uncovered & acknowledged:
            self.say(
                VerifyFinding(Severity.GAP, hole.start, hole.end, None, "no readable segment has them; acknowledged")
            )
        for hole in uncovered - acknowledged:
            detail = "offset.wm counts them, but no readable segment has them"
            self.say(VerifyFinding(Severity.GAP, hole.start, hole.end, None, detail, wrong=True))
        for above in current.ranges_above:
            for hole in self._covered.missing(*above) - listed:
                detail = "offset.wm names them above its next offset, but no readable segment has them"
                self.say(VerifyFinding(Severity.GAP, hole.start, hole.end, None, detail, wrong=True))
        none_yet = not self._covered.clip(current.start_offset, current.next_offset)
        if not self._line_1_is_there and not (none_yet and self._line_1 == current.start_offset):
            detail = f"line 1 names {stored.base_offset}, which is the base of no stored segment"
            self.say(
                VerifyFinding(
                    Severity.CORRUPT, stored.base_offset, stored.base_offset, keys.watermark, detail, wrong=True
                )
            )

    def _check_lag(self, stored: StoredWatermark | None) -> None:
        partition, offsets = self._partition, self._partition.offsets
        high_watermark = offsets.high_watermark if offsets else 0
        for segment in partition.segments:
            end = segment.next_offset
            if end is None or end > high_watermark:
                continue
            for part in self._covered.missing(segment.base_offset, end):
                detail = "on the broker's disk, rotated and committed, and not sealed yet"
                self.say(VerifyFinding(Severity.LAGGING, part.start, part.end, None, detail))
        next_offset = stored.watermark.next_offset if stored else partition.remote.log.start
        reached = self._covered.contiguous_from(next_offset)
        if reached > next_offset:
            self.say(
                VerifyFinding(Severity.LAGGING, next_offset, reached, None, "in the store, and not in offset.wm yet")
            )


def _holds(segment: LocalSegment, end: int) -> bool:
    """True if the local segment reaches up to the offset ``end``, as far as is known of an active segment."""
    return segment.next_offset is None or end <= segment.next_offset


def _chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


@dataclass(slots=True)
class CheckedTail:
    """The packed offsets that a reader gets, ``covered``, in ``ranges`` of ``size`` bytes; ``head`` states ``end``."""

    end: int = 0
    head: str | None = None
    covered: Intervals = field(default_factory=Intervals)
    ranges: int = 0
    size: int = 0
    findings: list[VerifyFinding] = field(default_factory=list)


def check_tail(
    look: StoredPartition, partition: PartitionStore, lineage: Lineage, sealed_end: int, *, deep: bool
) -> CheckedTail:
    """Check the packed offsets beyond ``sealed_end``: heads and packs exist, they are whole, and they leave no hole.

    ``deep`` reads the bytes of the ranges.

    Raises:
        StoreError: the store failed.
    """
    tail = CheckedTail()

    def report(error: FormatError | StoreError) -> None:
        if isinstance(error, StoreError):
            raise error  # nothing is known of the head
        tail.findings.append(
            VerifyFinding(Severity.CORRUPT, sealed_end, sealed_end, error.name, error.rule, wrong=True)
        )

    for error in look.errors:
        report(error)
    seen: set[tuple[str, int]] = set()
    for entry in look.entries:
        end = packed_end(entry, lineage)
        if end > max(tail.end, sealed_end):
            tail.end, tail.head = end, partition.keys.control.head(entry.last.name.broker)
        try:
            ranges = chain(partition.cluster, entry, sealed_end) if end > sealed_end else []
        except FormatError as error:
            report(error)
            continue
        for packed in ranges:
            at = packed.key, packed.range.position
            live = live_part(packed.range, lineage).clip(sealed_end, end)
            if at in seen or not live:
                continue
            seen.add(at)
            findings = [*_read_range(partition.store, packed)] if deep else []
            tail.findings += findings
            tail.ranges, tail.size = tail.ranges + 1, tail.size + packed.range.size
            if not any(finding.word is Severity.CORRUPT for finding in findings):
                tail.covered |= live
    return tail


def _read_range(store: Store, packed: PackedRange) -> Iterator[VerifyFinding]:
    """Read a range, and return findings about its bytes and missing offsets."""
    key, range_ = packed
    expected, epochs = range_.first, list[tuple[int, int]]()
    try:
        for header in scan_batches([read_range_bytes(store, packed)], key, range_.first):
            if header.base_offset > expected:
                yield _missing_offsets(packed, expected, header.base_offset)
            if not epochs or epochs[-1][0] != header.leader_epoch:
                epochs.append((header.leader_epoch, header.base_offset))
            expected = header.next_offset
    except NotFound:
        yield _corrupt_range(packed, "does not exist, although a head leads to it")
        return
    except SegmentError as error:
        yield _corrupt_range(packed, f"is damaged at byte {range_.position + error.position}: {error.detail}")
        return
    except FormatError as error:
        yield _corrupt_range(packed, error.rule)
        return
    if expected != range_.next:
        yield _corrupt_range(packed, f"the batches end at offset {expected}, and the footer says {range_.next}")
    elif tuple(epochs) != range_.epochs:
        yield _corrupt_range(
            packed, f"the batches have leader epochs {tuple(epochs)}, and the footer says {range_.epochs}"
        )


def _corrupt_range(packed: PackedRange, detail: str) -> VerifyFinding:
    return VerifyFinding(Severity.CORRUPT, packed.range.first, packed.range.next, packed.key, detail, wrong=True)


def _missing_offsets(packed: PackedRange, start: int, end: int) -> VerifyFinding:
    if packed.range.compacted:
        return VerifyFinding(Severity.COMPACTED, start, end, packed.key, "removed by compaction")
    detail = "not in the range, and the topic was not compacted"
    return VerifyFinding(Severity.GAP, start, end, packed.key, detail, wrong=True)
