"""Times at which keys are due: each key at most once, at its earliest time. Thread-safe."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

_LEAST = 1000
"""Outdated moments that may stay in the heap, beyond the number of keys."""


class Timers(Generic[Key]):
    """Keys by the time at which they are due, on the caller's clock."""

    def __init__(self) -> None:
        self._times: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._count = 0
        self._lock = threading.Lock()

    def add(self, key: Key, moment: float) -> None:
        """Make ``key`` due at ``moment``, unless it is due before."""
        with self._lock:
            if moment < self._times.get(key, float("inf")):
                self._times[key] = moment
                self._count += 1
                heapq.heappush(self._heap, (moment, self._count, key))
                if len(self._heap) > 2 * len(self._times) + _LEAST:
                    self._tidy()

    def take(self, now: float) -> set[Key]:
        """Remove and return the keys that are due by ``now``."""
        due: set[Key] = set()
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                moment, _, key = heapq.heappop(self._heap)
                if self._times.get(key) == moment:  # else it was moved to an earlier time, and taken then
                    del self._times[key]
                    due.add(key)
        return due

    def next_time(self) -> float:
        """The time at which a key may be due next; infinity without keys."""
        with self._lock:
            return self._heap[0][0] if self._heap else float("inf")

    def _tidy(self) -> None:
        """Drop outdated moments: without this, distant ones would stay until their time comes."""
        self._heap = [entry for entry in self._heap if self._times.get(entry[2]) == entry[0]]
        heapq.heapify(self._heap)
