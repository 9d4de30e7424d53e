"""Which ranges of packs a run holds, byte for byte: the manifest lists them, so that retention may delete the packs."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.formats.manifest import PackedPart
from tidemark.kafka_log import BatchHeader
from uploader_agent.disk.segment_files import OpenFile, checksum


class PartsOfRun:
    """Is told of a run's batches in order."""

    def __init__(self, packed: Iterable[PackedPart], base_offset: int) -> None:
        """``packed`` are the ranges that may lie in the run from ``base_offset`` on."""
        inside = {one for one in packed if one.first >= base_offset}
        self._wanted = sorted(inside, key=lambda one: (one.first, one.next))
        self._offsets = {offset for one in self._wanted for offset in (one.first, one.next)}
        self._starts = {base_offset: 0}
        self._ends: dict[int, int] = {}
        self._next = base_offset
        self._checksums: dict[PackedPart, str | None] = {}

    def add(self, header: BatchHeader) -> None:
        """Take the next batch."""
        self._next = header.next_offset
        if header.base_offset in self._offsets:
            self._starts[header.base_offset] = header.position
        if header.next_offset in self._offsets:  # the next range begins here, also if compaction has left no batch
            self._starts[header.next_offset] = self._ends[header.next_offset] = header.end

    def equal(self, log: OpenFile) -> tuple[PackedPart, ...]:
        """The ranges whose bytes the run, which is ``log``, has at their offsets."""
        return tuple(one for one in self._wanted if self._checksum(one, log) == one.crc32c)

    def differing(self, log: OpenFile) -> list[PackedPart]:
        """The ranges that lie in the run, which has other bytes there: compaction may have removed records since."""
        inside = (one for one in self._wanted if one.next <= self._next)
        return [one for one in inside if self._checksum(one, log) != one.crc32c]

    def _checksum(self, one: PackedPart, log: OpenFile) -> str | None:
        if one not in self._checksums:
            self._checksums[one] = self._compute(one, log)
        return self._checksums[one]

    def _compute(self, one: PackedPart, log: OpenFile) -> str | None:
        start, end = self._starts.get(one.first), self._ends.get(one.next)
        if start is None or end is None or end <= start:
            return None
        return f"{checksum(log.part(log.name, start, end)):08x}"
