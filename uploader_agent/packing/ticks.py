"""The times at which partitions are packed: the loop's part, which looks at the disk and asks the broker.

A tick is a third of the shortest freshness of a led topic. A partition is due when its oldest byte that is not stored
will be older than a third of its own freshness at the next tick. A quiet tail is due in the next tick; if there is none
soon, it gets a tick of its own. The loop asks the broker for the high watermarks of all due partitions in one question.
Once it has answered, another thread packs them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import PACKS_PER_FRESHNESS
from uploader_agent.partitions.leadership import Leadership
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.partitions.poller import OffsetsAnswer, Poller
from uploader_agent.runtime import Runtime

_PATIENCE = 1.0
"""Seconds for which a tick waits for the broker's answers. A partition with a later answer is packed after it."""

GATHERING = 60.0
"""Seconds for which a quiet tail waits for others to become quiet, or a tenth of ``tail_after`` if that is less."""


class Ticks:
    """The ticks of all led partitions, for the loop. ``pack`` is called with the partitions of a tick."""

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
        """The partitions of the last tick without an answer in time: for thousands, the broker takes seconds."""
        self._waits_until = float("inf")

    @property
    def next_time(self) -> float:
        """The time at which :meth:`turn` is due; infinity while no partition is to be packed."""
        return min(self._next, self._waits_until)

    def reconsider(self) -> None:
        """Compute the ticks again, after a change of the leadership or the settings."""
        led = self._leadership.partitions
        self._fresh = [partition for partition in led.values() if partition.freshness is not None]
        ticks = (partition.freshness / PACKS_PER_FRESHNESS for partition in self._fresh if partition.freshness)
        self._every = min(ticks, default=float("inf"))
        self._quiet = {tp: partition for tp, partition in self._quiet.items() if led.get(tp) is partition}
        self._next = min(self._next, self._clock() + self._every) if self._fresh or self._quiet else float("inf")
        self._late = {}

    def add_quiet(self, partition: LedPartition, tail_after: float) -> None:
        """Pack the tail of ``partition`` soon, since nothing was appended for ``tail_after`` seconds."""
        self._quiet[partition.tp] = partition
        self._next = min(self._next, self._clock() + min(GATHERING, tail_after / 10))

    def turn(self) -> set[TopicPartition]:
        """Begin and end the ticks that are due; return the partitions that have changed on the disk."""
        now = self._clock()
        if now >= self._waits_until:
            self._pack_due()
        return self._begin(now) if now >= self._next else set()

    def answered(self, answer: OffsetsAnswer) -> None:
        """Note an answer or a failure of the broker."""
        late = [self._late.pop(tp) for tp in answer.asked.keys() & self._late.keys()]
        if late:
            self._pack_ready(late)
        if self._unanswered:
            self._unanswered -= answer.asked.keys()
            if not self._unanswered:
                self._pack_due()

    def _begin(self, now: float) -> set[TopicPartition]:
        self._next = max(self._next + self._every, now + self._every / 2)
        changed = {partition.tp for partition in self._fresh if partition.look()}
        due = self._quiet | {partition.tp: partition for partition in self._fresh if self._is_due(partition)}
        self._quiet = {}
        ask = {tp for tp, partition in due.items() if partition.outdated}
        self._due |= due
        if ask:
            self._unanswered |= ask
            self._waits_until = now + min(_PATIENCE, self._every / 2)
            self._poller.ask_offsets(self._leadership.ask(ask))
        elif due:
            self._pack_due()
        return changed

    def _is_due(self, partition: LedPartition) -> bool:
        age = partition.unstored_age(self._clock())
        if not age:
            return age is None
        return partition.freshness is not None and age + self._every >= partition.freshness / PACKS_PER_FRESHNESS

    def _pack_due(self) -> None:
        """Pack all due partitions for which the broker has answered."""
        self._late = {tp: self._due[tp] for tp in self._unanswered}
        due, self._due, self._unanswered, self._waits_until = self._due, {}, set(), float("inf")
        self._pack_ready(due.values())

    def _pack_ready(self, due: Iterable[LedPartition]) -> None:
        ready = [partition for partition in due if (partition.high_watermark or 0) > partition.stored_end]
        if ready:
            self._pack(ready)
