"""Decodes record batches to Arrow; needs the extra ``tidemark-kafka[decode]``.

    headers = scan_headers(data, name, base_offset)                 # every batch, checksums verified
    keep = ~aborted_mask(headers, aborted)                          # the batches that read_committed delivers
    for rows in decode_batches(data, headers, name=name, partition=0, incarnation=0, select=keep):
        total = combine(total, row_hash_sum(rows))                  # evidence, can be computed again from Parquet

The first call in a process loads the kernels, or compiles them if the installation did not: see
:mod:`tidemark.decode.kernel_cache`.
"""

from tidemark.decode.batch_headers import HEADER_DTYPE, Headers, aborted_mask, scan_headers
from tidemark.decode.decoder import decode_batches
from tidemark.decode.decompress import DEFAULT_LIMITS, DecodeLimits
from tidemark.decode.rowhash import row_hash_sum
from tidemark.decode.schema import SCHEMA, unrepresentable_timestamps
from tidemark.formats.raw.hashsum import combine

__all__ = [
    "DEFAULT_LIMITS",
    "HEADER_DTYPE",
    "SCHEMA",
    "DecodeLimits",
    "Headers",
    "aborted_mask",
    "combine",
    "decode_batches",
    "row_hash_sum",
    "scan_headers",
    "unrepresentable_timestamps",
]
