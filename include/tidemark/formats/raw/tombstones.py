"""The records of what is removed from raw: tombstones, and the lists of the segments that an erasure has rewritten.

Each is written before the first object is deleted because of it. A tombstone is of segments that retention removes, or
of ranges of packs that a person has given up. It never changes, and counts only if its content agrees with its key: a
name alone removes nothing.

An erasure deletes segments after it has rewritten them. A pass that is killed leaves objects without a manifest, or
former versions of them, that such a list names, and the next pass deletes these. It holds nothing of the records of a
log, and no checksum, with which one could test a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import ClassVar

from pydantic import AwareDatetime, Field

from tidemark.config import Duration
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.keys import OFFSET_DIGITS, ControlKeys, PartitionKeys, SegmentName
from tidemark.formats.raw.manifest import ObjectSum
from tidemark.formats.raw.pack import Range, Topic, TopicId
from tidemark.intervals import Intervals
from tidemark.timestamps import stamp


class RemovedSegment(Model):
    """A removed segment: ``objects`` by file name, and the ETag of its manifest."""

    base_offset: int = Field(ge=0)
    suffix: str = ""
    next_offset: int = Field(ge=0)
    uploaded_at: AwareDatetime
    manifest_etag: str
    objects: dict[str, ObjectSum]

    @property
    def name(self) -> SegmentName:
        """The common name of the segment's objects."""
        return SegmentName(self.base_offset, self.suffix)

    @property
    def size(self) -> int:
        """Bytes of the objects, manifest apart."""
        return sum(object_sum.size for object_sum in self.objects.values())


class Tombstone(StoredObject):
    """The removal of the segments of ``[start, end)``, and its grounds.

    Its key is ``_tombstones/<cluster>/<topic>-<p>/<from>-<to>-<time>.json``, in the store and prefix of the partition
    itself. It records a decision: a retention that was killed may have left objects that it names, and the next run
    deletes these. A later segment with these offsets is another segment.

    These are the policy (``window``), the ``report`` that named them a day before, and the ledger whose evidence gives
    each offset a class. ``by`` is the name that the run gives, ``written_as`` the identity under which it wrote: see
    :func:`tidemark.store.identity.identity`. ``segments`` are in the order of their removal.
    """

    most_bytes: ClassVar[int] = object_sizes.TOMBSTONE

    cluster: str
    topic: str
    topic_id: str | None
    incarnation: int = Field(ge=0)
    partition: int = Field(ge=0)
    start: int = Field(alias="from", ge=0)
    end: int = Field(alias="to", ge=0)
    by: str = Field(min_length=1)
    written_as: str = Field(min_length=1)
    at: AwareDatetime
    window: Duration
    report: str = Field(min_length=1)
    ledger_n: int = Field(ge=1)
    ledger_attempt: int = Field(ge=1)
    segments: tuple[RemovedSegment, ...] = Field(min_length=1)

    def names(self, name: str, etag: str) -> bool:
        """True if the tombstone removes this very version of the file ``name``."""
        return any(name in segment.objects and segment.objects[name].etag == etag for segment in self.segments)


class GivenUpPartition(Model):
    """The offsets ``spans`` of a partition, held by ``ranges`` of packs in ``size`` bytes."""

    partition: int = Field(ge=0)
    spans: tuple[tuple[int, int], ...] = Field(min_length=1)
    ranges: int = Field(ge=1)
    size: int = Field(ge=1)


class PackTombstone(StoredObject):
    """The ranges of a topic id that a person gives up. ``by`` and ``written_as`` are as in a tombstone of segments.

    They are given up since nothing will ever seal them. The record counts for packs that were stored before it, and
    once no run is left that was planned with them.
    """

    most_bytes: ClassVar[int] = object_sizes.TOMBSTONE

    cluster: str
    topic: Topic
    topic_id: TopicId
    by: str = Field(min_length=1)
    written_as: str = Field(min_length=1)
    at: AwareDatetime
    reason: str = Field(min_length=1)
    partitions: tuple[GivenUpPartition, ...] = Field(min_length=1)

    def key(self, control: ControlKeys) -> str:
        """The only key under which the record is valid."""
        return control.pack_tombstone(self.topic_id, stamp(self.at))


class GivenUp:
    """The ranges that all valid records together give up."""

    def __init__(self, stones: Iterable[PackTombstone]) -> None:
        """Combine ``stones``, which are valid."""
        self._spans: dict[tuple[str, int], list[tuple[datetime, Intervals]]] = {}
        for stone in stones:
            for partition in stone.partitions:
                key = (stone.topic_id, partition.partition)
                self._spans.setdefault(key, []).append((stone.at, Intervals(partition.spans)))

    def covers(self, range_: Range, stored_at: datetime) -> bool:
        """True if the range of a pack, stored at ``stored_at``, is given up."""
        given_up = self._spans.get((range_.topic_id, range_.partition), ())
        return any(stored_at <= at and spans.covers(range_.first, range_.next) for at, spans in given_up)


class BuriedObject(Model):
    """The size and the version of an object."""

    size: int = Field(ge=0)
    etag: str


class LeftLog(Model):
    """The log of a segment that goes, ``key`` in ``store``, which is another system's (``owner``) and stays there."""

    store: str
    key: str
    owner: str


class BuriedSegment(Model):
    """A segment that goes: ``objects`` by file name, and the ETag of its manifest, empty if it has none.

    ``left`` is its log if that is another system's object: it is no object of the segment, and is not deleted.
    """

    base_offset: int = Field(ge=0)
    suffix: str = ""
    next_offset: int = Field(ge=0)
    manifest_etag: str
    objects: dict[str, BuriedObject]
    left: LeftLog | None = None

    @property
    def name(self) -> SegmentName:
        """The common name of the segment's objects."""
        return SegmentName(self.base_offset, self.suffix)

    @property
    def etags(self) -> dict[str, str]:
        """The version of each object, by file name."""
        return {name: buried.etag for name, buried in self.objects.items()}

    def versions(self, keys: PartitionKeys) -> Iterator[tuple[str, str]]:
        """The (key, ETag) pairs of all objects, that of the manifest among them."""
        if self.manifest_etag:
            yield keys.manifest(self.name), self.manifest_etag
        yield from ((keys.file(file), etag) for file, etag in self.etags.items())


class Buried(StoredObject):
    """The segments of a partition that the pass ``attempt`` deletes; ``gone``: when no version of them was left."""

    most_bytes: ClassVar[int] = object_sizes.TOMBSTONE

    cluster: str
    place: str
    partition: int = Field(ge=0)
    attempt: int
    at: AwareDatetime
    gone: AwareDatetime | None = None
    segments: tuple[BuriedSegment, ...] = Field(min_length=1)

    def versions(self, keys: PartitionKeys) -> Iterator[tuple[str, str]]:
        """The (key, ETag) pairs of all objects."""
        return (pair for segment in self.segments for pair in segment.versions(keys))

    def key(self, control: ControlKeys) -> str:
        """The key of the record: no other of the pass begins with the same segment."""
        first = self.segments[0].name.file("log")
        return f"{control.buried(self.place, self.partition)}{first[:OFFSET_DIGITS]}-{self.attempt}.json"
