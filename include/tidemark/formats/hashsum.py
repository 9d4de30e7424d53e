"""Sums of row hashes, without what it takes to make them: two lanes of 64 bits, each modulo 2^64.

:mod:`tidemark.decode.rowhash` makes the sums from rows and needs the extra ``decode``; who only adds them up, as the
scheduler does when it plans a rebuild, does not.
"""

from __future__ import annotations

from typing import Final

LANE_MASK: Final = (1 << 64) - 1


def combine(left: int, right: int) -> int:
    """The sum of two sets of rows from the sums of each."""
    low = (left & LANE_MASK) + (right & LANE_MASK)
    high = (left >> 64) + (right >> 64)
    return (high & LANE_MASK) << 64 | low & LANE_MASK
