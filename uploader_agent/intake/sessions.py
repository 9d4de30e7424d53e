"""Fetch sessions (KIP-227): a broker keeps the partitions of a request, and is told of changes alone.

It leaves out of an answer each partition of which it has no batch and no news: no error, no divergence, no near replica
and the high watermark that it stated before. To a partition that was asked for, that is an answer as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from uploader_agent.intake.fetching import FetchedPart, Wanted

_LAST_EPOCH: Final = (1 << 31) - 1


class SessionRequest(NamedTuple):
    """A request in a session: what is ``wanted`` anew or otherwise than before, and what is not any more.

    Under ``epoch`` 0 the broker ends the session ``number``, if it has it, and begins another.
    """

    number: int
    epoch: int
    wanted: Sequence[Wanted]
    forgotten: Sequence[Wanted]


class FetchSession:
    """The session with one broker: what the broker keeps of the requests so far."""

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
        before, self._held = self._held if self._epoch else {}, {_key(part): part for part in wanted}
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
        self._number, self._epoch = number, self._epoch % _LAST_EPOCH + 1 if number else 0
        if throttled:
            return []
        full = any(part.records for part in parts)
        answered = {_key(part.wanted): part for part in parts}
        self._high |= {key: part.high_watermark for key, part in answered.items()}
        left_out = [
            FetchedPart(self._held[key], high_watermark=self._high.get(key, -1), first=not full)
            for key in self._due - answered.keys()
        ]
        every = [*parts, *left_out]
        self._due = {
            _key(part.wanted) for part in every if not part.records and part.high_watermark > part.wanted.offset
        }
        return every

    def lose(self) -> bool:
        """Begin another session with the next request; True if the last one was told of changes alone."""
        continued, self._epoch = self._epoch > 0, 0
        return continued


def _key(wanted: Wanted) -> tuple[str, int]:
    return wanted.topic_id, wanted.tp.partition
