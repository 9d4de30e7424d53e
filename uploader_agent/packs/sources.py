"""The ranges of packs that a seal of a partition may hold, or be made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import structlog

from tidemark.errors import FormatError, LaterFormat
from tidemark.formats.raw import head as format_
from tidemark.formats.raw.head import HeadEntry
from tidemark.formats.raw.manifest import PackedPart
from tidemark.formats.raw.pack import PackedRange
from tidemark.kafka_log import Lineage
from tidemark.raw.packs import packed_end
from uploader_agent.packs.packed_run import known_ranges
from uploader_agent.packs.tail import Tail
from uploader_agent.stored.histories import Shared
from uploader_agent.upload.segment_upload import UploadRoute

logger = structlog.get_logger(__name__)


def shared_tails(entries: Iterable[HeadEntry], lineage: Lineage) -> list[Shared]:
    """The tail of each of ``entries`` up to where ``lineage`` leaves it."""
    return [Shared(entry.history, packed_end(entry, lineage)) for entry in entries]


class PackedSources:
    """The packed ranges of one partition. A chain of a former leader or process is read once, as far as asked for."""

    def __init__(self) -> None:
        self._read: dict[HeadEntry, tuple[int, tuple[PackedPart, ...]]] = {}
        """Ranges by entry, and the offset beyond which they were read: several workers seal runs of one partition."""

    def parts(
        self, route: UploadRoute, tail: Tail, brokers: Collection[int], lineage: Lineage, start: int
    ) -> tuple[PackedPart, ...]:
        """The ranges that reach beyond ``start`` on ``lineage``, as manifests list them. Raises StoreError.

        They come from ``tail``, and from the heads of ``brokers``, which are read now.
        """
        parts = [*tail.parts()]
        for entry in {*tail.entries(), *self.entries(route, brokers)}:
            known = self._read.get(entry)
            if known is None or known[0] > start:
                chain = self._chain(route, entry, lineage, start)
                known = self._read[entry] = start, tuple(packed.range.part for packed in chain)
            parts += known[1]
        return tuple(part for part in parts if part.next > start)

    def ranges(
        self, route: UploadRoute, entries: Iterable[HeadEntry], lineage: Lineage, start: int
    ) -> list[PackedRange]:
        """The ranges of ``entries`` that reach beyond ``start`` on ``lineage``. Raises StoreError."""
        return [packed for entry in entries for packed in self._chain(route, entry, lineage, start)]

    @staticmethod
    def entries(route: UploadRoute, brokers: Collection[int]) -> list[HeadEntry]:
        """The partition's entries in the heads of ``brokers``, under any epoch. The heads are read now.

        A damaged head of another broker counts as none. A damaged head of this broker is an error: it is made again
        soon, and a seal without it may lack records that only packs have.

        Raises:
            LaterFormat: a later version of the agent wrote a head.
            FormatError: this broker's head is damaged.
            StoreError: the store failed.
        """
        entries: list[HeadEntry] = []
        for broker in sorted(brokers):
            try:
                head = format_.load(route.store, route.keys.control, broker)
            except FormatError as error:
                if broker == route.broker or isinstance(error, LaterFormat):
                    raise
                logger.warning("head_not_read", partition=str(route.tp), error=str(error))
                continue
            partition = route.topic_id, route.tp.partition
            stored = head.value.entries if head else ()
            entries += [entry for entry in stored if (entry.topic_id, entry.partition) == partition]
        return entries

    @staticmethod
    def _chain(route: UploadRoute, entry: HeadEntry, lineage: Lineage, start: int) -> list[PackedRange]:
        """The ranges of a chain; none of a damaged chain: its packs then prove nothing, and stay."""
        try:
            return known_ranges(route.store, route.keys.control, [entry], lineage, start)
        except LaterFormat:
            raise
        except FormatError as error:
            logger.warning("chain_not_read", partition=str(route.tp), error=str(error))
            return []
