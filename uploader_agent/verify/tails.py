"""What of a partition is only packed: are heads and packs there, are they whole, and do they leave no hole?

As readers find it: by the heads of the brokers that ``offset.wm`` lists. These are read before ``offset.wm``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidemark.errors import FormatError, NotFound, SegmentError, StoreError
from tidemark.formats.keys import PartitionKeys
from tidemark.formats.pack import PackedRange, read_range_bytes
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage, scan_batches
from tidemark.raw.heads import Heads
from tidemark.raw.packs import chain, live_end, live_part
from tidemark.store import Store
from uploader_agent.remote import watermark
from uploader_agent.remote.watermark import StoredWatermark
from uploader_agent.verify.findings import Severity, VerifyFinding


@dataclass(slots=True)
class CheckedTail:
    """The packed offsets that a reader gets, ``covered``, in ``ranges`` of ``size`` bytes; the heads say up to ``end``.

    ``head`` is the key of the head that says so.
    """

    end: int = 0
    head: str | None = None
    covered: Intervals = field(default_factory=Intervals)
    ranges: int = 0
    size: int = 0
    findings: list[VerifyFinding] = field(default_factory=list)


def read_watermark(heads: Heads, store: Store, keys: PartitionKeys) -> StoredWatermark | None:
    """``offset.wm``, read after the heads that it lists; None if there is none. Raises StoreError, FormatError."""
    return heads.read_before(
        store, keys, lambda: watermark.read(store, keys), lambda found: found.watermark.tail_brokers
    )


def check_tail(
    heads: Heads,
    store: Store,
    keys: PartitionKeys,
    stored: StoredWatermark,
    lineage: Lineage,
    sealed_end: int,
    *,
    deep: bool,
) -> CheckedTail:
    """Check what is packed beyond ``sealed_end``, by ``stored`` as :func:`read_watermark` gave it.

    ``deep`` reads the bytes of the ranges.

    Raises:
        StoreError: the store failed.
    """
    tail = CheckedTail()

    def tell(error: FormatError | StoreError) -> None:
        if isinstance(error, StoreError):
            raise error  # nothing is known of the head
        tail.findings.append(
            VerifyFinding(Severity.CORRUPT, sealed_end, sealed_end, error.name, error.rule, wrong=True)
        )

    current = stored.watermark
    seen: set[tuple[str, int]] = set()
    for entry in heads.entries(keys, current.topic_id, current.tail_brokers, tell):
        end = live_end(entry, lineage)
        if end > max(tail.end, sealed_end):
            tail.end, tail.head = end, keys.control.head(entry.last.name.broker)
        try:
            ranges = chain(store, keys.control, entry, sealed_end) if end > sealed_end else []
        except FormatError as error:
            tell(error)
            continue
        for packed in ranges:
            at = packed.key, packed.range.position
            live = live_part(packed.range, lineage).clip(sealed_end, end)
            if at in seen or not live:
                continue
            seen.add(at)
            found = [*_read(store, packed)] if deep else []
            tail.findings += found
            tail.ranges, tail.size = tail.ranges + 1, tail.size + packed.range.size
            if not any(one.word is Severity.CORRUPT for one in found):
                tail.covered |= live
    return tail


def _read(store: Store, packed: PackedRange) -> Iterator[VerifyFinding]:
    """What is wrong with the bytes of a range, and what they lack."""
    key, one = packed
    expected, epochs = one.first, list[tuple[int, int]]()
    try:
        for header in scan_batches([read_range_bytes(store, packed)], key, one.first):
            if header.base_offset > expected:
                yield _missing(packed, expected, header.base_offset)
            if not epochs or epochs[-1][0] != header.leader_epoch:
                epochs.append((header.leader_epoch, header.base_offset))
            expected = header.next_offset
    except NotFound:
        yield _corrupt(packed, "does not exist, although a head leads to it")
        return
    except SegmentError as error:
        yield _corrupt(packed, f"is damaged at byte {one.position + error.position}: {error.detail}")
        return
    except FormatError as error:
        yield _corrupt(packed, error.rule)
        return
    if expected != one.next:
        yield _corrupt(packed, f"the batches end at offset {expected}, and the footer says {one.next}")
    elif tuple(epochs) != one.epochs:
        yield _corrupt(packed, f"the batches have leader epochs {tuple(epochs)}, and the footer says {one.epochs}")


def _corrupt(packed: PackedRange, detail: str) -> VerifyFinding:
    return VerifyFinding(Severity.CORRUPT, packed.range.first, packed.range.next, packed.key, detail, wrong=True)


def _missing(packed: PackedRange, start: int, end: int) -> VerifyFinding:
    if packed.range.compacted:
        return VerifyFinding(Severity.COMPACTED, start, end, packed.key, "removed by compaction")
    detail = "not in the range, and the topic was not compacted"
    return VerifyFinding(Severity.GAP, start, end, packed.key, detail, wrong=True)
