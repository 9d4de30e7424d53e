"""Parallel requests to the store, a few at a time: they wait more than they work; and values that threads share."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Final, Generic, TypeVar

THREADS: Final = 8

Item = TypeVar("Item")
Result = TypeVar("Result")
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def in_parallel(function: Callable[[Item], Result], items: Sequence[Item], threads: int = THREADS) -> list[Result]:
    """Results of ``function`` for the items, in order. Raises the error of the first item that failed."""
    if min(threads, len(items)) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        return list(pool.map(function, items))


def ahead(
    function: Callable[[Item], Result], items: Sequence[Item], size: Callable[[Item], int], most: int
) -> Generator[Result]:
    """Results of ``function`` for the items, in order, for a caller that uses one result after the other.

    The function runs ahead of the caller for as many items as there are threads, of at most ``most`` bytes together
    (``size``); a larger item runs alone. Close the generator if it is not exhausted. An item's error is raised at that
    item's turn.
    """
    if len(items) < 2:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(min(THREADS, len(items))) as pool:
        waiting: deque[tuple[int, Future[Result]]] = deque()
        total = 0
        try:
            for item in items:
                bytes_of_item = size(item)
                while waiting and (len(waiting) == THREADS or total + bytes_of_item > most):
                    done, future = waiting.popleft()
                    yield future.result()
                    total -= done
                waiting.append((bytes_of_item, pool.submit(function, item)))
                total += bytes_of_item
            while waiting:
                yield waiting.popleft()[1].result()
        finally:
            pool.shutdown(cancel_futures=True)


class OnePerKey(Generic[Key, Result]):
    """One object for each key, which all threads share. It is made when the key is first asked for, and then kept."""

    def __init__(self, make: Callable[[Key], Result]) -> None:
        """Start with no object. ``make`` sends no requests: other threads wait for it."""
        self._make = make
        self._made: dict[Key, Result] = {}
        self._lock = Lock()

    def of(self, key: Key) -> Result:
        """The object of ``key``."""
        with self._lock:
            if key not in self._made:
                self._made[key] = self._make(key)
            return self._made[key]


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
