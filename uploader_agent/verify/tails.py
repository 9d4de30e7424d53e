"""Checks the packed tail of a partition: heads and packs exist, they are whole, and they leave no hole.

The tail is found as a reader finds it, from the heads of the brokers that ``offset.wm`` lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidemark.errors import FormatError, NotFound, SegmentError, StoreError
from tidemark.formats.keys import PartitionKeys
from tidemark.formats.raw.pack import PackedRange, read_range_bytes
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage, scan_batches
from tidemark.raw.heads import PartitionLook
from tidemark.raw.packs import chain, live_part, packed_end
from tidemark.store import Store
from uploader_agent.verify.findings import Severity, VerifyFinding


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
    look: PartitionLook, store: Store, keys: PartitionKeys, lineage: Lineage, sealed_end: int, *, deep: bool
) -> CheckedTail:
    """Check the packed offsets beyond ``sealed_end``. ``deep`` reads the bytes of the ranges.

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
            tail.end, tail.head = end, keys.control.head(entry.last.name.broker)
        try:
            ranges = chain(store, keys.control, entry, sealed_end) if end > sealed_end else []
        except FormatError as error:
            report(error)
            continue
        for packed in ranges:
            at = packed.key, packed.range.position
            live = live_part(packed.range, lineage).clip(sealed_end, end)
            if at in seen or not live:
                continue
            seen.add(at)
            findings = [*_read(store, packed)] if deep else []
            tail.findings += findings
            tail.ranges, tail.size = tail.ranges + 1, tail.size + packed.range.size
            if not any(finding.word is Severity.CORRUPT for finding in findings):
                tail.covered |= live
    return tail


def _read(store: Store, packed: PackedRange) -> Iterator[VerifyFinding]:
    """Read a range, and return findings about its bytes and missing offsets."""
    key, range_ = packed
    expected, epochs = range_.first, list[tuple[int, int]]()
    try:
        for header in scan_batches([read_range_bytes(store, packed)], key, range_.first):
            if header.base_offset > expected:
                yield _missing(packed, expected, header.base_offset)
            if not epochs or epochs[-1][0] != header.leader_epoch:
                epochs.append((header.leader_epoch, header.base_offset))
            expected = header.next_offset
    except NotFound:
        yield _corrupt(packed, "does not exist, although a head leads to it")
        return
    except SegmentError as error:
        yield _corrupt(packed, f"is damaged at byte {range_.position + error.position}: {error.detail}")
        return
    except FormatError as error:
        yield _corrupt(packed, error.rule)
        return
    if expected != range_.next:
        yield _corrupt(packed, f"the batches end at offset {expected}, and the footer says {range_.next}")
    elif tuple(epochs) != range_.epochs:
        yield _corrupt(packed, f"the batches have leader epochs {tuple(epochs)}, and the footer says {range_.epochs}")


def _corrupt(packed: PackedRange, detail: str) -> VerifyFinding:
    return VerifyFinding(Severity.CORRUPT, packed.range.first, packed.range.next, packed.key, detail, wrong=True)


def _missing(packed: PackedRange, start: int, end: int) -> VerifyFinding:
    if packed.range.compacted:
        return VerifyFinding(Severity.COMPACTED, start, end, packed.key, "removed by compaction")
    detail = "not in the range, and the topic was not compacted"
    return VerifyFinding(Severity.GAP, start, end, packed.key, detail, wrong=True)
