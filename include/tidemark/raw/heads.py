"""The sources of the live end: heads and lines of packs, each read once for all topics that are planned together.

A head must be read before the ``offset.wm`` that judges it: see :meth:`tidemark.raw.topic.RawTopic.view`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from threading import Lock
from typing import NamedTuple, TypeVar

from tidemark.errors import FormatError, StoreError
from tidemark.formats.keys import ControlKeys, PartitionKeys
from tidemark.formats.raw import head
from tidemark.formats.raw.head import HeadEntry, PartitionOfId
from tidemark.raw.packs import PackLines
from tidemark.store import Store

log = logging.getLogger(__name__)

Marks = TypeVar("Marks")

Entries = Mapping[PartitionOfId, tuple[HeadEntry, ...]]
"""A head's entries."""


class Unread:
    """The parts of the live end that cannot be read, each named once. They land when their agents have sealed them.

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
            log.error("a part of the live end is not read; what is sealed lands: %s", error)

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
        self._read: dict[_HeadPlace, Future[Entries | FormatError | StoreError]] = {}

    def known(self, keys: PartitionKeys) -> frozenset[int]:
        """The brokers with heads, in the partition's store and prefix, that have been read by now."""
        prefix = keys.endpoint.store, keys.endpoint.prefix
        with self._lock:
            return frozenset(place.broker for place, read in self._read.items() if place[:2] == prefix and read.done())

    def read(self, store: Store, keys: PartitionKeys, brokers: Iterable[int]) -> None:
        """Read the heads of ``brokers`` in the partition's prefix, unless they are known; ``store`` is the partition's.

        An error of the store is kept as well, so that no other partition requests this head again.
        """
        for broker in brokers:
            place = _HeadPlace(keys.endpoint.store, keys.endpoint.prefix, broker)
            with self._lock:
                is_first = place not in self._read
                read = self._read.setdefault(place, Future())
            if is_first:
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
        """The result of ``marks``, which reads ``offset.wm``, after the heads of all brokers in it; None without one.

        ``listed`` returns these brokers. If ``offset.wm`` lists brokers whose heads are not known, it is read again.
        Raises the errors of :meth:`read` and ``marks``.
        """
        while True:
            known = self.known(keys)
            read = marks()
            if read is None or listed(read) <= known:
                return read
            self.read(store, keys, listed(read) - known)

    def entries(
        self,
        keys: PartitionKeys,
        topic_id: str | None,
        brokers: Iterable[int],
        on_damage: Callable[[FormatError | StoreError], None],
    ) -> list[HeadEntry]:
        """A partition's entries in the known heads of ``brokers``; ``on_damage`` gets the errors of unread heads."""
        prefix = keys.endpoint.store, keys.endpoint.prefix
        entries: list[HeadEntry] = []
        for known in (self._read[_HeadPlace(*prefix, broker)].result() for broker in brokers):
            if isinstance(known, FormatError | StoreError):
                on_damage(known)
            else:
                entries += known.get(PartitionOfId(topic_id or "", keys.partition), ())
        return entries


class LiveEnd:
    """The heads and lines that topics planned together share. Thread-safe."""

    def __init__(self) -> None:
        """Begin without any head or line."""
        self.heads = Heads()
        self.lines = PackLines()


def _entries(store: Store, place: _HeadPlace, cluster: str) -> Entries | FormatError | StoreError:
    try:
        version = head.load(store, ControlKeys(place.prefix, cluster), place.broker)
    except (FormatError, StoreError) as error:
        return error
    return version.value.by_partition if version else {}
