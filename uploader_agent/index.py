"""This broker's watermark index: one object that tells a watcher about all partitions that the broker leads.

Written on change, but not more often than ``min_interval``; at least every ``idle_interval``, so that a watcher can
tell a quiet agent from a dead one. One index goes to each bucket that holds led partitions, and one to the default.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from crc32c import crc32c

from tidemark.layout import ControlKeys
from tidemark.store import Store
from tidemark.stored import utc_now
from tidemark.watermark_index import IndexEntry, WatermarkIndex
from uploader_agent import __version__

Entries = tuple[IndexEntry, ...]


class IndexWriter:
    """Writes one broker's index into one store. ``min_interval`` and ``idle_interval`` are seconds."""

    def __init__(
        self,
        store: Store,
        control: ControlKeys,
        broker: int,
        min_interval: float,
        idle_interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._control = control
        self._broker = broker
        self._min_interval = min_interval
        self._idle_interval = idle_interval
        self._clock = clock
        self._written: Entries | None = None
        self._written_at = -float("inf")

    def reconfigure(self, min_interval: float, idle_interval: float) -> None:
        """Write at these intervals from now on."""
        self._min_interval, self._idle_interval = min_interval, idle_interval

    def due(self) -> bool:
        """Whether a change may be written now."""
        return self._clock() - self._written_at >= self._min_interval

    def offer(self, entries: Iterable[IndexEntry], *, now: bool = False) -> bool:
        """Write ``entries`` if they have changed and it is time, or if it has been long, or ``now``; True if written.

        Only this agent writes this object, so the last PUT is right whatever became of the one before.
        """
        current = tuple(sorted(entries, key=lambda entry: (entry.topic, entry.partition)))
        idle = self._clock() - self._written_at >= self._idle_interval
        changed = self._written is None or list(map(_said, current)) != list(map(_said, self._written))
        if not (now or idle or (changed and self.due())):
            return False
        index = WatermarkIndex(
            cluster=self._control.cluster,
            broker=self._broker,
            agent_version=__version__,
            written_at=utc_now(),
            entries=current,
        )
        body = index.to_bytes()
        self._store.put(self._control.index(self._broker), body, crc32c=crc32c(body))
        self._written, self._written_at = current, self._clock()
        return True


def _said(entry: IndexEntry) -> Mapping[str, object]:
    """An entry without the time at which it was observed."""
    return entry.model_dump(exclude={"observed_at"})
