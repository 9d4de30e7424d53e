"""Keeps the held sets within their bounds, and counts them.

Only sets of files that no log directory has any more count, since nothing but holding keeps those files.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import structlog

from uploader_agent.hold.held_segments import EvictedOffsets, HeldKey, HeldSegments, Owner
from uploader_agent.observability.metrics import Metrics
from uploader_agent.settings import HoldSettings
from uploader_agent.tuning import AgentTuning

logger = structlog.get_logger(__name__)

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


class HoldLimits:
    """The bounds of the held sets. ``clock`` is monotonic: its jumps make nothing older."""

    def __init__(
        self,
        settings: HoldSettings,
        log_dirs: Collection[Path],
        shelf: HeldSegments,
        evicted: EvictedOffsets,
        metrics: Metrics,
        clock: Callable[[], float],
        space: Callable[[Path], Space],
        tuning: AgentTuning,
    ) -> None:
        self.settings = settings
        self._tuning = tuning
        self._log_dirs = log_dirs
        self._shelf = shelf
        self._evicted = evicted
        self._metrics = metrics
        self._clock = clock
        self._space = space
        self._gone_since: dict[HeldKey, float] = {}

    def enforce(self) -> None:
        """Evict sets beyond the bounds, for each file system separately."""
        costs = self._costs()
        evicted = {key for device, sets in costs.items() for key in self._beyond(device, sets)}
        self._evict(evicted)
        kept = (cost.size for sets in costs.values() for cost in sets if cost.key not in evicted)
        self._metrics.held_bytes.set(sum(kept))
        self._metrics.held_segments.set(len(self._shelf))

    def _costs(self) -> dict[int, list[Cost[HeldKey]]]:
        """The held sets of files that the broker has unlinked, by file system."""
        now, costs = self._clock(), defaultdict[int, list[Cost[HeldKey]]](list)
        before, self._gone_since = self._gone_since, {}
        for key, note, keeper in self._shelf.all():
            try:
                if keeper.is_last(note.log):
                    stats = [keeper.stat(name) for name in note.files]
                    since = self._gone_since[key] = before.get(key, now)
                    size = sum(stat.st_size for stat in stats)
                    costs[stats[0].st_dev].append(Cost(key, size, note.modified, now - since))
            except OSError as error:
                logger.warning("held_segment_unreadable", partition=str(note.tp), file=note.log, error=str(error))
        return costs

    def _beyond(self, device: int, costs: list[Cost[HeldKey]]) -> list[HeldKey]:
        space, tuning = self._space_on(device), self._tuning
        share, min_free, max_age = self.settings.max, tuning.hold_min_free, tuning.hold_max_age
        return to_evict(costs, space, share=share, min_free=min_free, max_age=max_age)

    def _space_on(self, device: int) -> Space | None:
        """The space of the log directory's file system; None if it cannot be read, for example on a failed disk."""
        for log_dir in self._log_dirs:
            try:
                if log_dir.stat().st_dev == device:
                    return self._space(log_dir)
            except OSError as error:
                logger.debug("log_dir_unreadable", folder=str(log_dir), error=str(error))  # the leadership reports it
        return None

    def _evict(self, keys: Collection[HeldKey]) -> None:
        evicted: list[tuple[Owner, tuple[int, int]]] = []
        for key, note, _ in list(self._shelf.all()):
            if key not in keys:
                continue
            self._shelf.drop(key)
            evicted.append((key.owner, (note.base_offset, note.next_offset)))
            self._metrics.evicted.inc()
            logger.error(
                "held_segment_evicted",
                partition=str(note.tp),
                base_offset=note.base_offset,
                next_offset=note.next_offset,
                rule="hold.max or a day is over, or the disk nearly full; offsets that the store lacks are now a gap",
            )
        if evicted:
            self._evicted.add(evicted)


def to_evict(
    costs: Sequence[Cost[Key]], space: Space | None, *, share: float, min_free: float, max_age: timedelta
) -> list[Key]:
    """The sets of one file system to evict when they take too much space, oldest first, until all bounds hold.

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


def space_of(folder: Path) -> Space:
    """The file system that ``folder`` is on."""
    stat = os.statvfs(folder)
    return Space(stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail)
