"""The C library's heap, set for an agent: a few large buffers every some seconds, and nothing large in between.

glibc gives each thread an arena of its own, up to eight for each core. And once a large buffer was freed, the next ones
of its size come from an arena, which keeps the memory. So the packs of one tick would stay resident until the next one.
"""

from __future__ import annotations

import ctypes
from typing import Final

_ARENA_MAX: Final = -8
_MMAP_THRESHOLD: Final = -3
"""Numbers of ``mallopt(3)`` in ``malloc.h``."""

_ARENAS: Final = 2
LARGE: Final = 1 << 20
"""Bytes from which a buffer is mapped by itself, and given back as soon as it is freed."""


def configure_heap() -> None:
    """Limit the arenas and map large buffers; another C library than glibc has its own ways, and is left alone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, _ARENAS)
        mallopt(_MMAP_THRESHOLD, LARGE)
