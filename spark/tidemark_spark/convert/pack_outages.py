"""Packs that the store recently failed to return to this worker.

Many ranges of a landing, of many partitions and topics, lie in the same pack. If each of them waited for the store as
long as the first, ranges of other packs would also land late.
"""

from __future__ import annotations

import time
from typing import Final

from tidemark.errors import StoreError
from tidemark.formats.table.plan import SegmentRange

SECONDS: Final = 15.0
"""Seconds in which a pack is not requested again: less than between two landings."""

_failed: dict[tuple[str, str], tuple[float, str]] = {}


def note(part: SegmentRange, error: StoreError) -> None:
    """Remember that the pack of ``part`` could not be read."""
    now = time.monotonic()
    for pack in [pack for pack, (at, _) in _failed.items() if now - at >= SECONDS]:
        del _failed[pack]
    _failed[part.store, part.key] = now, str(error)


def known(part: SegmentRange) -> str | None:
    """The reason why the pack of ``part`` could recently not be read; None if there was no such failure."""
    at, reason = _failed.get((part.store, part.key), (0.0, None))
    return reason if reason is not None and time.monotonic() - at < SECONDS else None
