"""The heads of a cluster's brokers, which all partitions of a reader share.

A look is one listing of the heads of a store and prefix, however many partitions ask. A head is read when a partition
asks for it and its ETag has changed: one GET for each broker. The last ranges of many partitions lie in one pack, and
their lines in its footer: one GET reads those of all partitions that have asked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from tidemark.concurrency import in_parallel
from tidemark.errors import FormatError
from tidemark.formats.raw.head import PartitionOfId
from tidemark.formats.raw.pack import PackedRange, RangePointer, range_of_line
from tidemark.raw.heads import Entries, read_head
from tidemark.storage import ClusterStore

_NEVER: Final = float("-inf")

_MOST_FOOTER: Final = 1 << 20
"""The most bytes of a pack's footer that are read at once: about 2,000 lines."""

_KEPT_FOOTERS: Final = 8

log = logging.getLogger(__name__)


class _ReadHead(NamedTuple):
    """A head as it was listed under an ETag."""

    etag: str
    entries: Entries


class _Footer(NamedTuple):
    """Bytes of the footer of a pack, from byte ``start`` of the pack on."""

    start: int
    body: bytes


class HeadCache:
    """The heads in one store and prefix. Thread-safe: a caller that asks during another one's look waits for it."""

    def __init__(self, cluster: ClusterStore, seconds: float) -> None:
        """Heads are listed again after ``seconds``."""
        self._cluster, self._seconds = cluster, seconds
        self._lock = threading.Lock()
        self._looked_at = _NEVER
        self._etags: dict[str, str] = {}
        self._kept: dict[str, _ReadHead] = {}
        self._asked: set[PartitionOfId] = set()
        self._footers: dict[str, _Footer] = {}

    def read(self, wanted: PartitionOfId, brokers: Collection[int]) -> Mapping[int, Entries]:
        """The heads of ``brokers``, for the partition ``wanted``.

        A head that does not parse has no entries, with one warning: its broker's packs are read once they are sealed.

        Raises:
            StoreError: the heads cannot be listed or read.
        """
        if not brokers:
            return {}
        with self._lock:
            self._asked.add(wanted)
            if time.monotonic() - self._looked_at >= self._seconds:
                self._look()
            keys = {broker: self._cluster.keys.head(broker) for broker in sorted(brokers)}
            unread = [broker for broker, key in keys.items() if key in self._etags and key not in self._kept]
            for broker, entries in zip(unread, in_parallel(self._read, unread), strict=True):
                self._kept[keys[broker]] = _ReadHead(self._etags[keys[broker]], entries)
            return {broker: self._kept[key].entries if key in self._kept else {} for broker, key in keys.items()}

    def line(self, cluster: ClusterStore, pointer: RangePointer) -> PackedRange:
        """The line of ``pointer``, like :func:`tidemark.raw.packs.read_range_line`; lines around it are kept."""
        with self._lock:
            key, end = cluster.keys.pack(pointer.name), pointer.position + pointer.length
            footer = self._footers.get(pointer.pack)
            if footer is None or not footer.start <= pointer.position < end <= footer.start + len(footer.body):
                start, stop = self._around(pointer)
                footer = self._footers[pointer.pack] = _Footer(start, cluster.store.get_range(key, start, stop))
                while len(self._footers) > _KEPT_FOOTERS:
                    del self._footers[next(iter(self._footers))]
            return range_of_line(footer.body[pointer.position - footer.start : end - footer.start], key, pointer)

    def _around(self, pointer: RangePointer) -> tuple[int, int]:
        """Bounds of the bytes of a pack with the line of ``pointer`` and the lines that partitions will ask for."""
        entries = [
            entry for kept in self._kept.values() for wanted in self._asked for entry in kept.entries.get(wanted, ())
        ]
        lines = [entry.last for entry in entries if entry.last.pack == pointer.pack] or [pointer]
        start, stop = min(line.position for line in lines), max(line.position + line.length for line in lines)
        if start <= pointer.position and pointer.position + pointer.length <= stop <= start + _MOST_FOOTER:
            return start, stop
        return pointer.position, pointer.position + pointer.length

    def _look(self) -> None:
        """List the heads, and forget changed ones until a partition asks for them."""
        began = time.monotonic()
        self._etags = {info.key: info.etag for info in self._cluster.store.list(self._cluster.keys.heads)}
        self._kept = {key: kept for key, kept in self._kept.items() if self._etags.get(key) == kept.etag}
        self._looked_at = began

    def _read(self, broker: int) -> Entries:
        try:
            version = read_head(self._cluster, broker)
        except FormatError as error:
            log.warning("%s; what broker %s has packed is not read before it is sealed", error, broker)
            return {}
        return {} if version is None else version.value.by_partition
