"""Parallel requests to the store, a few at a time: they wait more than they work; and objects that threads share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Final, Generic, TypeVar

THREADS: Final = 8

Item = TypeVar("Item")
Result = TypeVar("Result")
Key = TypeVar("Key", bound=Hashable)


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
