"""The data on the disk that is not stored yet, its age, and the reason for which it waits: for metrics and for people.

The answer uses the state that the agent knows so far. Until the broker and the store have answered, data on the disk
counts as not stored, from the moment at which the agent first saw it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import PACKS_PER_FRESHNESS
from tidemark.words import duration
from uploader_agent.disk.log_dirs import LocalSegment
from uploader_agent.partitions.leadership import Leadership
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import MACHINE, Runtime

Kind = Literal["rotated", "tail", "gap", "leadership", "directory", "other_history"]


class Wait(NamedTuple):
    """A wait: ``seconds`` is that of the oldest byte, ``overdue`` the part of it that the settings do not explain.

    A rotated segment is due at once. A tail is due after a third of its topic's ``freshness``, or without that once
    nothing was appended for ``tail_after``.
    """

    tp: TopicPartition
    kind: Kind
    seconds: float
    reason: str
    overdue: float = 0.0

    def __str__(self) -> str:
        return f"{self.tp}: {self.kind} waits, for {self.seconds:.0f} s so far: {self.reason}"

    def to_json(self) -> dict[str, object]:
        """The wait as plain values, for ``json.dumps``."""
        seconds = round(self.seconds, 1)
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "kind": self.kind,
            "seconds": seconds,
            "reason": self.reason,
        }


_Mark = tuple[TopicPartition, Kind, int, int]
"""The identity of a wait: the start of a segment or a gap, and the end of the stored data at the time."""


class Waits:
    """The waits of all partitions, and their beginnings. Thread-safe."""

    def __init__(self, leadership: Leadership, runtime: Runtime = MACHINE) -> None:
        self._leadership = leadership
        self._monotonic = runtime.monotonic
        self._since: dict[_Mark, float] = {}
        self._lock = threading.Lock()

    def look(self, tail_after: float, now: float) -> list[Wait]:
        """All waits as of ``now``, in seconds since 1970, longest first."""
        with self._lock:
            begun: dict[_Mark, float] = {}
            waits: list[Wait] = []
            for partition in self._leadership.partitions.values():
                if partition.is_unsettled:
                    waits += self._of(partition, tail_after, now, begun)
            for tp, reason in self._leadership.undecided():
                waits.append(Wait(tp, "leadership", now - self._begun((tp, "leadership", 0, 0), now, begun), reason))
            undecided = {wait.tp for wait in waits if wait.kind == "leadership"}
            for tp, reason in self._leadership.unread().items():
                if tp in undecided:
                    continue
                waits.append(Wait(tp, "directory", now - self._begun((tp, "directory", 0, 0), now, begun), reason))
            self._since = begun
        return sorted(waits, key=lambda wait: -wait.seconds)

    def _of(self, partition: LedPartition, tail_after: float, now: float, begun: dict[_Mark, float]) -> Iterator[Wait]:
        tp, end = partition.tp, partition.remote.log.end
        for segment in partition.pending()[:1]:
            appended = self._appended(partition, segment)
            seen = self._begun((tp, "rotated", segment.base_offset, end), now, begun, appended)
            reason = why_rotated(partition, segment, self._leadership.unreachable)
            yield Wait(tp, "rotated", now - seen, reason, now - seen)
        yield from self._of_tail(partition, tail_after, now, begun)
        if (parting := partition.parting) is not None:
            seen = self._begun((tp, "other_history", parting.at, 0), now, begun)
            yield Wait(tp, "other_history", now - seen, str(parting))
        elif partition.is_short and partition.error is not None:  # nothing is new, and yet nothing of it may be stored
            seen = self._begun((tp, "leadership", 0, 0), now, begun)
            reason = f"its log ends below {partition.stored_end}, where its stored offsets end: {partition.error}"
            yield Wait(tp, "leadership", now - seen, reason)
        for gap in partition.remote.log.gaps:
            seen = self._begun((tp, "gap", gap.start, 0), now, begun, gap.detected_at.timestamp())
            where = "only in Kafka's own remote tier" if gap.in_remote_tier else "stored nowhere"
            yield Wait(tp, "gap", now - seen, f"offsets {gap.start} to {gap.end} are {where}: {gap.reason}")

    def _of_tail(
        self, partition: LedPartition, tail_after: float, now: float, begun: dict[_Mark, float]
    ) -> Iterator[Wait]:
        """The wait of the active segment's offsets that are neither sealed nor packed."""
        tp, end, freshness = partition.tp, partition.stored_end, partition.freshness
        unreachable = self._leadership.unreachable
        age = partition.unstored_age(self._monotonic())
        if freshness is not None and age is not None:
            if age:
                reason = why_unpacked(partition, freshness, unreachable)
                yield Wait(tp, "tail", age, reason, max(0.0, age - freshness / PACKS_PER_FRESHNESS))
            return
        for segment in partition.segments[-1:] if partition.has_unstored_tail else ():
            appended = self._appended(partition, segment)
            seen = self._begun((tp, "tail", segment.base_offset, end), now, begun, appended)
            quiet = now - (seen if appended is None else appended)
            reason = why_tail(partition, segment, tail_after, now, unreachable)
            yield Wait(tp, "tail", now - seen, reason, max(0.0, quiet - tail_after))

    def _begun(self, mark: _Mark, now: float, begun: dict[_Mark, float], known: float | None = None) -> float:
        """The beginning of the wait ``mark``: the time at which it was first seen, or the earlier time ``known``."""
        begun[mark] = min(self._since.get(mark, now), now if known is None else known)
        return begun[mark]

    def _appended(self, partition: LedPartition, segment: LocalSegment) -> float | None:
        """The time of the segment's last append; None if the broker or the store has not answered yet."""
        return segment.modified if partition.remote.log.known and partition.observation is not None else None


def why_rotated(partition: LedPartition, segment: LocalSegment, unreachable: str | None = None) -> str:
    """The reason for which a rotated segment waits. ``unreachable`` is that of a broker that does not answer."""
    offsets = partition.offsets
    if (unknown := _unknown(partition, unreachable)) is not None:
        return unknown
    if offsets is not None and segment.next_offset is not None and segment.next_offset > offsets.high_watermark:
        return _behind(partition, offsets.high_watermark, f"the segment's end {segment.next_offset}", unreachable)
    return "its upload waits for a worker, or is under way"


def why_tail(
    partition: LedPartition, segment: LocalSegment, tail_after: float, now: float, unreachable: str | None = None
) -> str:
    """The reason for which an active segment waits. ``unreachable`` is that of a broker that does not answer."""
    if (unknown := _unknown(partition, unreachable)) is not None:
        return unknown
    quiet, observation = now - segment.modified, partition.observation
    if quiet < tail_after:
        return f"tail_after: the last append was {quiet:.0f} s ago, and the tail is stored {tail_after:.0f} s after it"
    if partition.packed.tail.error is not None:
        return _not_packed(partition.packed.tail.error)
    if observation is None or observation.tail != partition.disk.tail:
        return unreachable or "the broker has not been asked, or has not answered, since the last append"
    if observation.log_end is None:
        return "its log end cannot be read from the disk"
    if observation.offsets.high_watermark < observation.log_end:
        return _behind(partition, observation.offsets.high_watermark, f"the log end {observation.log_end}", unreachable)
    if partition.seals_quiet_tail:
        return "its upload waits for a worker, or is under way"
    return "it waits for other quiet tails to be packed with, or is being packed"


def why_unpacked(partition: LedPartition, freshness: float, unreachable: str | None = None) -> str:
    """The reason for which the newest bytes wait, of a partition with a ``freshness``. ``unreachable`` is as above."""
    if (unknown := _unknown(partition, unreachable)) is not None:
        return unknown
    if partition.packed.tail.error is not None:
        return _not_packed(partition.packed.tail.error)
    seen, high_watermark = partition.observation, partition.high_watermark or 0
    if seen is not None and seen.log_end is not None and high_watermark < seen.log_end and partition.outdated:
        return _behind(partition, high_watermark, f"the log end {seen.log_end}", unreachable)
    if unreachable is not None:
        return f"only a high watermark that the broker has answered lets it be packed: {unreachable}"
    return f"freshness: it is packed within {duration(freshness / PACKS_PER_FRESHNESS)}"


def oldest(waits: Iterable[Wait], kind: Kind) -> tuple[float, float]:
    """The largest ``seconds`` and the largest ``overdue`` of one kind; 0 without any."""
    same = [wait for wait in waits if wait.kind == kind]
    return max((wait.seconds for wait in same), default=0.0), max((wait.overdue for wait in same), default=0.0)


def _unknown(partition: LedPartition, unreachable: str | None) -> str | None:
    if partition.error is not None:
        return f"the last try failed, and the next one comes after a pause: {partition.error}"
    if partition.offsets is None:
        return f"the broker has not said its high watermark yet{f': {unreachable}' if unreachable else ''}"
    if not partition.remote.log.known:
        return "its state in the store is not known yet"
    return None


def _not_packed(error: str) -> str:
    return f"it was not packed at the last try: {error}"


def _behind(partition: LedPartition, high_watermark: int, end: str, unreachable: str | None) -> str:
    if unreachable is not None:
        return (
            f"the last known high watermark {high_watermark} is below {end}, and there is no newer one: {unreachable}"
        )
    asked = f"it is asked for again every {partition.question_pause:g} s"
    return f"the high watermark {high_watermark} is below {end}: followers have not fetched that yet; {asked}"
