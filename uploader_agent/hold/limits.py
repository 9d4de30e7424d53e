"""Keeps the held sets within their bounds, and counts them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from uploader_agent.hold.evicted_offsets import EvictedOffsets, Owner
from uploader_agent.hold.eviction import Cost, Space, to_yield
from uploader_agent.hold.held_segments import HeldKey, HeldSegments
from uploader_agent.observability.metrics import Metrics
from uploader_agent.settings import HoldSettings

logger = structlog.get_logger(__name__)


def space_of(folder: Path) -> Space:
    """The file system that ``folder`` is on."""
    found = os.statvfs(folder)
    return Space(found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail)


class HoldLimits:
    """The bounds of a shelf, by ``settings``. ``clock`` is monotonic: a clock that jumps must not make anything old."""

    def __init__(
        self,
        settings: HoldSettings,
        log_dirs: Collection[Path],
        shelf: HeldSegments,
        yielded: EvictedOffsets,
        metrics: Metrics,
        clock: Callable[[], float],
        space: Callable[[Path], Space],
    ) -> None:
        self.settings = settings
        self._log_dirs = tuple(log_dirs)
        self._shelf = shelf
        self._yielded = yielded
        self._metrics = metrics
        self._clock = clock
        self._space = space
        self._gone_since: dict[HeldKey, float] = {}

    def enforce(self) -> None:
        """Evict sets beyond the bounds, for each file system separately."""
        costs = self._costs()
        given_up = {key for device, some in costs.items() for key in self._beyond(device, some)}
        self._give_up(given_up)
        self._metrics.held_bytes.set(
            sum(one.size for some in costs.values() for one in some if one.key not in given_up)
        )
        self._metrics.held_segments.set(len(self._shelf))

    def _costs(self) -> dict[int, list[Cost[HeldKey]]]:
        """The held sets whose files the broker has unlinked, by file system."""
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
        bounds = self.settings
        space = self._space_on(device)
        return to_yield(costs, space, share=bounds.max, min_free=bounds.min_free, max_age=bounds.max_age)

    def _space_on(self, device: int) -> Space | None:
        """The space of the log directory's file system; None if it cannot be read, for example on a failed disk."""
        for log_dir in self._log_dirs:
            try:
                if log_dir.stat().st_dev == device:
                    return self._space(log_dir)
            except OSError as error:
                logger.debug("log_dir_unreadable", folder=str(log_dir), error=str(error))  # the leadership reports it
        return None

    def _give_up(self, keys: Collection[HeldKey]) -> None:
        lost: list[tuple[Owner, tuple[int, int]]] = []
        for key, note, _ in list(self._shelf.all()):
            if key not in keys:
                continue
            self._shelf.drop(key)
            lost.append((key.owner, (note.base_offset, note.next_offset)))
            self._metrics.yielded.inc()
            logger.error(
                "held_segment_yielded",
                partition=str(note.tp),
                base_offset=note.base_offset,
                next_offset=note.next_offset,
                rule="hold.max, hold.max_age or hold.min_free is reached; offsets that the store lacks are now a gap",
            )
        if lost:
            self._yielded.add(lost)
