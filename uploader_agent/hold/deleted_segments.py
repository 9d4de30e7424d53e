"""Segments of which only ``.deleted`` files are left: which of them may be believed. Pure.

Retention leaves such files below the first live segment. So do truncations and compactions at times, of data that the
log no longer has: what they leave ends above that base, or is of earlier leader epochs than what took its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.errors import FormatError
from tidemark.formats.watermark import Watermark
from tidemark.kafka_log import Lineage
from uploader_agent.hold.record import HeldSegment


def believable(
    found: Sequence[HeldSegment],
    held: Sequence[HeldSegment],
    live_start: int,
    live: Lineage,
    watermark: Watermark | None,
) -> list[HeldSegment]:
    """Those of ``found`` that count, beside what is ``held``, below a log that starts at ``live_start``.

    They lie below it, claim no offset that is held, and their lineage is no other than the ``live`` one and that of the
    watermark, as far as these are known. Of two that claim an offset, the one counts that has it of the later epoch.
    """
    return [
        note
        for note in found
        if note.next_offset <= live_start
        and not any(_overlap(note, other) for other in held)
        and all(_replaces(note, other) for other in found if other is not note and _overlap(note, other))
        and agrees(note, live, watermark)
    ]


def _overlap(note: HeldSegment, other: HeldSegment) -> bool:
    return note.base_offset < other.next_offset and other.base_offset < note.next_offset


def _replaces(note: HeldSegment, other: HeldSegment) -> bool:
    """Whether ``note`` was written after ``other`` had been truncated, by the first offset that both claim."""
    offset = max(note.base_offset, other.base_offset)
    epoch, before = (Lineage(one.lineage).epoch_at(offset) for one in (note, other))
    return epoch is not None and before is not None and epoch > before


def agrees(note: HeldSegment, live: Lineage, watermark: Watermark | None) -> bool:
    """Whether the lineage of a segment found ``.deleted`` is one with all that is known."""
    try:
        Lineage.of(note.lineage, note.log)
    except FormatError:
        return False  # epochs that go back are no log's
    if note.diverges(live) is not None:
        return False
    return watermark is None or note.diverges(Lineage(watermark.lineage), watermark.next_offset) is None
