"""Requests to the store wait more than they work: a few of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
