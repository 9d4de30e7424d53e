"""Logs a repeating error once, again with its count after a while, and its end on a line of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from structlog.typing import FilteringBoundLogger

Level = Literal["debug", "info", "warning", "error"]


@dataclass(slots=True)
class _Trouble:
    """An error that has not cleared: the times of its start and of its last line, and its count."""

    began: float
    logged: float
    times: int = 1


class ErrorDeduplicator:
    """Logs each error to ``logger`` once, and every ``every`` again while it lasts. Thread-safe.

    A key names the thing that fails, such as ``("index", url)``. The error may change while it lasts; the next line
    states the newest. Memory is one entry for each key that has not cleared.
    """

    def __init__(
        self, logger: FilteringBoundLogger, every: timedelta, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.every = every
        self._logger = logger
        self._clock = clock
        self._troubles: dict[Hashable, _Trouble] = {}
        self._lock = threading.Lock()

    def failed(self, key: Hashable, event: str, /, level: Level = "warning", **details: object) -> None:
        """Note a failure of ``key``. A repeated line has ``times``, the failures since the first."""
        now = self._clock()
        with self._lock:
            trouble = self._troubles.get(key)
            if trouble is None:
                self._troubles[key] = _Trouble(now, now)
            else:
                trouble.times += 1
                if now - trouble.logged < self.every.total_seconds():
                    return
                trouble.logged = now
                details["times"] = trouble.times
        getattr(self._logger, level)(event, **details)

    def cleared(self, key: Hashable, event: str, /, **details: object) -> None:
        """Note that ``key`` works. Logged if it had failed, with ``times`` and ``seconds``, the duration."""
        with self._lock:
            trouble = self._troubles.pop(key, None)
        if trouble is not None:
            lasted = round(self._clock() - trouble.began, 3)
            self._logger.info(event, **details, times=trouble.times, seconds=lasted)

    def failing(self) -> set[Hashable]:
        """The keys that have failed and not cleared."""
        with self._lock:
            return set(self._troubles)
