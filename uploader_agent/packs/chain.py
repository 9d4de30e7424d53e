"""What is known of the ranges that this broker has packed of a partition, in few bytes: a broker has a million."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from struct import Struct
from typing import NamedTuple

from tidemark.formats.manifest import PackedPart

_RANGE = Struct(">QIIQ")
"""Next offset, size in bytes, CRC32C, and when it was packed, in milliseconds since 1970."""


class Unsealed(NamedTuple):
    """How much is packed and not sealed: ``ranges`` of ``size`` bytes, the first of them packed at ``since``."""

    ranges: int = 0
    size: int = 0
    since: datetime | None = None

    def plus(self, other: Unsealed) -> Unsealed:
        """Both together."""
        times = [one for one in (self.since, other.since) if one is not None]
        return Unsealed(self.ranges + other.ranges, self.size + other.size, min(times, default=None))


class KnownRanges:
    """The last ranges of a chain, each beginning where the one before ends; those that are sealed are forgotten."""

    def __init__(self, first: int) -> None:
        """``first`` is where the first one will begin."""
        self.first = first
        self._packed = bytearray()

    def add(self, one: PackedPart, size: int) -> None:
        """Add the chain's next range, which has ``size`` bytes."""
        moment = round(one.shipped_at.timestamp() * 1000)
        self._packed += _RANGE.pack(one.next, size, int(one.crc32c, 16), moment)

    def forget(self, below: int) -> None:
        """Forget the ranges that end at or below the offset ``below``."""
        sealed = 0
        for one in self._entries():
            if one[0] > below:
                break
            self.first, sealed = one[0], sealed + 1
        del self._packed[: sealed * _RANGE.size]

    @property
    def unsealed(self) -> Unsealed:
        """How much they are."""
        entries = [*self._entries()]
        since = datetime.fromtimestamp(entries[0][3] / 1000, UTC) if entries else None
        return Unsealed(len(entries), sum(one[1] for one in entries), since)

    def parts(self) -> Iterator[PackedPart]:
        """They as manifests list them."""
        first = self.first
        for following, _, checksum, moment in self._entries():
            shipped_at = datetime.fromtimestamp(moment / 1000, UTC)
            yield PackedPart(first=first, next=following, crc32c=f"{checksum:08x}", shipped_at=shipped_at)
            first = following

    def _entries(self) -> Iterator[tuple[int, int, int, int]]:
        return _RANGE.iter_unpack(bytes(self._packed))
