"""The record of ranges of packs that a person has given up, since nothing will ever seal them.

It is written once, before a pack goes for it, and never changed. It counts only if its content agrees with its key, for
the packs that were stored before it, and once no run is left that was planned with them.
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
from tidemark.formats.pack import Range, Topic, TopicId
from tidemark.intervals import Intervals
from tidemark.store import Store
from tidemark.timestamps import stamp


class GivenUpPartition(Model):
    """The offsets ``spans`` of a partition, which ``ranges`` of packs hold in ``size`` bytes."""

    partition: int = Field(ge=0)
    spans: tuple[tuple[int, int], ...] = Field(min_length=1)
    ranges: int = Field(ge=1)
    size: int = Field(ge=1)


class PackTombstone(StoredObject):
    """What a person gives up of a topic id. ``by`` and ``written_as`` are as in a tombstone of segments."""

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
        """The key under which it counts."""
        return control.pack_tombstone(self.topic_id, stamp(self.at))


class GivenUp:
    """What all records together give up."""

    def __init__(self, stones: Iterable[PackTombstone]) -> None:
        """``stones`` are those that count."""
        self._spans: dict[tuple[str, int], list[tuple[datetime, Intervals]]] = {}
        for stone in stones:
            for one in stone.partitions:
                self._spans.setdefault((stone.topic_id, one.partition), []).append((stone.at, Intervals(one.spans)))

    @classmethod
    def read(
        cls, store: Store, control: ControlKeys, before: datetime, on_damage: Callable[[FormatError], None]
    ) -> Self:
        """The records beside the packs that were written before a time; ``on_damage`` is told of invalid ones.

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

    def covers(self, one: Range, stored_at: datetime) -> bool:
        """Whether the range of a pack that was stored at a time is given up."""
        given_up = self._spans.get((one.topic_id, one.partition), ())
        return any(stored_at <= at and spans.covers(one.first, one.next) for at, spans in given_up)
