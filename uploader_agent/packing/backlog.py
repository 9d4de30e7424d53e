"""The partitions of one bucket that wait to be packed, and the time since the last of them was packed."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from tidemark.formats.keys import TopicPartition
from uploader_agent.observability.health import Stalled
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import Runtime


class Backlog:
    """The partitions of a bucket that wait to be packed. Thread-safe. Seals may cover a partition in the meantime."""

    def __init__(self, head: str, runtime: Runtime) -> None:
        """Begin without partitions; ``head`` names the bucket."""
        self._head = head
        self._clock = runtime.monotonic
        self._lock = threading.Lock()
        self._waiting: dict[TopicPartition, LedPartition] = {}
        self._since = 0.0
        self._failure: str | None = None

    def add(self, partitions: Iterable[LedPartition]) -> None:
        """Add ``partitions``, which are to be packed."""
        with self._lock:
            if not self._left():
                self._note_progress()
            self._waiting |= {partition.tp: partition for partition in partitions}

    def packed(self, partition: LedPartition) -> None:
        """Note that batches of ``partition`` were packed."""
        with self._lock:
            self._note_progress()
        self.done([partition])

    def done(self, partitions: Iterable[LedPartition]) -> None:
        """Remove ``partitions``: they have no more batches to pack now."""
        with self._lock:
            for partition in partitions:
                if self._waiting.get(partition.tp) is partition:  # and not the partition under a later leadership
                    del self._waiting[partition.tp]

    def forget(self, tp: TopicPartition) -> None:
        """Remove a partition that this broker no longer leads, or leads under another epoch."""
        with self._lock:
            self._waiting.pop(tp, None)

    def failed(self, error: Exception) -> None:
        """Note an error after which packing will be tried again."""
        with self._lock:
            self._failure = f"{type(error).__name__}: {error}"

    def stalled(self) -> Stalled | None:
        """The time since batches were last packed; None if no partition waits."""
        with self._lock:
            left = self._left()
            return Stalled(self._head, self._clock() - self._since, left, self._failure) if left else None

    def _note_progress(self) -> None:
        self._since, self._failure = self._clock(), None

    def _left(self) -> int:
        """Drop partitions that seals now cover, and return the number of the others."""
        partitions = self._waiting.values()
        self._waiting = {led.tp: led for led in partitions if (led.high_watermark or 0) > led.stored_end}
        return len(self._waiting)
