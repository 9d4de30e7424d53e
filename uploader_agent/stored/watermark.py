"""``offset.wm``: the end of a partition's stored offsets without a hole; computed, fenced, written by conditional PUT.

Promises: within a topic id, (restores, leader epoch, next offset) never decreases; a writer with an older leader epoch
gets an error and stops; if a leader's lineage cuts offsets off, that leader takes the next offset back to the cut, and
the start, too, if the cut lies below it: that leader's log was behind the offset at which the store began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import structlog
from crc32c import crc32c

from tidemark.errors import ContinuityError, FormatError, NotFound, TidemarkError, UnknownOutcome
from tidemark.formats.keys import WATERMARK_NAME
from tidemark.formats.raw import watermark as watermark_format
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.manifest import Origin
from tidemark.formats.raw.watermark import MOST_TAILS, Watermark
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import Lineage
from tidemark.storage import OtherWatermark, PartitionStore, StoredWatermark
from uploader_agent.runtime import utc_now

logger = structlog.get_logger(__name__)


class Fenced(TidemarkError):
    """A leader with a higher epoch has taken over: this agent must leave the partition alone."""


class ForeignWatermark(NamedTuple):
    """An ``offset.wm`` whose leader epoch the cluster never gave: it fences no leader, and its content is void."""

    leader_epoch: int
    etag: str


IsForeign = Callable[[StoredWatermark], bool]


def compute(
    previous: Watermark | None,
    *,
    topic_id: str | None,
    leader_epoch: int,
    broker: int,
    start: int,
    present: Intervals,
    lineage: Lineage,
    gaps: tuple[Gap, ...] = (),
    acknowledged_gaps: tuple[Gap, ...] = (),
    foreign_epochs: Iterable[int] = (),
    may_pack: bool = False,
    origin: Origin = "disk",
    remote_tier: Iterable[Interval] = (),
) -> Watermark:
    """The watermark of what the store has: the offsets ``present`` from ``start`` on, of a log with this ``lineage``.

    It follows ``previous``. Before anything is stored, it ends at its start. With ``may_pack`` this leadership is
    listed among those that may have packed.
    """
    contiguous = (present | Intervals.of(acknowledged_gaps)).contiguous_from(start)
    known = previous.history if previous else Lineage()
    lineage = lineage.with_history(known)
    # A manifest of a compacted run, or of a held one, may have begun an epoch at a later batch than the log did.
    lineage = lineage.with_batches(entry for entry in known.entries if entry[0] in lineage.epochs)
    own = (leader_epoch, broker) if may_pack else None
    return Watermark(
        topic_id=topic_id,
        start_offset=start,
        leader_epoch=leader_epoch,
        next_offset=contiguous,
        ranges_above=tuple(above(present, contiguous)),
        lineage=lineage.entries,
        gaps=gaps,
        acknowledged_gaps=acknowledged_gaps,
        foreign_epochs=tuple(sorted({*foreign_epochs, *(previous.foreign_epochs if previous else ())})),
        tails=tails(previous.tails if previous else (), own, lineage, contiguous),
        remote_tier=tuple(remote_tier),
        broker=broker,
        origin=origin,
        written_at=utc_now(),
    ).restored(lineage.restores)


def tails(
    before: Iterable[tuple[int, int]], own: tuple[int, int] | None, lineage: Lineage, sealed_end: int
) -> tuple[tuple[int, int], ...]:
    """The leaderships that may have packed unsealed offsets: the rest of ``before``, and ``own`` if there is room.

    A leadership is removed when the end of its epoch on this lineage is sealed, whatever its broker's head holds by
    then. The newest epoch has no end.
    """
    listed = {tail for tail in before if not _is_sealed(tail[0], lineage, sealed_end)}
    if own is not None and len(listed) < MOST_TAILS:
        listed.add(own)
    return tuple(sorted(listed))


def _is_sealed(epoch: int, lineage: Lineage, sealed_end: int) -> bool:
    ends = [start for later, start in lineage.entries if later > epoch]
    return bool(ends) and min(ends) <= sealed_end


def truncate(previous: Watermark, lineage: Lineage, leader_epoch: int) -> Watermark:
    """``previous`` up to the offset at which the new leader's ``lineage`` leaves it.

    Raises:
        ContinuityError: the lineages diverge although the leader has not changed since.
    """
    at = previous.history.divergence(lineage, previous.next_offset)
    if at is None or at >= previous.next_offset:
        return previous
    if leader_epoch <= previous.leader_epoch:
        rule = f"leaves the uploaded log at offset {at}, under the same leader epoch {leader_epoch}"
        raise ContinuityError(f"the broker's lineage {lineage.entries} {rule}: look at both logs before you continue")
    return previous.model_copy(
        update={
            "leader_epoch": leader_epoch,
            "start_offset": min(at, previous.start_offset),
            "next_offset": at,
            "ranges_above": (),
            "lineage": Lineage(previous.lineage).truncated(at).entries,
            "gaps": (),
            "acknowledged_gaps": tuple(below(previous.acknowledged_gaps, at)),
        }
    )


def below(gaps: Iterable[Gap], offset: int) -> Iterable[Gap]:
    """The parts of ``gaps`` below ``offset``: gaps acknowledged on one branch do not count on the next."""
    return (gap.model_copy(update={"end": min(gap.end, offset)}) for gap in gaps if gap.start < offset)


def above(present: Intervals, offset: int) -> Iterable[Interval]:
    """The parts of ``present`` that start above ``offset``."""
    return (part for part in present if part.start > offset)


def last_base(bases: Iterable[int], next_offset: int, fallback: int) -> int:
    """Line 1: the base of the last segment below ``next_offset``; ``fallback`` without one."""
    return max((base for base in bases if base < next_offset), default=fallback)


def says_more(new: Watermark, old: Watermark | None) -> bool:
    """True if ``new`` differs from ``old`` in more than its writer and time."""
    return old is None or new != old.model_copy(update={"broker": new.broker, "written_at": new.written_at})


def read(partition: PartitionStore) -> StoredWatermark | None:
    """The stored watermark; None if there is none.

    Raises:
        FormatError: it does not parse, or another uploader wrote it.
    """
    stored = partition.watermark()
    if isinstance(stored, OtherWatermark):
        rule = "was written by another uploader: stop it, since two must never share a prefix, and take the prefix over"
        raise FormatError(partition.keys.watermark, f"{rule} with tidemark-agent adopt")
    return stored


def fence(
    partition: PartitionStore, topic_id: str | None, leader_epoch: int, is_foreign: IsForeign
) -> StoredWatermark | ForeignWatermark | None:
    """The result of :func:`read`. Raises :class:`Fenced` if a later leader wrote it, unless it ``is_foreign``."""
    stored = read(partition)
    if stored and stored.watermark.topic_id == topic_id and stored.watermark.leader_epoch > leader_epoch:
        if is_foreign(stored):
            return ForeignWatermark(stored.watermark.leader_epoch, stored.etag)
        theirs = f"broker {stored.watermark.broker} leads it under epoch {stored.watermark.leader_epoch}"
        raise Fenced(f"{partition.keys.watermark}: {theirs}, and this broker's epoch is {leader_epoch}")
    return stored


def write(
    partition: PartitionStore,
    base_offset: int,
    watermark: Watermark,
    before: StoredWatermark | ForeignWatermark | None,
) -> StoredWatermark:
    """Write ``watermark`` if the store still has ``before``. A foreign ``before`` is copied aside first.

    Raises:
        PreconditionFailed: the store has another version; read it and decide again.
        ContinuityError: ``watermark`` would move back.
    """
    if isinstance(before, ForeignWatermark):
        _copy_aside(partition, before)
    elif before is not None and not watermark.supersedes(before.watermark):
        raise ContinuityError(f"{partition.keys.watermark}: {watermark.order} must not follow {before.watermark.order}")
    return put(partition, base_offset, watermark, before.etag if before else None)


def put(partition: PartitionStore, base_offset: int, watermark: Watermark, etag_before: str | None) -> StoredWatermark:
    """Replace the object with ``etag_before``, or create it. After an unknown outcome the object is read back.

    Raises:
        PreconditionFailed: another object is there.
    """
    body = watermark_format.render(base_offset, watermark)
    try:
        etag = partition.store.put(
            partition.keys.watermark, body, crc32c=crc32c(body), if_match=etag_before, if_none_match=etag_before is None
        )
    except UnknownOutcome as error:
        try:
            stored = partition.store.get(partition.keys.watermark)
        except NotFound:
            raise error from None
        if stored.body != body:
            raise
        etag = stored.etag
    return StoredWatermark(base_offset, watermark, etag)


def _copy_aside(partition: PartitionStore, foreign: ForeignWatermark) -> None:
    """Keep ``foreign`` as evidence."""
    folder = partition.keys.control.foreign_watermarks(partition.keys.place, partition.keys.partition)
    target = f"{folder}{foreign.etag.strip(chr(34))}/{WATERMARK_NAME}"
    partition.store.copy(partition.keys.watermark, target, source_etag=foreign.etag)
    logger.warning("foreign_offset_wm_replaced", key=partition.keys.watermark, copy=target)
