"""The watermark index: all that one broker leads, at a glance, so that a watcher reads 10³ objects and not 10⁶.

Each agent writes its own (``_watermarks/<cluster>/<broker>.json``) on change, at most every 10 s, and every 60 s
when idle. A reader merges them: per partition the entry with the highest (epoch, next offset) counts, within the
newest topic id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pydantic import AwareDatetime, Field

from tidemark.gaps import Gap
from tidemark.layout import TopicPartition
from tidemark.stored import Part, StoredObject


class IndexEntry(Part):
    """One led partition. ``uploaded_end`` is the end of the last uploaded segment, be it beyond a hole.

    ``provisional`` is the base offset of the uploaded segment that may still grow, ``bytes_per_offset`` how many bytes
    an offset takes in the newest uploaded segment (null: not known), ``observed_at`` the latest moment at which this
    broker is known to have led the partition with these offsets. ``active_...`` are of the segment that
    Kafka appends to, as far as the agent could read it; its timestamps are null while it has no record.
    """

    topic: str
    partition: int = Field(ge=0)
    topic_id: str | None
    incarnation: int = Field(ge=0)
    leader_epoch: int
    next_offset: int
    uploaded_end: int
    provisional: int | None = None
    bytes_per_offset: float | None = Field(default=None, gt=0)
    log_end_offset: int
    high_watermark: int
    active_base_offset: int | None = None
    active_first_timestamp: int | None = None
    active_max_timestamp: int | None = None
    observed_at: AwareDatetime
    gaps: tuple[Gap, ...] = ()


class WatermarkIndex(StoredObject):
    """What one broker's agent knows of the partitions that it leads.

    ``endpoints`` is a digest of where its segments go, by which the agent tells whether the entries still hold.
    """

    cluster: str
    broker: int
    agent_version: str
    written_at: AwareDatetime
    endpoints: str | None = None
    entries: tuple[IndexEntry, ...] = ()


class Led(NamedTuple):
    """The entry that counts for a partition, and the broker that says it."""

    broker: int
    entry: IndexEntry


def merge(indexes: Iterable[WatermarkIndex]) -> Mapping[TopicPartition, IndexEntry]:
    """The entry that counts for each partition: newest incarnation, then highest (leader epoch, next offset)."""
    return {at: led.entry for at, led in leaders(indexes).items()}


def leaders(indexes: Iterable[WatermarkIndex]) -> Mapping[TopicPartition, Led]:
    """As :func:`merge`, each entry with its broker."""
    newest: dict[TopicPartition, Led] = {}
    for index in indexes:
        for entry in index.entries:
            at = TopicPartition(entry.topic, entry.partition)
            known = newest.get(at)
            if known is None or _rank(entry) > _rank(known.entry):
                newest[at] = Led(index.broker, entry)
    return newest


def _rank(entry: IndexEntry) -> tuple[int, int, int]:
    return entry.incarnation, entry.leader_epoch, entry.next_offset
