"""The compiled search for values whose probe is wanted; see :mod:`tidemark.erasure.secret`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemark.decode.jit import NUMBERS, READ_ONLY_BYTES, helper, kernel, load_u64, type_of
from tidemark.erasure.secret import INITIAL
from tidemark.parsers.confluent_framing import HEAD

_A, _B, _C, _D = (np.uint64(state) for state in INITIAL)
_WORD, _FLAG = type_of(np.uint64(0)), type_of(True)
_BITS = np.uint64(64)
_LOWER = np.uint64(0xFFFFFFFF)
_FINAL = np.uint64(0xFF)
# Shifts as uint64: numba turns a uint64 with a signed number into a float.
_13, _16, _17, _21, _32, _56 = (np.uint64(bits) for bits in (13, 16, 17, 21, 32, 56))


@kernel(NUMBERS, READ_ONLY_BYTES, _WORD, _WORD, _FLAG, NUMBERS, NUMBERS)
def find(
    offsets: NDArray[np.int64],
    data: NDArray[np.uint8],
    low: np.uint64,
    high: np.uint64,
    framed: bool,
    wanted: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> int:
    """Set ``rows`` to the rows whose probe is in ``wanted``, which ascend; the number of them.

    ``low`` and ``high`` are the key of the probes. With ``framed``, a frame of Confluent's is passed over. NOT checked:
    the caller guarantees that ``offsets`` ascend, and lie within ``data``.
    """
    count = 0
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        if framed and end - at >= HEAD and data[at] == 0:
            at += HEAD
        if at < end and _is_in(wanted, np.int64(_siphash(data, at, end, low, high) & _LOWER)):
            rows[count] = row
            count += 1
    return count


@helper
def _is_in(numbers: NDArray[np.int64], number: np.int64) -> bool:
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) >> 1
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low < len(numbers) and numbers[low] == number


@helper
def _siphash(data: NDArray[np.uint8], at: int, end: int, low: np.uint64, high: np.uint64) -> np.uint64:
    a, b, c, d = _A ^ low, _B ^ high, _C ^ low, _D ^ high
    last = np.uint64(end - at) << _56
    while at <= end - 8:
        word = load_u64(data, at)
        a, b, c, d = _round(a, b, c, d ^ word)
        a, b, c, d = _round(a, b, c, d)
        a ^= word
        at += 8
    for index in range(end - at):
        last |= np.uint64(data[at + index]) << np.uint64(8 * index)
    a, b, c, d = _round(a, b, c, d ^ last)
    a, b, c, d = _round(a, b, c, d)
    a, c = a ^ last, c ^ _FINAL
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d


@helper
def _round(a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    a, c = a + b, c + d
    b, d = _rotate(b, _13) ^ a, _rotate(d, _16) ^ c
    a = _rotate(a, _32)
    c, a = c + b, a + d
    b, d = _rotate(b, _17) ^ c, _rotate(d, _21) ^ a
    return a, b, _rotate(c, _32), d


@helper
def _rotate(value: np.uint64, bits: np.uint64) -> np.uint64:
    return (value << bits) | (value >> (_BITS - bits))
