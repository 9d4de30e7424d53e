"""The known state of one partition in the store: workers read and change it, the loop plans with it.

It owns its lock. Each method and property is one atomic step, so two values are consistent only if one property returns
both, as :attr:`RemoteState.coverage` does.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.watermark import Watermark
from tidemark.formats.raw.watermark_index import IndexEntry
from tidemark.intervals import Intervals
from tidemark.kafka_log import BatchHeader, Lineage, OpenTransaction
from tidemark.raw.objects import StoredManifest
from tidemark.storage import StoredWatermark
from uploader_agent.stored.stored_log import StoredLog
from uploader_agent.stored.watermark import ForeignWatermark


class Coverage(NamedTuple):
    """The state of a partition in the store at one moment; ``start`` is its first offset there.

    ``present`` offsets can be read, ``final`` ones need no upload, ``damaged`` ones follow a bad batch of a corrupt
    segment.
    """

    start: int
    present: Intervals
    final: Intervals
    damaged: Intervals


class RemoteState:
    """The known state. Thread-safe. Before a survey it is empty, or from this broker's former watermark index."""

    def __init__(self, broker: int) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._log = StoredLog(broker)
        self._start = 0
        self._incarnation: int | None = None
        self._trusted: int | None = None  # the next offset in the former index
        self._gaps: tuple[Gap, ...] = ()
        self._surveyed = False
        self._changes = 0
        self._end: tuple[int, int] | None = None  # the number of changes, and the end at that time
        self._sealed_end: tuple[int, int] | None = None  # the number of changes, and the sealed end at that time

    # -- the state ----------------------------------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """A number that grows with each change."""
        return self._changes

    @property
    def surveyed(self) -> bool:
        """True once the store itself has been read."""
        return self._surveyed

    @property
    def known(self) -> bool:
        """True once the state is known, from a survey or from the former watermark index."""
        return self._surveyed or self._trusted is not None

    @property
    def incarnation(self) -> int | None:
        """The number of the topic's incarnation; None until the agents have agreed on it."""
        return self._incarnation

    @property
    def restored(self) -> int:
        """The number of restores in ``offset.wm``, or in the former watermark index."""
        with self._lock:
            return self._log.restored

    @property
    def start(self) -> int:
        """The partition's first offset in the store; 0 until it is known."""
        return self._start

    @property
    def next_offset(self) -> int:
        """The offset below which the store has all offsets of this leader's log, even before its claim."""
        with self._lock:
            if self._trusted is not None:
                return self._trusted
            return self._log.agreed.next_offset if self._log.agreed else self._start

    @property
    def end(self) -> int:
        """The end of the last uploaded segment."""
        with self._lock:
            if self._end is None or self._end[0] != self._changes:
                self._end = self._changes, self._log.end
            return self._end[1]

    @property
    def sealed_end(self) -> int:
        """The end of the stored offsets without a hole but acknowledged gaps, even before ``offset.wm`` has it."""
        with self._lock:
            if self._sealed_end is None or self._sealed_end[0] != self._changes:
                stored = self._log.stored
                passed = Intervals.of(stored.watermark.acknowledged_gaps) if stored else Intervals()
                self._sealed_end = self._changes, (self._log.present | passed).contiguous_from(self._start)
            return self._sealed_end[1]

    @property
    def coverage(self) -> Coverage:
        """The state of the partition in the store at one moment."""
        with self._lock:
            return Coverage(self._start, self._log.present, self._log.final, self._log.damaged)

    @property
    def final(self) -> Intervals:
        """Offsets that need no upload."""
        with self._lock:
            return self._log.final

    @property
    def watermark(self) -> Watermark | None:
        """``offset.wm`` as last read or written."""
        stored = self.stored
        return stored.watermark if stored else None

    @property
    def stored(self) -> StoredWatermark | None:
        """``offset.wm`` as last read or written, with its ETag."""
        with self._lock:
            return self._log.stored

    @property
    def foreign(self) -> ForeignWatermark | None:
        """A foreign object under the key of ``offset.wm``, which may only be replaced."""
        with self._lock:
            return self._log.foreign

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The open holes of this leader's log, even before an ``offset.wm`` names them."""
        with self._lock:
            return self._log.agreed.gaps if self._log.agreed else self._gaps

    @property
    def remote_tier(self) -> tuple[tuple[int, int], ...]:
        """The offsets below the start that only Kafka's remote tier has, as ``offset.wm`` states them."""
        with self._lock:
            return self._log.agreed.remote_tier if self._log.agreed else ()

    @property
    def gaps_found(self) -> tuple[Gap, ...]:
        """The open holes as last found, which ``offset.wm`` may not name yet."""
        return self._gaps

    @property
    def bytes_per_offset(self) -> float | None:
        """The bytes per offset in the newest stored segment; None if unknown."""
        with self._lock:
            return self._log.bytes_per_offset

    @property
    def readable_bases(self) -> list[int]:
        """Base offsets of the segments that are held in memory, are not corrupt and begin on this leader's lineage."""
        with self._lock:
            whole = [segment for segment in self._log.segments.values() if segment.state != "corrupt"]
            return [segment.base_offset for segment in whole if segment.readable_end > segment.base_offset]

    @property
    def manifests_read(self) -> dict[SegmentName, str]:
        """ETags of the manifests that were read."""
        with self._lock:
            return dict(self._log.read)

    def has_log(self, base_offset: int) -> bool:
        """True if a ``.log`` with this base offset was seen."""
        with self._lock:
            return any(name.base == base_offset for name in self._log.logs)

    def has_bare_log(self, base_offset: int) -> bool:
        """True if a ``.log`` with this base offset was seen without a manifest."""
        with self._lock:
            bare = self._log.logs - self._log.segments.keys()
            return any(name.base == base_offset for name in bare)

    def last_batch(self, end: int | None = None) -> BatchHeader | None:
        """See :meth:`StoredLog.last_batch`. From a former index, it may be packed."""
        with self._lock:
            return self._log.last_batch(end)

    def stated_last(self, end: int) -> BatchHeader | None:
        """The last batch below ``end`` in the former index, while that is trusted."""
        with self._lock:
            last = self._log.stated_last
            return last if last is not None and last.next_offset <= end else None

    def open_before(self, base_offset: int) -> tuple[OpenTransaction, ...] | None:
        """See :meth:`StoredLog.open_before`."""
        with self._lock:
            return self._log.open_before(base_offset)

    def history(self, lineage: Lineage) -> Lineage:
        """See :meth:`StoredLog.history`."""
        with self._lock:
            return self._log.history(lineage)

    # -- changes ------------------------------------------------------------------------------------------------------

    def trust(self, entry: IndexEntry) -> None:
        """Trust this broker's former watermark index until there is a job. After a survey it is ignored.

        The entry must be of this same leadership and have no gap.
        """
        with self._lock:
            if self._surveyed:
                return
            self._trusted, self._incarnation = entry.next_offset, entry.incarnation
            self._log = StoredLog.of_index(entry, self._broker)
            self._changes += 1

    def forget(self) -> None:
        """Forget everything, until the next survey."""
        with self._lock:
            self._log, self._trusted, self._surveyed, self._gaps = StoredLog(self._broker), None, False, ()
            self._changes += 1

    def survey(self, log: StoredLog, incarnation: int, start: int) -> None:
        """Adopt ``log``, read from the store. Without an ``offset.wm`` the partition begins at ``start``."""
        with self._lock:
            self._incarnation, self._trusted, self._surveyed, self._start = incarnation, None, True, start
            self._adopt(log)

    def reload(self, log: StoredLog) -> None:
        """Adopt ``log``, read again since another agent wrote ``offset.wm``. Keep the segments that it lacks."""
        with self._lock:
            log.segments = log.segments | self._log.segments
            self._adopt(log)

    def _adopt(self, log: StoredLog) -> None:
        self._log = log
        self._start = log.agreed.start_offset if log.agreed else self._start
        self._changes += 1

    def add(self, stored: StoredManifest, lineage: Lineage) -> None:
        """Add a stored manifest; ``lineage`` is this leader's."""
        with self._lock:
            self._log.add(stored, lineage)
            self._changes += 1

    def set_gaps(self, gaps: tuple[Gap, ...]) -> None:
        """Set the open holes."""
        with self._lock:
            self._changes += gaps != self._gaps
            self._gaps = gaps

    def watermark_stored(self, written: StoredWatermark) -> None:
        """Note that ``offset.wm`` is stored as ``written``."""
        with self._lock:
            self._log.watermark_stored(written)
            self._changes += 1
