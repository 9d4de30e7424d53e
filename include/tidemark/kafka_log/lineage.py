"""The lineage of a log: which leader epoch wrote which offsets.

Source: Kafka's ``LeaderEpochFileCache`` (KIP-101, KIP-279).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from tidemark.errors import FormatError


@dataclass(frozen=True, slots=True)
class Lineage:
    """(epoch, start offset) pairs; both strictly increase. An epoch ends where the next one starts, the last is open.

    Offsets below the first start are unknown: retention cuts a broker's lineage there (see :meth:`with_history`).
    """

    entries: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, entries: Iterable[Iterable[int]], name: str) -> Lineage:
        """Check and keep ``entries``. Raises :class:`FormatError` under ``name`` if they are not a valid lineage."""
        pairs = [tuple(entry) for entry in entries]
        for pair in pairs:
            if len(pair) != 2 or min(pair) < 0:
                raise FormatError(name, f"{pair} is not an epoch and its start offset")
        for (epoch, start), (next_epoch, next_start) in pairwise(pairs):
            if next_epoch <= epoch or next_start <= start:
                raise FormatError(name, f"epoch {next_epoch} from {next_start} cannot follow {epoch} from {start}")
        return cls(tuple((epoch, start) for epoch, start in pairs))

    def epoch_at(self, offset: int) -> int | None:
        """The epoch that wrote ``offset``, were it written; None below the first start."""
        index = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[index - 1][0] if index else None

    def end_offset(self, epoch: int, log_end: int) -> tuple[int, int] | None:
        """(largest epoch ≤ ``epoch``, offset after its last) in a log that ends at ``log_end``.

        As ``LeaderEpochFileCache.endOffsetFor``: the newest epoch ends at ``log_end``; before the first epoch the
        answer is ``epoch`` itself and the first start; None for an epoch newer than all.
        """
        index = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        floor = self.entries[index - 1][0] if index else epoch
        if index < len(self.entries):
            return floor, self.entries[index][1]
        return (floor, log_end) if self.entries and floor == epoch else None

    def truncated(self, end: int) -> Lineage:
        """The lineage of the log cut off at ``end``: of the offsets below it."""
        return Lineage(tuple(entry for entry in self.entries if entry[1] < end))

    def since(self, offset: int) -> Lineage:
        """The lineage from the epoch at ``offset`` on."""
        begun = sum(start <= offset for _, start in self.entries)
        return Lineage(self.entries[max(0, begun - 1) :])

    def with_history(self, older: Lineage) -> Lineage:
        """This lineage, with what ``older`` knows of the offsets below its first start.

        Epochs of ``older`` that are newer than this lineage's first are of a dead branch, and left out.
        """
        if not self.entries:
            return older
        (epoch, start), *rest = self.entries
        before = [entry for entry in older.entries if entry[1] < start and entry[0] <= epoch]
        if before and before[-1][0] == epoch:  # retention had moved the start up within the epoch
            return Lineage((*before, *rest))
        return Lineage((*before, *self.entries))

    def divergence(self, other: Lineage, end: int | None = None) -> int | None:
        """The first offset below ``end`` that the two logs do not share; None if there is none.

        ``end`` is the smaller of both logs' ends: beyond it one of them says nothing. Without it the newest epochs go
        on for ever, so that a lineage and its continuation diverge where the continuation's next epoch starts.

        By KIP-101, two logs that both have an epoch are the same up to where the first of them ends it. Starts are not
        compared: a replica that copies a compacted log notes an epoch at the first batch that is left of it.

        Below its first start a lineage says one thing: the epochs there are not newer than its first one.
        """
        if not self.entries or not other.entries:
            return None
        at: int | None = max(self.entries[0][1], other.entries[0][1])  # below this, one of them says nothing
        common = {epoch for epoch, _ in self.entries} & {epoch for epoch, _ in other.entries}
        if common:
            ends = [found for log in (self, other) if (found := log._end_of(max(common))) is not None]
            at = max(at, min(ends)) if at is not None and ends else None
        for one, two in ((self, other), (other, self)):
            first_epoch, first_start = two.entries[0]
            shared = max(first_epoch, max(common, default=first_epoch))  # up to here ``two`` may have an epoch below
            at = next((start for epoch, start in one.entries if epoch > shared and start < first_start), at)
        return None if at is None or (end is not None and at >= end) else at

    def is_live(self, base_offset: int, epoch: int) -> bool:
        """Whether a stored batch lies on this lineage. ``epoch`` is -1 in v0 and v1, which no lineage knows."""
        if epoch < 0 or self.epoch_at(base_offset) is None:
            return epoch < 0 and self.epoch_at(base_offset) is None
        end = self._end_of(epoch)
        return any(one == epoch for one, _ in self.entries) and (end is None or base_offset < end)

    def _end_of(self, epoch: int) -> int | None:
        """Where the epoch after ``epoch`` starts; None if there is none."""
        index = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        return self.entries[index][1] if index < len(self.entries) else None

    def to_json(self) -> list[list[int]]:
        """``[[epoch, start], …]``."""
        return [list(entry) for entry in self.entries]

    @classmethod
    def from_json(cls, value: object, name: str) -> Lineage:
        """From ``[[epoch, start], …]``. Raises :class:`FormatError` under ``name`` for anything else."""
        if not isinstance(value, list) or not all(
            isinstance(entry, list) and all(type(number) is int for number in entry) for entry in value
        ):
            raise FormatError(name, "a lineage is a list of [epoch, start offset]")
        return cls.of(value, name)
