"""Questions to the broker, asked in a thread of their own: a broker that hangs delays neither disks nor uploads.

The loop adds questions, is woken when they are answered, and takes the answers. A question that has not been asked yet
is merged with the next one of its kind, so that many hints become one question.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

import structlog

from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import BrokerUnavailable, Cleanup, Leader, Metadata, Offsets
from uploader_agent.disk.log_dirs import LogTail
from uploader_agent.disk.segment_files import Active, SegmentChanged
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import MACHINE, UNTIL_WOKEN, Runtime, Worker

logger = structlog.get_logger(__name__)

_CLEANUP_AGE = 60.0
"""Seconds for which a topic's clean-up is cached."""


@dataclass(frozen=True, slots=True)
class LeadersAnswer:
    """The leaders of the ``wanted`` partitions at ``asked_at``, and the topics' clean-up; or the ``error``.

    With ``everything`` also the partitions beside ``wanted`` that this broker leads.
    """

    asked_at: datetime
    seconds: float
    leaders: Mapping[TopicPartition, Leader] = field(default_factory=dict)
    cleanup: Mapping[str, Cleanup] = field(default_factory=dict)
    wanted: frozenset[TopicPartition] = frozenset()
    error: BrokerUnavailable | None = None
    everything: bool = False


class Question(NamedTuple):
    """A question for a partition's offsets: its number, the leadership, and the disk before the question.

    The disk showed ``tail`` at ``looked_at`` on the monotonic clock. The answer carries the question, so that it is
    never mistaken for the answer to a later one.
    """

    number: int
    partition: LedPartition
    tail: LogTail | None
    looked_at: float


@dataclass(frozen=True, slots=True)
class OffsetsAnswer:
    """Offsets at ``asked_at`` of the partitions in ``asked`` that this broker leads as stated; or the ``error``.

    ``active`` are their active segments, read after the broker had answered. A partition is missing in both if its log
    shows that another broker leads it now.
    """

    asked_at: datetime
    asked: Mapping[TopicPartition, Question]
    offsets: Mapping[TopicPartition, Offsets] = field(default_factory=dict)
    active: Mapping[TopicPartition, Active | None] = field(default_factory=dict)
    error: BrokerUnavailable | None = None


Answer = LeadersAnswer | OffsetsAnswer


class Poller:
    """Asks the broker. Thread-safe. ``answered`` is called in the worker's thread when :meth:`take` has an answer."""

    def __init__(self, metadata: Metadata, answered: Callable[[], None], runtime: Runtime = MACHINE) -> None:
        """Prepare to ask; the first question follows the start of the ``worker``, or :meth:`answer_all`.

        A question that hangs when the worker is stopped is abandoned: it cannot be ended, and changes nothing.
        """
        self._metadata = metadata
        self._answered = answered
        self._runtime = runtime
        self._clock = runtime.monotonic
        self._lock = threading.Lock()
        self._leaders: Collection[TopicPartition] | None = None
        self._everything = False  # True if the next question about leaders is about everything that the broker leads
        self._offsets: dict[TopicPartition, Question] = {}
        self._leaders_next = False  # True if the question about leaders is next, when both kinds wait
        self._answers: list[Answer] = []
        self._asked_at: float | None = None
        self._cleanup: Mapping[str, Cleanup] = {}
        self._cleanup_at = -float("inf")
        self.worker = Worker("metadata", self._turn, runtime)

    def ask_leaders(self, wanted: Collection[TopicPartition], *, everything: bool = False) -> None:
        """Ask for the leaders of the partitions ``wanted``; with ``everything`` also what else this broker leads."""
        with self._lock:
            self._leaders = wanted
            self._everything = self._everything or everything
        self.worker.wake()

    def ask_offsets(self, questions: Mapping[TopicPartition, Question]) -> None:
        """Ask for the offsets of partitions that this broker leads."""
        with self._lock:
            self._offsets |= questions
        self.worker.wake()

    def take(self) -> list[Answer]:
        """The answers since the last call, in order."""
        with self._lock:
            answers, self._answers = self._answers, []
            return answers

    def open_for(self) -> float:
        """Seconds for which the current question has been without an answer; 0 without a question."""
        with self._lock:
            return 0.0 if self._asked_at is None else self._clock() - self._asked_at

    def hangs(self, patience: float) -> bool:
        """True if a question has been without an answer for ``patience`` seconds."""
        return self.open_for() >= patience

    def answer_all(self) -> list[Answer]:
        """Ask all waiting questions in this thread, and take the answers."""
        while self._answer_one():
            pass
        return self.take()

    def _turn(self) -> float:
        if not self._answer_one():
            return UNTIL_WOKEN
        if not self.worker.stopped:
            self._answered()
        return 0.0

    def _answer_one(self) -> bool:
        """Ask the next question. Offsets come first, since a segment may wait for them, but not twice in a row."""
        with self._lock:
            offsets: dict[TopicPartition, Question] = {}
            leaders, everything = None, self._everything
            if self._leaders is not None and (self._leaders_next or not self._offsets):
                leaders, self._leaders, self._everything = self._leaders, None, False
            elif self._offsets:
                offsets, self._offsets = self._offsets, offsets
            else:
                return False
            self._leaders_next = leaders is None
            self._asked_at = self._clock()
        answer = self._offsets_of(offsets) if leaders is None else self._leaders_of(leaders, everything=everything)
        with self._lock:
            self._asked_at = None
            self._answers.append(answer)
        return True

    def _leaders_of(self, wanted: Collection[TopicPartition], *, everything: bool) -> LeadersAnswer:
        asked_at, started = self._runtime.utc_now(), self._clock()
        try:
            leaders = self._metadata.leaders(wanted, everything=everything)
            self._refresh_cleanup({tp.topic for tp in leaders if tp in wanted})
        except Exception as error:  # noqa: BLE001 - the next question is asked after any error of a client
            return LeadersAnswer(asked_at, self._clock() - started, error=_unavailable(error))
        seconds, asked = self._clock() - started, frozenset(wanted)
        return LeadersAnswer(asked_at, seconds, leaders, self._cleanup, asked, everything=everything)

    def _offsets_of(self, asked: Mapping[TopicPartition, Question]) -> OffsetsAnswer:
        asked_at = self._runtime.utc_now()
        last = {tp: question.partition.last_followed(question.tail) for tp, question in asked.items()}
        known = {tp: answer for tp, answer in last.items() if answer is not None}
        try:
            before = {tp: answer.active for tp, answer in known.items()}
            before |= _read_active({tp: asked[tp].partition for tp in asked.keys() - known.keys()})
            offsets = self._with_tiers(asked, self._metadata.offsets({tp: asked[tp].partition.led for tp in before}))
            same = {tp: before[tp] for tp, answer in known.items() if offsets.get(tp) == answer.offsets}
            # Only now: a log end that was read before the high watermark would prove nothing.
            moved = _read_active({tp: asked[tp].partition for tp in offsets.keys() - same.keys()})
            active = same | _as_leader(asked, before, moved)
        except Exception as error:  # noqa: BLE001 - as above
            return OffsetsAnswer(asked_at, asked, error=_unavailable(error))
        return OffsetsAnswer(asked_at, asked, {tp: offsets[tp] for tp in active}, active)

    def _with_tiers(
        self, asked: Mapping[TopicPartition, Question], offsets: Mapping[TopicPartition, Offsets]
    ) -> dict[TopicPartition, Offsets]:
        """``offsets``, with the remote tier's part of the logs that began, by the disk, above their start.

        Other logs cannot have any. Partitions that the broker does not lead any more are left out.
        """
        above = {tp: asked[tp].partition.led for tp, seen in offsets.items() if _begins_above(asked[tp].tail, seen)}
        tiers = self._metadata.remote_tier(above) if above else {}
        left = {tp: seen for tp, seen in offsets.items() if tp not in above}
        return left | {tp: replace(offsets[tp], tier=tier) for tp, tier in tiers.items()}

    def _refresh_cleanup(self, topics: set[str]) -> None:
        if topics <= self._cleanup.keys() and self._clock() - self._cleanup_at < _CLEANUP_AGE:
            return
        self._cleanup = self._metadata.cleanup(topics)
        self._cleanup_at = self._clock()


def _begins_above(tail: LogTail | None, seen: Offsets) -> bool:
    return tail is not None and seen.log_start_offset is not None and tail.first > seen.log_start_offset


def _read_active(partitions: Mapping[TopicPartition, LedPartition]) -> dict[TopicPartition, Active | None]:
    """The active segments of the partitions with directories that still belong to them.

    ListOffsets uses names: the answer may be about a topic that was deleted and re-created in the meantime.
    """
    segments: dict[TopicPartition, Active | None] = {}
    for tp, partition in partitions.items():
        try:
            segments[tp] = partition.read_active()
        except SegmentChanged as error:
            logger.debug("foreign_answer_dropped", partition=str(tp), error=str(error))
    return segments


def _as_leader(
    asked: Mapping[TopicPartition, Question],
    before: Mapping[TopicPartition, Active | None],
    after: Mapping[TopicPartition, Active | None],
) -> dict[TopicPartition, Active | None]:
    """The segments read ``after`` the answer, without logs that were truncated since they were read ``before`` it.

    A broker may answer as leader and lose the leadership at once. Its log is then truncated, and appended to under a
    later epoch. The end of such a log proves nothing about the time of the question. None: the segment could not be
    read.
    """
    segments: dict[TopicPartition, Active | None] = {}
    for tp, now in after.items():
        was, led = before[tp], asked[tp].partition.led
        if was is None or was.end is None or now is None or now.end is None:
            segments[tp] = None
        elif now.end >= was.end and now.leader_epoch <= led.leader_epoch:
            segments[tp] = now
        else:
            logger.debug("foreign_answer_dropped", partition=str(tp), leadership=led, log_end=was.end, now=now.end)
    return segments


def _unavailable(error: Exception) -> BrokerUnavailable:
    if isinstance(error, BrokerUnavailable):
        return error
    return BrokerUnavailable(f"the broker's answer was not understood: {type(error).__name__}: {error}")
