"""Holes: offsets that are neither in the store nor on the disk any more, or whose bytes are damaged. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from tidemark.gaps import Acknowledgement, Gap, GapReason
from tidemark.intervals import Interval, Intervals
from tidemark.layout import ControlKeys
from tidemark.store import Store


def find_gaps(
    present: Intervals,
    damaged: Intervals,
    start: int,
    local_start: int,
    log_start: int | None,
    known: Sequence[Gap],
    now: datetime,
) -> tuple[Gap, ...]:
    """The holes from ``start`` on, by offset.

    Everything from ``local_start`` on is still on the disk and will come; what is missing below it will not.
    ``damaged`` are the offsets that were found unreadable. A gap that is ``known`` keeps its reason and its time.
    """
    lost = present.missing(start, max(start, local_start)) - damaged
    gaps = [_gap(hole, _reason(hole, log_start), known, now) for hole in lost]
    gaps += [_gap(hole, "corrupt", known, now) for hole in damaged - present]
    return tuple(sorted(gaps, key=lambda gap: gap.start))


def split(gaps: Iterable[Gap], acknowledged: Intervals) -> tuple[tuple[Gap, ...], tuple[Gap, ...]]:
    """(gaps that hold the partition up, gaps that a person has acknowledged)."""
    holding: list[Gap] = []
    passed: list[Gap] = []
    for gap in gaps:
        whole = Intervals([(gap.start, gap.end)])
        holding += [gap.model_copy(update=part._asdict()) for part in whole - acknowledged]
        passed += [gap.model_copy(update=part._asdict()) for part in whole & acknowledged]
    return tuple(holding), tuple(passed)


def read_acknowledged(store: Store, control: ControlKeys, place: str, partition: int) -> Intervals:
    """All offsets of a partition that people have acknowledged as lost."""
    listed = store.list(control.acknowledgements(place, partition))
    words = [Acknowledgement.from_bytes(store.get(info.key).body, info.key) for info in listed]
    return Intervals((word.start, word.end) for word in words)


def _reason(hole: Interval, log_start: int | None) -> GapReason:
    """Retention moves the log start offset, a lost disk does not."""
    return "deleted_before_upload" if log_start is not None and hole.end <= log_start else "unknown"


def _gap(hole: Interval, reason: GapReason, known: Sequence[Gap], now: datetime) -> Gap:
    before = next((gap for gap in known if gap.start < hole.end and hole.start < gap.end), None)
    if before is not None:
        reason, now = before.reason, before.detected_at
    return Gap.model_validate({"from": hole.start, "to": hole.end, "reason": reason, "detected_at": now})
