"""Record batches to Arrow.

Promises: for every data record of the selected batches, in the order of the log, one row; memory bounded by the arena,
the row cap and the largest batch; whatever the bytes, an answer or an error that names file, byte, offset and rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.decode.chunks import Chunk, chunks
from tidemark.decode.columns import SCHEMA, TIMESTAMP_TYPE, array, constant_text, headers_column, variable
from tidemark.decode.decompress import MAX_RECORDS_BYTES
from tidemark.decode.headers import Headers, as_array
from tidemark.decode.kernel import NO_TOTALS, RECORD_RULES, Columns, Totals, parse_batches
from tidemark.decode.legacy import decode_legacy
from tidemark.errors import SegmentError
from tidemark.records.batch import APPEND_TIME, CONTROL, BatchHeader, Buffer
from tidemark.records.names import MAX_OFFSET

ARENA_BYTES = 16 << 20
MAX_ROWS = 1 << 18

OnRefused = Callable[[BatchHeader, SegmentError], None]
"""Called for a batch that cannot be decoded, with the reason; the batch has then no row."""


def decode_batches(
    segment: Buffer | NDArray[np.uint8],
    headers: Headers,
    *,
    name: str,
    partition: int,
    incarnation: int,
    select: NDArray[np.bool_] | None = None,
    from_offset: int = 0,
    to_offset: int = MAX_OFFSET,
    position: int = 0,
    on_refused: OnRefused | None = None,
    arena_bytes: int = ARENA_BYTES,
    max_rows: int = MAX_ROWS,
    max_records_bytes: int = MAX_RECORDS_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The records of the batches in ``headers`` as record batches of :data:`tidemark.decode.columns.SCHEMA`.

    ``segment`` is what :func:`scan_headers` read ``headers`` from, with the same ``position``; ``headers`` may be a part
    of what it found. Control batches are skipped, and those that are not in the mask ``select``. Only offsets in
    [from_offset, to_offset) become rows. A record batch has at most ``max_rows`` rows and about ``arena_bytes`` of
    records, or comes from one larger batch; ``max_records_bytes`` bounds what a batch may decompress to.

    Raises :class:`SegmentError` for the first batch that breaks a rule, or, with ``on_refused``, calls that for each and
    goes on. Header keys must be UTF-8, as the protocol has it: a batch where one is not is refused as a whole.
    """
    buffer = as_array(segment)
    wanted = (headers["attributes"] & CONTROL == 0) & (headers["record_count"] != 0)
    wanted &= (headers["base_offset"] < to_offset) & (
        headers["base_offset"] + headers["last_offset_delta"] >= from_offset
    )
    if select is not None:
        wanted &= select

    def refuse(header: BatchHeader, rule: str) -> None:
        error = SegmentError(name, header.position, header.base_offset, rule)
        if on_refused is None:
            raise error
        on_refused(header, error)

    for run in _runs_by_format(headers[wanted]):
        def refuse_index(index: int, rule: str, run: Headers = run) -> None:
            refuse(BatchHeader(*run[index].item()), rule)

        if run["magic"][0] < 2:
            yield from decode_legacy(...)
        else:
            ...
