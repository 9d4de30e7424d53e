"""Decodes record batches to Arrow.

Promises: one row for every data record of the selected batches, in the order of the log; memory bounded by
:class:`DecodeLimits` and the largest batch. Any bytes make rows, or an error that names file, byte, offset and rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.decode.batch_headers import Headers, as_array
from tidemark.decode.decompress import Arena
from tidemark.decode.kernel import FINDINGS, NO_TOTALS, RECORD_RULES, RULE, Columns, RecordTotals, parse_batches
from tidemark.decode.messages_v0_v1 import decode_legacy
from tidemark.decode.schema import SCHEMA, TIMESTAMP_TYPE, array, constant_text, headers_column, variable
from tidemark.decode.uncompressed_runs import DEFAULT_LIMITS, Chunk, DecodeLimits, Refuse, chunks
from tidemark.errors import SegmentError
from tidemark.kafka_log.batch import APPEND_TIME, CONTROL, MAX_BATCH_BYTES, BatchHeader, Buffer
from tidemark.kafka_log.names import MAX_OFFSET

_MAX_CHUNK_BYTES = (1 << 31) - 1

OnRefused = Callable[[BatchHeader, SegmentError], None]
"""Called for a batch that cannot be decoded, with the reason; the batch then has no row."""


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
    limits: DecodeLimits = DEFAULT_LIMITS,
) -> Iterator[pa.RecordBatch]:
    """The records of the batches in ``headers``, as Arrow record batches of :data:`tidemark.decode.schema.SCHEMA`.

    :func:`scan_headers` has read ``headers`` from ``segment``, with the same ``position``; ``headers`` may be a part of
    its result. Control batches are skipped, and those outside the mask ``select``. Only offsets in
    [from_offset, to_offset) become rows.

    Raises :class:`SegmentError` for a batch that breaks a rule, or, with ``on_refused``, calls that for each and
    continues; a batch is refused as a whole. What is not UTF-8 in a header key becomes U+FFFD, as
    Kafka's own client reads it.
    """
    if limits.arena_bytes + max(limits.records_bytes, MAX_BATCH_BYTES) > _MAX_CHUNK_BYTES:
        raise ValueError(f"{limits} would let a chunk grow beyond what Arrow's 32-bit offsets can address")
    buffer = as_array(segment)
    mask = (headers["attributes"] & CONTROL == 0) & (headers["record_count"] != 0)
    mask &= headers["base_offset"] + headers["last_offset_delta"] >= from_offset
    mask &= (headers["base_offset"] < to_offset) | (headers["magic"] < 2)  # a v0/v1 wrapper's base is its last offset
    if select is not None:
        mask &= select

    def refuse(row: Headers, rule: str) -> None:
        header = BatchHeader(*row.item())
        error = SegmentError(name, header.position, header.base_offset, rule)
        if on_refused is None:
            raise error
        on_refused(header, error)

    for run in _runs(headers[mask]):
        timestamp_type = BatchHeader(*run[0].item()).timestamp_type
        if run["magic"][0] < 2:
            rows = decode_legacy(buffer, run, position, from_offset, to_offset, limits, refuse)
        else:
            rows = _decode_v2(buffer, run, position, from_offset, to_offset, limits, refuse)
        for columns, totals in rows:
            yield _record_batch(columns, totals, partition, incarnation, timestamp_type)


def _runs(headers: Headers) -> list[Headers]:
    """Cut ``headers`` where the format (v0/v1 or v2) or the timestamp type changes."""
    kind = (headers["magic"] < 2) * 2 + (headers["attributes"] & APPEND_TIME != 0)
    return [run for run in np.split(headers, np.flatnonzero(np.diff(kind)) + 1) if len(run)]


def _decode_v2(
    buffer: NDArray[np.uint8],
    headers: Headers,
    position: int,
    from_offset: int,
    to_offset: int,
    limits: DecodeLimits,
    refuse: Refuse,
) -> Iterator[tuple[Columns, RecordTotals]]:
    arena = Arena(limits.arena_bytes)
    for chunk in chunks(buffer, headers, position, limits, arena, refuse):
        columns, totals = _columns(chunk, from_offset, to_offset, refuse)
        del chunk
        arena.shrink()  # free the memory of a large batch before its rows are used
        if totals.rows:
            yield columns, totals
            del columns


def _columns(chunk: Chunk, from_offset: int, to_offset: int, refuse: Refuse) -> tuple[Columns, RecordTotals]:
    findings = np.zeros((len(chunk.headers), FINDINGS), np.int64)
    totals = parse_batches(*chunk, from_offset, to_offset, findings, False, Columns.sized(NO_TOTALS))
    for index in np.flatnonzero(findings[:, RULE]):
        rule, record, _ = findings[index].tolist()
        refuse(chunk.headers[index], f"record {record} of the batch: {RECORD_RULES[rule]}")
    columns = Columns.sized(totals)
    if totals.rows:
        parse_batches(*chunk, from_offset, to_offset, findings, True, columns)
    return columns, totals


def _record_batch(
    columns: Columns, totals: RecordTotals, partition: int, incarnation: int, timestamp_type: str
) -> pa.RecordBatch:
    """Columns as Arrow, without a copy; validity bits only for columns with nulls."""
    rows = totals.rows
    header_keys = variable(pa.string(), columns.header_key_offsets, columns.header_key_data)
    header_values = variable(
        pa.binary(),
        columns.header_value_offsets,
        columns.header_value_data,
        columns.header_value_bits if totals.null_header_values else None,
    )
    arrays = {
        "kafka_incarnation": array(pa.int32(), np.full(rows, incarnation, np.int32)),
        "kafka_partition": array(pa.int32(), np.full(rows, partition, np.int32)),
        "kafka_offset": array(pa.int64(), columns.offset),
        "kafka_timestamp": array(
            TIMESTAMP_TYPE, columns.timestamp, columns.timestamp_bits if totals.null_timestamps else None
        ),
        "kafka_timestamp_type": constant_text(timestamp_type, rows),
        "kafka_key": variable(
            pa.binary(), columns.key_offsets, columns.key_data, columns.key_bits if totals.null_keys else None
        ),
        "kafka_value": variable(
            pa.binary(), columns.value_offsets, columns.value_data, columns.value_bits if totals.null_values else None
        ),
        "kafka_headers": headers_column(columns.header_offsets, header_keys, header_values),
        "kafka_leader_epoch": array(pa.int32(), columns.leader_epoch),
    }
    return pa.RecordBatch.from_arrays([arrays[name] for name in SCHEMA.names], schema=SCHEMA)
