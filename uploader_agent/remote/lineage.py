"""The lineage of a segment that lies below what a broker remembers: from what was stored, the log, and the batches.

Retention cuts a broker's lineage at the log start, and ``offset.wm`` speaks only up to its next offset. Between the
two, the batches themselves are all that tells which epoch wrote which offset.
"""

from __future__ import annotations

from tidemark.errors import FormatError
from tidemark.kafka_log import Lineage, SegmentSummary


class OffLineage(FormatError):
    """Batches are not those of the live log."""


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
