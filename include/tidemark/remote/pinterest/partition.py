"""A partition that Pinterest's uploader wrote: ``.log`` objects, perhaps their indexes, and nothing that proves more.

There is no manifest: a segment counts once its ``.log`` is listed. ``offset.wm`` names a base offset only, may be stale
or absent, and is not needed. Segments of several leaders may overlap; the uploader knows no lineage, so the nearest
copy that reaches on is taken. Offsets that no segment has are passed over: nothing tells a compacted hole from a lost
one. What was aborted is found by reading headers and markers ahead; what is undecided at the end is held back.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from datetime import datetime
from typing import Final, NamedTuple

from tidemark.errors import NotFound, OutOfRange, PreconditionFailed
from tidemark.formats.gaps import Gap
from tidemark.formats.keys import PartitionKeys
from tidemark.kafka_log import AbortedTransaction
from tidemark.raw.segments import Segment
from tidemark.remote.catalog.offset_lookup import IndexObjects
from tidemark.remote.catalog.protocol import OffsetForTime, Stretch
from tidemark.remote.catalog.storage import Storage
from tidemark.remote.catalog.time_lookup import first_in
from tidemark.remote.pinterest.logs import Ended, StoredLogs
from tidemark.remote.pinterest.markers import Scanned, scanned

_NEAREST: Final = 8
"""Segments at or below an offset of which one may hold it: replicas' boundaries differ by less than so many."""

_KEPT: Final = 128
_ATTEMPTS: Final = 3
_NEVER: Final = 1 << 62


class _View(NamedTuple):
    start: int = 0
    end: int = 0
    held: int = _NEVER


class PinterestPartition:
    """See :class:`tidemark.remote.catalog.protocol.RemotePartition`. There is one incarnation, without a topic id."""

    def __init__(
        self, storage: Storage, topic: str, partition: int, keys: PartitionKeys, indexes: IndexObjects
    ) -> None:
        """Nothing is read yet: refresh it once."""
        self.topic, self.partition = topic, partition
        self.incarnation = 0
        self.topic_id: str | None = None
        self._store = storage.store(keys.endpoint.store)
        self._indexes = indexes
        self._logs = StoredLogs(self._store, keys, indexes)
        self._refreshing = threading.Lock()
        self._lock = threading.Lock()
        self._view = _View()
        self._scanned: OrderedDict[tuple[str, str], Scanned] = OrderedDict()

    def refresh(self) -> None:
        """See :class:`~tidemark.remote.catalog.protocol.RemotePartition`."""
        with self._refreshing:
            if self._logs.refresh():
                bases = self._logs.bases
                ends = [one.segment.end for one in self._logs.newest(_NEAREST)]
                # What is open at the end is only known once it was read up to there: see `next_stretch`.
                self._view = _View(bases[0], max(ends)) if bases else _View()

    @property
    def start(self) -> int:
        """See :class:`~tidemark.remote.catalog.protocol.RemotePartition`."""
        return self._view.start

    @property
    def branch(self) -> int:
        """The uploader tells of no lineage, so it never changes."""
        return 0

    def end(self, *, committed: bool) -> int:
        """See :class:`~tidemark.remote.catalog.protocol.RemotePartition`.

        What holds ``committed`` back is found by :meth:`next_stretch` as it comes there.
        """
        view = self._view
        return min(view.end, view.held) if committed else view.end

    def gap_at(self, offset: int) -> Gap | None:
        """The uploader records no gap."""
        return None

    def diverged(self, offset: int, leader_epoch: int) -> int | None:
        """The uploader tells of no lineage."""
        return None

    def observed_log_end(self) -> tuple[int, datetime] | None:
        """The uploader does not tell."""
        return None

    def invalidate(self, segment: Segment) -> None:
        """See :class:`~tidemark.remote.catalog.protocol.RemotePartition`."""
        self._logs.relist(segment.base, segment.base + 1)

    def next_stretch(self, offset: int, *, committed: bool) -> Stretch | Gap | None:
        """See :class:`~tidemark.remote.catalog.protocol.RemotePartition`."""
        for _ in range(_ATTEMPTS):
            found = self._at(offset)
            if not isinstance(found, Ended):
                return found
            try:
                return self._stretch(found.segment, max(offset, found.segment.base), committed=committed)
            except (PreconditionFailed, NotFound):
                self.invalidate(found.segment)
                self.refresh()
        found = self._at(offset)
        if not isinstance(found, Ended):
            return found
        return self._stretch(found.segment, max(offset, found.segment.base), committed=committed)

    def offset_for_time(
        self, timestamp_ms: int, *, committed: bool = False, markers: bool = True
    ) -> OffsetForTime | None:
        """See :class:`~tidemark.remote.catalog.protocol.RemotePartition`."""
        at = self._view.start
        for segment in self._logs.late_enough(timestamp_ms, at):
            begin = max(at, segment.base)
            found = first_in(self._store, self._indexes, segment, timestamp_ms, begin, segment.end, markers=markers)
            if found is not None:
                return found if found.offset < self.end(committed=committed) else None
            at = max(at, segment.end)
        return None

    def _at(self, offset: int) -> Ended | Gap | None:
        view = self._view
        if offset < view.start:
            raise OutOfRange(self.topic, self.partition, offset, view.start, view.end)
        found = self._logs.reaching(offset, _NEAREST)
        if found:
            return found[0]
        above = self._logs.above(offset)
        if above is None:
            return None
        damaged = next((one for one in self._logs.before(offset, _NEAREST) if one.damage), None)
        if damaged is not None:
            at = damaged.segment.uploaded_at
            return Gap.model_validate({"from": offset, "to": above.base, "reason": "corrupt", "detected_at": at})
        return self._logs.ended(above)

    def _stretch(self, segment: Segment, start: int, *, committed: bool) -> Stretch | None:
        end, aborted = segment.end, tuple[AbortedTransaction, ...]()
        if committed:
            end, aborted = self._decided(segment)
            if start >= end:
                with self._lock:
                    self._view = self._view._replace(held=min(self._view.held, end))
                return None
        return Stretch(segment, start, end, self._indexes.position(self._store, segment, start), aborted)

    def _decided(self, segment: Segment) -> tuple[int, tuple[AbortedTransaction, ...]]:
        """(how far up to the segment's end all is decided, what was aborted there), by what follows."""
        here = self._markers(segment)
        found, opened, at = list(here.aborted), dict(here.open), segment
        while opened:
            following = self._at(at.end) if at.end < self._view.end else None
            if isinstance(following, Gap):
                following = self._at(following.end)
            if not isinstance(following, Ended):
                break
            at = following.segment
            markers = self._markers(at)
            for producer, first in list(opened.items()):
                marker = markers.end(producer, first)
                if marker is not None:
                    del opened[producer]
                    if marker.aborts:
                        found.append(AbortedTransaction(producer, first, marker.offset, marker.offset))
        return min([segment.end, *opened.values()]), tuple(found)

    def _markers(self, segment: Segment) -> Scanned:
        name = segment.key, segment.etag
        with self._lock:
            known = self._scanned.get(name)
        if known is None:
            known = scanned(self._store, segment)
            with self._lock:
                self._scanned[name] = known
                if len(self._scanned) > _KEPT:
                    self._scanned.popitem(last=False)
        return known
