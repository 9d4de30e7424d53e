"""The questions of a follower, and the answers: what a cluster must be able to say about its topics and logs.

:mod:`uploader_agent.intake.brokers` asks real brokers; tests have a scripted cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar

from tidemark.errors import BrokerError, TidemarkError
from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import BrokerUnavailable, Leader

Result = TypeVar("Result")


class Refusal(Enum):
    """The reaction that a broker's error about a partition calls for."""

    RANGE = "the log has no such offset"
    LEADER = "another broker leads, or another epoch is current"
    LATER = "the broker does not know the epoch or the offset yet"
    TOPIC = "the broker knows no such topic id"
    RIGHT = "the right is missing"
    OTHER = "the broker failed"


class PartitionRefused(TidemarkError):
    """A broker refused a question about one partition, with Kafka's error ``code``."""

    def __init__(self, tp: TopicPartition, refusal: Refusal, code: str) -> None:
        super().__init__(f"{tp}: {refusal.value}: {code}")
        self.refusal = refusal
        self.code = code


class StopReason(StrEnum):
    """The reasons for which a partition, or a topic that was never followed, is fetched no more."""

    RIGHT = "right"
    """A right is missing."""
    NO_TOPIC_ID = "no_topic_id"
    """The topic has no id."""
    OTHER_LOG = "other_log"
    """Another log has the topic's id."""
    DAMAGE = "damage"
    """The leader's log is damaged."""
    BATCH_SIZE = "batch_size"
    """A batch is larger than the limit."""
    SPOOL = "spool"
    """The partition's directory cannot be used."""


class FetchStopped(BrokerError):
    """A partition or topic is fetched no more, for a ``reason`` that only a person can remove."""

    def __init__(self, reason: StopReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class FrameTooLarge(FetchStopped):
    """An answer is longer than the limit: its first batch is. Little of it was read, and the connection is closed."""

    def __init__(self, tp: TopicPartition, offset: int, size: int, limit: int) -> None:
        super().__init__(
            StopReason.BATCH_SIZE,
            f"{tp}: the answer from offset {offset} on has {size} bytes, and at most {limit} are accepted: "
            f"a batch there is larger than the largest message that was expected; raise fetch.largest_message",
        )
        self.tp = tp


class FetchLimits(NamedTuple):
    """Sizes in bytes: an answer, one partition's part of it, and the largest batch that is accepted beyond them."""

    answer: int = 32 << 20
    partition: int = 8 << 20
    largest_message: int = 64 << 20

    @property
    def frame(self) -> int:
        """The largest frame that is read: the first batch of an answer comes whole, however large it is (KIP-74)."""
        return self.answer + self.largest_message + (1 << 20)


class TopicLeaders(NamedTuple):
    """A topic as a broker knows it: its id, and each partition's leader, which is broker -1 while there is none."""

    topic_id: str
    leaders: Mapping[int, Leader]


TopicAnswer = TopicLeaders | FetchStopped | BrokerUnavailable
"""A topic as a broker describes it, or the reason for which it does not: for good, or now."""


class Retention(NamedTuple):
    """A topic's ``retention.ms`` in seconds and its ``retention.bytes``; None without a limit."""

    seconds: float | None
    bytes: int | None


class EpochAsked(NamedTuple):
    """A question for the end of an ``epoch`` in the log that ``leader_epoch`` leads."""

    leader_epoch: int
    epoch: int


class EpochEnd(NamedTuple):
    """The largest epoch of the leader's log that is not above the one asked for, and the offset after it.

    Both are -1 if the log has not begun the epoch.
    """

    epoch: int
    end: int


class Wanted(NamedTuple):
    """A partition's part in a request: batches from ``offset`` on, of the log that ``leader_epoch`` leads.

    ``last_epoch`` is that of the batch before ``offset``; -1 if there is none. With ``near`` the leader may name a
    replica in the own rack in place of batches.
    """

    tp: TopicPartition
    topic_id: str
    broker: int
    near: bool
    offset: int
    leader_epoch: int
    last_epoch: int


class FetchedPart(NamedTuple):
    """A partition's part of an answer, to ``wanted``. ``records`` may end inside a batch.

    ``first`` states that no part before it in the answer has records, so that its first batch comes whole (KIP-74).
    ``diverges`` states that the broker's log does not have ``last_epoch`` up to the offset.
    """

    wanted: Wanted
    records: memoryview = memoryview(b"")
    high_watermark: int = -1
    near_replica: int = -1
    diverges: bool = False
    first: bool = False
    refused: PartitionRefused | None = None


class FetchAnswer(NamedTuple):
    """A broker's answer, or the reason for which there is none. ``throttled`` are seconds to leave the broker alone."""

    broker: int
    parts: Sequence[FetchedPart] = ()
    throttled: float = 0.0
    error: TidemarkError | None = None


class Cluster(Protocol):
    """The cluster's brokers. Nothing but :meth:`run` waits for them, so one that is mute holds up no other.

    Questions are coroutines. They raise BrokerUnavailable if a broker does not answer, and BrokerError if it refuses
    for good.
    """

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for the result of ``work``, which asks questions."""
        ...

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin ``work``, which asks questions; :meth:`answers` goes on with it, and raises its errors."""
        ...

    async def topics(self, names: Collection[str] | None) -> Mapping[str, TopicAnswer]:
        """The topics ``names``, or all that this user may describe; those that a broker does not know are left out."""
        ...

    async def retention(self, names: Collection[str]) -> Mapping[str, Retention]:
        """The retention of topics; those whose ``cleanup.policy`` deletes nothing are left out."""
        ...

    async def epoch_ends(
        self, broker: int, asked: Mapping[TopicPartition, EpochAsked]
    ) -> Mapping[TopicPartition, EpochEnd | PartitionRefused]:
        """The ends of epochs in logs that ``broker`` leads; the log end for the leader's own epoch."""
        ...

    async def log_starts(
        self, broker: int, epochs: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | PartitionRefused]:
        """The log start offsets of logs that ``broker`` leads under these epochs."""
        ...

    def send(self, broker: int, wanted: Sequence[Wanted]) -> None:
        """Send a Fetch request to a broker that has no other; all parts have the same ``near``.

        There will be an answer, even if the request cannot be sent.
        """
        ...

    def answers(self, seconds: float) -> Sequence[FetchAnswer]:
        """Answers that are there, after a wait for the first one. Their records are valid until the next call.

        Raises the errors of work that was started.
        """
        ...
