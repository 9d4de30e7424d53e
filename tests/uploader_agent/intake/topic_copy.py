"""The copy of one topic into a spool, by the followers that a slot has, without anything else of an agent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.errors import BrokerError, TidemarkError
from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import BrokerUnavailable
from uploader_agent.intake.fetcher import Fetcher, FirstHighWatermarks
from uploader_agent.intake.fetching import Cluster, TopicAnswer, TopicLeaders
from uploader_agent.intake.follower import PartitionFollower
from uploader_agent.intake.spool import PartitionSpool

SEGMENT_BYTES: Final = 64 << 20

_REFRESH_SECONDS: Final = 30.0
"""Time after which a copy that follows its topic looks for new partitions."""

_PATIENCE_SECONDS: Final = 60.0
"""Time without a new batch after which a copy that has an end gives up."""


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
        topic = cluster.run(cluster.topics({name})).get(name)
        if isinstance(topic, TidemarkError):
            raise topic
        if topic is None:
            raise BrokerError(f"{name}: there is no such topic, or this user lacks DESCRIBE on it")
        self._topic_id = topic.topic_id
        self.fetcher = Fetcher(cluster, clock)
        self._goals = FirstHighWatermarks()
        self._refresh_at = clock()
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
        while not stopping() and not all(map(self._is_done, self.fetcher.line)):
            self._ask_for_leaders()
            self.fetcher.turn(self._is_done)
            if not self._follow and self._clock() - self.fetcher.grown_at > _PATIENCE_SECONDS:
                self._give_up()

    def rows(self) -> list[CopyRow]:
        """The state of each partition, in their order."""
        return [self._row(follower) for _, follower in sorted(self.fetcher.followers.items())]

    @property
    def size(self) -> int:
        """The bytes of all partitions in the spool."""
        return sum(follower.spool.size for follower in self.fetcher.line)

    def close(self) -> None:
        """Force the spool to the disk, and close it."""
        with ExitStack() as stack:
            for follower in self.fetcher.line:
                stack.callback(follower.spool.close)
                stack.callback(follower.spool.sync)

    def _add(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            tp = TopicPartition(self._name, partition)
            if tp not in self.fetcher.followers:
                spool = PartitionSpool(self._root, tp, self._topic_id, self._segment_bytes)
                self.fetcher.add(PartitionFollower(tp, self._topic_id, spool))

    def _ask_for_leaders(self) -> None:
        now = self._clock()
        if self.fetcher.asking() or (self._follow and now >= self._refresh_at):
            self._refresh_at = now + _REFRESH_SECONDS
            self.fetcher.learn({self._name}, self._follow_new)

    def _follow_new(self, topics: Mapping[str, TopicAnswer]) -> None:
        topic = topics.get(self._name)
        if isinstance(topic, TopicLeaders) and topic.topic_id == self._topic_id and self._follow:
            self._add(topic.leaders)

    def _is_done(self, follower: PartitionFollower) -> bool:
        """True if nothing is left to copy of a partition."""
        return follower.ended or (not self._follow and self._goals.reached(follower))

    def _give_up(self) -> None:
        waiting = [follower for follower in self.fetcher.line if not self._is_done(follower)]
        reasons = {str(follower.error) for follower in waiting if follower.error} or {"brokers do not answer"}
        names = ", ".join(str(follower.tp) for follower in waiting)
        raise BrokerUnavailable(f"{names}: no batch came for {_PATIENCE_SECONDS:g} s: {'; '.join(sorted(reasons))}")

    def _row(self, follower: PartitionFollower) -> CopyRow:
        spool, leader = follower.spool, follower.leader
        copied = not self._follow and not follower.ended and self._goals.reached(follower)
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
