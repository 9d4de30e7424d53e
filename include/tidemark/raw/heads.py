"""The sources of the live end: heads and lines of packs, and the order in which a partition is read.

All readers take the heads first, then ``offset.wm``, then the manifests. In another order a seal and a shorter tail may
replace a longer one between two reads, and the offsets between seem to be missing (docs/architecture.md). So a head
that was read some time ago is not wrong, but only incomplete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import NamedTuple

from tidemark.errors import FormatError, StoreError
from tidemark.formats.keys import ControlKeys, PartitionKeys
from tidemark.formats.raw import head
from tidemark.formats.raw.head import HeadEntry, PartitionOfId
from tidemark.raw.objects import StoredWatermark
from tidemark.raw.packs import PackLines
from tidemark.store import Store

log = logging.getLogger(__name__)

Entries = Mapping[PartitionOfId, tuple[HeadEntry, ...]]
"""A head's entries."""

ReadHead = Entries | FormatError | StoreError
"""A head's entries, or the error of reading it."""


class PartitionLook(NamedTuple):
    """A partition's ``offset.wm``, and its entries in the heads that it lists, which were read before it.

    ``errors`` are those of the listed heads that cannot be read.
    """

    stored: StoredWatermark
    entries: Sequence[HeadEntry]
    errors: Sequence[FormatError | StoreError]


def look_at_partition(
    partition: int,
    brokers: frozenset[int],
    read_heads: Callable[[frozenset[int]], Mapping[int, ReadHead]],
    read_watermark: Callable[[], StoredWatermark | None],
) -> PartitionLook | None:
    """Read the heads of ``brokers``, then ``offset.wm``; None without ``offset.wm``. The manifests come after this.

    If it lists other brokers, their heads are read, and it is read again. ``read_heads`` returns the heads by broker.
    Raises the errors of both functions.
    """
    while True:
        heads = read_heads(brokers)
        stored = read_watermark()
        if stored is None:
            return None
        listed = stored.watermark.tail_brokers
        if listed <= brokers:
            break
        brokers |= listed
    wanted = PartitionOfId(stored.watermark.topic_id or "", partition)
    entries: list[HeadEntry] = []
    errors: list[FormatError | StoreError] = []
    for found in (heads[broker] for broker in sorted(listed)):
        if isinstance(found, FormatError | StoreError):
            errors.append(found)
        else:
            entries += found.get(wanted, ())
    return PartitionLook(stored, entries, errors)


class Unread:
    """The parts of raw that cannot be read, each named once. Those of the live end land when their agents seal them.

    With ``outages``, that includes objects that the store fails to return: they land when it returns them. ``outage``
    is the first of these errors. Only a run that lands can wait so; for other readers the objects would be missing.
    """

    def __init__(self, *, outages: bool = False) -> None:
        """Begin without unread parts."""
        self._errors: dict[str, None] = {}
        self._outages = outages
        self.outage: StoreError | None = None

    def add(self, error: FormatError | StoreError) -> None:
        """Note an unreadable object by its error; raises an error of the store without ``outages``."""
        if isinstance(error, StoreError):
            if not self._outages:
                raise error
            self.outage = self.outage or error
        if str(error) not in self._errors:
            self._errors[str(error)] = None
            log.error("a part of raw is not read; the rest lands: %s", error)

    @property
    def messages(self) -> tuple[str, ...]:
        """All noted errors, in order."""
        return tuple(self._errors)


class _HeadPlace(NamedTuple):
    """The location of a broker's head."""

    store: str
    prefix: str
    broker: int


class Heads:
    """The heads that were read so far. Thread-safe."""

    def __init__(self) -> None:
        """Begin without any head."""
        self._lock = Lock()
        self._read: dict[_HeadPlace, Future[ReadHead]] = {}

    def look(
        self, store: Store, keys: PartitionKeys, read_watermark: Callable[[], StoredWatermark | None]
    ) -> PartitionLook | None:
        """Look at a partition of ``store``, see :func:`look_at_partition`; each head is read once."""
        known = self._known(keys)
        return look_at_partition(
            keys.partition, known, lambda brokers: self._heads(store, keys, brokers), read_watermark
        )

    def _known(self, keys: PartitionKeys) -> frozenset[int]:
        """The brokers with heads, in the partition's store and prefix, that have been read by now."""
        prefix = keys.endpoint.store, keys.endpoint.prefix
        with self._lock:
            return frozenset(place.broker for place, read in self._read.items() if place[:2] == prefix and read.done())

    def _heads(self, store: Store, keys: PartitionKeys, brokers: Iterable[int]) -> dict[int, ReadHead]:
        """The heads of ``brokers`` in the partition's prefix; those that are not known are read.

        An error of the store is kept as well, so that no other partition requests this head again.
        """
        heads: dict[int, ReadHead] = {}
        for broker in brokers:
            place = _HeadPlace(keys.endpoint.store, keys.endpoint.prefix, broker)
            with self._lock:
                is_first = place not in self._read
                read = self._read.setdefault(place, Future())
            if is_first:
                try:
                    read.set_result(_read_head(store, place, keys.cluster))
                except BaseException as error:
                    read.set_exception(error)
                    raise
            heads[broker] = read.result()
        return heads


class LiveEnd:
    """The heads and lines that topics planned together share. Thread-safe."""

    def __init__(self) -> None:
        """Begin without any head or line."""
        self.heads = Heads()
        self.lines = PackLines()


def _read_head(store: Store, place: _HeadPlace, cluster: str) -> ReadHead:
    try:
        version = head.load(store, ControlKeys(place.prefix, cluster), place.broker)
    except (FormatError, StoreError) as error:
        return error
    return version.value.by_partition if version else {}
