"""The record of the raw segments that retention removed: written before the first is deleted, and never changed.

A tombstone's key is ``_tombstones/<cluster>/<topic>-<p>/<from>-<to>-<time>.json``, in the store and prefix of the
partition itself. It counts only if its content agrees with its key: a name alone removes nothing. It records a
decision: a retention that was killed may have left objects that it names, and the next run deletes these. A later
segment of the same offsets is another segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final, NamedTuple

from pydantic import AwareDatetime, Field

from tidemark.concurrency import in_parallel
from tidemark.config import Duration
from tidemark.errors import FormatError
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.keys import OFFSET_DIGITS, PartitionKeys, SegmentName, place_of
from tidemark.formats.manifest import ObjectSum
from tidemark.intervals import Intervals
from tidemark.store import Store
from tidemark.timestamps import stamp

_MOST: Final = 1 << 14
"""Tombstones of which a process remembers what they say: some hundred bytes each."""


class RemovedSegment(Model):
    """A segment that is removed: ``objects`` by file name, and its manifest, whose ETag is ``manifest_etag``."""

    base_offset: int = Field(ge=0)
    suffix: str = ""
    next_offset: int = Field(ge=0)
    uploaded_at: AwareDatetime
    manifest_etag: str
    objects: dict[str, ObjectSum]

    @property
    def name(self) -> SegmentName:
        """What the segment's objects are called."""
        return SegmentName(self.base_offset, self.suffix)

    @property
    def size(self) -> int:
        """Bytes of the objects, manifest apart."""
        return sum(one.size for one in self.objects.values())


class Tombstone(StoredObject):
    """The segments of ``[start, end)`` that go, and on what that rests.

    That is the policy (``window``), the ``report`` that named them a day before, and the ledger whose evidence gives
    each offset a class. ``by`` is whom the run names, ``written_as`` the identity under which it wrote: see
    :func:`tidemark.store.identity.identity`. ``segments`` are in the order in which they go.
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
        """Whether it removes this very version of the file ``name``."""
        return any(name in one.objects and one.objects[name].etag == etag for one in self.segments)


class Removed(NamedTuple):
    """A tombstone in short."""

    start: int
    end: int
    key: str


def named(store: Store, keys: PartitionKeys) -> Iterator[Removed]:
    """What the names of a partition's tombstones say, by their first offset: where to look, and nothing to believe."""
    folder = keys.control.tombstones(keys.place, keys.partition)
    for info in store.list(folder):
        start, _, rest = info.key.removeprefix(folder).partition("-")
        end = rest[:OFFSET_DIGITS]
        if start.isdigit() and end.isdigit():
            yield Removed(int(start), int(end), info.key)


def listed(store: Store, keys: PartitionKeys) -> list[Removed]:
    """The tombstones of a partition, by their first offset. Each is read once by a process: they never change.

    Raises:
        FormatError: one does not parse, or is not of the partition and the offsets that its key names.
        StoreError: the store failed.
    """
    found = list(store.list(keys.control.tombstones(keys.place, keys.partition)))
    return in_parallel(lambda info: _in_short(store, keys, info.key, info.etag), found)


def removed(store: Store, keys: PartitionKeys) -> Intervals:
    """The offsets of a partition whose segments retention has removed, or was about to. Raises as :func:`listed`."""
    return Intervals((one.start, one.end) for one in listed(store, keys))


def read(store: Store, keys: PartitionKeys, key: str) -> Tombstone:
    """The tombstone under ``key``. Raises FormatError as :func:`listed`."""
    stone = Tombstone.load(store, key)
    place = _place(stone, key)
    if (stone.cluster, place, stone.partition) != (keys.cluster, keys.place, keys.partition):
        raise FormatError(key, f"is about {stone.cluster}/{place}-{stone.partition}, but its key names another")
    if key != keys.control.tombstone(keys.place, keys.partition, stone.start, stone.end, stamp(stone.at)):
        raise FormatError(key, f"is about offsets {stone.start} to {stone.end} at {stone.at}, but its key names others")
    bounds = [(one.base_offset, one.next_offset) for one in stone.segments]
    if (min(one for one, _ in bounds), max(one for _, one in bounds)) != (stone.start, stone.end):
        raise FormatError(key, f"removes segments that do not reach from {stone.start} to {stone.end}")
    return stone


_known: Final[dict[tuple[str, str, str], Removed]] = {}
"""What was read, by store, key and ETag."""


def _in_short(store: Store, keys: PartitionKeys, key: str, etag: str) -> Removed:
    found = _known.get((store.url, key, etag))
    if found is None:
        stone = read(store, keys, key)
        if len(_known) >= _MOST:
            _known.clear()
        found = _known[store.url, key, etag] = Removed(stone.start, stone.end, key)
    return found


def _place(stone: Tombstone, key: str) -> str:
    try:
        return place_of(stone.topic, stone.topic_id, first=stone.incarnation == 0)
    except ValueError as error:
        raise FormatError(key, str(error)) from error
