"""Segments of which only ``.deleted`` files are left: which of them may be believed. Pure.

Retention leaves such files below the first live segment. So do truncations and compactions at times, of data that the
log no longer has: what they leave ends above that base, overlaps what retention left, or has other leader epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemark.errors import FormatError
from tidemark.records import Lineage
from tidemark.watermark import Watermark
from uploader_agent.hold.note import Note


def believable(
    found: Sequence[Note], held: Iterable[Note], live_start: int, live: Lineage, watermark: Watermark | None
) -> list[Note]:
    """Those of ``found`` that count, beside what is ``held``, below a log that starts at ``live_start``.

    They lie below it, claim no offset that another one claims, and their lineage is no other than the ``live`` one
    and that of the watermark, as far as these are known.
    """
    others = [(note.base_offset, note.next_offset) for note in [*found, *held]]
    return [
        note
        for note in found
        if note.next_offset <= live_start
        and sum(start < note.next_offset and note.base_offset < end for start, end in others) == 1
        and agrees(note, live, watermark)
    ]


def agrees(note: Note, live: Lineage, watermark: Watermark | None) -> bool:
    """Whether the lineage of a segment found ``.deleted`` is one with all that is known."""
    try:
        Lineage.of(note.lineage, note.log)
    except FormatError:
        return False  # epochs that go back are no log's
    if note.diverges(live) is not None:
        return False
    return watermark is None or note.diverges(Lineage(watermark.lineage), watermark.next_offset) is None
