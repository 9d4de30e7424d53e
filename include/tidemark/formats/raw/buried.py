"""The record of the segments that an erasure deletes after it has rewritten them: written before the first deletion.

A pass that is killed leaves objects without a manifest, or former versions of them, that such a record names, and the
next pass deletes these. A record holds nothing of the records of a log, and no checksum, with which one could test a
guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.keys import OFFSET_DIGITS, ControlKeys, PartitionKeys, SegmentName


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
