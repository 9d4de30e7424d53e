"""The exchange between followers and brokers: requests for what the followers want, and the answers.

One request at a time is in flight to each broker. The partition that came first in a request goes to the end of the
line: the first one has room for a batch of any size.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from tidemark.concurrency import in_parallel
from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import BrokerUnavailable
from uploader_agent.intake.fetching import Cluster, FetchAnswer, FetchedPart, FrameTooLarge, TopicAnswer, Wanted
from uploader_agent.intake.follower import FollowerState, PartitionFollower
from uploader_agent.intake.leader_logs import LogAsked, leader_logs

WAITS: Final = 16
"""New spools that wait for the disk, or for the store, at once."""

TURN_SECONDS: Final = 0.1
"""The longest wait for an answer."""

_MOST_IDLE: Final = 3
"""Answers without a batch after which there is none below the high watermark: compaction may have removed the last."""


class FirstHighWatermarks:
    """The first high watermark of each follower's leader, as an end for those that copy no further."""

    def __init__(self) -> None:
        self._goals: dict[TopicPartition, int] = {}

    def reached(self, follower: PartitionFollower) -> bool:
        """True if the spool has everything below the first high watermark that was heard."""
        if follower.state is not FollowerState.FOLLOWING or follower.high_watermark is None:
            return False
        goal = self._goals.setdefault(follower.tp, follower.high_watermark)
        # An unclean election may have taken back offsets below it.
        goal = self._goals[follower.tp] = min(goal, follower.log_end or 0)
        return (follower.spool.end or 0) >= goal or follower.idle >= _MOST_IDLE


class Fetcher:
    """Fetches for the followers ``line``, in the order of their next requests. For one thread.

    ``unasked`` is true if a follower may be in no request: only then is there something to ask, for thousands that
    are idle. ``heard`` becomes true when followers hear of their topics. ``grown_at`` is when a spool grew last, or a
    broker asked to be left alone; ``throttled`` counts the seconds for which they did, ``fetched`` the bytes.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self.line: deque[PartitionFollower] = deque()
        self.followers: dict[TopicPartition, PartitionFollower] = {}
        self.unasked = True
        self.heard = False
        self._learns = False
        self._learn_at = clock()
        self.grown_at = clock()
        self.throttled = 0.0
        self.fetched = 0
        self._cluster, self._clock = cluster, clock
        self._sent: dict[int, list[Wanted]] = {}
        """The request in flight to each broker."""
        self._near: defaultdict[int, bool] = defaultdict(bool)
        """True if the last request to a broker allowed it to name a near replica."""
        self._free_at: defaultdict[int, float] = defaultdict(float)
        """When a broker that throttles, or does not answer, is asked again."""
        self._still: dict[int, list[Wanted]] = {}
        """The requests that are sent again as they are."""
        self._still_until: defaultdict[int, float] = defaultdict(float)
        """When the next request to a broker differs even if there is no news."""

    def add(self, follower: PartitionFollower) -> None:
        """Fetch for ``follower`` from now on."""
        self.followers[follower.tp] = follower
        self.line.append(follower)
        self.unasked = True

    def remove(self, follower: PartitionFollower) -> None:
        """Fetch for ``follower`` no more."""
        del self.followers[follower.tp]
        self.line.remove(follower)
        self.unasked = True

    def asking(self) -> set[str]:
        """The topics of followers that wait for their leader.

        None within a tenth second of the last :meth:`learn`, nor while its answer is awaited.
        """
        now = self._clock()
        if self._learns or not self.unasked or now < self._learn_at:
            return set()
        return {follower.tp.topic for follower in self.line if follower.asks_for_leader(now)}

    def learn(self, names: Collection[str] | None, take: Callable[[Mapping[str, TopicAnswer]], None]) -> None:
        """Begin to ask who leads the topics ``names``, or all, unless that is being asked already.

        At the answer ``take`` adds followers, and those that there are learn of their leaders.
        """
        if not self._learns:
            self._learns, self._learn_at = True, self._clock() + TURN_SECONDS
            self._cluster.start(self._learn(names, take))

    async def _learn(self, names: Collection[str] | None, take: Callable[[Mapping[str, TopicAnswer]], None]) -> None:
        try:
            topics = await self._cluster.topics(names)
        except BrokerUnavailable as error:
            for follower in self.line:
                if follower.asks_for_leader(self._clock()):
                    follower.unanswered(error, self._clock())
            return
        finally:
            self.heard, self._learns = True, False
        take(topics)
        by_broker: defaultdict[int, dict[TopicPartition, LogAsked]] = defaultdict(dict)
        for follower in self.line:
            if names is None or follower.tp.topic in names:
                before = follower.state
                leader = follower.hear(topics.get(follower.tp.topic), self._clock())
                self.unasked |= follower.state is not before
                if leader is not None:
                    by_broker[leader.broker][follower.tp] = LogAsked(leader, follower.known)
        for broker, asked in by_broker.items():
            self._cluster.start(self._ask_for_logs(broker, asked, {tp: self.followers[tp] for tp in asked}))

    async def _ask_for_logs(
        self,
        broker: int,
        asked: Mapping[TopicPartition, LogAsked],
        followers: Mapping[TopicPartition, PartitionFollower],
    ) -> None:
        logs = await leader_logs(self._cluster, broker, asked)
        # Each of them reads its stored end, if its spool is new.
        in_parallel(lambda tp: followers[tp].take_log(asked[tp].leader, logs[tp], self._clock()), [*logs], WAITS)
        self.unasked = True

    def turn(self, rests: Callable[[PartitionFollower], bool]) -> None:
        """Send requests for the followers that do not rest, and hand out the answers that come within a tenth second.

        Raises OSError if a spool cannot be written, and BrokerError if a broker refuses for good.
        """
        self._request(rests)
        for answer in self._cluster.answers(TURN_SECONDS):
            if not self._repeats(answer):
                self._take(answer)

    def _request(self, rests: Callable[[PartitionFollower], bool]) -> None:
        still, self._still = self._still, {}
        if not self.unasked:
            for broker, wanted_again in still.items():
                self._send(broker, wanted_again)
            return
        self.unasked, now = False, self._clock()
        by_broker: defaultdict[int, list[Wanted]] = defaultdict(list)
        until: defaultdict[int, float] = defaultdict(lambda: float("inf"))
        for follower in self.line:
            if rests(follower):
                continue
            wanted = follower.wanted(now)
            if wanted is None or now < self._free_at[wanted.broker]:
                self.unasked = True
            elif wanted.broker not in self._sent:
                by_broker[wanted.broker].append(wanted)
                until[wanted.broker] = min(until[wanted.broker], follower.wanted_until(now))
        for broker, all_wanted in by_broker.items():
            # A request names the own rack or not; where partitions differ, the two kinds take turns.
            both = len({wanted.near for wanted in all_wanted}) > 1
            self._near[broker] = near = not self._near[broker] if both else all_wanted[0].near
            self._still_until[broker] = until[broker]
            self._send(broker, [wanted for wanted in all_wanted if wanted.near == near])

    def _send(self, broker: int, wanted: list[Wanted]) -> None:
        self._sent[broker] = wanted
        self._cluster.send(broker, wanted)

    def _repeats(self, answer: FetchAnswer) -> bool:
        """True if the request is sent again as it is: then nobody looks at thousands of partitions that are idle."""
        news = self.unasked or answer.parts or answer.throttled or answer.error
        if news or answer.broker not in self._sent or self._clock() >= self._still_until[answer.broker]:
            return False
        self._still[answer.broker] = self._sent.pop(answer.broker)
        return True

    def _take(self, answer: FetchAnswer) -> None:
        now, sent, self.unasked = self._clock(), self._sent.pop(answer.broker, []), True
        if answer.throttled:
            self.throttled += answer.throttled
            self.grown_at = now + answer.throttled
            self._free_at[answer.broker] = now + answer.throttled
        self._take_parts(answer.parts, now)
        if isinstance(answer.error, FrameTooLarge) and answer.error.tp in self.followers:
            self.followers[answer.error.tp].stop(answer.error)
        elif answer.error is not None:
            self._free_at[answer.broker] = now + 5 * TURN_SECONDS
            for wanted in sent:
                if wanted.tp in self.followers:
                    self.followers[wanted.tp].unanswered(answer.error, now)
        if sent and (first := self.followers.get(sent[0].tp)) is not None:
            self.line.remove(first)
            self.line.append(first)

    def _take_parts(self, parts: Sequence[FetchedPart], now: float) -> None:
        def take(follower: PartitionFollower, part: FetchedPart) -> None:
            before, size = follower.spool.end, follower.spool.size
            follower.take(part, now)
            if follower.spool.end != before:
                grown.append(max(0, follower.spool.size - size))

        grown = list[int]()
        known = [(self.followers.get(part.wanted.tp), part) for part in parts]
        told = [(found, part) for found, part in known if found and found.topic_id == part.wanted.topic_id]
        begin = [news for news in told if news[0].spool.end is None]
        go_on = [news for news in told if news[0].spool.end is not None]
        in_parallel(lambda news: take(*news), begin, WAITS)
        for follower, part in go_on:
            take(follower, part)
        if grown:
            self.grown_at = max(self.grown_at, now)
            self.fetched += sum(grown)
