"""Reading of bytes that several kernels share: numbers of variable length, and text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemark.decode.jit import helper, load_u64

_HIGH_BITS = np.uint64(0x8080808080808080)


@helper
def varint(memory: NDArray[np.uint8], at: int, end: int, most_bytes: int) -> tuple[int, int]:
    """(number, index after it) of a zigzag varint; the index is -1 if it is cut off or too long, or if ``at`` is."""
    raw, at = unsigned_varint(memory, at, end, most_bytes)
    return int(np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))), at


@helper
def unsigned_varint(memory: NDArray[np.uint8], at: int, end: int, most_bytes: int) -> tuple[np.uint64, int]:
    """(number, index after it) of a varint without a sign, like :func:`varint`. Bits beyond the 64th are dropped."""
    if at < 0:
        return np.uint64(0), -1
    raw = np.uint64(0)
    shift = np.uint64(0)
    for index in range(at, min(end, at + most_bytes)):
        byte = memory[index]
        raw |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            return raw, index + 1
        shift += np.uint64(7)
    return np.uint64(0), -1


@helper
def is_utf8(memory: NDArray[np.uint8], at: int, end: int) -> bool:
    """True if the bytes are UTF-8 according to RFC 3629: no surrogates or overlong forms, nothing above U+10FFFF."""
    while at < end:
        while end - at >= 8 and load_u64(memory, at) & _HIGH_BITS == 0:
            at += 8
        if at == end:
            break
        lead = memory[at]
        at += 1
        if lead < 0x80:
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        if more > end - at:
            return False
        lowest = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
        highest = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
        if memory[at] < lowest or memory[at] > highest:
            return False
        for index in range(at + 1, at + more):
            if memory[index] & 0xC0 != 0x80:
                return False
        at += more
    return True


@helper
def replaced_utf8(memory: NDArray[np.uint8], at: int, end: int, out: NDArray[np.uint8], to: int, write: bool) -> int:
    """The number of bytes of text that these bytes become; with ``write``, ``out`` has it from ``to`` on.

    Each part that is not UTF-8 becomes U+FFFD, as in Java's ``new String(bytes, UTF_8)``: as many bytes as begin a
    character, and a whole surrogate.
    """
    start = to
    while at < end:
        lead = memory[at]
        more = 0 if lead < 0xC2 or lead > 0xF4 else 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        lowest = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
        highest = 0x8F if lead == 0xF4 else 0xBF
        size = 1
        while size <= more and at + size < end and memory[at + size] >= lowest and memory[at + size] <= highest:
            lowest, highest = 0x80, 0xBF
            size += 1
        whole = lead < 0x80 or (more > 0 and size == more + 1 and not (lead == 0xED and memory[at + 1] >= 0xA0))
        if whole:
            if write:
                for index in range(size):
                    out[to + index] = memory[at + index]
            to += size
        else:
            if write:
                out[to], out[to + 1], out[to + 2] = 0xEF, 0xBF, 0xBD
            to += 3
        at += size
    return to - start
