"""What goes wrong, how often, and until when; all of it drawn from one seed, and counted by kind."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping

from tests.uploader_agent.simulation.clock import Scheduler, chance

KINDS = {
    "event_dropped": 0.2,
    "event_delayed": 0.3,
    "event_repeated": 0.2,
    "event_overflow": 0.05,
    "thread_stalled": 0.03,
    "store_slow": 0.1,
    "store_error": 0.1,
    "store_refuses": 0.03,
    "store_conflict": 0.1,
    "store_reply_lost": 0.1,
    "store_late": 0.05,
    "store_odd_error": 0.02,
    "broker_slow": 0.3,
    "broker_error": 0.15,
    "broker_hangs": 0.04,
    "broker_odd_error": 0.02,
    "broker_lags": 0.1,
    "partition_error": 0.03,
    "fetch_slow": 0.3,
    "learns_late": 0.2,
    "snapshot_late": 0.1,
}
"""Every kind of fault that strikes what is asked or told, and the most of these that it strikes."""

SLOWEST = 3.0
"""Seconds that a slow request takes at most, there or back."""

HANGS = 25.0
"""Seconds after which a question that hangs ends with an error."""


class Faults:
    """Draws from ``rng`` whether something goes wrong, until :attr:`over`. Some kinds are left out of each schedule."""

    def __init__(self, rng: random.Random, scheduler: Scheduler, kinds: Mapping[str, float] = KINDS) -> None:
        self.over = False
        self.disturbed_until = 0.0
        """Until when something that went wrong, or that was under way when it did, may still be felt."""
        self.struck: Counter[str] = Counter()
        self.told: deque[str] = deque(maxlen=200)
        """The last events, for who looks for what went wrong."""
        self.rates = {kind: rng.choice([0.0, most / 4, most]) for kind, most in kinds.items()}
        self.longest = rng.choice([0.05, 0.3, 1.0])
        """Seconds that an ordinary request takes at most, there and back."""
        self._rng = rng
        self._scheduler = scheduler
        scheduler.stall = self._stall

    def strike(self, kind: str, what: str) -> bool:
        """Whether ``kind`` strikes ``what``."""
        if self.over or not chance(self._rng, self.rates[kind]):
            return False
        self.struck[kind] += 1
        self.tell(f"!! {kind}: {what}")
        return True

    def latency(self, kind: str, what: str) -> float:
        """Seconds that half of a request takes."""
        if self.over:
            return 0.01
        slow = self.strike(kind, what)
        return self.felt(self._rng.uniform(0.0, SLOWEST) if slow else self._rng.uniform(0.001, self.longest) / 2)

    def felt(self, seconds: float) -> float:
        """``seconds``, for which something goes on that was not as it should be."""
        self.disturbed_until = max(self.disturbed_until, self._scheduler.now + seconds)
        return seconds

    def even(self) -> bool:
        """One of two kinds."""
        return self._rng.random() < 0.5

    def within(self, least: float, most: float) -> float:
        """Some number between these."""
        return self._rng.uniform(least, most)

    def tell(self, line: str) -> None:
        """Note an event."""
        self.told.append(f"{self._scheduler.now:9.3f} {line}")

    def _stall(self) -> float:
        if not self.over and chance(self._rng, self.rates["thread_stalled"]):
            self.struck["thread_stalled"] += 1
            return self._rng.uniform(0.0, 1.0)
        return self._rng.choice([0.0, 0.0, 0.0002, 0.001])
