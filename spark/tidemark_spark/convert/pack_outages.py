"""Packs that the store did not give to this worker a moment ago.

Many ranges of a landing lie in the same pack, of many partitions and topics. If each of them waited for the store as
long as the first one did, what lies elsewhere would land late as well.
"""

from __future__ import annotations

import time
from typing import Final

from tidemark.errors import StoreError
from tidemark.formats.plan import SegmentRange

SECONDS: Final = 15.0
"""How long a pack is not asked for again: less than from one landing to the next."""

_failed: dict[tuple[str, str], tuple[float, str]] = {}


def note(part: SegmentRange, error: StoreError) -> None:
    """Remember that the pack of ``part`` could not be read."""
    now = time.monotonic()
    for pack in [pack for pack, (at, _) in _failed.items() if now - at >= SECONDS]:
        del _failed[pack]
    _failed[part.store, part.key] = now, str(error)


def known(part: SegmentRange) -> str | None:
    """Why the pack of ``part`` could not be read a moment ago; None if it could, or was not asked for."""
    at, reason = _failed.get((part.store, part.key), (0.0, None))
    return reason if reason is not None and time.monotonic() - at < SECONDS else None
