"""Addition of sums of row hashes: two lanes of 64 bits, each modulo 2^64.

:mod:`tidemark.decode.rowhash` makes the sums from rows and needs the extra ``decode``. Code that only adds them, such
as the scheduler when it plans a rebuild, does not need it.
"""

from __future__ import annotations

from typing import Final

LANE_MASK: Final = (1 << 64) - 1


def combine(left: int, right: int) -> int:
    """The sum of two sets of rows from the sums of each."""
    low = (left & LANE_MASK) + (right & LANE_MASK)
    high = (left >> 64) + (right >> 64)
    return (high & LANE_MASK) << 64 | low & LANE_MASK


def without(total: int, part: int) -> int:
    """The sum of a set of rows less ``part`` of them: ``combine(without(total, part), part) == total``."""
    low = (total & LANE_MASK) - (part & LANE_MASK)
    high = (total >> 64) - (part >> 64)
    return (high & LANE_MASK) << 64 | low & LANE_MASK
