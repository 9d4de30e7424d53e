"""The ``.log`` objects of a partition without manifests: what is listed, and where each ends by its last batches."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final, NamedTuple

from tidemark.errors import SegmentError
from tidemark.formats.keys import PartitionKeys
from tidemark.kafka_log import Lineage
from tidemark.kafka_log.indexes import TIME_INDEX_ENTRY_SIZE
from tidemark.raw.segments import Segment
from tidemark.remote.catalog.batch_scan import windows
from tidemark.remote.catalog.offset_lookup import IndexObjects
from tidemark.remote.catalog.segment_table import ANY_TIME
from tidemark.store import Store

_OFFSETS: Final = 1 << 62


class Log(NamedTuple):
    """A listed ``.log``, and the sizes of its indexes, None where they are not there."""

    base: int
    size: int
    etag: str
    modified: datetime
    index_size: int | None
    times_size: int | None


class Ended(NamedTuple):
    """A log's segment; ``damage`` says what is wrong with the bytes after it, if anything is."""

    segment: Segment
    damage: str | None


class StoredLogs:
    """What is listed of a partition, and the ends that were looked for. Thread-safe; no lock during a request."""

    def __init__(self, store: Store, keys: PartitionKeys, indexes: IndexObjects) -> None:
        """Nothing is listed yet."""
        self._store, self._keys, self._indexes = store, keys, indexes
        self._lock = threading.Lock()
        self._logs: list[Log] = []
        self._ended: dict[int, Ended] = {}
        self._times: dict[int, int] = {}

    @property
    def bases(self) -> list[int]:
        """The base offsets, in order."""
        return [one.base for one in self._logs]

    def refresh(self) -> bool:
        """List from the newest known base on, and look which one is the first; whether anything has changed."""
        known = self._logs
        if not known:
            return self.relist(0)
        changed = self.relist(known[-1].base)
        first = next(_logs(self._listed(0)), None)
        with self._lock:
            kept = [one for one in self._logs if first is not None and one.base >= first.base]
            changed = changed or len(kept) < len(self._logs)
            self._logs = kept
        return changed

    def relist(self, first: int, end: int = _OFFSETS) -> bool:
        """List the logs that start in ``[first, end)``; whether any is new, replaced or gone."""
        found = []
        for one in _logs(self._listed(first)):
            if one.base >= end:
                break
            found.append(one)
        with self._lock:
            bases = [one.base for one in self._logs]
            low, high = bisect_left(bases, first), bisect_left(bases, end)
            before = self._logs[low:high]
            if before == found:
                return False
            for one in before:
                if one not in found:
                    self._ended.pop(one.base, None)
                    self._times.pop(one.base, None)
            self._logs = [*self._logs[:low], *found, *self._logs[high:]]
        return True

    def reaching(self, offset: int, count: int) -> list[Ended]:
        """Of the ``count`` nearest logs that begin at or below ``offset``, those that end above it, nearest first."""
        return [one for one in self.before(offset, count) if one.segment.end > offset]

    def before(self, offset: int, count: int) -> Iterator[Ended]:
        """The ``count`` nearest logs that begin at or below ``offset``, nearest first."""
        logs = self._logs
        at = bisect_right(logs, offset, key=lambda one: one.base)
        return (self.ended(one) for one in reversed(logs[max(0, at - count) : at]))

    def above(self, offset: int) -> Log | None:
        """The first log that begins above ``offset``."""
        logs = self._logs
        at = bisect_right(logs, offset, key=lambda one: one.base)
        return logs[at] if at < len(logs) else None

    def newest(self, count: int) -> list[Ended]:
        """The ``count`` logs with the highest bases."""
        return [self.ended(one) for one in self._logs[-count:]]

    def ended(self, log: Log) -> Ended:
        """The segment of a log: where it ends is read from its last indexed batch on."""
        known = self._ended.get(log.base)
        if known is not None and known.segment.etag == log.etag:
            return known
        whole = self._segment(log, log.size, _OFFSETS)
        position = self._indexes.position(self._store, whole, log.base + (1 << 31) - 1) if log.index_size else 0
        found = self._end(log, whole, position)
        if found is None:
            found = self._end(log, whole, 0) or Ended(self._segment(log, 0, log.base), "no batch can be read")
        with self._lock:
            self._ended[log.base] = found
        return found

    def late_enough(self, timestamp: int, offset: int) -> Iterator[Segment]:
        """The segments that end above ``offset`` and may have a record of ``timestamp`` or later, in order."""
        for log in self._logs:
            if self._latest(log) >= timestamp and (found := self.ended(log).segment).end > offset:
                yield found

    def _latest(self, log: Log) -> int:
        """The largest timestamp by the last entry of the log's ``.timeindex``, which Kafka adds when it rolls."""
        if log.base not in self._times:
            latest = ANY_TIME
            if log.times_size is not None and log.times_size >= TIME_INDEX_ENTRY_SIZE:
                key = self._keys.segment(log.base, "timeindex")
                end = log.times_size // TIME_INDEX_ENTRY_SIZE * TIME_INDEX_ENTRY_SIZE
                entry = self._store.get_range(key, end - TIME_INDEX_ENTRY_SIZE, end)
                time = int.from_bytes(entry[:8], "big", signed=True)
                latest = time if time > 0 else ANY_TIME
            with self._lock:
                self._times[log.base] = latest
        return self._times[log.base]

    def _end(self, log: Log, whole: Segment, position: int) -> Ended | None:
        """Read on from ``position``; None if nothing sound is there."""
        end, size = -1, 0
        try:
            for window in windows(self._store, whole, position):
                last = window.headers[-1]
                end = int(last["base_offset"] + last["last_offset_delta"]) + 1
                size = int(last["position"] + last["size"])
        except SegmentError as error:
            if error.position == position and position:
                return None
            return Ended(self._segment(log, error.position, error.offset), error.detail)
        return Ended(self._segment(log, size, end), None) if end >= 0 else None

    def _segment(self, log: Log, size: int, end: int) -> Segment:
        return Segment(
            store=self._store.url,
            key=self._keys.segment(log.base, "log"),
            etag=log.etag,
            size=size,
            base=log.base,
            end=end,
            compacted=True,
            lineage=Lineage(),
            open_transactions=(),
            uploaded_at=log.modified,
            has_index=log.index_size is not None,
            aborts=None,
        )

    def _listed(self, first: int) -> Iterator[tuple[int, str, int, str, datetime]]:
        after = self._keys.segment(first, "").rstrip(".")
        for info in self._store.list(self._keys.folder, start_after=after):
            named = self._keys.base_offset(info.key)
            if named is not None:
                yield *named, info.size, info.etag, info.modified


def _logs(listed: Iterable[tuple[int, str, int, str, datetime]]) -> Iterator[Log]:
    """The logs among ``listed`` objects, which are sorted by base."""
    current: dict[str, tuple[int, str, datetime]] = {}
    base = -1
    for at, extension, size, etag, modified in listed:
        if at != base:
            yield from _log(base, current)
            base, current = at, {}
        current[extension] = size, etag, modified
    yield from _log(base, current)


def _log(base: int, files: dict[str, tuple[int, str, datetime]]) -> Iterator[Log]:
    if "log" in files and files["log"][0]:
        size, etag, modified = files["log"]
        yield Log(base, size, etag, modified, files.get("index", (None,))[0], files.get("timeindex", (None,))[0])
