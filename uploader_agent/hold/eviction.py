"""Selects the held sets to evict when they take too much space. Pure.

Only sets of files that no log directory has any more count, since nothing but holding keeps those files.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Cost(Generic[Key]):
    """A held set that the broker has deleted: its bytes, its last append, and the seconds since its deletion."""

    key: Key
    size: int
    modified: float
    age: float


class Space(NamedTuple):
    """A file system: its size and the space free for users, in bytes."""

    total: int
    free: int


def to_evict(
    costs: Sequence[Cost[Key]], space: Space | None, *, share: float, min_free: float, max_age: timedelta
) -> list[Key]:
    """The sets of one file system to evict, oldest first, until all bounds hold.

    ``share`` and ``min_free`` are fractions of the file system's size; ``space`` is None where it is unknown, so that
    only the age counts. Evicting everything may not be enough for ``min_free``: other programs fill the disk as well.
    """
    excess = lacking = 0.0
    if space is not None:
        excess = sum(cost.size for cost in costs) - share * space.total
        lacking = min_free * space.total - space.free
    evicted: list[Key] = []
    freed = 0
    for cost in sorted(costs, key=lambda cost: cost.modified):
        if cost.age > max_age.total_seconds() or freed < max(excess, lacking):
            evicted.append(cost.key)
            freed += cost.size
    return evicted
