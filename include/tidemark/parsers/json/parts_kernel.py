"""Quotes the parts of documents that become text, so that Arrow, which reads no such type, reads them as strings.

``{"price": 1.50, "a": [1, true]}`` becomes ``{"price": "1.50", "a": "[1, true]"}``. All else is copied as it is. A part
is quoted only if it is valid JSON and follows a colon that is outside of strings. So Arrow accepts the new document if,
and only if, the old one is valid. Only objects on the columns' paths are entered.

A document beyond these loops is marked, and :mod:`tidemark.parsers.json.document` reads it: a key of an entered object
has an escape, or a number is very long. The caller has left out documents with control characters, so that space is the
only white space, and documents of more than MAX_DEPTH levels.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tidemark.decode.jit import (
    BOOLEANS,
    BYTES,
    NUMBER_ROWS,
    NUMBERS,
    READ_ONLY_BYTES,
    READ_ONLY_INT32,
    copy_bytes,
    helper,
    kernel,
)
from tidemark.parsers.json.document import MAX_DEPTH

JSON_TEXT: Final = -1
DECIMAL: Final = -2
_OTHER: Final = -3
"""The value of a key: the next node of the columns' paths, or one of these."""

_NAME, _NAME_END, _VALUE = range(3)
"""Entries of a key: start and end of its name in ``names``, and its value."""

KEY_WIDTH: Final = 3

_SPACE, _QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _PLUS, _POINT, _ZERO, _NINE = b' "\\,:-+.09'
_OPENING, _CLOSING, _OPENING_LIST, _CLOSING_LIST, _BRACKET_BIT = b"{}[] "
_SLASH, _SMALL_A, _SMALL_B, _SMALL_E, _SMALL_F, _SMALL_N, _SMALL_R, _SMALL_T, _SMALL_U = b"/abefnrtu"
_CASE_BIT: Final = 0x20

_TRUE: Final = np.frombuffer(b"true", np.uint8)
_FALSE: Final = np.frombuffer(b"false", np.uint8)
_NULL: Final = np.frombuffer(b"null", np.uint8)

_MAX_NUMBER: Final = 1000
"""The most bytes of a number: longer ones are left to Python's reader, which has rules for the longest."""


@kernel(READ_ONLY_INT32, READ_ONLY_BYTES, READ_ONLY_BYTES, NUMBERS, NUMBER_ROWS, BYTES, NUMBERS, BOOLEANS)
def quote_parts(
    starts: NDArray[np.int32],
    data: NDArray[np.uint8],
    names: NDArray[np.uint8],
    first: NDArray[np.int64],
    keys: NDArray[np.int64],
    made: NDArray[np.uint8],
    made_starts: NDArray[np.int64],
    odd: NDArray[np.bool_],
) -> None:
    """Write the documents to ``made``, which has twice their size; an ``odd`` document has no bytes there.

    The keys of a node of the columns' paths are ``keys[first[node]:first[node + 1]]``.
    """
    outer = np.empty(MAX_DEPTH + 1, np.int64)
    to = 0
    for row in range(len(odd)):
        made_starts[row] = to
        end = _document(data, starts[row], starts[row + 1], names, first, keys, made, to, outer)
        if end < 0:
            odd[row] = True
        else:
            to = end
    made_starts[len(odd)] = to


@helper
def _document(  # noqa: C901  # one pass over the keys as they lie; numba pays for state that goes through calls
    data: NDArray[np.uint8],
    at: int,
    end: int,
    names: NDArray[np.uint8],
    first: NDArray[np.int64],
    keys: NDArray[np.int64],
    made: NDArray[np.uint8],
    to: int,
    outer: NDArray[np.int64],
) -> int:
    """Write the document at ``data[at:end]``, which starts with a brace; return its end in ``made``, or -1."""
    copied = at
    depth = node = 0
    at += 1
    while True:
        at = _after_space(data, at, end)
        if at < end and data[at] == _QUOTE:
            name = at + 1
            at = _after_plain_string(data, at, end)
            if at < 0:
                return -1
            below = _below(data, name, at - 1, names, first[node], first[node + 1], keys)
            at = _after_space(data, at, end)
            if at >= end or data[at] != _COLON:
                return -1
            at = _after_space(data, at + 1, end)
            if at >= end:
                return -1
            if below >= 0 and data[at] == _OPENING:
                outer[depth] = node
                depth += 1
                node = below
                at += 1
                continue
            if _OTHER < below < 0 and data[at] != _SMALL_N:
                copy_bytes(made, to, data, copied, at - copied)
                to += at - copied
                at, to = _text(data, at, end, made, to) if below == JSON_TEXT else _decimals(data, at, end, made, to)
                copied = at
            else:
                at = _after_value(data, at, end)
            if at < 0:
                return -1
        while True:
            at = _after_space(data, at, end)
            if at >= end:
                return -1
            byte = data[at]
            at += 1
            if byte == _COMMA:
                break
            if byte != _CLOSING:
                return -1
            if depth == 0:
                copy_bytes(made, to, data, copied, end - copied)
                return to + end - copied if at == end else -1
            depth -= 1
            node = outer[depth]


@helper
def _below(
    data: NDArray[np.uint8], at: int, end: int, names: NDArray[np.uint8], first: int, last: int, keys: NDArray[np.int64]
) -> int:
    """The value of the key ``data[at:end]``: a node, JSON_TEXT, DECIMAL or _OTHER."""
    for key in range(first, last):
        start = keys[key, _NAME]
        if keys[key, _NAME_END] - start == end - at:
            same = True
            for place in range(end - at):
                same &= data[at + place] == names[start + place]
            if same:
                return int(keys[key, _VALUE])
    return _OTHER


@helper
def _text(data: NDArray[np.uint8], at: int, end: int, made: NDArray[np.uint8], to: int) -> tuple[int, int]:
    """Copy the value at ``at`` as a string; -1 if it is not valid JSON."""
    start = at
    at = _after_valid(data, at, end)
    made[to] = _QUOTE
    to += 1
    for place in range(start, at):
        byte = data[place]
        if byte in (_QUOTE, _BACKSLASH):
            made[to] = _BACKSLASH
            to += 1
        made[to] = byte
        to += 1
    made[to] = _QUOTE
    return at, to + 1


@helper
def _after_valid(  # noqa: C901  # one loop over the tokens: numba pays for state that goes through calls
    data: NDArray[np.uint8], at: int, end: int
) -> int:
    """The index after the value at ``at``; -1 if it is not valid JSON."""
    is_object = np.empty(MAX_DEPTH + 1, np.bool_)  # of each open object or list
    depth = 0
    wants_key = False
    while True:
        at = _after_space(data, at, end)
        if at >= end:
            return -1
        byte = data[at]
        if wants_key:
            at = _after_valid_string(data, at, end)
            if at < 0:
                return -1
            at = _after_space(data, at, end)
            if at >= end or data[at] != _COLON:
                return -1
            at += 1
            wants_key = False
            continue
        if byte in (_OPENING, _OPENING_LIST):
            if depth == MAX_DEPTH:
                return -1
            is_object[depth] = byte == _OPENING
            depth += 1
            at = _after_space(data, at + 1, end)
            if at >= end:
                return -1
            if data[at] != (_CLOSING if byte == _OPENING else _CLOSING_LIST):
                wants_key = byte == _OPENING
                continue
        elif byte == _QUOTE:
            at = _after_valid_string(data, at, end)
        elif byte >= _SMALL_A:
            at = _after_constant(data, at, end)
        else:
            at = _after_number(data, at, end)
        if at < 0:
            return -1
        while depth > 0:
            at = _after_space(data, at, end)
            if at >= end:
                return -1
            byte = data[at]
            at += 1
            if byte == _COMMA:
                wants_key = is_object[depth - 1]
                break
            if byte != (_CLOSING if is_object[depth - 1] else _CLOSING_LIST):
                return -1
            depth -= 1
        else:
            return at


@helper
def _after_valid_string(data: NDArray[np.uint8], at: int, end: int) -> int:
    """The index after the string at ``at``; -1 if there is none, it does not end, or has an escape that JSON lacks."""
    if data[at] != _QUOTE:
        return -1
    at += 1
    while at < end and data[at] != _QUOTE:
        if data[at] != _BACKSLASH:
            at += 1
            continue
        at += 1
        if at >= end:
            return -1
        byte = data[at]
        at += 1
        if byte == _SMALL_U:
            if at + 4 > end:
                return -1
            for place in range(at, at + 4):
                digit = data[place]
                if not (_ZERO <= digit <= _NINE or _SMALL_A <= digit | _CASE_BIT <= _SMALL_F):
                    return -1
            at += 4
        elif byte not in (_QUOTE, _BACKSLASH, _SLASH, _SMALL_B, _SMALL_F, _SMALL_N, _SMALL_R, _SMALL_T):
            return -1
    return at + 1 if at < end else -1


@helper
def _after_constant(data: NDArray[np.uint8], at: int, end: int) -> int:
    """The index after ``true``, ``false`` or ``null`` at ``at``; -1 if none of them is there."""
    word = _TRUE if data[at] == _SMALL_T else _FALSE if data[at] == _SMALL_F else _NULL
    if len(word) > end - at:
        return -1
    for place in range(len(word)):
        if data[at + place] != word[place]:
            return -1
    return at + len(word)


@helper
def _after_string(data: NDArray[np.uint8], at: int, end: int) -> int:
    """The index after the string at ``at``, with any escapes; -1 if it does not end."""
    at += 1
    while at < end:
        byte = data[at]
        if byte == _QUOTE:
            return at + 1
        at += 2 if byte == _BACKSLASH else 1
    return -1


@helper
def _after_number(data: NDArray[np.uint8], at: int, end: int) -> int:
    """The index after the number at ``at``; -1 if there is none, or it is longer than _MAX_NUMBER."""
    start = at
    at += data[at] == _MINUS
    whole = at
    at = _after_digits(data, at, end)
    if at == whole or (data[whole] == _ZERO and at - whole > 1):
        return -1
    if at < end and data[at] == _POINT:
        fraction = at + 1
        at = _after_digits(data, fraction, end)
        if at == fraction:
            return -1
    if at < end and data[at] | _CASE_BIT == _SMALL_E:
        at += 1
        if at < end and data[at] in (_PLUS, _MINUS):
            at += 1
        exponent = at
        at = _after_digits(data, at, end)
        if at == exponent:
            return -1
    if at - start > _MAX_NUMBER or at >= end or data[at] not in (_SPACE, _COMMA, _CLOSING, _CLOSING_LIST):
        return -1
    return at


@helper
def _after_digits(data: NDArray[np.uint8], at: int, end: int) -> int:
    while at < end and _ZERO <= data[at] <= _NINE:
        at += 1
    return at


@helper
def _decimals(  # noqa: C901  # a line for each kind of token
    data: NDArray[np.uint8], at: int, end: int, made: NDArray[np.uint8], to: int
) -> tuple[int, int]:
    """Copy a number, a string, or a list of lists of them and nulls, with numbers quoted; -1 for other values."""
    depth = 0
    while at < end:
        byte = data[at]
        start = at
        is_number = byte == _MINUS or _ZERO <= byte <= _NINE
        if byte == _QUOTE:
            at = _after_string(data, at, end)
        elif is_number:
            at = _after_number(data, at, end)
        elif byte == _OPENING_LIST:
            depth += 1
            at += 1
        elif depth > 0 and byte == _CLOSING_LIST:
            depth -= 1
            at += 1
        elif depth > 0 and byte != _OPENING and byte != _CLOSING:
            at += 1  # a comma, a space, or a letter of null; Arrow checks it
        else:
            return -1, to
        if at < 0:
            return -1, to
        if is_number:
            made[to] = _QUOTE
            to += 1
        copy_bytes(made, to, data, start, at - start)
        to += at - start
        if is_number:
            made[to] = _QUOTE
            to += 1
        if depth == 0:
            return at, to
    return -1, to


@helper
def _after_value(data: NDArray[np.uint8], at: int, end: int) -> int:
    """The end of the value at ``at``, valid or not; -1 if it does not end."""
    depth = 0
    while at < end:
        byte = data[at]
        if byte == _QUOTE:
            at = _after_string(data, at, end)
            if at < 0:
                return -1
            continue
        if byte | _BRACKET_BIT == _OPENING:
            depth += 1
        elif byte | _BRACKET_BIT == _CLOSING:
            if depth == 0:
                return at
            depth -= 1
        elif byte == _COMMA and depth == 0:
            return at
        at += 1
    return -1


@helper
def _after_plain_string(data: NDArray[np.uint8], at: int, end: int) -> int:
    """The index after the string at ``at``; -1 if it does not end, or has escapes."""
    at += 1
    while at < end and data[at] != _QUOTE and data[at] != _BACKSLASH:
        at += 1
    return at + 1 if at < end and data[at] == _QUOTE else -1


@helper
def _after_space(data: NDArray[np.uint8], at: int, end: int) -> int:
    while at < end and data[at] == _SPACE:
        at += 1
    return at
