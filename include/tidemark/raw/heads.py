"""The sources of the live end: heads and lines of packs, and the order in which a partition is read.

All readers take the heads first, then ``offset.wm``, then the manifests. In another order a seal and a shorter tail may
replace a longer one between two reads, and the offsets between seem to be missing (docs/architecture.md). So a head
that was read some time ago is not wrong, but only incomplete.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from threading import Lock
from typing import Final, NamedTuple

from tidemark.concurrency import Lru, in_parallel
from tidemark.errors import FormatError, LaterFormat, NotFound, PreconditionFailed, StoreError
from tidemark.formats.base import Version
from tidemark.formats.keys import Endpoint
from tidemark.formats.raw.head import Head, HeadEntry, PartitionOfId
from tidemark.formats.raw.pack import PackedRange, RangePointer, range_of_line
from tidemark.raw.packs import RangeLines, ReadLine
from tidemark.raw.partition import StoredPartition
from tidemark.storage import ClusterStore, PartitionStore, StoredWatermark

_MOST_FOOTER: Final = 1 << 20
"""The most bytes of a pack's footer that are read at once: about 2,000 lines."""

_KEPT_FOOTERS: Final = 8

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


class LiveEnd:
    """The heads and lines of packs that partitions share, which are planned or read together. Thread-safe.

    A head is read once, by the first partition that needs it. Without ``max_age`` all serve one run, so a failure of
    the store is kept as well: no other partition asks for that head again. With it they serve a reader that goes on:
    after ``max_age`` seconds one listing shows which of the heads were written again, however many partitions ask. A
    failure is not kept then, and the log has a warning about each version of a head that does not parse. The lines that
    are read together are then those that the partitions will ask for: a reader may be after a few of the thousands in
    a pack.
    """

    def __init__(self, max_age: float | None = None) -> None:
        """Begin without any head or line."""
        self.read_line: ReadLine = RangeLines().read if max_age is None else _NamedLines(self.entries).read
        self._max_age = max_age
        self._lock, self._listing = Lock(), Lock()
        self._read: dict[tuple[Endpoint, int], Future[tuple[str, ReadHead]]] = {}
        self._checked_at: dict[Endpoint, float] = {}
        self._looked_at: set[PartitionOfId] = set()

    def look(
        self,
        partition: PartitionStore,
        read_watermark: Callable[[], StoredWatermark | None],
        brokers: frozenset[int] = frozenset(),
    ) -> StoredPartition | None:
        """Read the heads of ``brokers``, then ``offset.wm``; None without it. The manifests come after this.

        If it lists other brokers, their heads are read, and it is read again. Raises the errors of ``read_watermark``,
        and those of the store while it checks whether heads have changed; an unreadable head is one of ``errors``.
        """
        if self._max_age is None:  # what is in memory stays as it is, and costs nothing
            brokers |= self._known(partition.keys.endpoint.root)
        while True:
            heads = self._heads(partition, brokers)
            stored = read_watermark()
            if stored is None:
                return None
            listed = stored.watermark.tail_brokers
            if listed <= brokers:
                break
            brokers |= listed
        wanted = PartitionOfId(stored.watermark.topic_id or "", partition.keys.partition)
        with self._lock:
            self._looked_at.add(wanted)
        entries: list[HeadEntry] = []
        errors: list[FormatError | StoreError] = []
        for found in (heads[broker] for broker in sorted(listed)):
            if isinstance(found, FormatError | StoreError):
                errors.append(found)
            else:
                entries += found.get(wanted, ())
        return StoredPartition(partition, stored, entries, errors)

    def entries(self) -> Iterator[HeadEntry]:
        """The entries, in the heads that are known now, of all partitions that were looked at."""
        with self._lock:
            known = [read.result()[1] for read in self._read.values() if _is_read(read)]
            partitions = [*self._looked_at]
        for content in known:
            if not isinstance(content, FormatError | StoreError):
                yield from (entry for one in partitions for entry in content.get(one, ()))

    def _check(self, cluster: ClusterStore, root: Endpoint, max_age: float) -> None:
        """Forget the heads that were written again, if that was last checked ``max_age`` ago. Raises StoreError."""
        with self._listing:  # who asks meanwhile waits for the answer
            began = time.monotonic()
            if began - self._checked_at.setdefault(root, began) < max_age:
                return
            etags = {info.key: info.etag for info in cluster.store.list(cluster.keys.heads)}
            with self._lock:
                for (at, broker), read in [*self._read.items()]:
                    etag = etags.get(cluster.keys.head(broker), "")
                    if at == root and _is_read(read) and read.result()[0] != etag:
                        del self._read[at, broker]
            self._checked_at[root] = began

    def _known(self, root: Endpoint) -> frozenset[int]:
        """The brokers with heads at ``root`` that have been read by now."""
        with self._lock:
            return frozenset(broker for (at, broker), read in self._read.items() if at == root and _is_read(read))

    def _heads(self, partition: PartitionStore, brokers: Collection[int]) -> dict[int, ReadHead]:
        """The heads of ``brokers`` in the partition's prefix; those that are not known are read, side by side."""
        root = partition.keys.endpoint.root
        if brokers and self._max_age is not None:
            self._check(partition.cluster, root, self._max_age)
        with self._lock:
            unread = [broker for broker in sorted(brokers) if (root, broker) not in self._read]
            reading = {broker: self._read.setdefault((root, broker), Future()) for broker in sorted(brokers)}
        in_parallel(lambda broker: self._fetch(partition.cluster, root, broker, reading[broker]), unread)
        return {broker: read.result()[1] for broker, read in reading.items()}

    def _fetch(self, cluster: ClusterStore, root: Endpoint, broker: int, read: Future[tuple[str, ReadHead]]) -> None:
        try:
            etag, content = _read_known(cluster, broker)
        except BaseException as error:
            self._forget(root, broker)
            read.set_exception(error)
            raise
        if self._max_age is not None:
            if isinstance(content, FormatError):
                log.warning("%s; what broker %s has packed is not read before it is sealed", content, broker)
            if isinstance(content, StoreError):
                self._forget(root, broker)
        read.set_result((etag, content))

    def _forget(self, root: Endpoint, broker: int) -> None:
        with self._lock:
            del self._read[root, broker]


def _is_read(read: Future[tuple[str, ReadHead]]) -> bool:
    return read.done() and read.exception() is None


def _read_known(cluster: ClusterStore, broker: int) -> tuple[str, ReadHead]:
    """(ETag, content) of a head; the former is empty if there is none or it cannot be read."""
    try:
        found = find_head(cluster, broker)
    except LaterFormat as error:
        return cluster.store.head(cluster.keys.head(broker)).etag, error
    except (FormatError, StoreError) as error:
        return "", error
    if found is None:
        return "", {}
    return found.etag, found.error if isinstance(found, DamagedVersion) else found.value.by_partition


class _NamedLines:
    """Lines of packs. A GET reads all of a pack that ``entries`` name, those of partitions that were looked at."""

    def __init__(self, entries: Callable[[], Iterable[HeadEntry]]) -> None:
        self._entries = entries
        self._lock = Lock()
        self._footers: Lru[str, tuple[int, bytes]] = Lru(_KEPT_FOOTERS)
        """Bytes of the footers of packs, and the byte of the pack at which each begins."""

    def read(self, cluster: ClusterStore, pointer: RangePointer) -> PackedRange:
        """The range of a line; raises errors of :func:`tidemark.raw.packs.read_range_line`."""
        with self._lock:
            key, end = cluster.keys.pack(pointer.name), pointer.position + pointer.length
            start, footer = self._footers.get(f"{cluster.store.url}/{key}") or (0, b"")
            if not start <= pointer.position < end <= start + len(footer):
                start, stop = self._around(pointer)
                footer = cluster.store.get_range(key, start, stop)
                self._footers.keep(f"{cluster.store.url}/{key}", (start, footer))
            return range_of_line(footer[pointer.position - start : end - start], key, pointer)

    def _around(self, pointer: RangePointer) -> tuple[int, int]:
        """Bounds of the bytes of a pack with the line of ``pointer`` and the lines that partitions will ask for."""
        lines = [entry.last for entry in self._entries() if entry.last.pack == pointer.pack] or [pointer]
        start, stop = min(line.position for line in lines), max(line.position + line.length for line in lines)
        if start <= pointer.position and pointer.position + pointer.length <= stop <= start + _MOST_FOOTER:
            return start, stop
        return pointer.position, pointer.position + pointer.length
