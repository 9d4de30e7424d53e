"""The copy of one topic into a spool: asks the brokers for what its followers want, and hands them the answers.

One request at a time is in flight to each broker. The partition that came first in a request goes to the end of the
line: the first one has room for a batch of any size.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.errors import BrokerError
from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import BrokerUnavailable
from uploader_agent.intake.fetching import Cluster, FetchAnswer, FrameTooLarge, Wanted
from uploader_agent.intake.follower import FollowerState, PartitionFollower
from uploader_agent.intake.spool import PartitionSpool

SEGMENT_BYTES: Final = 64 << 20

_TURN_SECONDS: Final = 0.1
_REFRESH_SECONDS: Final = 30.0
"""Time after which a copy that follows its topic looks for new partitions."""

_PATIENCE_SECONDS: Final = 60.0
"""Time without a new batch after which a copy that has an end gives up."""

_MOST_IDLE: Final = 3
"""Answers without a batch after which there is none below the high watermark: compaction may have removed the last."""


class CopyRow(NamedTuple):
    """A partition's copy: the offsets that the spool has, and the leader's statements as they were last heard."""

    partition: str
    state: str
    from_offset: int | None
    next_offset: int | None
    high_watermark: int | None
    bytes: int
    leader: int | None
    leader_epoch: int | None
    why: str | None


class TopicCopy:
    """Copies the topic ``name`` into ``root``. Without ``follow`` up to the first high watermark of each partition."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        root: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        follow: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the spool.

        Raises:
            BrokerError: the topic does not exist, or may not be described.
            BrokerUnavailable: no broker answers.
            FormatError: the spool holds another incarnation of the topic.
        """
        self._cluster, self._name, self._root, self._follow = cluster, name, root, follow
        self._segment_bytes, self._clock = segment_bytes, clock
        topic = cluster.topic(name)
        if topic is None:
            raise BrokerError(f"{name}: there is no such topic, or this user lacks DESCRIBE on it")
        self._topic_id = topic.topic_id
        self._followers: dict[TopicPartition, PartitionFollower] = {}
        self._line: deque[PartitionFollower] = deque()
        self._goals: dict[TopicPartition, int] = {}
        self._sent: dict[int, list[Wanted]] = {}
        """The request in flight to each broker."""
        self._free_at: defaultdict[int, float] = defaultdict(float)
        """When a broker that throttles, or does not answer, is asked again."""
        self._leaders_at = self._refresh_at = clock()
        self._grown_at = clock()
        self.throttled = 0.0
        """Seconds that brokers have asked to be left alone, in total."""
        try:
            self._add(topic.leaders)
        except BaseException:
            self.close()
            raise

    def run(self, stopping: Callable[[], bool]) -> None:
        """Copy until all partitions have ended, or ``stopping``.

        Raises:
            BrokerError: a broker refuses for good.
            BrokerUnavailable: no batch came for a minute, and the copy has an end.
            OSError: the spool cannot be written.
        """
        while not stopping() and not all(map(self._is_done, self._line)):
            self._ask_for_leaders()
            self._request()
            for answer in self._cluster.answers(_TURN_SECONDS):
                self._take(answer)
            if not self._follow and self._clock() - self._grown_at > _PATIENCE_SECONDS:
                self._give_up()

    def rows(self) -> list[CopyRow]:
        """The state of each partition, in their order."""
        return [self._row(follower) for _, follower in sorted(self._followers.items())]

    @property
    def size(self) -> int:
        """The bytes of all partitions in the spool."""
        return sum(follower.spool.size for follower in self._line)

    def close(self) -> None:
        """Force the spool to the disk, and close it."""
        for follower in self._line:
            follower.spool.sync()
            follower.spool.close()

    def _add(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            tp = TopicPartition(self._name, partition)
            if tp not in self._followers:
                spool = PartitionSpool(self._root, tp, self._topic_id, self._segment_bytes)
                self._followers[tp] = PartitionFollower(tp, self._topic_id, spool)
                self._line.append(self._followers[tp])

    def _ask_for_leaders(self) -> None:
        now = self._clock()
        asked = now >= self._leaders_at and any(follower.asks_for_leader(now) for follower in self._line)
        if not asked and not (self._follow and now >= self._refresh_at):
            return
        self._leaders_at, self._refresh_at = now + _TURN_SECONDS, now + _REFRESH_SECONDS
        try:
            topic = self._cluster.topic(self._name)
        except BrokerUnavailable as error:
            for follower in self._line:
                if follower.state is FollowerState.WAITING:
                    follower.unanswered(error, now)
            return
        if topic is not None and topic.topic_id == self._topic_id and self._follow:
            self._add(topic.leaders)
        for follower in self._line:
            follower.learn(topic, self._cluster, now)

    def _request(self) -> None:
        now = self._clock()
        by_broker: defaultdict[int, list[Wanted]] = defaultdict(list)
        for follower in self._line:
            wanted = None if self._is_done(follower) else follower.wanted(now)
            if wanted is not None and wanted.broker not in self._sent and now >= self._free_at[wanted.broker]:
                by_broker[wanted.broker].append(wanted)
        for broker, all_wanted in by_broker.items():
            wanted_now = [wanted for wanted in all_wanted if wanted.near == all_wanted[0].near]
            self._sent[broker] = wanted_now
            try:
                self._cluster.send(broker, wanted_now)
            except BrokerUnavailable as error:
                self._take(FetchAnswer(broker, error=error))

    def _take(self, answer: FetchAnswer) -> None:
        now, sent = self._clock(), self._sent.pop(answer.broker, [])
        if answer.throttled:
            self.throttled += answer.throttled
            self._grown_at = now + answer.throttled
            self._free_at[answer.broker] = now + answer.throttled
        for part in answer.parts:
            follower = self._followers[part.wanted.tp]
            before = follower.spool.end
            follower.take(part, now)
            if follower.spool.end != before:
                self._grown_at = max(self._grown_at, now)
        if isinstance(answer.error, FrameTooLarge):
            self._followers[answer.error.tp].stop(answer.error)
        elif answer.error is not None:
            self._free_at[answer.broker] = now + 5 * _TURN_SECONDS
            for wanted in sent:
                self._followers[wanted.tp].unanswered(answer.error, now)
        if sent:
            first = self._followers[sent[0].tp]
            self._line.remove(first)
            self._line.append(first)

    def _is_done(self, follower: PartitionFollower) -> bool:
        """True if nothing is left to copy of a partition."""
        return follower.ended or (not self._follow and self._is_copied(follower))

    def _is_copied(self, follower: PartitionFollower) -> bool:
        if follower.state is not FollowerState.FOLLOWING or follower.high_watermark is None:
            return False
        goal = self._goals.setdefault(follower.tp, follower.high_watermark)
        # An unclean election may have taken back offsets below the first high watermark.
        goal = self._goals[follower.tp] = min(goal, follower.log_end or 0)
        return (follower.spool.end or 0) >= goal or follower.idle >= _MOST_IDLE

    def _give_up(self) -> None:
        waiting = [follower for follower in self._line if not self._is_done(follower)]
        reasons = {str(follower.error) for follower in waiting if follower.error} or {"brokers do not answer"}
        names = ", ".join(str(follower.tp) for follower in waiting)
        raise BrokerUnavailable(f"{names}: no batch came for {_PATIENCE_SECONDS:g} s: {'; '.join(sorted(reasons))}")

    def _row(self, follower: PartitionFollower) -> CopyRow:
        spool, leader = follower.spool, follower.leader
        copied = not self._follow and not follower.ended and self._is_copied(follower)
        return CopyRow(
            str(follower.tp),
            "copied" if copied else follower.state.value,
            spool.start,
            spool.end,
            follower.high_watermark,
            spool.size,
            leader.broker if leader else None,
            leader.led.leader_epoch if leader else None,
            str(follower.error) if follower.error and not copied else None,
        )
