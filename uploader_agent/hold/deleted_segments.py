"""Selects the segments that exist only as ``.deleted`` files and still belong to the log. Pure.

Retention leaves such files below the first live segment. Truncations and compactions may leave others, with data that
the log no longer has: they end above the first live base offset, or have older leader epochs than the new data.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.errors import FormatError
from tidemark.formats.raw.watermark import Watermark
from tidemark.kafka_log import Lineage
from uploader_agent.hold.record import HeldSegment


def believable(
    candidates: Sequence[HeldSegment],
    held: Sequence[HeldSegment],
    live_start: int,
    live: Lineage,
    watermark: Watermark | None,
) -> list[HeldSegment]:
    """The segments of ``candidates`` that belong to the log below ``live_start``, beside the segments already ``held``.

    They end at or below ``live_start``, share no offset with held segments, and their lineage agrees with the ``live``
    lineage and the watermark's, where these are known. If two share an offset, the later epoch there counts.
    """
    return [
        note
        for note in candidates
        if note.next_offset <= live_start
        and not any(_overlap(note, other) for other in held)
        and all(_replaces(note, other) for other in candidates if other is not note and _overlap(note, other))
        and agrees(note, live, watermark)
    ]


def _overlap(note: HeldSegment, other: HeldSegment) -> bool:
    return note.base_offset < other.next_offset and other.base_offset < note.next_offset


def _replaces(note: HeldSegment, other: HeldSegment) -> bool:
    """True if ``note`` was written after ``other`` had been truncated, judged at the first offset that both claim."""
    offset = max(note.base_offset, other.base_offset)
    epoch, before = Lineage(note.lineage).epoch_at(offset), Lineage(other.lineage).epoch_at(offset)
    return epoch is not None and before is not None and epoch > before


def agrees(note: HeldSegment, live: Lineage, watermark: Watermark | None) -> bool:
    """True if the lineage of a ``.deleted`` segment agrees with the live lineage and the watermark's."""
    try:
        Lineage.of(note.lineage, note.log)
    except FormatError:
        return False  # the epochs of a log never decrease
    if note.diverges(live) is not None:
        return False
    return watermark is None or note.diverges(Lineage(watermark.lineage), watermark.next_offset) is None
