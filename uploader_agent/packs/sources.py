"""The ranges of packs that a seal of a partition may hold, or be made of."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from tidemark.errors import FormatError
from tidemark.formats import head as format_
from tidemark.formats.head import EntryKey, HeadEntry
from tidemark.formats.manifest import PackedPart
from tidemark.formats.pack import PackedRange
from tidemark.kafka_log import Lineage
from uploader_agent.packs.packed_run import known_ranges, part_of
from uploader_agent.packs.tail import Tail
from uploader_agent.upload.segment_upload import UploadRoute

logger = structlog.get_logger(__name__)


class PackedSources:
    """Of one partition. The chains of former leaders and processes are read once."""

    def __init__(self) -> None:
        self._read: dict[HeadEntry, tuple[PackedPart, ...]] = {}

    def parts(
        self, route: UploadRoute, tail: Tail, tails: Iterable[tuple[int, int]], lineage: Lineage, start: int
    ) -> tuple[PackedPart, ...]:
        """The ranges that reach beyond ``start`` on ``lineage``, as manifests list them. Raises StoreError.

        By the ``tail``, or by the heads of all ``tails`` if that knows none of them yet.
        """
        found = [*tail.parts()]
        for entry in tail.entries() if tail.joined is not None else self._entries(route, tails):
            if entry not in self._read:
                chain = self._chain(route, entry, lineage, start)
                self._read[entry] = tuple(part_of(one.range) for one in chain)
            found += self._read[entry]
        return tuple(one for one in found if one.next > start)

    def ranges(
        self, route: UploadRoute, tails: Iterable[tuple[int, int]], lineage: Lineage, start: int
    ) -> list[PackedRange]:
        """The ranges that reach beyond ``start``, by the heads of all ``tails``, which are read now.

        Raises StoreError.
        """
        return [one for entry in self._entries(route, tails) for one in self._chain(route, entry, lineage, start)]

    @staticmethod
    def _entries(route: UploadRoute, tails: Iterable[tuple[int, int]]) -> list[HeadEntry]:
        entries: list[HeadEntry] = []
        for epoch, broker in tails:
            key = EntryKey(route.topic_id or "", route.tp.partition, epoch)
            try:
                head = format_.load(route.store, route.keys.control, broker)
            except FormatError as error:
                logger.warning("head_not_read", partition=str(route.tp), error=str(error))
                continue
            entries += [one for one in (head.value.entries if head else ()) if one.key == key]
        return entries

    @staticmethod
    def _chain(route: UploadRoute, entry: HeadEntry, lineage: Lineage, start: int) -> list[PackedRange]:
        """The ranges of a chain; none of one that is damaged: its packs then prove nothing, and stay."""
        try:
            return known_ranges(route.store, route.keys.control, [entry], lineage, start)
        except FormatError as error:
            logger.warning("chain_not_read", partition=str(route.tp), error=str(error))
            return []
