"""A head: the data of one bucket and prefix that one broker has packed and not sealed yet.

``_heads/<cluster>/<broker>.json`` is put after each pack, by If-Match on the version that its agent read when it
started. An entry names the last range of a chain, see :func:`tidemark.raw.packs.chain`. It stays until seals hold the
chain, also over restarts and lost leaderships. Readers read a head first, then ``offset.wm``, then the manifests.

Source: docs/agent-design.md, "The head".
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Final, NamedTuple, Self

from pydantic import AwareDatetime, Field, model_validator
from typing_extensions import override

from tidemark.errors import FormatError
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject, canonical, canonical_list, joined_list
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.manifest import LineagePairs, Restores
from tidemark.formats.raw.pack import RangePointer, Topic, TopicId
from tidemark.kafka_log import Lineage

MOST_ENTRY_BYTES: Final = object_sizes.HEAD - 4096
"""Most bytes that the entries of a head take together, as rendered by :func:`entry_json` and with commas. The rest is
for the head's other fields."""


class PartitionOfId(NamedTuple):
    """A partition of one incarnation, as heads name it."""

    topic_id: str
    partition: int


class EntryKey(NamedTuple):
    """The identity of an entry in a head."""

    topic_id: str
    partition: int
    epoch: int
    restored: int = 0
    """The number of restores: a restored broker may give out an epoch again."""


class HeadEntry(Model):
    """The tail of a partition that this broker has packed as the leader of ``epoch``.

    The tail ends at ``tail_end``. ``last`` is its last range, which begins the chain. ``lineage`` is the leader's, from
    the epoch at the end of the seals on. ``observed_at`` is the time at which the broker reported ``high_watermark``,
    ``oldest_unstored`` the age in seconds of the oldest byte that was not stored then (null: not known). Beyond the
    seals, the chain has ``ranges`` of ``size`` bytes in all, the first packed at ``since``: the agents' limits apply to
    these.
    """

    topic: Topic
    topic_id: TopicId
    partition: int = Field(ge=0)
    epoch: int = Field(ge=0)
    lineage: LineagePairs = Field(min_length=1)
    restores: Restores = ()
    tail_end: int = Field(ge=0)
    last: RangePointer
    high_watermark: int = Field(ge=0)
    observed_at: AwareDatetime
    oldest_unstored: float | None = Field(default=None, ge=0)
    ranges: int = Field(default=0, ge=0)
    size: int = Field(default=0, ge=0)
    since: AwareDatetime | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            Lineage.of(self.lineage, "lineage")
        except FormatError as error:
            raise ValueError(str(error)) from error
        if self.lineage[-1][0] != self.epoch:
            raise ValueError("lineage must end with epoch: nothing is packed before the log has the leader's own epoch")
        if not self.lineage[0][1] < self.tail_end <= self.high_watermark:
            raise ValueError("tail_end must be above the lineage's start, and at or below high_watermark")
        return self

    @property
    def key(self) -> EntryKey:
        """The entry's identity."""
        return EntryKey(self.topic_id, self.partition, self.epoch, len(self.restores))

    @property
    def leadership(self) -> tuple[int, int]:
        """The number of restores and the leader epoch: the later pair is the later leadership."""
        return len(self.restores), self.epoch

    @property
    def history(self) -> Lineage:
        """The leader's lineage, from the epoch at the end of the seals on."""
        return Lineage(self.lineage, self.restores)


class Head(StoredObject):
    """All tails of one broker. ``agent`` is the version of the agent that wrote it."""

    most_bytes: ClassVar[int] = object_sizes.HEAD

    cluster: str
    broker: int = Field(ge=0)
    agent: str
    written_at: AwareDatetime
    entries: tuple[HeadEntry, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        seen: set[EntryKey] = set()
        for number, entry in enumerate(self.entries):
            if entry.key in seen:
                raise ValueError(f"entries.{number}: a second entry for one topic id, partition and epoch")
            if entry.last.name.broker != self.broker:
                raise ValueError(f"entries.{number}.last.pack: is of broker {entry.last.name.broker}")
            seen.add(entry.key)
        return self

    @override
    def to_bytes(self) -> bytes:
        fields = self.model_dump(mode="json", exclude={"entries"})
        return canonical_list(fields, "entries", (entry.model_dump(mode="json") for entry in self.entries))

    @property
    def by_key(self) -> dict[EntryKey, HeadEntry]:
        """The entries by identity."""
        return {entry.key: entry for entry in self.entries}

    @property
    def by_partition(self) -> dict[PartitionOfId, tuple[HeadEntry, ...]]:
        """The entries of each partition, in order."""
        entries: dict[PartitionOfId, tuple[HeadEntry, ...]] = {}
        for entry in self.entries:
            name = PartitionOfId(entry.topic_id, entry.partition)
            entries[name] = (*entries.get(name, ()), entry)
        return entries


def entry_json(entry: HeadEntry) -> bytes:
    """The entry as rendered in a head. All entries together take at most :data:`MOST_ENTRY_BYTES`, with commas.

    A partition whose entry has no room is sealed and not packed.
    """
    return canonical(entry.model_dump(mode="json"))


def parse_head(body: bytes, key: str) -> Head:
    """The head that was listed as ``key``.

    Raises:
        FormatError: it does not parse, or belongs to another broker than its key.
    """
    head = Head.from_bytes(body, key)
    if not key.endswith(f"/{head.broker}.json"):
        raise FormatError(key, f"is of broker {head.broker}, but its key names another broker")
    return head


def render(head: Head, control: ControlKeys, entries: Collection[bytes] | None = None) -> tuple[str, bytes]:
    """(key, body) to store ``head``; ``entries`` from :func:`entry_json` replace its own, if given.

    Raises:
        FormatError: it is larger than the limit of a head.
    """
    key = control.head(head.broker)
    entries = [*map(entry_json, head.entries)] if entries is None else entries
    body = joined_list(head.model_dump(mode="json", exclude={"entries"}), "entries", entries)
    if len(body) > Head.most_bytes:
        rule = f"entries: {len(entries)} take {len(body)} bytes with the rest, and may take {Head.most_bytes}"
        raise FormatError(key, f"{rule}: leave partitions out, and seal them")
    return key, body
