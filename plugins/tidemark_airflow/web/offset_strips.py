"""A partition as a strip of offsets, from the start of raw to the end of Kafka's log. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from pydantic import BaseModel

from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.watermark_index import IndexEntry
from tidemark.formats.table.ledger import PartitionState

SpanKind = Literal["landed", "uploaded", "held", "gap", "log"]
"""Landed in the table or with another class; uploaded and not landed; uploaded, and held by an open transaction;
missing; only in Kafka's log."""


class StripSpan(BaseModel):
    """The offsets ``[start, end)``; ``reason`` and ``since`` belong to a gap."""

    kind: SpanKind
    start: int
    end: int
    reason: str | None = None
    since: str | None = None


def spans_of(state: PartitionState | None, entry: IndexEntry | None, gaps: Iterable[Gap]) -> list[StripSpan]:
    """The strip, without holes and in order; ``gaps`` are the open ones.

    A held partition waits from its first offset that is not landed: only planning knows which later offsets the
    transaction affects.
    """
    start = state.start_offset if state else 0
    landed = state.next_offset if state else start
    uploaded = max(landed, entry.least_stored_end, entry.uploaded_end) if entry else landed
    end = max(uploaded, entry.log_end_offset) if entry else uploaded
    spans = [StripSpan(kind="landed", start=start, end=landed)] if landed > start else []
    held = bool(state and state.held_by)
    at = landed
    for gap in sorted(gaps, key=lambda gap: gap.start):
        if gap.end <= at:
            continue
        spans += _waiting(at, max(at, gap.start), uploaded, held=held)
        at = max(at, gap.start)
        spans.append(StripSpan(kind="gap", start=at, end=gap.end, reason=gap.reason, since=gap.detected_at.isoformat()))
        at = gap.end
    spans += _waiting(at, end, uploaded, held=held)
    return spans


def _waiting(start: int, end: int, uploaded: int, *, held: bool) -> Iterator[StripSpan]:
    """Spans of ``[start, end)``, none of which is landed or missing."""
    border = min(max(start, uploaded), end)
    if start < border:
        yield StripSpan(kind="held" if held else "uploaded", start=start, end=border)
    if border < end:
        yield StripSpan(kind="log", start=border, end=end)
