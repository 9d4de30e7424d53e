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

from tidemark.errors import FormatError, LaterFormat, NotFound, PreconditionFailed, StoreError
from tidemark.formats.base import Version
from tidemark.formats.keys import Endpoint
from tidemark.formats.raw.head import Head, HeadEntry, PartitionOfId
from tidemark.raw.packs import PackLines
from tidemark.storage import ClusterStore, PartitionStore, StoredWatermark

log = logging.getLogger(__name__)

Entries = Mapping[PartitionOfId, tuple[HeadEntry, ...]]
"""A head's entries."""

ReadHead = Entries | FormatError | StoreError
"""A head's entries, or the error of reading it."""


class DamagedVersion(NamedTuple):
    """A damaged object under the key of a head, with its ``etag``."""

    etag: str
    error: FormatError


def find_head(cluster: ClusterStore, broker: int) -> Version[Head] | DamagedVersion | None:
    """The object under the key of the head of ``broker``; None if there is nothing.

    It is damaged if it is too large, does not parse, or belongs to another broker or cluster than its key.

    Raises:
        LaterFormat: a later version wrote it.
        StoreError: the store failed.
    """
    key = cluster.keys.head(broker)
    try:
        body, etag = cluster.store.get(key, limit=Head.most_bytes)
    except NotFound:
        return None
    except FormatError as error:
        info = cluster.store.head(key)  # the bytes were not received
        if info.size <= Head.most_bytes:
            raise PreconditionFailed(key, "was replaced while it was read: read it again") from error
        return DamagedVersion(info.etag, error)
    try:
        head = Head.from_bytes(body, key)
    except LaterFormat:
        raise
    except FormatError as error:
        return DamagedVersion(etag, error)
    if (head.cluster, head.broker) != (cluster.keys.cluster, broker):
        rule = f"is of broker {head.broker} of {head.cluster}, but its key names another"
        return DamagedVersion(etag, FormatError(key, rule))
    return Version(head, etag)


def read_head(cluster: ClusterStore, broker: int) -> Version[Head] | None:
    """The head of ``broker``; None if it has never written one.

    Raises:
        FormatError: the object is damaged, see :func:`find_head`.
        StoreError: the store failed.
    """
    version = find_head(cluster, broker)
    if isinstance(version, DamagedVersion):
        raise version.error
    return version


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


class Heads:
    """The heads that were read so far. Thread-safe."""

    def __init__(self) -> None:
        """Begin without any head."""
        self._lock = Lock()
        self._read: dict[tuple[Endpoint, int], Future[ReadHead]] = {}

    def look(
        self, partition: PartitionStore, read_watermark: Callable[[], StoredWatermark | None]
    ) -> PartitionLook | None:
        """Look at a partition, see :func:`look_at_partition`; each head is read once."""
        known = self._known(partition.keys.endpoint.root)
        return look_at_partition(
            partition.keys.partition, known, lambda brokers: self._heads(partition, brokers), read_watermark
        )

    def _known(self, root: Endpoint) -> frozenset[int]:
        """The brokers with heads at ``root`` that have been read by now."""
        with self._lock:
            return frozenset(broker for (at, broker), read in self._read.items() if at == root and read.done())

    def _heads(self, partition: PartitionStore, brokers: Iterable[int]) -> dict[int, ReadHead]:
        """The heads of ``brokers`` in the partition's prefix; those that are not known are read.

        An error of the store is kept as well, so that no other partition requests this head again.
        """
        heads: dict[int, ReadHead] = {}
        for broker in brokers:
            name = partition.keys.endpoint.root, broker
            with self._lock:
                is_first = name not in self._read
                read = self._read.setdefault(name, Future())
            if is_first:
                try:
                    read.set_result(_read_entries(partition.cluster, broker))
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


def _read_entries(cluster: ClusterStore, broker: int) -> ReadHead:
    try:
        version = read_head(cluster, broker)
    except (FormatError, StoreError) as error:
        return error
    return version.value.by_partition if version else {}
