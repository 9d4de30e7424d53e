"""The choice of the tier that reads a partition at its position: the states of docs/consumer-design.md.

A decision is made on the :class:`Placement` of the partition. Promises: it changes nothing but that, is made on the
caller's thread, and does not wait; scouts find out unknown facts. No Kafka client is needed to import this.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal

from tidemark.backoff import Backoff
from tidemark.config import hint
from tidemark.errors import GapError
from tidemark.formats.keys import TopicPartition

if TYPE_CHECKING:
    from tidemark.consumer.tier_metadata import Scouts, Sight
    from tidemark.remote.partition import RemotePartition
    from tidemark.remote.reader.partition_reader import OnGap

log = logging.getLogger(__name__)

KAFKA_START_SECONDS: Final = 2.0
"""Interval of asking the brokers whether their disks reach down to a position that is read remotely."""

_AGAIN_SECONDS: Final = 0.5
"""Interval of repeating a query whose answer decided nothing."""

FIRST_LOOK_SECONDS: Final = 5.0
"""Time for which Kafka is left unread for a catalogue, or for brokers, that do not say who has the position."""

LONGEST_REST_SECONDS: Final = 60.0
"""Longest rest of storage whose bytes cannot be read: it is ``refresh_seconds`` at first, and doubles up to this."""

KAFKA_SECONDS: Final = 30.0
"""Time for Kafka to give records that storage could not read, before storage is tried again."""

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


Tier = Literal["kafka", "remote"]
TIERS: Final[tuple[Tier, Tier]] = ("kafka", "remote")


class Mode(StrEnum):
    """The source of records; group membership and commits are the brokers' in every mode."""

    REMOTE_ONLY = "REMOTE_ONLY"
    """Remote storage alone: brokers are asked for metadata, assignment and commits, never for records or offsets."""

    KAFKA_ONLY = "KAFKA_ONLY"
    """The brokers alone, as a ``KafkaConsumer``: storage is never opened."""

    REMOTE_PREFERRED = "REMOTE_PREFERRED"
    """Remote storage wherever it has the offset, the brokers for offsets that it lacks (the tail) or cannot read."""

    KAFKA_PREFERRED = "KAFKA_PREFERRED"
    """The brokers wherever their disks have the offset, remote storage for what has left them if it has that."""

    @classmethod
    def _missing_(cls, value: object) -> Mode | None:
        given = "is required" if value == "" else f"{value!r} is not a mode"
        raise ValueError(f"mode: {given}; {hint(str(value).upper(), cls)}")

    @property
    def reads_kafka(self) -> bool:
        """True if records may come from the brokers."""
        return self is not Mode.REMOTE_ONLY

    @property
    def reads_remote(self) -> bool:
        """True if records may come from remote storage."""
        return self is not Mode.KAFKA_ONLY


@dataclass(frozen=True)
class TierRules:
    """A consumer's settings, and its reactions if no tier can read a partition at its position."""

    mode: Mode
    on_gap: OnGap
    committed: bool
    refresh_seconds: float
    wait_seconds: float
    topic_id: Callable[[str], str | None]
    """The topic's id in the newest metadata, without a request."""
    reset: Callable[[TopicPartition, int], None]
    """Reset a position that is out of range, by ``auto_offset_reset``, or raise."""
    skip: Callable[[TopicPartition, int, GapError], None]
    """Move the position to the end of a gap."""
    truncated: Callable[[TopicPartition, int, int], None]
    """Move a position on a dead branch to the given offset, where the branch begins, or raise."""


class TierSelector:
    """The decisions for the partitions of one consumer."""

    def __init__(self, rules: TierRules, scouts: Scouts | None) -> None:
        """``scouts`` are None for KAFKA_ONLY, which asks nothing."""
        self._rules = rules
        self._scouts = scouts
        self._places: dict[TopicPartition, Placement] = {}
        self._past_hand_overs = 0
        self.fallbacks = 0
        """Number of times that a partition was left to Kafka because storage could not be read."""

    @property
    def hand_overs(self) -> int:
        """Number of times that a partition moved from one tier to the other."""
        return self._past_hand_overs + sum(place.hand_overs for place in self._places.values())

    def of(self, tp: TopicPartition) -> Placement:
        """The placement of ``tp``, without a tier if it is new."""
        if tp not in self._places:
            self._places[tp] = Placement(tier=None if self._scouts else "kafka")
        return self._places[tp]

    def known(self) -> list[TopicPartition]:
        """Partitions that have been placed."""
        return list(self._places)

    def incarnation(self, tp: TopicPartition) -> int:
        """The number of the topic's incarnation in the remote tier; 0 if unknown."""
        remote = self._scouts.sight(tp).remote if self._scouts else None
        return remote.incarnation if remote else 0

    def forget(self, tp: TopicPartition) -> None:
        """Drop ``tp``, which is no longer assigned."""
        place = self._places.pop(tp, None)
        self._past_hand_overs += place.hand_overs if place else 0
        if self._scouts:
            self._scouts.forget(tp)

    def out_of_range(self, tp: TopicPartition) -> None:
        """Judge a position that Kafka does not have."""
        place = self.of(tp)
        place.tier, place.judging = None, time.monotonic()

    def not_there(self, tp: TopicPartition, gap: GapError) -> bool:
        """Note a position that the remote tier lacks although it should have it. Returns True if Kafka may have it."""
        self.of(tp).missing = gap
        return self._rules.mode.reads_kafka

    def unreadable(self, tp: TopicPartition, position: int, error: Exception) -> bool:
        """Note a position that the remote tier has and cannot read. Returns True if Kafka is asked for it now.

        False if this position has failed before: Kafka did not have it then, or has given nothing.
        """
        place = self.of(tp)
        if not self._rules.mode.reads_kafka or place.failed_at == position:
            place.failed_at = -1
            return False
        place.failed_at = position
        rest = place.outage.rest if place.outage is not None else 0.0
        self._fall_back(tp, place, error, Backoff(self._rules.refresh_seconds, LONGEST_REST_SECONDS).longer(rest))
        return True

    def readable(self, tp: TopicPartition) -> None:
        """Note that the remote tier has given records."""
        self.of(tp).outage = None

    def given(self, tp: TopicPartition) -> None:
        """Note that Kafka has given records."""
        self.of(tp).failed_at = -1

    def look_again(self, tp: TopicPartition) -> None:
        """Decide again after retention has removed the position from the remote tier."""
        assert self._scouts is not None
        self.of(tp).tier = None
        self._scouts.look(tp)

    def compared(self, tp: TopicPartition) -> bool:
        """True if the position was compared with the log's present branch in remote storage."""
        remote = self._scouts.sight(tp).remote if self._scouts else None
        return remote is None or self.of(tp).branch == remote.branch

    def decide(self, tp: TopicPartition, position: int, epoch: int) -> Placement:
        """The placement of ``tp`` at ``position``; the record before is of leader epoch ``epoch`` (-1: unknown).

        Raises errors for the caller: :class:`GapError`, errors of the store, errors of ``TierRules``.
        """
        place = self.of(tp)
        if self._scouts is None:
            return place
        if place.position != position:
            if place.judging is not None:
                place.tier, place.judging = None, None
            place.position, place.warned, place.patience = position, False, 0.0
            if place.missing is not None and not place.missing.start <= position < place.missing.end:
                place.missing = None
            if place.failed_at != position:
                place.failed_at = -1
            place.since, place.seen = time.monotonic(), datetime.now(UTC)
        sight = self._sight(tp, place)
        place = self.of(tp)
        if self._rules.mode is Mode.KAFKA_PREFERRED and place.tier is None and place.judging is None:
            on_disk = self._is_on_disk(tp, place, sight)
            if on_disk is None:
                return place
            if on_disk:
                place.on("kafka")
        if place.tier != "kafka" or self._rules.mode is Mode.REMOTE_PREFERRED:
            self._decide(tp, place, sight, epoch)
        return place

    def next_look(self, tp: TopicPartition) -> float:
        """Seconds until ``decide`` may have a new result without news."""
        place = self.of(tp)
        if self._scouts is None or (place.tier == "kafka" and self._rules.mode is Mode.KAFKA_PREFERRED):
            return float("inf")
        if place.tier == "remote":  # its reader wakes the caller
            preferred = self._rules.mode is Mode.KAFKA_PREFERRED
            return KAFKA_START_SECONDS if preferred else self._rules.refresh_seconds
        sight = self._scouts.sight(tp)
        since = time.monotonic() - sight.looked_at
        again = min(self._rules.refresh_seconds, _AGAIN_SECONDS if place.tier is None else float("inf"))
        return max(again - since, _AGAIN_SECONDS if sight.asking else 0.01)  # an answer wakes the caller

    def _is_on_disk(self, tp: TopicPartition, place: Placement, sight: Sight) -> bool | None:
        """True if brokers have the position on their disks, or do not say for too long; None while they are asked."""
        assert self._scouts is not None
        now = time.monotonic()
        if now - sight.kafka_at < 2 * KAFKA_START_SECONDS:
            return place.position >= sight.kafka.disk_start
        self._scouts.ask_brokers([tp])
        return True if now - place.since >= FIRST_LOOK_SECONDS else None

    def _sight(self, tp: TopicPartition, place: Placement) -> Sight:
        assert self._scouts is not None
        sight = self._scouts.sight(tp)
        topic_id = self._rules.topic_id(tp.topic)
        if sight.known and topic_id not in {None, sight.topic_id}:
            log.warning("%s-%s: the topic was made again, as %s", *tp, topic_id)
            self._scouts.forget(tp)
            self._places[tp] = Placement(position=place.position, since=place.since, seen=place.seen)
            return self._scouts.sight(tp)
        return sight

    def _decide(self, tp: TopicPartition, place: Placement, sight: Sight, epoch: int) -> None:
        assert self._scouts is not None
        now = time.monotonic()
        if now < place.patience:
            return
        if now - sight.looked_at >= self._patience(place, sight):
            waits = self._rules.mode is Mode.REMOTE_ONLY and place.tier is None
            self._scouts.look(tp, log_end=waits)
        if sight.error is not None:
            self._failed(tp, place, sight)
        if not sight.known:
            self._unanswered(tp, place, now)
            return
        place.looked(sight.remote_at)
        if self._truncated(tp, place, sight.remote, epoch):
            return
        if self._rules.mode is Mode.REMOTE_ONLY:
            self._remote_only(tp, place, sight)
        elif place.judging is not None:
            self._judge(tp, place, sight, now)
        elif self._has(sight.remote, place):
            self._keep_or_take(tp, place, sight, now)
        elif place.tier != "kafka":
            place.on("kafka")

    def _patience(self, place: Placement, sight: Sight) -> float:
        """The highest acceptable age of the catalogue's state."""
        if place.judging is not None and sight.looked_at < place.judging:
            return 0.0
        if place.tier is None:
            return min(_AGAIN_SECONDS, self._rules.refresh_seconds)
        if place.tier == "remote":
            return float("inf")  # the reader refreshes it
        return self._rules.refresh_seconds

    def _failed(self, tp: TopicPartition, place: Placement, sight: Sight) -> None:
        """Handle a failure to read the catalogue. Kafka may have the position all the same."""
        error, sight.error = sight.error, None
        assert error is not None
        may_wait = self._rules.mode.reads_kafka and place.judging is None
        if not may_wait:
            raise error
        self._fall_back(tp, place, error, place.outage.rest if place.outage is not None else 0.0)

    def _fall_back(self, tp: TopicPartition, place: Placement, error: Exception, rest: float) -> None:
        """Leave the partition to Kafka, because storage cannot be read, and let storage rest."""
        if place.outage is None:
            log.warning("%s-%s: remote storage cannot be read, reading from Kafka: %s", *tp, error)
        place.outage = Outage(time.monotonic(), rest)
        self._leave_to_kafka(place)

    def _leave_to_kafka(self, place: Placement) -> None:
        self.fallbacks += place.tier != "kafka"
        place.on("kafka")

    def _unanswered(self, tp: TopicPartition, place: Placement, now: float) -> None:
        """Handle a catalogue that was never read: an attempt may take minutes, and Kafka may have the position."""
        may_read = self._rules.mode.reads_kafka and place.tier is None and place.judging is None
        if may_read and now - place.since >= FIRST_LOOK_SECONDS:
            log.warning("%s-%s: remote storage does not answer; reading from Kafka in the meantime", *tp)
            self._leave_to_kafka(place)

    def _truncated(self, tp: TopicPartition, place: Placement, remote: RemotePartition | None, epoch: int) -> bool:
        """True if the position is on a dead branch (KIP-320).

        While the remote tier is read, that is checked once for each branch; otherwise each time: the branch's number
        does not show what happens above the end of raw, and Kafka's positions lie there.
        """
        if remote is None or not (place.tier == "remote" or self._has(remote, place)):
            return False
        branch = remote.branch
        if place.branch == branch and place.tier == "remote":
            return False
        place.branch = branch
        divergence = remote.diverged(place.position, epoch) if epoch >= 0 else None
        if divergence is not None:
            self._rules.truncated(tp, place.position, divergence)
        return divergence is not None

    def _has(self, remote: RemotePartition | None, place: Placement) -> bool:
        """True if the remote tier has the position, and not as a gap."""
        if remote is None or place.missing is not None:
            return False
        at = place.position
        return remote.start <= at < remote.end(committed=self._rules.committed) and remote.gap_at(at) is None

    def _keep_or_take(self, tp: TopicPartition, place: Placement, sight: Sight, now: float) -> None:
        """Read remotely, unless storage rests, or Kafka is preferred and has the position too."""
        assert self._scouts is not None
        if self._rules.mode is Mode.KAFKA_PREFERRED and place.tier == "remote":
            age = now - sight.kafka_at
            if age < 2 * KAFKA_START_SECONDS and place.position >= sight.kafka.disk_start:
                place.on("kafka")
            elif age >= KAFKA_START_SECONDS:
                self._scouts.ask_brokers([tp])
        elif place.tier != "remote":
            place.on("kafka" if place.rests(sight.remote_at) else "remote")

    def _remote_only(self, tp: TopicPartition, place: Placement, sight: Sight) -> None:
        remote = sight.remote
        start, end = (remote.start, remote.end(committed=self._rules.committed)) if remote else (0, 0)
        if place.position < start:
            self._rules.reset(tp, place.position)
        elif place.position <= end or (remote is not None and remote.gap_at(place.position)):
            place.on("remote")
        else:
            place.tier = None
            self._wait_remote(tp, place, sight)

    def _wait_remote(self, tp: TopicPartition, place: Placement, sight: Sight) -> None:
        """Wait for a position beyond the stored end: the log may reach it, and its upload be under way."""
        observed = sight.log_end
        if observed and observed[0] < place.position and observed[1] > place.seen + timedelta(seconds=1):
            self._rules.reset(tp, place.position)
            return
        self._warn(place, "%s-%s: remote storage does not reach offset %s yet; waiting", *tp, place.position)

    def _judge(self, tp: TopicPartition, place: Placement, sight: Sight, now: float) -> None:
        assert self._scouts is not None
        assert place.judging is not None
        if sight.kafka_at < place.judging:
            self._scouts.ask_brokers([tp])
        if sight.remote_at < place.judging or sight.kafka_at < place.judging:
            return
        at, remote = place.position, sight.remote
        if self._has(remote, place):
            place.on("remote")
        elif sight.kafka.start <= at <= sight.kafka.end:
            place.on("kafka")
        elif at > sight.kafka.end:
            self._reset(tp, place)
        elif gap := self._gap(tp, remote, place):
            self._gap_met(tp, place, gap)
        elif remote is not None and at < remote.start:
            self._reset(tp, place)
        else:
            self._wait_between(tp, place, remote, now)

    def _gap(self, tp: TopicPartition, remote: RemotePartition | None, place: Placement) -> GapError | None:
        gap = remote.gap_at(place.position) if remote else None
        return GapError(tp.topic, tp.partition, gap.start, gap.end, gap.reason) if gap else place.missing

    def _gap_met(self, tp: TopicPartition, place: Placement, gap: GapError) -> None:
        # If the caller continues, all tiers are asked for the position again.
        place.tier, place.judging, place.missing = None, None, None
        if self._rules.on_gap == "error":
            raise gap
        log.warning("%s-%s: offsets %s to %s are missing (%s) and skipped", *tp, gap.start, gap.end - 1, gap.reason)
        self._rules.skip(tp, gap.end, gap)

    def _wait_between(self, tp: TopicPartition, place: Placement, remote: RemotePartition | None, now: float) -> None:
        undecided = remote is not None and place.position < remote.end(committed=False)
        text = "%s-%s: Kafka no longer has offset %s, and remote storage does not have it yet; looking again for %s s"
        self._warn(
            place, text, *tp, place.position, "as long as it is undecided" if undecided else self._rules.wait_seconds
        )
        if not undecided and now - place.since >= self._rules.wait_seconds:
            self._reset(tp, place)
            return
        place.judging = place.patience = now + _AGAIN_SECONDS

    def _reset(self, tp: TopicPartition, place: Placement) -> None:
        place.tier, place.judging = None, None
        self._rules.reset(tp, place.position)

    def _warn(self, place: Placement, text: str, *values: Any) -> None:
        if not place.warned:
            place.warned = True
            log.warning(text, *values)


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
