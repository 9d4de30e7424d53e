"""Which copies are of a partition's history: after an unclean election the store has segments of two histories.

Such copies may agree in base and end, and all be complete: only their leader epochs tell them apart. The store alone
has the history, since a copy's ``leaderEpoch`` index is the whole one that its broker knew. That of the copy with the
highest epoch, and among those with the highest end, is the newest.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from tidemark.kafka_log import Lineage
from tidemark.kafka_tier.manifest import SegmentMetadata


def newness(about: SegmentMetadata) -> tuple[int, int]:
    """A copy that knows a newer history has a larger value."""
    return about.epochs[-1][0], about.end_offset


def continued(history: Lineage, later: Iterable[SegmentMetadata]) -> Lineage:
    """``history`` with the epochs of newer copies whose own index cannot be read.

    An epoch that begins cuts off all that is stored from there on, as in Kafka's ``LeaderEpochFileCache.assign``.
    """
    for about in sorted(later, key=newness):
        for epoch, start in about.epochs:
            if epoch not in history.epochs:
                kept = (entry for entry in history.entries if entry[0] < epoch and entry[1] < start)
                history = Lineage((*kept, (epoch, start)))
    return history


def belongs(about: SegmentMetadata, history: Lineage) -> bool:
    """True if the whole segment is of ``history``.

    Each of its epochs must be there, and begin where the segment has it begin: the segment's first epoch there or
    earlier. None may end there earlier than in the segment. Kafka cuts its history at the log's start: epochs before
    the first entry say nothing, and of that entry's epoch the start may lie within the segment.
    """
    if not history.entries:
        return False
    first_epoch = history.entries[0][0]
    starts = dict(history.entries)
    known = [(epoch, start) for epoch, start in about.epochs if epoch >= first_epoch]
    if not known or any(epoch not in starts for epoch, _ in known):
        return False
    ends = {epoch: start for (epoch, _), (_, start) in pairwise(history.entries)}
    for (epoch, start), end in zip(known, [*(start for _, start in known[1:]), about.next_offset], strict=True):
        begins_right = epoch == first_epoch or starts[epoch] == start
        begins_before = start == about.start_offset and starts[epoch] <= start
        if not (begins_right or begins_before) or end > ends.get(epoch, end):
            return False
    return all(later == ends_as[0] for later, ends_as in _following(known, history))


def _following(known: list[tuple[int, int]], history: Lineage) -> Iterable[tuple[int, tuple[int, int]]]:
    """Each epoch of the segment but the first, with the entry of ``history`` after the epoch before it."""
    after = dict(pairwise(epoch for epoch, _ in history.entries))
    starts = dict(history.entries)
    return ((later, (after[epoch], starts[after[epoch]])) for (epoch, _), (later, _) in pairwise(known))
