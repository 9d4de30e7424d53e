"""A part of a document as text within a JSON string: without space, as Python's ``json.dumps`` writes what it has read.

All functions give where to go on, or -1 for what is not valid JSON, or not to be written by these loops.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tidemark.decode.jit import copy_bytes, helper
from tidemark.parsers.json_document import MAX_DEPTH

_SPACE, _QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _PLUS, _POINT, _ZERO, _NINE = b' "\\,:-+.09'
_OPENING, _CLOSING, _OPENING_LIST, _CLOSING_LIST = b"{}[]"
_SLASH, _SMALL_B, _SMALL_E, _SMALL_F, _SMALL_N, _SMALL_R, _SMALL_T, _SMALL_U, _SMALL_A = b"/befnrtua"
_CASE_BIT: Final = 0x20
_SHORT: Final = np.zeros(32, np.uint8)
_SHORT[[8, 9, 10, 12, 13]] = np.frombuffer(b"btnfr", np.uint8)
"""The letter that a control character's escape has; 0 if it is written by its number."""

_TRUE: Final = np.frombuffer(b"true", np.uint8)
_FALSE: Final = np.frombuffer(b"false", np.uint8)
_NULL: Final = np.frombuffer(b"null", np.uint8)

_MAX_KEYS: Final = 256
"""Of an object and those around it: they are compared with one another."""
_MAX_NUMBER: Final = 1000
"""Bytes: Python's reader, which has rules for the longest, reads longer ones."""
_EXACT_DIGITS: Final = 15
"""A double tells decimals of so many digits apart, so the shortest text of the double is the decimal's own."""
_PLAIN_ZEROS: Final = 3
"""Behind the point. A smaller number is written with an exponent."""

_FNV_BASIS: Final = np.uint64(0xCBF29CE484222325)
_FNV_PRIME: Final = np.uint64(0x100000001B3)


@helper
def text_of(  # noqa: C901  # one loop over the tokens: numba pays for state that goes through calls
    data: NDArray[np.uint8], at: int, end: int, made: NDArray[np.uint8], to: int
) -> tuple[int, int]:
    """Write the value at ``at`` as a string's token."""
    first_key = np.empty(MAX_DEPTH + 1, np.int64)  # of each open object; -1 for a list
    hashes = np.empty(_MAX_KEYS, np.uint64)
    depth = count = 0
    wants_key = False
    made[to] = _QUOTE
    to += 1
    while True:
        at = _after_space(data, at, end)
        if at >= end:
            return -1, to
        byte = data[at]
        if wants_key:
            began = to
            at, to = _string(data, at, end, made, to)
            at = _after_space(data, at, end)
            if at < 0 or at >= end or data[at] != _COLON or count == _MAX_KEYS:
                return -1, to
            hashes[count] = _hash(made, began, to)
            for one in range(first_key[depth - 1], count):
                if hashes[one] == hashes[count]:
                    return -1, to
            count += 1
            made[to] = _COLON
            to += 1
            at += 1
            wants_key = False
            continue
        if byte in (_OPENING, _OPENING_LIST):
            if depth == MAX_DEPTH:
                return -1, to
            first_key[depth] = count if byte == _OPENING else -1
            depth += 1
            made[to] = byte
            to += 1
            at = _after_space(data, at + 1, end)
            if at >= end:
                return -1, to
            if data[at] != (_CLOSING if byte == _OPENING else _CLOSING_LIST):
                wants_key = byte == _OPENING
                continue
        elif byte == _QUOTE:
            at, to = _string(data, at, end, made, to)
        elif byte >= _SMALL_A:
            at, to = _constant(data, at, end, made, to)
        else:
            start = at
            at, plain = after_number(data, at, end)
            if at < 0 or not plain:
                return -1, to
            copy_bytes(made, to, data, start, at - start)
            to += at - start
        if at < 0:
            return -1, to
        while depth > 0:
            at = _after_space(data, at, end)
            if at >= end:
                return -1, to
            byte = data[at]
            in_object = first_key[depth - 1] >= 0
            made[to] = byte
            to += 1
            at += 1
            if byte == _COMMA:
                wants_key = in_object
                break
            if byte != (_CLOSING if in_object else _CLOSING_LIST):
                return -1, to
            depth -= 1
            if in_object:
                count = first_key[depth]
        else:
            made[to] = _QUOTE
            return at, to + 1


@helper
def after_string(data: NDArray[np.uint8], at: int, end: int) -> int:
    """Behind the string at ``at``, whose escapes are not looked at."""
    at += 1
    while at < end:
        byte = data[at]
        if byte == _QUOTE:
            return at + 1
        at += 2 if byte == _BACKSLASH else 1
    return -1


@helper
def after_number(data: NDArray[np.uint8], at: int, end: int) -> tuple[int, bool]:
    """Behind the number at ``at``; and whether Python would write it as it stands."""
    start = at
    negative = data[at] == _MINUS
    at += negative
    whole = at
    at = _after_digits(data, at, end)
    digits = at - whole
    if digits == 0 or (data[whole] == _ZERO and digits > 1):
        return -1, False
    is_zero = data[whole] == _ZERO
    plain = not (negative and is_zero)
    if at < end and data[at] == _POINT:
        fraction = at + 1
        at = _after_digits(data, fraction, end)
        size = at - fraction
        if size == 0:
            return -1, False
        zeros = 0
        while is_zero and zeros < size and data[fraction + zeros] == _ZERO:
            zeros += 1
        exact = (0 if is_zero else digits) + size - zeros <= _EXACT_DIGITS
        plain = size == 1 or data[at - 1] != _ZERO
        plain = plain and exact and (zeros <= _PLAIN_ZEROS)
    if at < end and data[at] | _CASE_BIT == _SMALL_E:
        plain = False
        at += 1
        if at < end and data[at] in (_PLUS, _MINUS):
            at += 1
        exponent = at
        at = _after_digits(data, at, end)
        if at == exponent:
            return -1, False
    if at - start > _MAX_NUMBER or at >= end or data[at] not in (_SPACE, _COMMA, _CLOSING, _CLOSING_LIST):
        return -1, False
    return at, plain


@helper
def _after_digits(data: NDArray[np.uint8], at: int, end: int) -> int:
    while at < end and _ZERO <= data[at] <= _NINE:
        at += 1
    return at


@helper
def _after_space(data: NDArray[np.uint8], at: int, end: int) -> int:
    while 0 <= at < end and data[at] == _SPACE:
        at += 1
    return at


@helper
def _constant(data: NDArray[np.uint8], at: int, end: int, made: NDArray[np.uint8], to: int) -> tuple[int, int]:
    word = _TRUE if data[at] == _SMALL_T else _FALSE if data[at] == _SMALL_F else _NULL
    if len(word) > end - at:
        return -1, to
    for place in range(len(word)):
        if data[at + place] != word[place]:
            return -1, to
    copy_bytes(made, to, data, at, len(word))
    return at + len(word), to + len(word)


@helper
def _string(data: NDArray[np.uint8], at: int, end: int, made: NDArray[np.uint8], to: int) -> tuple[int, int]:
    """Write the string at ``at``, its quotes escaped."""
    if data[at] != _QUOTE:
        return -1, to
    to = _escaped(made, to, _QUOTE)
    at += 1
    while True:
        while at < end and data[at] != _QUOTE and data[at] != _BACKSLASH:
            made[to] = data[at]
            to += 1
            at += 1
        if at + 1 >= end:
            return -1, to
        if data[at] == _QUOTE:
            return at + 1, _escaped(made, to, _QUOTE)
        byte = data[at + 1]
        at += 2
        if byte == _SMALL_U:
            code, at = _code_point(data, at, end)
            if at < 0:
                return -1, to
            to = _character(made, to, code)
        elif byte == _SLASH:
            made[to] = byte
            to += 1
        elif byte in (_QUOTE, _BACKSLASH, _SMALL_B, _SMALL_F, _SMALL_N, _SMALL_R, _SMALL_T):
            to = _escape(made, to, byte)
        else:
            return -1, to


@helper
def _escaped(made: NDArray[np.uint8], to: int, byte: int) -> int:
    made[to] = _BACKSLASH
    made[to + 1] = byte
    return to + 2


@helper
def _escape(made: NDArray[np.uint8], to: int, byte: int) -> int:
    """A backslash and ``byte``, in a string within a string."""
    to = _escaped(made, to, _BACKSLASH)
    if byte in (_QUOTE, _BACKSLASH):
        return _escaped(made, to, byte)
    made[to] = byte
    return to + 1


@helper
def _code_point(data: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """What the four digits at ``at`` name, or they and those of the other half of a pair; and where they end."""
    code = _hexadecimal(data, at, end)
    at += 4
    if 0xD800 <= code < 0xDC00:
        if at + 2 > end or data[at] != _BACKSLASH or data[at + 1] != _SMALL_U:
            return 0, -1
        low = _hexadecimal(data, at + 2, end)
        if not 0xDC00 <= low < 0xE000:
            return 0, -1
        return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), at + 6
    return (0, -1) if code < 0 or 0xDC00 <= code < 0xE000 else (code, at)


@helper
def _hexadecimal(data: NDArray[np.uint8], at: int, end: int) -> int:
    if at + 4 > end:
        return -1
    code = 0
    for place in range(at, at + 4):
        byte = data[place]
        if _ZERO <= byte <= _NINE:
            digit = int(byte) - _ZERO
        elif _SMALL_A <= byte | _CASE_BIT <= _SMALL_F:
            digit = int(byte | _CASE_BIT) - _SMALL_A + 10
        else:
            return -1
        code = code * 16 + digit
    return code


@helper
def _character(made: NDArray[np.uint8], to: int, code: int) -> int:
    """Write a character as Python's ``json.dumps`` does, in a string within a string."""
    if code in (_QUOTE, _BACKSLASH):
        return _escape(made, to, code)
    if code < len(_SHORT):
        if _SHORT[code] != 0:
            return _escape(made, to, _SHORT[code])
        to = _escape(made, to, _SMALL_U)
        made[to] = made[to + 1] = _ZERO
        made[to + 2] = _ZERO + (code >> 4)
        low = code & 15
        made[to + 3] = _ZERO + low if low < 10 else _SMALL_A + low - 10
        return to + 4
    if code < 0x80:
        made[to] = code
        return to + 1
    size = 2 if code < 0x800 else 3 if code < 0x10000 else 4
    for place in range(size - 1, 0, -1):
        made[to + place] = 0x80 | (code & 0x3F)
        code >>= 6
    made[to] = (0xF00 >> size) & 0xFF | code
    return to + size


@helper
def _hash(made: NDArray[np.uint8], at: int, end: int) -> np.uint64:
    found = _FNV_BASIS
    for place in range(at, end):
        found = (found ^ np.uint64(made[place])) * _FNV_PRIME
    return found
