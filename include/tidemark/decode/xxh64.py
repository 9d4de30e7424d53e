"""XXH64, compiled.

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
def xxh64(data: NDArray[np.uint8], at: int, size: int, seed: np.uint64) -> np.uint64:
    """XXH64 of ``data[at : at + size]`` with ``seed``. NOT checked: the caller knows that they are there."""
    end = at + size
    if size >= 32:
        a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while at <= end - 32:
            a = _round(a, load_u64(data, at))
            b = _round(b, load_u64(data, at + 8))
            c = _round(c, load_u64(data, at + 16))
            d = _round(d, load_u64(data, at + 24))
            at += 32
        value = _rotate(a, _1) + _rotate(b, _7) + _rotate(c, _12) + _rotate(d, _18)
        value = _merge(_merge(_merge(_merge(value, a), b), c), d)
    else:
        value = seed + _P5
    value += np.uint64(size)
    while at <= end - 8:
        value = _rotate(value ^ _round(np.uint64(0), load_u64(data, at)), _27) * _P1 + _P4
        at += 8
    if at <= end - 4:
        word = np.uint64(0)
        for index in range(4):
            word |= np.uint64(data[at + index]) << np.uint64(8 * index)
        value = _rotate(value ^ (word * _P1), _23) * _P2 + _P3
        at += 4
    while at < end:
        value = _rotate(value ^ (np.uint64(data[at]) * _P5), _11) * _P1
        at += 1
    value = (value ^ (value >> _33)) * _P2
    value = (value ^ (value >> _29)) * _P3
    return value ^ (value >> _32)


@helper
def _rotate(value: np.uint64, bits: np.uint64) -> np.uint64:
    return (value << bits) | (value >> (_BITS - bits))


@helper
def _round(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(lane + word * _P2, _31) * _P1


@helper
def _merge(value: np.uint64, lane: np.uint64) -> np.uint64:
    return (value ^ _round(np.uint64(0), lane)) * _P1 + _P4
