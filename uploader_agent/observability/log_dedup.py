"""An error that repeats is logged once, again with its count after a while, and its end is a line of its own."""

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
    """An error that has not cleared: when it began and was last logged (by the clock), and how often it occurred."""

    began: float
    logged: float
    times: int = 1


class ErrorDeduplicator:
    """Tells ``logger`` of each error once, and every ``every`` again while it lasts. Thread-safe.

    A key says what fails, such as ``("index", url)``; how it fails may change meanwhile, and the line that comes
    next tells the newest. Memory is one entry for each key that has not cleared.
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
        """``key`` has failed (again). A line that repeats says ``times``, how often since it first failed."""
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
        """``key`` works. Logged if it had failed, with ``times`` and ``seconds``, how long it lasted."""
        with self._lock:
            trouble = self._troubles.pop(key, None)
        if trouble is not None:
            lasted = round(self._clock() - trouble.began, 3)
            self._logger.info(event, **details, times=trouble.times, seconds=lasted)

    def failing(self) -> set[Hashable]:
        """The keys that have failed and not cleared."""
        with self._lock:
            return set(self._troubles)
