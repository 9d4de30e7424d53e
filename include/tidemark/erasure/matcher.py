"""The matcher: which rows of a column have a value that a request for erasure names.

Each value is compared by its probe (see :mod:`tidemark.erasure.secret`), in a compiled loop over the column's memory;
the digest decides about the few whose probe is wanted. Values are compared in a *canonical* form: bytes as they are,
text as UTF-8, integers as decimal text. Null and empty values are nobody's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.decode.jit import NUMBERS, READ_ONLY_BYTES, helper, kernel, load_u64, type_of
from tidemark.decode.schema import array
from tidemark.erasure.secret import INITIAL, VARIABLE, Secret
from tidemark.errors import ConfigError
from tidemark.formats.raw.erasure import ErasureRequest
from tidemark.parsers.base import bounds
from tidemark.parsers.confluent_framing import HEAD

_A, _B, _C, _D = (np.uint64(state) for state in INITIAL)
_WORD, _FLAG = type_of(np.uint64(0)), type_of(True)
_BITS = np.uint64(64)
_LOWER = np.uint64(0xFFFFFFFF)
_FINAL = np.uint64(0xFF)
# Shifts as uint64: numba turns a uint64 with a signed number into a float.
_13, _16, _17, _21, _32, _56 = (np.uint64(bits) for bits in (13, 16, 17, 21, 32, 56))


class Matcher:
    """The values that requests look for in one column of a topic. Made once for a task.

    ``column`` is the name of the column, or its path into structs: see :func:`tidemark.parsers.base.column_at`.
    """

    def __init__(self, column: str) -> None:
        self.column = column
        self._groups: dict[tuple[str, bool], _Group] = {}

    def add(self, request: ErasureRequest, secret: Secret, *, confluent: bool) -> None:
        """Look for the values of ``request``, too; ``secret`` is the secret of its digests."""
        group = self._groups.setdefault((secret.fingerprint, confluent), _Group(secret, confluent))
        group.add(request)

    def rows(self, values: pa.Array[Any]) -> dict[str, NDArray[np.int64]]:
        """The rows of ``values`` that a request names, ascending, by the request's id; not empty.

        Raises:
            ConfigError: values of this type cannot be compared.
        """
        check_comparable(self.column, values.type)
        canonical = _canonical(values)
        found: dict[str, list[int]] = {}
        for group in self._groups.values():
            for row, request in group.matches(canonical):
                found.setdefault(request, []).append(row)
        return {request: np.array(rows, np.int64) for request, rows in found.items()}


def matchers(topic: str, requests: Iterable[ErasureRequest], secrets: Mapping[str, Secret]) -> list[Matcher]:
    """A matcher for each column of ``topic`` that the requests search.

    Raises:
        ConfigError: the secret of a request is not among ``secrets``.
    """
    by_column: dict[str, Matcher] = {}
    for request in requests:
        if (searched := request.searched(topic)) is None:
            continue
        if (secret := secrets.get(request.secret)) is None:
            rule = f"lacks the secret {request.secret} of request {request.id}: add it behind the others"
            raise ConfigError(VARIABLE, [("", rule)])
        matcher = by_column.setdefault(searched.column, Matcher(searched.column))
        matcher.add(request, secret, confluent=searched.confluent)
    return list(by_column.values())


def check_comparable(column: str, kind: pa.DataType) -> None:
    """Raise ConfigError unless values of this type can be compared."""
    inner = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    if not (_is_text(inner) or _is_binary(inner) or pa.types.is_integer(inner)):
        rule = f"is {kind}; only texts (string), bytes (binary) and integers can be compared"
        raise ConfigError(f"column {column}", [("", rule)])


class _Group:
    """The values of requests with one secret, which are compared with the values of a column in one way."""

    def __init__(self, secret: Secret, confluent: bool) -> None:
        self._secret = secret
        self._confluent = confluent
        self._requests: dict[str, list[str]] = {}  # by digest
        self._probes = np.empty(0, np.int64)

    def add(self, request: ErasureRequest) -> None:
        probes = np.array([int(value.probe, 16) for value in request.values], np.int64)
        self._probes = np.union1d(self._probes, probes)
        for value in request.values:
            self._requests.setdefault(value.digest, []).append(request.id)

    def matches(self, values: pa.Array[Any]) -> Iterable[tuple[int, str]]:
        """Each row of binary ``values`` that is wanted, and the request."""
        offsets, data = _bounds(values)
        rows = np.empty(len(values), np.int64)
        low, high = map(np.uint64, self._secret.probe_key)
        rows = rows[: find_probes(offsets, data, low, high, self._confluent, self._probes, rows)]
        decided: dict[bytes, list[str]] = {}
        for row, value in zip(rows.tolist(), values.take(array(pa.int64(), rows)).to_pylist(), strict=True):
            if value is None:
                continue
            if value not in decided:
                decided[value] = self._requests.get(self._secret.digest(self._unframed(value)), [])
            for request in decided[value]:
                yield row, request

    def _unframed(self, value: bytes) -> bytes:
        return value[HEAD:] if self._confluent and len(value) >= HEAD and value[0] == 0 else value


def _canonical(values: pa.Array[Any]) -> pa.Array[Any]:
    """The canonical bytes of ``values``, as binary with offsets of 32 bits."""
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    if pa.types.is_integer(values.type):
        values = values.cast(pa.string())
    if _is_text(values.type):
        values = values.view(pa.large_binary() if pa.types.is_large_string(values.type) else pa.binary())
    return values.cast(pa.binary())


def _bounds(values: pa.Array[Any]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The starts of binary ``values`` and the end of the last one; and their bytes."""
    starts, data = bounds(values)
    offsets = starts.astype(np.int64)
    if offsets[0] < 0 or offsets[-1] > len(data) or (np.diff(offsets) < 0).any():
        raise ValueError("offsets of a column point outside its data")
    return offsets, data


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


@kernel(NUMBERS, READ_ONLY_BYTES, _WORD, _WORD, _FLAG, NUMBERS, NUMBERS)
def find_probes(
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
