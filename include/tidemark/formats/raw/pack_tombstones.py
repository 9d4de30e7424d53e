"""The record of ranges of packs that a person has given up, since nothing will ever seal them.

It is written once, before a pack is deleted because of it, and never changed. It counts only if its content agrees with
its key, for packs that were stored before it, and once no run is left that was planned with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import ClassVar, Self

from pydantic import AwareDatetime, Field

from tidemark.errors import FormatError
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.pack import Range, Topic, TopicId
from tidemark.intervals import Intervals
from tidemark.store import Store
from tidemark.timestamps import stamp


class GivenUpPartition(Model):
    """The offsets ``spans`` of a partition, held by ``ranges`` of packs in ``size`` bytes."""

    partition: int = Field(ge=0)
    spans: tuple[tuple[int, int], ...] = Field(min_length=1)
    ranges: int = Field(ge=1)
    size: int = Field(ge=1)


class PackTombstone(StoredObject):
    """The ranges of a topic id that a person gives up. ``by`` and ``written_as`` are as in a tombstone of segments."""

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

    @classmethod
    def read(
        cls, store: Store, control: ControlKeys, before: datetime, on_damage: Callable[[FormatError], None]
    ) -> Self:
        """The valid records beside the packs, written before a time; ``on_damage`` gets errors of invalid records.

        Raises:
            StoreError: the store failed.
        """
        stones: list[PackTombstone] = []
        for info in store.list(control.pack_tombstones):
            try:
                stone = PackTombstone.load(store, info.key)
            except FormatError as error:
                on_damage(error)
                continue
            if (stone.cluster, stone.key(control)) != (control.cluster, info.key):
                on_damage(FormatError(info.key, f"is about {stone.topic_id} at {stone.at}, but its key says otherwise"))
            elif stone.at <= before:
                stones.append(stone)
        return cls(stones)

    def covers(self, range_: Range, stored_at: datetime) -> bool:
        """True if the range of a pack, stored at ``stored_at``, is given up."""
        given_up = self._spans.get((range_.topic_id, range_.partition), ())
        return any(stored_at <= at and spans.covers(range_.first, range_.next) for at, spans in given_up)
