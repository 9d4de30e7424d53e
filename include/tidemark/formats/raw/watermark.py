"""``offset.wm``: the end of the offsets that the store has of a partition without a hole, and the state of the rest.

Line 1 is Pinterest's: 20 digits, the base offset of the last segment below the first hole. Line 2 is JSON, and the only
one that Tidemark uses. Written by the leader's agent, by conditional PUT, ordered within a topic id by
(number of restores, leader epoch, next offset): a later epoch may move ``next_offset`` back, the same epoch never. A
person's ``tidemark-agent branch`` adds a restore, and states it in an object of its own (:class:`LogRestore`).
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from tidemark.errors import FormatError
from tidemark.formats import object_sizes
from tidemark.formats.base import StoredObject
from tidemark.formats.keys import OFFSET_DIGITS
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.manifest import LineagePairs, Origin, Restores
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage

MOST_TAILS: Final = 64
"""Most leaderships that may have packed unsealed batches. A leader that finds so many seals before it packs."""


RESTORES_NEED: Final = "1.1.0"
"""The first version that reads an object with restores. An earlier one would land and seal two histories as one."""


class Watermark(StoredObject):
    """Line 2 of ``offset.wm``.

    ``leader_epoch`` is the metadata's and fences writers; the data's own may lag. ``next_offset`` is the end of the
    contiguous offsets from ``start_offset``: it stops at the first gap that is not acknowledged. ``ranges_above`` are
    the uploaded offsets beyond. ``lineage`` is the leader's whole one, up to and including the start of its own epoch,
    also beyond ``next_offset``: a batch that is not on it is of a dead branch. From each offset of ``restores`` on,
    whatever was stored before that restore is of a dead branch, too. ``foreign_epochs`` were in this object although
    the cluster never gave them; offsets read under them are void. ``tails`` are the leaderships, (leader epoch,
    broker), that may have packed batches that are not sealed yet: see the heads of these brokers.
    ``remote_tier`` are the offsets below ``start_offset`` that only Kafka's own remote tier has; those above are gaps.
    """

    most_bytes: ClassVar[int] = object_sizes.WATERMARK

    format: Literal[1, 2] = 1  # type: ignore[assignment]  # it reads both
    needs: str | None = None
    topic_id: str | None
    start_offset: int = Field(ge=0)
    leader_epoch: int
    next_offset: int = Field(ge=0)
    ranges_above: tuple[tuple[int, int], ...] = ()
    lineage: LineagePairs
    restores: Restores = ()
    gaps: tuple[Gap, ...] = ()
    acknowledged_gaps: tuple[Gap, ...] = ()
    foreign_epochs: tuple[int, ...] = ()
    tails: tuple[tuple[int, int], ...] = Field(default=(), max_length=MOST_TAILS)
    remote_tier: tuple[tuple[int, int], ...] = ()
    broker: int
    origin: Origin = "disk"
    written_at: AwareDatetime

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.restores and self.format == 1:
            raise ValueError("restores need format 2, which versions that would lose them refuse")
        return self

    def restored(self, restores: tuple[int, ...]) -> Self:
        """A copy with ``restores``, in the format that they need."""
        later = {"format": 2, "needs": RESTORES_NEED} if restores else {}
        return self.model_copy(update={"restores": restores, **later})

    @property
    def tail_brokers(self) -> frozenset[int]:
        """The brokers of ``tails``: their heads must be read."""
        return frozenset(broker for _, broker in self.tails)

    @property
    def accounted_end(self) -> int:
        """The end of the offsets that are stored or recorded as lost, without a hole."""
        lost = Intervals.of((*self.gaps, *self.acknowledged_gaps))
        return (lost | Intervals(self.ranges_above)).contiguous_from(self.next_offset)

    @property
    def history(self) -> Lineage:
        """The leader's whole lineage."""
        return Lineage(self.lineage, self.restores)

    @property
    def leadership(self) -> tuple[int, int]:
        """The number of restores and the leader epoch: the later pair is the later leadership."""
        return len(self.restores), self.leader_epoch

    @property
    def order(self) -> tuple[int, int, int]:
        """The values that must never decrease within a topic id."""
        return *self.leadership, self.next_offset

    def supersedes(self, other: Watermark | None) -> bool:
        """True if this may replace ``other``, which is of another topic id or not ahead."""
        return other is None or other.topic_id != self.topic_id or self.order >= other.order


def render(base_offset: int, watermark: Watermark) -> bytes:
    """The whole object; ``base_offset`` belongs to the last segment below the first hole."""
    return f"{base_offset:0{OFFSET_DIGITS}d}\n".encode() + watermark.to_bytes() + b"\n"


def parse(body: bytes, key: str) -> tuple[int, Watermark | None]:
    """(base offset of line 1, line 2), where line 2 is None if Pinterest's uploader wrote it. Raises FormatError."""
    first, _, rest = body.partition(b"\n")
    digits = first.strip()
    if len(digits) != OFFSET_DIGITS or not digits.isdigit():
        raise FormatError(
            key, f"line 1 must be {OFFSET_DIGITS} digits, the base offset of a segment, not {digits[:40]!r}"
        )
    if int(digits) >= 1 << 63:
        raise FormatError(key, f"line 1 is {digits.decode()}, and offsets have 64 bits")
    return int(digits), Watermark.from_bytes(rest, key) if rest.strip() else None


class LogRestore(StoredObject):
    """The ``number``-th restore of a partition, counted from 1: from the offset ``start`` on, its log is another one.

    A person has gone on with the log of a restored broker, in place of the stored history.
    ``_restores/<cluster>/<topic>-<partition>/<number>.json`` is evidence for people: ``restores`` of ``offset.wm``
    decides.

    ``stored_end`` is the end of what had been stored, in segments and packs, and ``log_end`` the end of the log with
    the ``lineage`` of ``broker``'s disk. ``replaced`` is the ``offset.wm`` before, in its version ``etag``. ``by`` is
    the name that the writer gives, ``written_as`` the identity under which the object was written.
    """

    most_bytes: ClassVar[int] = object_sizes.RESTORE

    cluster: str
    place: str
    partition: int = Field(ge=0)
    number: int = Field(ge=1)
    start: int = Field(alias="from", ge=0)
    stored_end: int = Field(ge=0)
    log_end: int = Field(ge=0)
    lineage: LineagePairs
    leader_epoch: int
    broker: int
    replaced: Watermark
    etag: str
    difference: str
    by: str = Field(min_length=1)
    written_as: str = Field(min_length=1)
    at: AwareDatetime
    reason: str = Field(min_length=1)
