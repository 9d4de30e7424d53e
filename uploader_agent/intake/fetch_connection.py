"""A broker's connection for Fetch: requests of a session by topic id, and answers that are read as one frame each.

Source: KIP-516 (topic ids), KIP-74 (sizes of answers), KIP-227 (sessions).
"""

from __future__ import annotations

import io
import selectors
import socket
import ssl
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from kafka import errors as kafka_errors
from kafka.errors import KafkaError
from kafka.protocol.consumer import FetchRequest, FetchResponse

from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.incarnations import topic_id_text, topic_id_uuid
from uploader_agent.broker.admin import BrokerUnavailable
from uploader_agent.intake.fetching import (
    FetchAnswer,
    FetchedPart,
    FetchLimits,
    FrameTooLarge,
    PartitionRefused,
    Refusal,
    Wanted,
)

FETCHES: Final = "tidemark-fetch"
"""The client id of these connections, for a quota on bytes."""

ANSWER_SECONDS: Final = 30.0
_WAIT_MS: Final = 500
"""Time for which a broker may keep a request that it has no batch for."""

_LONGEST_HEADER: Final = 64
_LONGEST_START: Final = 4 << 20
"""Bytes of an answer that is too long in which its first batch begins: each partition before it has some 50."""

REFUSALS: Final[dict[type[KafkaError], Refusal]] = {
    kafka_errors.OffsetOutOfRangeError: Refusal.RANGE,
    kafka_errors.LeaderNotAvailableError: Refusal.LEADER,
    kafka_errors.NotLeaderForPartitionError: Refusal.LEADER,
    kafka_errors.ReplicaNotAvailableError: Refusal.LEADER,
    kafka_errors.FencedLeaderEpochError: Refusal.LEADER,
    kafka_errors.UnknownLeaderEpochError: Refusal.LATER,
    kafka_errors.OffsetNotAvailableError: Refusal.LATER,
    kafka_errors.UnknownTopicOrPartitionError: Refusal.TOPIC,
    kafka_errors.UnknownTopicIdError: Refusal.TOPIC,
    kafka_errors.InconsistentTopicIdError: Refusal.TOPIC,
    kafka_errors.TopicAuthorizationFailedError: Refusal.RIGHT,
}

_OF_SESSIONS: Final = (
    kafka_errors.FetchSessionIdNotFoundError,
    kafka_errors.InvalidFetchSessionEpochError,
    kafka_errors.FetchSessionTopicIdError,
)
"""A broker's errors that call for another session: it has dropped this one, or a topic was made again."""

_TOPIC: Final = FetchRequest.FetchTopic
_FORGOTTEN: Final = FetchRequest.ForgottenTopic

_LAST_SESSION_EPOCH: Final = (1 << 31) - 1


class FetchConnection:
    """A socket that is connected and authenticated, with one Fetch request at a time."""

    def __init__(
        self, sock: socket.socket, broker: int, version: int, limits: FetchLimits, session: FetchSession
    ) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._broker = broker
        self._version = version
        self._limits = limits
        self._session = session
        session.lose()  # the answer to its last request may be lost
        self._number = 0
        self._waits = False
        self._heard_at = 0.0
        """When the request was made, or bytes of its answer came last."""
        self._unsent = memoryview(b"")
        self._buffer = bytearray(limits.partition)
        self._have = 0
        """The bytes of the answer that are in the buffer."""

    @property
    def events(self) -> int:
        """The events of the socket that :meth:`receive` waits for."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)

    def is_late(self, now: float) -> bool:
        """True if the broker owes an answer, and sends nothing for too long."""
        return self._waits and now - self._heard_at > ANSWER_SECONDS

    def send(self, wanted: Sequence[Wanted], rack: str) -> None:
        """Make a request for all that is wanted, which :meth:`receive` sends.

        In a session the broker keeps it, and lets partitions take turns.
        """
        number, epoch, changed, forgotten = self._session.ask(wanted)
        topics = [
            _TOPIC(topic_id=topic_id, topic=name, partitions=list(map(self._part, parts)))
            for topic_id, name, parts in _by_topic(changed)
        ]
        gone = [
            _FORGOTTEN(topic_id=topic_id, topic=name, partitions=[part.tp.partition for part in parts])
            for topic_id, name, parts in _by_topic(forgotten)
        ]
        request = FetchRequest(
            version=self._version,
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=self._limits.answer,
            isolation_level=0,
            session_id=number,
            session_epoch=epoch,
            topics=topics,
            forgotten_topics_data=gone,
            rack_id=rack,
        )
        self._number = (self._number + 1) % (1 << 31)
        request.with_header(correlation_id=self._number, client_id=FETCHES)
        self._waits, self._heard_at = True, time.monotonic()
        self._unsent = memoryview(request.encode(framed=True, header=True))

    def receive(self) -> FetchAnswer | None:
        """Send what is unsent, and read the answer; None while the socket does not allow more.

        Raises:
            FrameTooLarge: the answer is longer than the limit.
            OSError: the connection is lost.
            ValueError, IndexError, struct.error: the bytes are no answer to the request.
        """
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
            size = int.from_bytes(self._first(4), "big")
            if size > self._limits.frame:
                first = self._first_with_records(self._first(4 + min(size, _LONGEST_START))[4:])
                raise FrameTooLarge(first.tp, first.offset, size, self._limits.frame)
            frame = self._first(4 + size)[4:]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        if not self._waits:
            raise ValueError("the broker sent an answer, and no request was sent")
        self._waits, self._have = False, 0
        head = io.BytesIO(frame[:_LONGEST_HEADER])
        header = FetchResponse.parse_header(head, version=self._version)
        if header.correlation_id != self._number:
            raise ValueError(f"the broker answered {header.correlation_id}, and request {self._number} was sent")
        answer = FetchResponse.decode(frame[head.tell() :], version=self._version)
        throttled = answer.throttle_time_ms / 1000
        if answer.error_code:
            error = kafka_errors.for_code(answer.error_code)
            if self._session.lose() and error in _OF_SESSIONS:
                return FetchAnswer(self._broker, throttled=throttled)
            failure = BrokerUnavailable(f"broker {self._broker} refused to fetch: {error.message}")
            return FetchAnswer(self._broker, throttled=throttled, error=failure)
        parts = self._session.take(answer.session_id, list(self._fetched(answer)), throttled=throttled > 0)
        return FetchAnswer(self._broker, parts, throttled)

    def _fetched(self, answer: Any) -> Iterator[FetchedPart]:
        """The parts of an answer, with the parts of the requests that they answer."""
        first = True
        for topic in answer.responses:
            topic_id = topic_id_text(topic.topic_id) or ""
            for part in topic.partitions:
                wanted = self._session.wanted(topic_id, part.partition_index)
                if wanted is None:
                    continue
                diverging = part.diverging_epoch
                yield FetchedPart(
                    wanted,
                    memoryview(part.records or b""),
                    part.high_watermark,
                    part.preferred_read_replica,
                    diverging is not None and diverging.end_offset >= 0,
                    first,
                    refused(wanted.tp, part.error_code),
                )
                first = first and not part.records

    def _part(self, wanted: Wanted) -> Any:
        return _TOPIC.FetchPartition(
            partition=wanted.tp.partition,
            current_leader_epoch=wanted.leader_epoch,
            fetch_offset=wanted.offset,
            last_fetched_epoch=wanted.last_epoch,
            log_start_offset=-1,
            partition_max_bytes=self._limits.partition,
        )

    def _first(self, size: int) -> memoryview:
        """The first ``size`` bytes of the answer, valid until the next one. Raises if the socket has no more now."""
        if size > len(self._buffer):
            larger = bytearray(size)
            larger[: self._have] = memoryview(self._buffer)[: self._have]
            self._buffer = larger
        frame = memoryview(self._buffer)[:size]
        while self._have < size:
            count = self.socket.recv_into(frame[self._have :])
            if not count:
                raise ConnectionError("the broker closed the connection")
            self._have, self._heard_at = self._have + count, time.monotonic()
        return frame

    def _first_with_records(self, start: memoryview) -> Wanted:
        """The part of the requests that the first records of an answer are for, which begins with ``start``."""
        data = io.BytesIO(start)

        def number() -> int:
            value = shift = 0
            while (byte := data.read(1)[0]) >= 0x80:
                value, shift = value | (byte & 0x7F) << shift, shift + 7
            return value | byte << shift

        def skip_tags() -> None:
            for _ in range(number()):
                number()
                data.read(number())

        data.read(4)  # the request's number
        skip_tags()
        data.read(10)  # throttle time, error, session
        for _ in range(number() - 1):
            topic_id = topic_id_text(uuid.UUID(bytes=data.read(16))) or ""
            for _ in range(number() - 1):
                partition = int.from_bytes(data.read(4), "big")
                data.read(26)  # error, high watermark, last stable offset, log start
                for _ in range(number() - 1):
                    data.read(16)  # an aborted transaction
                    skip_tags()
                data.read(4)  # near replica
                wanted = self._session.wanted(topic_id, partition)
                if number() > 1 and wanted is not None:
                    return wanted
                skip_tags()
            skip_tags()
        raise ValueError("no partition of the answer has records")


def refused(tp: TopicPartition, code: int) -> PartitionRefused | None:
    """Kafka's error ``code`` about one partition; None for 0."""
    if not code:
        return None
    error = kafka_errors.for_code(code)
    return PartitionRefused(tp, REFUSALS.get(error, Refusal.OTHER), error.message)


def _by_topic(parts: Iterable[Wanted]) -> Iterator[tuple[uuid.UUID, str, Iterator[Wanted]]]:
    for (topic_id, name), found in groupby(parts, key=lambda part: (part.topic_id, part.tp.topic)):
        yield topic_id_uuid(topic_id), name, found


class SessionRequest(NamedTuple):
    """A request in a session: what is ``wanted`` anew or otherwise than before, and what is not any more.

    Under ``epoch`` 0 the broker ends the session ``number``, if it has it, and begins another.
    """

    number: int
    epoch: int
    wanted: Sequence[Wanted]
    forgotten: Sequence[Wanted]


class FetchSession:
    """The session with one broker: it keeps the partitions of the requests so far, and is told of changes alone.

    It leaves out of an answer each partition of which it has no batch and no news: no error, no divergence, no near
    replica and the high watermark that it stated before. To a partition that was asked for, that is an answer as well.
    """

    def __init__(self) -> None:
        self._number = self._epoch = 0
        self._asked: Sequence[Wanted] = ()
        self._held: dict[tuple[str, int], Wanted] = {}
        self._high: dict[tuple[str, int], int] = {}
        """The high watermark that the broker has stated last, by partition."""
        self._due: set[tuple[str, int]] = set()
        """The partitions that get an answer even if the broker leaves them out: those that are wanted anew, and those
        that end below their high watermark, since compaction may have removed what is there."""

    def ask(self, wanted: Sequence[Wanted]) -> SessionRequest:
        """The next request, for all that is ``wanted``. An object that is wanted anew, equal or not, gets an answer.

        The same list again asks for nothing anew, without a look at thousands of partitions.
        """
        if self._epoch and wanted is self._asked:
            return SessionRequest(self._number, self._epoch, [], [])
        self._asked = wanted
        before, self._held = self._held if self._epoch else {}, {_session_key(part): part for part in wanted}
        anew = {key: part for key, part in self._held.items() if before.get(key) is not part}
        changed = [part for key, part in anew.items() if before.get(key) != part]
        forgotten = [part for key, part in before.items() if key not in self._held]
        self._due = (self._due & self._held.keys()) | anew.keys()
        return SessionRequest(self._number, self._epoch, changed, forgotten)

    def wanted(self, topic_id: str, partition: int) -> Wanted | None:
        """The part of the requests that an answer's part is for; None if nobody wants it any more."""
        return self._held.get((topic_id, partition))

    def take(self, number: int, parts: Sequence[FetchedPart], *, throttled: bool = False) -> list[FetchedPart]:
        """The parts of an answer in session ``number``, and those that it leaves out.

        A ``throttled`` answer is empty, and says nothing of any partition; the next one does.
        """
        # The number 0 says that the broker keeps no session: it has no room for another.
        self._number, self._epoch = number, self._epoch % _LAST_SESSION_EPOCH + 1 if number else 0
        if throttled:
            return []
        full = any(part.records for part in parts)
        answered = {_session_key(part.wanted): part for part in parts}
        self._high |= {key: part.high_watermark for key, part in answered.items()}
        left_out = [
            FetchedPart(self._held[key], high_watermark=self._high.get(key, -1), first=not full)
            for key in self._due - answered.keys()
        ]
        every = [*parts, *left_out]
        self._due = {
            _session_key(part.wanted) for part in every if not part.records and part.high_watermark > part.wanted.offset
        }
        return every

    def lose(self) -> bool:
        """Begin another session with the next request; True if the last one was told of changes alone."""
        continued, self._epoch = self._epoch > 0, 0
        return continued


def _session_key(wanted: Wanted) -> tuple[str, int]:
    return wanted.topic_id, wanted.tp.partition
