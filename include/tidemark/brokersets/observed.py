"""The load of partitions according to the agents' watermark indexes.

A single observation estimates a partition's rate: the bytes of its active segment by the time since its first record.
Two observations measure it: the growth of the log by the time between them. Bytes are offsets times the bytes of an
offset in the newest uploaded segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidemark.brokersets.load import PartitionLoad
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import IndexEntry, LeaderEntry

_SHORTEST: Final = 10.0
"""Seconds; an active segment younger than this gives no useful rate."""


def loads(
    led: Mapping[TopicPartition, LeaderEntry],
    before: Mapping[TopicPartition, LeaderEntry] | None = None,
    replicas: Mapping[TopicPartition, tuple[int, ...]] | None = None,
) -> list[PartitionLoad]:
    """The load of the partitions of ``led``. Rates are measured since ``before`` if that is given and older."""
    partitions = []
    for at, (broker, entry) in sorted(led.items()):
        earlier = before.get(at) if before is not None else None
        rate = _measured(earlier.entry, entry) if earlier is not None else _estimated(entry)
        partitions.append(
            PartitionLoad(
                topic=at.topic,
                partition=at.partition,
                leader=broker,
                rate=rate,
                lag=0 if entry.stored_end is None else max(0, entry.high_watermark - entry.stored_end),
                held=_held(entry),
                replicas=(replicas or {}).get(at, ()),
            )
        )
    return partitions


def _estimated(entry: IndexEntry) -> float | None:
    if entry.bytes_per_offset is None or entry.active_base_offset is None or entry.active_first_timestamp is None:
        return None
    seconds = entry.observed_at.timestamp() - entry.active_first_timestamp / 1000
    if seconds < _SHORTEST:
        return None
    return (entry.log_end_offset - entry.active_base_offset) * entry.bytes_per_offset / seconds


def _measured(before: IndexEntry, entry: IndexEntry) -> float | None:
    """The measured rate; also None if the log is another one, or was truncated."""
    seconds = (entry.observed_at - before.observed_at).total_seconds()
    grown = entry.log_end_offset - before.log_end_offset
    if entry.bytes_per_offset is None or seconds <= 0 or grown < 0 or entry.incarnation != before.incarnation:
        return None
    return grown * entry.bytes_per_offset / seconds


def _held(entry: IndexEntry) -> float | None:
    if entry.bytes_per_offset is None or entry.active_base_offset is None:
        return None
    return max(0, entry.active_base_offset - entry.next_offset) * entry.bytes_per_offset
