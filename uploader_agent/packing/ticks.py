"""When partitions are packed: the loop's part, which looks at the disk and asks the broker.

A tick is a third of the shortest freshness of a led topic. A partition is due when its oldest byte that is not stored
will be older than a third of its own freshness at the next tick. A quiet tail is due in the next tick, and has one if
there is none soon. The broker is asked for the high watermarks of all that are due in one question. They are packed
once it has answered, by a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from tidemark.formats.keys import TopicPartition
from uploader_agent.partitions.leadership import Leadership
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.partitions.poller import OffsetsAnswer, Poller
from uploader_agent.runtime import Runtime

_PATIENCE = 1.0
"""Seconds for which a tick waits for the broker's answers about all partitions; what is late goes when it is there."""

_GATHERING = 60.0
"""Seconds for which a quiet tail waits for others that become quiet, at most, and for a tenth of ``tail_after``."""


class Ticks:
    """For the loop. ``pack`` is told of the partitions of a tick."""

    def __init__(
        self,
        leadership: Leadership,
        poller: Poller,
        pack: Callable[[Collection[LedPartition]], object],
        runtime: Runtime,
    ) -> None:
        self._leadership = leadership
        self._poller = poller
        self._pack = pack
        self._clock = runtime.monotonic
        self._fresh: list[LedPartition] = []
        self._quiet: dict[TopicPartition, LedPartition] = {}
        self._every = float("inf")
        self._next = float("inf")
        self._due: dict[TopicPartition, LedPartition] = {}
        self._unanswered: set[TopicPartition] = set()
        self._late: dict[TopicPartition, LedPartition] = {}
        """What was due in the last tick, and not answered in time: thousands of partitions take the broker seconds."""
        self._waits_until = float("inf")

    @property
    def next_time(self) -> float:
        """When :meth:`turn` is due; infinity while nothing is to be packed."""
        return min(self._next, self._waits_until)

    def reconsider(self) -> None:
        """The leadership or the settings have changed."""
        partitions = self._leadership.partitions.values()
        self._fresh = [one for one in partitions if one.freshness is not None]
        self._every = min((one.freshness / 3 for one in self._fresh if one.freshness), default=float("inf"))
        self._quiet = {tp: one for tp, one in self._quiet.items() if self._leadership.partitions.get(tp) is one}
        self._next = min(self._next, self._clock() + self._every) if self._fresh or self._quiet else float("inf")
        self._late = {}

    def add_quiet(self, partition: LedPartition, tail_after: float) -> None:
        """Pack the tail of ``partition``, to which nothing was appended for ``tail_after`` seconds, soon."""
        self._quiet[partition.tp] = partition
        self._next = min(self._next, self._clock() + min(_GATHERING, tail_after / 10))

    def turn(self) -> set[TopicPartition]:
        """What is due now; the partitions whose disk has something new."""
        now = self._clock()
        if now >= self._waits_until:
            self._go()
        return self._begin(now) if now >= self._next else set()

    def answered(self, answer: OffsetsAnswer) -> None:
        """The broker has answered, or failed to."""
        late = [self._late.pop(tp) for tp in answer.asked.keys() & self._late.keys()]
        if late:
            self._pack_ready(late)
        if self._unanswered:
            self._unanswered -= answer.asked.keys()
            if not self._unanswered:
                self._go()

    def _begin(self, now: float) -> set[TopicPartition]:
        self._next = max(self._next + self._every, now + self._every / 2)
        changed = {one.tp for one in self._fresh if one.look()}
        due = self._quiet | {one.tp: one for one in self._fresh if self._is_due(one)}
        self._quiet = {}
        ask = {tp for tp, one in due.items() if one.outdated}
        self._due |= due
        if ask:
            self._unanswered |= ask
            self._waits_until = now + min(_PATIENCE, self._every / 2)
            self._poller.ask_offsets(self._leadership.ask(ask))
        elif due:
            self._go()
        return changed

    def _is_due(self, partition: LedPartition) -> bool:
        age = partition.unstored_age(self._clock())
        if not age:
            return age is None
        return partition.freshness is not None and age + self._every >= partition.freshness / 3

    def _go(self) -> None:
        """Have all that is due packed, as far as the broker has answered."""
        self._late = {tp: self._due[tp] for tp in self._unanswered}
        due, self._due, self._unanswered, self._waits_until = self._due, {}, set(), float("inf")
        self._pack_ready(due.values())

    def _pack_ready(self, due: Iterable[LedPartition]) -> None:
        ready = [one for one in due if (one.high_watermark or 0) > one.stored_end]
        if ready:
            self._pack(ready)
