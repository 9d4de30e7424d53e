"""The ranges of packs that a run holds byte for byte. Retention deletes packs that manifests list like this."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.formats.raw.manifest import PackedPart
from tidemark.kafka_log import BatchHeader
from uploader_agent.disk.segment_files import OpenFile, checksum


class PartsOfRun:
    """The packed ranges that reach into a run from ``base_offset`` on. It takes the run's batches in order."""

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
        if header.next_offset in self._offsets:  # the next range begins here, even if compaction has left no batch
            self._starts[header.next_offset] = self._ends[header.next_offset] = header.end

    def equal(self, log: OpenFile) -> tuple[PackedPart, ...]:
        """The ranges that the run, which is ``log``, holds at their offsets with the same bytes."""
        return tuple(part for part in self._near if self._is_equal(part, log))

    def differing(self, log: OpenFile, end: int) -> list[PackedPart]:
        """The ranges that overlap the run, which accounts for all offsets below ``end``, with other bytes.

        Compaction may have removed their records since, down to the last batch of the run. A range that only reaches
        into the run is one of them, since it was never compared.
        """
        return [part for part in self._near if part.first < end and not self._is_equal(part, log)]

    def contradicting(self, log: OpenFile) -> list[PackedPart]:
        """The ranges that begin and end with batches of the run, which have other bytes."""
        inside = [part for part in self._near if part.first in self._starts and part.next in self._ends]
        return [part for part in inside if not self._is_equal(part, log)]

    def _is_equal(self, part: PackedPart, log: OpenFile) -> bool:
        if part not in self._checksums:
            self._checksums[part] = self._checksum(part, log)
        return self._checksums[part] == part.crc32c

    def _checksum(self, part: PackedPart, log: OpenFile) -> str | None:
        start, end = self._starts.get(part.first), self._ends.get(part.next)
        if start is None or end is None or end <= start:
            return None
        return f"{checksum(log.part(log.name, start, end)):08x}"
