"""Reads the records of what was removed from raw: by retention, by a person, or after erased records were taken out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final, NamedTuple

from tidemark.concurrency import in_parallel
from tidemark.errors import FormatError
from tidemark.formats.keys import OFFSET_DIGITS, place_of
from tidemark.formats.raw.tombstones import Buried, GivenUp, PackTombstone, Tombstone
from tidemark.intervals import Intervals
from tidemark.storage import ClusterStore, PartitionStore
from tidemark.timestamps import stamp

_MOST: Final = 1 << 14
"""Most tombstones whose content a process remembers: some hundred bytes each."""

_known: Final[dict[tuple[str, str, str], Removed]] = {}
"""The tombstones that were read, by store, key and ETag."""


class Removed(NamedTuple):
    """The offsets and the key of a tombstone."""

    start: int
    end: int
    key: str


def named(partition: PartitionStore) -> Iterator[Removed]:
    """The offsets in the names of a partition's tombstones, by first offset: a hint at where to look, and no proof."""
    folder = partition.keys.control.tombstones(partition.keys.place, partition.keys.partition)
    for info in partition.store.list(folder):
        start, _, rest = info.key.removeprefix(folder).partition("-")
        end = rest[:OFFSET_DIGITS]
        if start.isdigit() and end.isdigit():
            yield Removed(int(start), int(end), info.key)


def listed(partition: PartitionStore) -> list[Removed]:
    """The tombstones of a partition, by first offset. A process reads each once: they never change.

    Raises:
        FormatError: a tombstone does not parse, or is of another partition or other offsets than its key names.
    """
    infos = list(
        partition.store.list(partition.keys.control.tombstones(partition.keys.place, partition.keys.partition))
    )
    return in_parallel(lambda info: _in_short(partition, info.key, info.etag), infos)


def removed(partition: PartitionStore) -> Intervals:
    """The offsets of the segments that retention has removed, or began to. Raises errors of :func:`listed`."""
    return Intervals.of(listed(partition))


def read(partition: PartitionStore, key: str) -> Tombstone:
    """The tombstone under ``key``. Raises errors of :func:`listed`."""
    stone = Tombstone.load(partition.store, key)
    place = _place(stone, key)
    if (stone.cluster, place, stone.partition) != (
        partition.keys.cluster,
        partition.keys.place,
        partition.keys.partition,
    ):
        raise FormatError(key, f"is about {stone.cluster}/{place}-{stone.partition}, but its key names another")
    if key != partition.keys.control.tombstone(
        partition.keys.place, partition.keys.partition, stone.start, stone.end, stamp(stone.at)
    ):
        raise FormatError(key, f"is about offsets {stone.start} to {stone.end} at {stone.at}, but its key names others")
    bounds = [(segment.base_offset, segment.next_offset) for segment in stone.segments]
    if (min(base for base, _ in bounds), max(end for _, end in bounds)) != (stone.start, stone.end):
        raise FormatError(key, f"removes segments that do not reach from {stone.start} to {stone.end}")
    return stone


def _in_short(partition: PartitionStore, key: str, etag: str) -> Removed:
    known = _known.get((partition.store.url, key, etag))
    if known is None:
        stone = read(partition, key)
        if len(_known) >= _MOST:
            _known.clear()
        known = _known[partition.store.url, key, etag] = Removed(stone.start, stone.end, key)
    return known


def _place(stone: Tombstone, key: str) -> str:
    try:
        return place_of(stone.topic, stone.topic_id, first=stone.incarnation == 0)
    except ValueError as error:
        raise FormatError(key, str(error)) from error


def given_up(cluster: ClusterStore, before: datetime, on_damage: Callable[[FormatError], None]) -> GivenUp:
    """The valid records beside the packs, written before a time; ``on_damage`` gets errors of invalid records.

    Raises:
        StoreError: the store failed.
    """
    store, control = cluster.store, cluster.keys
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
    return GivenUp(stones)


def read_buried(cluster: ClusterStore, place: str, partition: int) -> Iterator[Buried]:
    """All records of a partition.

    Raises:
        FormatError: one does not parse.
        StoreError: the store failed.
    """
    for info in cluster.store.list(cluster.keys.buried(place, partition)):
        yield Buried.load(cluster.store, info.key)
