"""``offset.wm``: how far a partition is in the store without a hole; computed, fenced, written by conditional PUT.

Promises: within a topic id, (leader epoch, next offset) never decreases; a writer with an older leader epoch is told
so and stops; what a lineage cut off is recorded as a truncation, by the leader whose lineage it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import structlog
from crc32c import crc32c

from tidemark.errors import ContinuityError, FormatError, NotFound, TidemarkError, UnknownOutcome
from tidemark.formats import watermark as format_
from tidemark.formats.gaps import Gap
from tidemark.formats.keys import WATERMARK_NAME, ControlKeys, PartitionKeys
from tidemark.formats.watermark import Truncation, Watermark
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import Lineage
from tidemark.store import Store
from uploader_agent.clock import utc_now

logger = structlog.get_logger(__name__)


class Fenced(TidemarkError):
    """A leader with a higher epoch has written the watermark: this agent must leave the partition alone."""


class StoredWatermark(NamedTuple):
    """``offset.wm`` as the store has it."""

    base_offset: int
    watermark: Watermark
    etag: str
    foreign: bool = False
    """Whether its leader epoch was never the cluster's: it fences nobody, and nothing that it says is believed."""


IsForeign = Callable[[StoredWatermark], bool]


@dataclass(frozen=True, slots=True)
class WatermarkState:
    """All that decides what a partition's watermark is."""

    topic_id: str | None
    leader_epoch: int
    broker: int
    start: int
    present: Intervals
    lineage: Lineage
    gaps: tuple[Gap, ...]
    acknowledged_gaps: tuple[Gap, ...]
    replacing: tuple[int, ...] = ()
    foreign_epochs: tuple[int, ...] = ()


def compute(view: WatermarkState, previous: Watermark | None) -> Watermark | None:
    """The watermark by what is known now; None while nothing is contiguous and nothing was ever claimed."""
    passed = Intervals((gap.start, gap.end) for gap in view.acknowledged_gaps)
    contiguous = (view.present | passed).contiguous_from(view.start)
    if contiguous == view.start and previous is None:
        return None
    history = Lineage(previous.lineage) if previous else Lineage()
    return Watermark(
        topic_id=view.topic_id,
        start_offset=view.start,
        leader_epoch=view.leader_epoch,
        next_offset=contiguous,
        ranges_above=tuple(above(view.present, contiguous)),
        lineage=view.lineage.with_history(history).truncated(contiguous).entries,
        truncations=previous.truncations if previous else (),
        replacing=view.replacing,
        gaps=view.gaps,
        acknowledged_gaps=view.acknowledged_gaps,
        foreign_epochs=tuple(sorted({*view.foreign_epochs, *(previous.foreign_epochs if previous else ())})),
        broker=view.broker,
        written_at=utc_now(),
    )


def truncate(previous: Watermark, lineage: Lineage, leader_epoch: int) -> Watermark:
    """``previous`` as far as it lies on the new leader's ``lineage``, with a truncation entry if that is not all.

    Raises:
        ContinuityError: the lineages diverge although the leader has not changed since.
    """
    at = Lineage(previous.lineage).divergence(lineage, previous.next_offset)
    if at is None or at >= previous.next_offset:
        return previous
    if leader_epoch <= previous.leader_epoch:
        rule = f"leaves what was uploaded at offset {at}, under the same leader epoch {leader_epoch}"
        raise ContinuityError(f"the broker's lineage {lineage.entries} {rule}: look at both logs before going on")
    cut = Truncation(at=at, old_next=previous.next_offset, old_epoch=previous.leader_epoch, new_epoch=leader_epoch)
    return previous.model_copy(
        update={
            "leader_epoch": leader_epoch,
            "next_offset": max(at, previous.start_offset),
            "ranges_above": (),
            "lineage": Lineage(previous.lineage).truncated(at).entries,
            "truncations": (*previous.truncations, cut),
            "gaps": (),
            "acknowledged_gaps": tuple(_below(previous.acknowledged_gaps, at)),
        }
    )


def _below(gaps: Iterable[Gap], offset: int) -> Iterable[Gap]:
    """The parts of ``gaps`` below ``offset``: what a person gave up of a branch says nothing about the next one."""
    return (gap.model_copy(update={"end": min(gap.end, offset)}) for gap in gaps if gap.start < offset)


def above(present: Intervals, offset: int) -> Iterable[Interval]:
    """The parts of ``present`` that start above ``offset``."""
    return (part for part in present if part.start > offset)


def last_base(bases: Iterable[int], next_offset: int, fallback: int) -> int:
    """Line 1: the base of the last segment below ``next_offset``; ``fallback`` where none of them is."""
    return max((base for base in bases if base < next_offset), default=fallback)


def says_more(new: Watermark, old: Watermark | None) -> bool:
    """Whether ``new`` differs from ``old`` in more than who wrote it and when."""
    return old is None or new != old.model_copy(update={"broker": new.broker, "written_at": new.written_at})


def read(store: Store, keys: PartitionKeys) -> StoredWatermark | None:
    """What the store has; None if there is none.

    Raises:
        FormatError: it does not parse, or another uploader wrote it.
    """
    try:
        body, etag = store.get(keys.watermark, limit=Watermark.most_bytes)
    except NotFound:
        return None
    base_offset, watermark = format_.parse(body, keys.watermark)
    if watermark is None:
        rule = "was written by another uploader: stop it, since two must never share a prefix, and take the prefix over"
        raise FormatError(keys.watermark, f"{rule} with tidemark-agent adopt")
    return StoredWatermark(base_offset, watermark, etag)


def fence(
    store: Store, keys: PartitionKeys, topic_id: str | None, leader_epoch: int, is_foreign: IsForeign
) -> StoredWatermark | None:
    """As :func:`read`. Raises :class:`Fenced` if a later leader wrote it, as far as ``is_foreign`` can tell."""
    stored = read(store, keys)
    if stored and stored.watermark.topic_id == topic_id and stored.watermark.leader_epoch > leader_epoch:
        if is_foreign(stored):
            return stored._replace(foreign=True)
        theirs = f"broker {stored.watermark.broker} leads it under epoch {stored.watermark.leader_epoch}"
        raise Fenced(f"{keys.watermark}: {theirs}, and this broker's epoch is {leader_epoch}")
    return stored


def write(
    store: Store, keys: PartitionKeys, base_offset: int, watermark: Watermark, before: StoredWatermark | None
) -> StoredWatermark:
    """Write ``watermark`` if the store still has ``before``; a foreign one is copied aside first.

    Raises:
        PreconditionFailed: it has not; read again and decide.
        ContinuityError: ``watermark`` would move back.
    """
    if before is not None and before.foreign:
        _copy_aside(store, keys, before, watermark.leader_epoch)
    elif before is not None and not watermark.supersedes(before.watermark):
        raise ContinuityError(f"{keys.watermark}: {watermark.order} must not follow {before.watermark.order}")
    body = format_.render(base_offset, watermark)
    condition = before.etag if before else None
    try:
        etag = store.put(keys.watermark, body, crc32c=crc32c(body), if_match=condition, if_none_match=before is None)
    except UnknownOutcome as error:
        try:
            there = store.get(keys.watermark)
        except NotFound:
            raise error from None
        if there.body != body:
            raise
        etag = there.etag
    return StoredWatermark(base_offset, watermark, etag)


def _copy_aside(store: Store, keys: PartitionKeys, foreign: StoredWatermark, epoch: int) -> None:
    """Keep ``foreign`` as evidence, beside the segments that were superseded under ``epoch``."""
    folder = ControlKeys(keys.endpoint.prefix, keys.cluster).superseded(keys.place, keys.partition, epoch)
    target = f"{folder}{foreign.etag.strip(chr(34))}/{WATERMARK_NAME}"
    store.copy(keys.watermark, target, source_etag=foreign.etag)
    logger.warning("foreign_offset_wm_replaced", key=keys.watermark, copy=target)
