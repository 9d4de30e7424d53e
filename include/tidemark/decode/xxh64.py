"""XXH64, compiled, with two seeds in one pass.

Source: the xxHash specification, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemark.decode.jit import helper, load_u64

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_BITS = np.uint64(64)
# Shifts as uint64: numba turns a uint64 with a signed number into a float.
_1, _7, _11, _12, _18, _23, _27, _29, _31, _32, _33 = (
    np.uint64(bits) for bits in (1, 7, 11, 12, 18, 23, 27, 29, 31, 32, 33)
)


@helper
def xxh64_pair(
    data: NDArray[np.uint8], at: int, size: int, low: np.uint64, high: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """XXH64 of ``data[at : at + size]`` with the seed ``low``, and with ``high``.

    One pass for both reads each word once and multiplies it once, and neither waits for the other. NOT checked: the
    caller guarantees that the bytes are there.
    """
    end = at + size
    if size >= 32:
        a, b, c, d = low + _P1 + _P2, low + _P2, low, low - _P1
        e, f, g, h = high + _P1 + _P2, high + _P2, high, high - _P1
        while at <= end - 32:
            word = load_u64(data, at) * _P2
            a, e = _stirred(a, word), _stirred(e, word)
            word = load_u64(data, at + 8) * _P2
            b, f = _stirred(b, word), _stirred(f, word)
            word = load_u64(data, at + 16) * _P2
            c, g = _stirred(c, word), _stirred(g, word)
            word = load_u64(data, at + 24) * _P2
            d, h = _stirred(d, word), _stirred(h, word)
            at += 32
        low, high = _converged(a, b, c, d), _converged(e, f, g, h)
    else:
        low, high = low + _P5, high + _P5
    low, high = low + np.uint64(size), high + np.uint64(size)
    while at <= end - 8:
        word = _stirred(np.uint64(0), load_u64(data, at) * _P2)
        low, high = _rotate(low ^ word, _27) * _P1 + _P4, _rotate(high ^ word, _27) * _P1 + _P4
        at += 8
    if at <= end - 4:
        word = np.uint64(0)
        for index in range(4):
            word |= np.uint64(data[at + index]) << np.uint64(8 * index)
        word *= _P1
        low, high = _rotate(low ^ word, _23) * _P2 + _P3, _rotate(high ^ word, _23) * _P2 + _P3
        at += 4
    while at < end:
        word = np.uint64(data[at]) * _P5
        low, high = _rotate(low ^ word, _11) * _P1, _rotate(high ^ word, _11) * _P1
        at += 1
    return _finished(low), _finished(high)


@helper
def _rotate(value: np.uint64, bits: np.uint64) -> np.uint64:
    return (value << bits) | (value >> (_BITS - bits))


@helper
def _stirred(lane: np.uint64, product: np.uint64) -> np.uint64:
    """A round of ``lane`` with a word; ``product`` is the word times the second prime."""
    return _rotate(lane + product, _31) * _P1


@helper
def _converged(a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64) -> np.uint64:
    value = _rotate(a, _1) + _rotate(b, _7) + _rotate(c, _12) + _rotate(d, _18)
    return _merge(_merge(_merge(_merge(value, a), b), c), d)


@helper
def _merge(value: np.uint64, lane: np.uint64) -> np.uint64:
    return (value ^ _stirred(np.uint64(0), lane * _P2)) * _P1 + _P4


@helper
def _finished(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> _33)) * _P2
    value = (value ^ (value >> _29)) * _P3
    return value ^ (value >> _32)
