"""The ranges of packs in a run, and those that it holds byte for byte: retention deletes packs by its manifest."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.formats.manifest import PackedPart
from tidemark.kafka_log import BatchHeader
from uploader_agent.disk.segment_files import OpenFile, checksum


class PartsOfRun:
    """The packed ranges that reach into a run from ``base_offset`` on; it takes the run's batches in order."""

    def __init__(self, packed: Iterable[PackedPart], base_offset: int) -> None:
        near = {part for part in packed if part.next > base_offset}
        self._near = sorted(near, key=lambda part: (part.first, part.next))
        self._offsets = {offset for part in near for offset in (part.first, part.next)}
        self._starts = {base_offset: 0}
        self._ends: dict[int, int] = {}
        self._checksums: dict[PackedPart, str | None] = {}

    def add(self, header: BatchHeader) -> None:
        """Take the next batch."""
        if header.base_offset in self._offsets:
            self._starts[header.base_offset] = header.position
        if header.next_offset in self._offsets:  # the next range begins here, also if compaction has left no batch
            self._starts[header.next_offset] = self._ends[header.next_offset] = header.end

    def equal(self, log: OpenFile) -> tuple[PackedPart, ...]:
        """The ranges whose bytes the run, which is ``log``, has at their offsets."""
        return tuple(part for part in self._near if self._is_equal(part, log))

    def differing(self, log: OpenFile, end: int) -> list[PackedPart]:
        """The ranges with offsets of the run, which accounts for all below ``end``, and other bytes than it has.

        Compaction may have removed their records since, down to the last batch of the run. A range that only reaches
        into the run is one of them: nobody has compared it.
        """
        return [part for part in self._near if part.first < end and not self._is_equal(part, log)]

    def _is_equal(self, part: PackedPart, log: OpenFile) -> bool:
        if part not in self._checksums:
            self._checksums[part] = self._checksum(part, log)
        return self._checksums[part] == part.crc32c

    def _checksum(self, part: PackedPart, log: OpenFile) -> str | None:
        start, end = self._starts.get(part.first), self._ends.get(part.next)
        if start is None or end is None or end <= start:
            return None
        return f"{checksum(log.part(log.name, start, end)):08x}"
