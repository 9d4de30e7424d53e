"""What the live end is read by: heads and lines of packs, each read once for all that is planned together.

A head must be read before the ``offset.wm`` by which it is judged: see :meth:`tidemark.raw.topic.RawTopic.view`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from threading import Lock
from typing import NamedTuple, TypeVar

from tidemark.errors import FormatError, StoreError
from tidemark.formats import head
from tidemark.formats.head import HeadEntry, PartitionOfId
from tidemark.formats.keys import ControlKeys, PartitionKeys
from tidemark.raw.packs import PackLines
from tidemark.store import Store

log = logging.getLogger(__name__)

Marks = TypeVar("Marks")

Entries = Mapping[PartitionOfId, tuple[HeadEntry, ...]]
"""A head's entries."""


class Unread:
    """What of the live end cannot be read, each named once. It lands when its agents have sealed it.

    With ``outages``, that includes what the store does not give: it lands when the store gives it. ``outage`` is the
    first of these errors. Only who lands can wait so; to others, what cannot be read would be missing.
    """

    def __init__(self, *, outages: bool = False) -> None:
        """All could be read so far."""
        self._found: dict[str, None] = {}
        self._outages = outages
        self.outage: StoreError | None = None

    def add(self, error: FormatError | StoreError) -> None:
        """Tell that an object is damaged, or that the store did not give it; raises the latter unless it may be."""
        if isinstance(error, StoreError):
            if not self._outages:
                raise error
            self.outage = self.outage or error
        if str(error) not in self._found:
            self._found[str(error)] = None
            log.error("a part of the live end is not read; what is sealed lands: %s", error)

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
        self._read: dict[_Place, Future[Entries | FormatError | StoreError]] = {}

    def known(self, keys: PartitionKeys) -> frozenset[int]:
        """The brokers whose heads, in the partition's store and prefix, have been read by now."""
        at = keys.endpoint.store, keys.endpoint.prefix
        with self._lock:
            return frozenset(place.broker for place, read in self._read.items() if place[:2] == at and read.done())

    def read(self, store: Store, keys: PartitionKeys, brokers: Iterable[int]) -> None:
        """Read the heads of ``brokers`` in the partition's prefix, unless they are known; ``store`` is the partition's.

        An error of the store's is kept as well, so that no partition asks again for a head that is not to be had.
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

    def read_before(
        self,
        store: Store,
        keys: PartitionKeys,
        marks: Callable[[], Marks | None],
        listed: Callable[[Marks], frozenset[int]],
    ) -> Marks | None:
        """What ``marks`` reads of ``offset.wm`` after the heads of all brokers that it lists; None while there is none.

        ``listed`` are these brokers. If ``offset.wm`` lists brokers whose heads are not known, it is read again.
        Raises as :meth:`read` and ``marks``.
        """
        while True:
            known = self.known(keys)
            found = marks()
            if found is None or listed(found) <= known:
                return found
            self.read(store, keys, listed(found) - known)

    def entries(
        self,
        keys: PartitionKeys,
        topic_id: str | None,
        brokers: Iterable[int],
        on_damage: Callable[[FormatError | StoreError], None],
    ) -> list[HeadEntry]:
        """What the heads of ``brokers``, which are known, say of a partition; ``on_damage`` is told of unread ones."""
        at = keys.endpoint.store, keys.endpoint.prefix
        said: list[HeadEntry] = []
        for found in (self._read[_Place(*at, broker)].result() for broker in brokers):
            if isinstance(found, FormatError | StoreError):
                on_damage(found)
            else:
                said += found.get(PartitionOfId(topic_id or "", keys.partition), ())
        return said


class LiveEnd:
    """What topics that are planned together share. Thread-safe."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self.heads = Heads()
        self.lines = PackLines()


def _entries(store: Store, place: _Place, cluster: str) -> Entries | FormatError | StoreError:
    try:
        found = head.load(store, ControlKeys(place.prefix, cluster), place.broker)
    except (FormatError, StoreError) as error:
        return error
    return found.value.by_partition if found else {}
