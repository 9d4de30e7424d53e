"""What is to be packed in one bucket and is not packed yet, and for how long nothing of it was."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from tidemark.formats.keys import TopicPartition
from uploader_agent.observability.health import Stalled
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import Runtime


class Backlog:
    """Thread-safe. Packing goes on as long as something of the bucket is packed, or nothing waits any more."""

    def __init__(self, head: str, runtime: Runtime) -> None:
        """Nothing is to be packed; ``head`` names the bucket."""
        self._head = head
        self._clock = runtime.monotonic
        self._lock = threading.Lock()
        self._waiting: dict[TopicPartition, LedPartition] = {}
        self._since = 0.0
        self._failure: str | None = None

    def add(self, partitions: Iterable[LedPartition]) -> None:
        """``partitions`` are to be packed."""
        with self._lock:
            if not self._left():
                self._go_on()
            self._waiting |= {one.tp: one for one in partitions}

    def packed(self, partition: LedPartition) -> None:
        """Something of ``partition`` is packed."""
        with self._lock:
            self._go_on()
        self.done([partition])

    def done(self, partitions: Iterable[LedPartition]) -> None:
        """Nothing more is to be packed of ``partitions`` now."""
        with self._lock:
            for one in partitions:
                if self._waiting.get(one.tp) is one:  # and not that of a later leadership
                    del self._waiting[one.tp]

    def forget(self, tp: TopicPartition) -> None:
        """The partition is not ours any more, or under another leadership."""
        with self._lock:
            self._waiting.pop(tp, None)

    def failed(self, error: Exception) -> None:
        """Something could not be packed, and will be tried again."""
        with self._lock:
            self._failure = f"{type(error).__name__}: {error}"

    def stalled(self) -> Stalled | None:
        """For how long nothing was packed; None if nothing waits."""
        with self._lock:
            left = self._left()
            return Stalled(self._head, self._clock() - self._since, left, self._failure) if left else None

    def _go_on(self) -> None:
        self._since, self._failure = self._clock(), None

    def _left(self) -> int:
        """How many wait still: seals may have what was to be packed."""
        self._waiting = {tp: one for tp, one in self._waiting.items() if (one.high_watermark or 0) > one.stored_end}
        return len(self._waiting)
