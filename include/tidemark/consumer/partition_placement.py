"""The placement of one partition: its tier, and the state on which :mod:`tidemark.consumer.tier_selection` decides."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tidemark.consumer.modes import Tier
from tidemark.errors import GapError

log = logging.getLogger(__name__)

KAFKA_SECONDS: Final = 30.0
"""Time for Kafka to give records that storage could not read, before storage is tried again."""

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Outage:
    """A failure of storage at ``since`` (monotonic). Storage is not asked for records for ``rest`` seconds.

    ``rest`` is 0 if only the catalogue has failed: the next look at it shows whether storage works again.
    """

    since: float
    rest: float


@dataclass
class Placement:
    """A partition's tier and open questions, at its position ``since`` (monotonic) and ``seen`` (by the clock)."""

    tier: Tier | None = None
    position: int = -1
    since: float = 0.0
    seen: datetime = _LONG_AGO
    judging: float | None = None
    """The time of Kafka's answer that the position is out of range: only later answers count."""
    patience: float = 0.0
    """The time (monotonic) until which an undecided judgement rests."""
    missing: GapError | None = None
    """The remote tier's finding that the position is missing although it should be stored."""
    outage: Outage | None = None
    """The last failure of storage, until the remote tier has given records again."""
    failed_at: int = -1
    """The position that the remote tier could not read, until Kafka has given its record instead; else -1."""
    warned: bool = False
    branch: int | None = None
    hand_overs: int = 0
    last_tier: Tier | None = None

    def on(self, tier: Tier) -> None:
        """Read from ``tier`` from now on."""
        if self.last_tier not in {None, tier}:
            self.hand_overs += 1
            log.debug("at offset %s from %s to %s", self.position, self.last_tier, tier)
        self.tier = self.last_tier = tier
        self.judging, self.warned = None, False

    def rests(self, remote_at: float) -> bool:
        """True if storage rests: its catalogue, read at ``remote_at``, was not read since the rest was over."""
        if self.outage is None:
            return False
        rest = self.outage.rest if self.failed_at < 0 else max(self.outage.rest, KAFKA_SECONDS)
        return remote_at < self.outage.since + rest

    def looked(self, remote_at: float) -> None:
        """Note a read of the catalogue at ``remote_at``, which ends an outage of the catalogue alone."""
        if self.outage is not None and not self.outage.rest and not self.rests(remote_at):
            self.outage = None
