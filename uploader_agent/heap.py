"""The C library's heap, tuned for an agent: a few large buffers every few seconds, and nothing large in between.

glibc gives each thread an arena of its own, up to eight for each core. Once a large buffer was freed, the next buffers
of its size come from an arena, which keeps the memory. So the packs of a tick would stay resident until the next tick.
"""

from __future__ import annotations

import ctypes
from typing import Final

_ARENA_MAX: Final = -8
_MMAP_THRESHOLD: Final = -3
"""Numbers of ``mallopt(3)`` in ``malloc.h``."""

_ARENAS: Final = 2
LARGE: Final = 1 << 20
"""Bytes from which a buffer is mapped separately, and returned to the system as soon as it is freed."""


def configure_heap() -> None:
    """Limit the arenas and map large buffers. Does nothing with a C library other than glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, _ARENAS)
        mallopt(_MMAP_THRESHOLD, LARGE)
