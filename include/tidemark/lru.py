"""Values that a process keeps because it may need them again: those that were used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Lru(Generic[Key, Value]):
    """Values by key, which weigh at most ``limit`` together; what was used longest ago is dropped first. Thread-safe.

    Of ``at_least`` values none is dropped, whatever they weigh. ``weigh`` tells what a value weighs, such as its bytes;
    without it, ``limit`` is a number of values. A value must weigh the same whenever it is asked for.
    """

    def __init__(self, limit: float, weigh: Callable[[Value], float] = lambda _: 1, *, at_least: int = 0) -> None:
        """Keep nothing yet."""
        self._limit, self._weigh, self._at_least = limit, weigh, at_least
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._weight = 0.0
        self._lock = Lock()

    def __contains__(self, key: Key) -> bool:
        """True if the value of ``key`` is kept; it is not used by that."""
        return key in self._values

    def get(self, key: Key) -> Value | None:
        """The value of ``key``; None if it is not kept. No value is None."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def keep(self, key: Key, value: Value) -> None:
        """Keep ``value``, and drop what is too much by it; a value that is too heavy by itself is not kept."""
        with self._lock:
            self._drop(key)
            if self._weigh(value) > self._limit and not self._at_least:
                return
            self._values[key] = value
            self._weight += self._weigh(value)
            while self._weight > self._limit and len(self._values) > self._at_least:
                self._drop(next(iter(self._values)))

    def forget(self, key: Key) -> None:
        """Drop the value of ``key``, if it is kept."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        if key in self._values:
            self._weight -= self._weigh(self._values.pop(key))
