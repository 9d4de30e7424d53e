"""The hash of a record's key: XXH64 with the seed 0, by which state tables divide their keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.decode.jit import READ_ONLY_BYTES, READ_ONLY_INT32, kernel, type_of
from tidemark.decode.schema import octets
from tidemark.decode.xxh64 import xxh64_pair

_ZERO = np.uint64(0)


def key_hashes(keys: pa.Array[Any]) -> NDArray[np.uint64]:
    """The hash of each of the binary ``keys``, of which none is null.

    Raises:
        ValueError: the keys have another type than binary.
    """
    if keys.type != pa.binary():
        raise ValueError(f"keys of type {keys.type} have no hash: cast them to binary")
    hashes = np.empty(len(keys), np.uint64)
    if len(keys):
        _, offsets, data = keys.buffers()
        starts = octets(offsets).view(np.int32)[keys.offset : keys.offset + len(keys) + 1]
        _hash(starts, octets(data), hashes)
    return hashes


@kernel(READ_ONLY_INT32, READ_ONLY_BYTES, type_of(np.empty(0, np.uint64)))
def _hash(starts: NDArray[np.int32], data: NDArray[np.uint8], hashes: NDArray[np.uint64]) -> None:
    """Set ``hashes``. NOT checked: ``starts`` ascend, and lie within ``data``."""
    for row in range(len(starts) - 1):
        low, _ = xxh64_pair(data, starts[row], starts[row + 1] - starts[row], _ZERO, _ZERO)
        hashes[row] = low
