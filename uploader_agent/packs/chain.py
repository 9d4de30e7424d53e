"""The ranges that this broker has packed of a partition, in few bytes each: a broker has a million."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from struct import Struct
from typing import NamedTuple

from tidemark.formats.raw.manifest import PackedPart

_RANGE = Struct(">QIIQ")
"""Next offset, size in bytes, CRC32C, and the time of packing in milliseconds since 1970."""


class Unsealed(NamedTuple):
    """The packed ranges that no seal holds: ``ranges`` of ``size`` bytes, the first of them packed at ``since``."""

    ranges: int = 0
    size: int = 0
    since: datetime | None = None

    def plus(self, other: Unsealed) -> Unsealed:
        """The sum of both."""
        times = [since for since in (self.since, other.since) if since is not None]
        return Unsealed(self.ranges + other.ranges, self.size + other.size, min(times, default=None))


class KnownRanges:
    """The last ranges of a chain, each beginning at the end of the one before. Sealed ranges are forgotten."""

    def __init__(self, first: int) -> None:
        """Begin without ranges; the first range will begin at ``first``."""
        self.first = first
        self._packed = bytearray()

    def add(self, part: PackedPart, size: int) -> None:
        """Add the chain's next range, which has ``size`` bytes."""
        moment = round(part.shipped_at.timestamp() * 1000)
        self._packed += _RANGE.pack(part.next, size, int(part.crc32c, 16), moment)

    def forget(self, below: int) -> None:
        """Forget the ranges that end at or below the offset ``below``."""
        sealed = 0
        for following, *_ in self._entries():
            if following > below:
                break
            self.first, sealed = following, sealed + 1
        del self._packed[: sealed * _RANGE.size]

    @property
    def unsealed(self) -> Unsealed:
        """The number, size and age of the ranges."""
        entries = [*self._entries()]
        since = datetime.fromtimestamp(entries[0][3] / 1000, UTC) if entries else None
        return Unsealed(len(entries), sum(entry[1] for entry in entries), since)

    def parts(self) -> Iterator[PackedPart]:
        """The ranges as manifests list them."""
        first = self.first
        for following, _, checksum, moment in self._entries():
            shipped_at = datetime.fromtimestamp(moment / 1000, UTC)
            yield PackedPart(first=first, next=following, crc32c=f"{checksum:08x}", shipped_at=shipped_at)
            first = following

    def _entries(self) -> Iterator[tuple[int, int, int, int]]:
        return _RANGE.iter_unpack(bytes(self._packed))
