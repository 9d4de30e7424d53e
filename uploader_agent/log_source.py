"""The source of an agent's log directories, and the conclusions that they allow.

A broker's own disk has the log: offsets that are not there are lost. A spool has the part that was fetched so far:
what it lacks may still be on the brokers. All that differs between the two is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import ClassVar, NamedTuple, Protocol

from typing_extensions import override

from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.manifest import Origin
from uploader_agent.broker.admin import Offsets
from uploader_agent.stored.histories import Parting
from uploader_agent.worker import Worker


class FoundParting(NamedTuple):
    """Where a log parts from the stored history, and when that was found."""

    parting: Parting
    found_at: datetime


class LogSource(Protocol):
    """The source of the log directories. Every method may be called from any thread, except where it says otherwise."""

    origin: ClassVar[Origin]
    marks_gaps: ClassVar[bool]
    """True if an empty segment before another stands for offsets that the brokers no longer had."""
    has_whole_log: ClassVar[bool]
    """True if the directories have everything up to the leader's log end; otherwise they may be behind it."""
    over: Mapping[tuple[TopicPartition, str], int]
    """The ends, by topic id, of deleted topics that the directories still have. It is replaced as a whole."""

    def lost_below(self, end: int, offsets: Offsets | None) -> int:
        """The offset below which everything is lost that neither the directory nor the store has; at most ``end``.

        ``end`` is where the directory's active segment begins, ``offsets`` are the leader's.
        """
        ...

    def stored(self, tp: TopicPartition, topic_id: str | None, end: int) -> None:
        """Note that ``offset.wm`` accounts for all offsets below ``end``."""
        ...

    def begin_again(self, tp: TopicPartition, topic_id: str | None) -> None:
        """Note that the directory begins above offsets which are neither stored nor lost."""
        ...

    def retention_left(self, tp: TopicPartition, topic_id: str | None) -> float | None:
        """The share of the topic's retention that is left before it removes what the directory lacks.

        None if that is unknown, or retention is not to be feared.
        """
        ...

    @property
    def partings(self) -> Mapping[tuple[TopicPartition, str], FoundParting]:
        """By partition and topic id, the logs that the source itself has found to be other ones than the stored."""
        ...

    @contextmanager
    def running(self, accepts_topic: Callable[[str], bool]) -> Iterator[Worker | None]:
        """Keep the directories of accepted topics current, in a thread if that takes one."""
        ...

    def catch_up(self, accepts_topic: Callable[[str], bool]) -> None:
        """Bring the directories up to the first high watermarks that are heard, in place of :meth:`running`."""
        ...


class BrokerDisk(LogSource):
    """A broker's own log directories, which the broker keeps current."""

    origin = "disk"
    marks_gaps = False
    has_whole_log = True
    over: Mapping[tuple[TopicPartition, str], int] = {}

    @override
    def lost_below(self, end: int, offsets: Offsets | None) -> int:
        return end

    @override
    def stored(self, tp: TopicPartition, topic_id: str | None, end: int) -> None:
        pass

    @override
    def begin_again(self, tp: TopicPartition, topic_id: str | None) -> None:
        pass

    @override
    def retention_left(self, tp: TopicPartition, topic_id: str | None) -> float | None:
        return None

    @property
    @override
    def partings(self) -> Mapping[tuple[TopicPartition, str], FoundParting]:
        return {}

    @override
    @contextmanager
    def running(self, accepts_topic: Callable[[str], bool]) -> Iterator[Worker | None]:
        yield None

    @override
    def catch_up(self, accepts_topic: Callable[[str], bool]) -> None:
        pass
