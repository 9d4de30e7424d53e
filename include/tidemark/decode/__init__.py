"""Decodes record batches to Arrow; needs the extra ``tidemark-kafka[decode]``.

    headers = scan_headers(data, name, base_offset)                 # every batch, checksums verified
    keep = ~aborted_mask(headers, aborted)                          # the batches that read_committed delivers
    for rows in decode_batches(data, headers, name=name, partition=0, incarnation=0, select=keep):
        total = combine(total, row_hash_sum(rows))                  # evidence, can be computed again from Parquet

The first call in a process loads the kernels, or compiles them if the installation did not: see
:mod:`tidemark.decode.kernel_cache`. A name is imported at its first use here, since numba alone takes 0.2 CPU-s, and
most processes that need the columns of :mod:`tidemark.decode.schema` decode nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidemark.decode.batch_headers import HEADER_DTYPE, Headers, aborted_mask, scan_headers
    from tidemark.decode.decoder import decode_batches
    from tidemark.decode.decompress import DEFAULT_LIMITS, DecodeLimits
    from tidemark.decode.rowhash import row_hash_sum
    from tidemark.decode.schema import SCHEMA, exact_milliseconds

_MODULES: Final = {
    "DEFAULT_LIMITS": "tidemark.decode.decompress",
    "HEADER_DTYPE": "tidemark.decode.batch_headers",
    "SCHEMA": "tidemark.decode.schema",
    "DecodeLimits": "tidemark.decode.decompress",
    "Headers": "tidemark.decode.batch_headers",
    "aborted_mask": "tidemark.decode.batch_headers",
    "decode_batches": "tidemark.decode.decoder",
    "row_hash_sum": "tidemark.decode.rowhash",
    "scan_headers": "tidemark.decode.batch_headers",
    "exact_milliseconds": "tidemark.decode.schema",
}

__all__ = [
    "DEFAULT_LIMITS",
    "HEADER_DTYPE",
    "SCHEMA",
    "DecodeLimits",
    "Headers",
    "aborted_mask",
    "decode_batches",
    "exact_milliseconds",
    "row_hash_sum",
    "scan_headers",
]


def __getattr__(name: str) -> object:
    """A name of :data:`_MODULES`, imported from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found
    return found
