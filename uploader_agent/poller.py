"""Questions to the broker, asked in a thread of their own: a broker that hangs holds up neither disks nor uploads.

The loop puts questions, is woken when they are answered, and takes the answers. A question that has not been put yet is
merged with the next of its kind, so that many hints become one question.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tidemark.layout import TopicPartition
from tidemark.stored import utc_now
from uploader_agent.metadata import BrokerUnavailable, Leader, Led, Metadata, Offsets

_POLICY_AGE = 60.0
"""Seconds for which a topic's clean-up policy is believed."""


@dataclass(frozen=True, slots=True)
class LeadersAnswer:
    """Who leads what was asked for as of ``asked_at``, and the topics' clean-up policies; or the ``error``."""

    asked_at: datetime
    seconds: float
    leaders: Mapping[TopicPartition, Leader] = field(default_factory=dict)
    policies: Mapping[str, str] = field(default_factory=dict)
    error: BrokerUnavailable | None = None


@dataclass(frozen=True, slots=True)
class OffsetsAnswer:
    """Offsets of those of ``asked`` that this broker leads as stated there, as of ``asked_at``; or the ``error``."""

    asked_at: datetime
    asked: Mapping[TopicPartition, Led]
    offsets: Mapping[TopicPartition, Offsets] = field(default_factory=dict)
    error: BrokerUnavailable | None = None


Answer = LeadersAnswer | OffsetsAnswer


class Poller:
    """Thread-safe. ``answered`` is called, from the poller's thread, when :meth:`take` has something new."""

    def __init__(
        self, metadata: Metadata, answered: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is asked before :meth:`start`, or :meth:`answer_all`."""
        self._metadata = metadata
        self._answered = answered
        self._clock = clock
        self._changed = threading.Condition()
        self._leaders: Collection[TopicPartition] | None = None
        self._offsets: dict[TopicPartition, Led] = {}
        self._answers: list[Answer] = []
        self._asked_at: float | None = None
        self._stopped = False
        self._policies: Mapping[str, str] = {}
        self._policies_at = -float("inf")
        self._thread = threading.Thread(target=self._run, name="metadata", daemon=True)

    def start(self) -> None:
        """Ask from now on, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask nothing more. A question that hangs is left behind: it cannot be ended, and changes nothing."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def ask_leaders(self, wanted: Collection[TopicPartition]) -> None:
        """Ask who leads each of ``wanted``."""
        with self._changed:
            self._leaders = wanted
            self._changed.notify_all()

    def ask_offsets(self, led: Mapping[TopicPartition, Led]) -> None:
        """Ask for the offsets of partitions that this broker leads."""
        with self._changed:
            self._offsets |= led
            self._changed.notify_all()

    def take(self) -> list[Answer]:
        """The answers since the last call, in order."""
        with self._changed:
            answers, self._answers = self._answers, []
            return answers

    def hangs(self, patience: float) -> bool:
        """Whether a question has been without an answer for ``patience`` seconds."""
        with self._changed:
            return self._asked_at is not None and self._clock() - self._asked_at >= patience

    def answer_all(self) -> list[Answer]:
        """Ask everything that waits, in this thread, and take the answers."""
        while self._answer_one():
            pass
        return self.take()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._offsets or self._leaders is not None)
                if self._stopped:
                    return
            self._answer_one()
            with self._changed:
                if not self._stopped:
                    self._answered()

    def _answer_one(self) -> bool:
        """Offsets first: a segment may wait for them."""
        with self._changed:
            offsets, self._offsets = self._offsets, {}
            leaders = None
            if not offsets:
                leaders, self._leaders = self._leaders, None
            if not offsets and leaders is None:
                return False
            self._asked_at = self._clock()
        answer = self._offsets_of(offsets) if leaders is None else self._leaders_of(leaders)
        with self._changed:
            self._asked_at = None
            self._answers.append(answer)
        return True

    def _leaders_of(self, wanted: Collection[TopicPartition]) -> LeadersAnswer:
        asked_at, started = utc_now(), self._clock()
        try:
            leaders = self._metadata.leaders(wanted)
            self._refresh_policies({at.topic for at in leaders})
        except Exception as error:  # noqa: BLE001 - whatever a client makes of an answer, the next question is asked
            return LeadersAnswer(asked_at, self._clock() - started, error=_unavailable(error))
        return LeadersAnswer(asked_at, self._clock() - started, leaders, self._policies)

    def _offsets_of(self, led: Mapping[TopicPartition, Led]) -> OffsetsAnswer:
        asked_at = utc_now()
        try:
            return OffsetsAnswer(asked_at, led, self._metadata.offsets(led))
        except Exception as error:  # noqa: BLE001 - as above
            return OffsetsAnswer(asked_at, led, error=_unavailable(error))

    def _refresh_policies(self, topics: set[str]) -> None:
        if topics <= self._policies.keys() and self._clock() - self._policies_at < _POLICY_AGE:
            return
        self._policies = self._metadata.cleanup_policy(topics)
        self._policies_at = self._clock()


def _unavailable(error: Exception) -> BrokerUnavailable:
    if isinstance(error, BrokerUnavailable):
        return error
    return BrokerUnavailable(f"the broker's answer was not understood: {type(error).__name__}: {error}")
