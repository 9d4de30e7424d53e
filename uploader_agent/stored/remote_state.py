"""The known state of one partition in the store: workers read the store and change it, the loop plans with it."""

from __future__ import annotations

import threading
from dataclasses import replace

from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.watermark_index import IndexEntry
from tidemark.kafka_log import Lineage
from tidemark.raw.objects import StoredManifest
from tidemark.storage import StoredWatermark
from uploader_agent.stored.stored_log import StoredLog


class RemoteState:
    """The current :class:`StoredLog`. Before a survey it is empty, or from this broker's former watermark index.

    Workers replace it as a whole, each change under a lock, so that none takes back another. Any thread reads it
    without the lock.
    """

    def __init__(self, broker: int) -> None:
        self._lock = threading.Lock()
        self._log = StoredLog(broker)

    @property
    def log(self) -> StoredLog:
        """The log as it is known now. Who needs several values that belong together reads this once."""
        return self._log

    def trust(self, entry: IndexEntry) -> None:
        """Trust this broker's former watermark index until there is a job. After a survey it is ignored.

        The entry must be of this same leadership and have no gap.
        """
        with self._lock:
            if not self._log.surveyed:
                self._log = StoredLog.of_index(entry, self._log.broker)

    def forget(self) -> None:
        """Forget everything but the place in the store, until the next survey."""
        with self._lock:
            self._log = StoredLog(self._log.broker, incarnation=self._log.incarnation, start=self._log.start)

    def survey(self, log: StoredLog, incarnation: int, start: int) -> None:
        """Adopt ``log``, read from the store. Without an ``offset.wm`` the partition begins at ``start``."""
        with self._lock:
            self._log = replace(
                log,
                surveyed=True,
                incarnation=incarnation,
                start=log.start if log.agreed else start,
                gaps_found=self._log.gaps_found,
            )

    def begin_at(self, start: int) -> None:
        """Have the partition begin at ``start`` as long as no ``offset.wm`` says where it does."""
        with self._lock:
            if not self._log.agreed:
                self._log = replace(self._log, start=start)

    def reload(self, log: StoredLog) -> None:
        """Adopt ``log``, read again since another agent wrote ``offset.wm``. Keep the segments that it lacks.

        Other workers may have added those after it was read.
        """
        with self._lock:
            before = self._log
            self._log = replace(
                log,
                surveyed=before.surveyed,
                incarnation=before.incarnation,
                start=log.start if log.agreed else before.start,
                gaps_found=before.gaps_found,
                segments={**log.segments, **before.segments},
                trusted_next=before.trusted_next,
            )

    def add(self, stored: StoredManifest, lineage: Lineage) -> None:
        """Add a stored manifest; ``lineage`` is this leader's."""
        with self._lock:
            self._log = self._log.with_segment(stored, lineage)

    def set_gaps(self, gaps: tuple[Gap, ...]) -> None:
        """Set the open holes."""
        with self._lock:
            if gaps != self._log.gaps_found:
                self._log = replace(self._log, gaps_found=gaps)

    def watermark_stored(self, written: StoredWatermark) -> None:
        """Note that ``offset.wm`` is stored as ``written``."""
        with self._lock:
            self._log = self._log.with_watermark(written)
