"""Requests to the store wait more than they work: a few of them at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

THREADS: Final = 8

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(function: Callable[[Item], Result], items: Sequence[Item], threads: int = THREADS) -> list[Result]:
    """``function`` of each item, in order. Raises what it raised for the first item that it failed for."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        return list(pool.map(function, items))


def ahead(
    function: Callable[[Item], Result], items: Sequence[Item], size: Callable[[Item], int], most: int
) -> Generator[Result]:
    """``function`` of each item, in order, for a caller who uses one result after the other.

    The function runs for several items ahead of the caller: for as many as there are threads, of at most ``most`` bytes
    together, by the ``size`` of each; a larger item is alone. Close the generator if it is not exhausted. Raises what
    the function raised for an item, when it is that item's turn.
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
