"""The lineage of a segment that lies below what a broker remembers: from what was stored, the log, and the batches.

Retention cuts a broker's lineage at the log start, and ``offset.wm`` speaks only up to its next offset. Between the
two, the batches themselves are all that tells which epoch wrote which offset.
"""

from __future__ import annotations

from tidemark.errors import FormatError
from tidemark.kafka_log import BatchHeader, Lineage, SegmentSummary
from tidemark.kafka_log.names import MAX_OFFSET


class OffLineage(FormatError):
    """Batches are not those of the live log."""


class BatchLineage:
    """Checks batch by batch what :func:`lineage_of` checks by their summary, which has only where an epoch starts.

    That suffices for a file on the disk of who leads. Of stored bytes that nobody vouches for it does not: they may be
    of a branch that was cut off in the midst of the segment.
    """

    def __init__(self, name: str, stored: Lineage, stored_end: int, own: Lineage) -> None:
        """The arguments are those of :func:`lineage_of`."""
        self._name = name
        self._known = own.with_history(stored)
        self._forgotten = range(stored_end, own.entries[0][1] if own.entries else MAX_OFFSET)

    def check(self, header: BatchHeader) -> None:
        """Raise :class:`OffLineage` if the batch is of another epoch than the log has at its offset."""
        offset, epoch = header.base_offset, header.leader_epoch
        if epoch < 0 or offset in self._forgotten or self._known.epoch_at(offset) in {epoch, None}:
            return
        rule = f"holds offset {offset} of leader epoch {epoch}, which is not on {self._known.entries}"
        raise OffLineage(self._name, rule)


def lineage_of(name: str, summary: SegmentSummary, stored: Lineage, stored_end: int, own: Lineage) -> Lineage:
    """The lineage up to the end of the segment that ``summary`` is of.

    ``stored`` is that of ``offset.wm``, which ends at ``stored_end``; ``own`` that of the broker's log.

    Raises:
        OffLineage: a batch contradicts one of them.
    """
    known = own.with_history(stored)
    own_start = own.entries[0][1] if own.entries else None
    for epoch, start in summary.epochs:
        forgotten = start >= stored_end and (own_start is None or start < own_start)
        fits = known.epoch_at(start) in {epoch, None}
        if not fits and not (forgotten and _between(epoch, known, start)):
            raise OffLineage(name, f"holds offset {start} of leader epoch {epoch}, which is not on {known.entries}")
    found = dict(summary.epochs)
    starts = found | dict(known.entries)
    for epoch, start in own.entries[:1]:  # retention moves the start up within the first epoch that is left
        starts[epoch] = min(starts[epoch], start, found.get(epoch, start))
    return Lineage.of(sorted(starts.items()), name).truncated(summary.next_offset)


def _between(epoch: int, known: Lineage, offset: int) -> bool:
    before = [known_epoch for known_epoch, start in known.entries if start <= offset]
    after = [known_epoch for known_epoch, start in known.entries if start > offset]
    return (not before or before[-1] <= epoch) and (not after or epoch <= after[0])
