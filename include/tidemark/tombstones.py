"""What retention removed of a partition's raw segments: written before the first of them is deleted, and never changed.

A tombstone lies under ``_tombstones/<cluster>/<topic>-<p>/<from>-<to>-<time>.json``, in the store and prefix of the
partition itself. Its name tells the offsets, so that readers need not open it. It stands for a decision: a retention
that was killed may have left objects that it names, and these go with the next. A segment of the same offsets that
comes later is another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import AwareDatetime, Field

from tidemark.config import Duration
from tidemark.intervals import Intervals
from tidemark.layout import OFFSET_DIGITS, ControlKeys, PartitionKeys
from tidemark.manifest import ObjectSum
from tidemark.store import Store
from tidemark.stored import Part, StoredObject


class RemovedSegment(Part):
    """A segment that is removed: ``objects`` by file name, and its manifest, whose ETag is ``manifest_etag``."""

    base_offset: int = Field(ge=0)
    next_offset: int = Field(ge=0)
    uploaded_at: AwareDatetime
    manifest_etag: str
    objects: dict[str, ObjectSum]

    @property
    def size(self) -> int:
        """Bytes of the objects, manifest apart."""
        return sum(one.size for one in self.objects.values())


class Tombstone(StoredObject):
    """The segments of ``[start, end)`` that go, by which policy (``window``), report and ledger, and at whose word.

    ``segments`` are in the order in which they go.
    """

    cluster: str
    topic: str
    topic_id: str | None
    incarnation: int = Field(ge=0)
    partition: int = Field(ge=0)
    start: int = Field(alias="from", ge=0)
    end: int = Field(alias="to", ge=0)
    by: str
    at: AwareDatetime
    window: Duration
    report: str
    ledger_n: int
    ledger_attempt: int
    segments: tuple[RemovedSegment, ...]

    def names(self, name: str, etag: str) -> bool:
        """Whether it removes this very version of the file ``name``."""
        return any(name in one.objects and one.objects[name].etag == etag for one in self.segments)


class Named(NamedTuple):
    """A tombstone as its key tells it."""

    start: int
    end: int
    key: str


def listed(store: Store, keys: PartitionKeys) -> Iterator[Named]:
    """The tombstones of a partition, by their first offset."""
    folder = control_of(keys).tombstones(keys.place, keys.partition)
    for info in store.list(folder):
        start, _, rest = info.key.removeprefix(folder).partition("-")
        end = rest[:OFFSET_DIGITS]
        if start.isdigit() and end.isdigit():
            yield Named(int(start), int(end), info.key)


def removed(store: Store, keys: PartitionKeys) -> Intervals:
    """The offsets of a partition whose segments retention has removed, or was about to."""
    return Intervals((one.start, one.end) for one in listed(store, keys))


def read(store: Store, key: str) -> Tombstone:
    """The tombstone under ``key``."""
    return Tombstone.from_bytes(store.get(key).body, key)


def control_of(keys: PartitionKeys) -> ControlKeys:
    """Where what Tidemark alone knows of a partition lies beside it: a topic that is kept apart stays apart."""
    return ControlKeys(keys.endpoint.prefix, keys.cluster)
