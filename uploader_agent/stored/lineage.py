"""The lineage of a segment below the epochs that a broker remembers: from the store, the log, and the batches.

Retention cuts a broker's lineage at the log start, and the lineage in ``offset.wm`` ends at its next offset, or at the
start of its last epoch if that is higher. Between the two, only the batches have the epochs.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemark.errors import FormatError
from tidemark.formats.raw.watermark import Watermark
from tidemark.kafka_log import BatchHeader, Lineage, SegmentSummary
from tidemark.kafka_log.indexes import MAX_OFFSET


class OffLineage(FormatError):
    """A segment has batches that are not on the live log."""


class KnownLineages(NamedTuple):
    """``stored`` is the lineage in ``offset.wm``, which ends at ``stored_end``; ``own`` is that of the broker's log."""

    stored: Lineage
    stored_end: int
    own: Lineage

    @classmethod
    def of(cls, watermark: Watermark | None, own: Lineage) -> KnownLineages:
        """The lineages of ``offset.wm``, None if there is none, and of the broker's log."""
        return cls(watermark.history, watermark.next_offset, own) if watermark else cls(Lineage(), 0, own)

    @property
    def forgotten(self) -> range:
        """The offsets of which only batches have the epochs."""
        start = max([self.stored_end, *(start for _, start in self.stored.entries[-1:])])
        return range(start, self.own.entries[0][1] if self.own.entries else MAX_OFFSET)


class BatchLineage:
    """Follows stored bytes batch by batch: they may leave the log where an election has cut it, within a segment.

    :func:`lineage_of` knows only the start of each epoch. That suffices for a file on the leader's disk.
    """

    def __init__(self, name: str, lineages: KnownLineages) -> None:
        own = lineages.own
        self.left_at: int | None = None
        """The base offset of the first batch of another branch; None before such a batch."""
        self._begun = False
        self._name = name
        self._known = own.with_history(lineages.stored)
        self._forgotten = lineages.forgotten

    def follow(self, header: BatchHeader) -> None:
        """Take the next batch. Raises :class:`OffLineage` if the first batch is of another branch."""
        # An unclean election may have cut the log within the batch, and retention be ahead of its first offsets: then
        # only its last one shows that it is of the other branch.
        live = all(self._is_live(at, header.leader_epoch) for at in (header.base_offset, header.last_offset))
        if self.left_at is None and not live:
            if not self._begun:
                epoch = f"of leader epoch {header.leader_epoch}"
                rule = f"begins with offset {header.base_offset} {epoch}, which is not on {self._known.entries}"
                raise OffLineage(self._name, rule)
            self.left_at = header.base_offset
        self._begun = True

    def _is_live(self, offset: int, epoch: int) -> bool:
        return epoch < 0 or offset in self._forgotten or _fits(self._known, offset, epoch)


def lineage_of(name: str, summary: SegmentSummary, lineages: KnownLineages, left_at: int | None = None) -> Lineage:
    """The lineage up to the end of the segment with this ``summary``, which leaves the known lineages at ``left_at``.

    Raises:
        OffLineage: a batch below ``left_at`` contradicts a known lineage.
    """
    own, forgotten = lineages.own, lineages.forgotten
    known = own.with_history(lineages.stored)
    cut = MAX_OFFSET if left_at is None else left_at
    live = [(epoch, start) for epoch, start in summary.epochs if start < cut]
    for epoch, start in live:
        if not _fits(known, start, epoch) and not (start in forgotten and _between(epoch, known, start)):
            raise OffLineage(name, f"holds offset {start} of leader epoch {epoch}, which is not on {known.entries}")
    scanned = dict(live)
    starts = scanned | dict(known.entries)
    for epoch, start in own.entries[:1]:  # retention moves the start up within the first epoch that is left
        starts[epoch] = min(starts[epoch], start, scanned.get(epoch, start))
    whole = Lineage.of(sorted(starts.items()), name).truncated(min(cut, summary.next_offset))
    dead = [(epoch, start) for epoch, start in summary.epochs if start >= cut]
    return Lineage.of((*whole.entries, *dead), name, own.restores)


def _fits(known: Lineage, offset: int, epoch: int) -> bool:
    return known.epoch_at(offset) is None or known.is_live(offset, epoch)


def _between(epoch: int, known: Lineage, offset: int) -> bool:
    before = [known_epoch for known_epoch, start in known.entries if start <= offset]
    after = [known_epoch for known_epoch, start in known.entries if start > offset]
    return (not before or before[-1] <= epoch) and (not after or epoch <= after[0])
