"""What the live end is read by: heads and lines of packs, each read once for all that is planned together.

A head must be read before the ``offset.wm`` by which it is judged: see :meth:`tidemark.raw.topic.RawTopic.view`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from threading import Lock
from typing import NamedTuple

from tidemark.errors import FormatError
from tidemark.formats import head
from tidemark.formats.head import HeadEntry, PartitionOfId
from tidemark.formats.keys import ControlKeys, PartitionKeys
from tidemark.raw.packs import PackLines
from tidemark.store import Store

log = logging.getLogger(__name__)

Entries = Mapping[PartitionOfId, tuple[HeadEntry, ...]]
"""A head's entries."""


class Unread:
    """What of the live end cannot be read, each named once. It lands when its agents have sealed it."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def add(self, error: FormatError) -> None:
        """Tell that an object is damaged."""
        if str(error) not in self._found:
            self._found[str(error)] = None
            log.error("the live end is not read where it is damaged; what is sealed lands: %s", error)

    @property
    def messages(self) -> tuple[str, ...]:
        """All that was told, in order."""
        return tuple(self._found)


class _Place(NamedTuple):
    """Where a broker's head lies."""

    store: str
    prefix: str
    broker: int


class Heads:
    """Any number of threads may ask."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._lock = Lock()
        self._read: dict[_Place, Future[Entries | FormatError]] = {}

    def known(self, keys: PartitionKeys) -> frozenset[int]:
        """The brokers whose heads, in the partition's store and prefix, have been read by now."""
        at = keys.endpoint.store, keys.endpoint.prefix
        with self._lock:
            return frozenset(place.broker for place, read in self._read.items() if place[:2] == at and read.done())

    def read(self, store: Store, keys: PartitionKeys, brokers: Iterable[int]) -> None:
        """Read the heads of ``brokers`` in the partition's prefix, unless they are known; ``store`` is the partition's.

        Raises:
            StoreError: the store failed.
        """
        for broker in brokers:
            place = _Place(keys.endpoint.store, keys.endpoint.prefix, broker)
            with self._lock:
                ours = place not in self._read
                read = self._read.setdefault(place, Future())
            if ours:
                try:
                    read.set_result(_entries(store, place, keys.cluster))
                except BaseException as error:
                    read.set_exception(error)
                    raise
            read.result()

    def entries(
        self, keys: PartitionKeys, topic_id: str | None, brokers: Iterable[int], unread: Unread
    ) -> list[HeadEntry]:
        """What the heads of ``brokers``, which are known, say of a partition; ``unread`` is told of damaged ones."""
        at = keys.endpoint.store, keys.endpoint.prefix
        said: list[HeadEntry] = []
        for found in (self._read[_Place(*at, broker)].result() for broker in brokers):
            if isinstance(found, FormatError):
                unread.add(found)
            else:
                said += found.get(PartitionOfId(topic_id or "", keys.partition), ())
        return said


class LiveEnd:
    """What topics that are planned together share. Thread-safe."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self.heads = Heads()
        self.lines = PackLines()


def _entries(store: Store, place: _Place, cluster: str) -> Entries | FormatError:
    try:
        found = head.load(store, ControlKeys(place.prefix, cluster), place.broker)
    except FormatError as error:
        return error
    return found.value.by_partition if found else {}
