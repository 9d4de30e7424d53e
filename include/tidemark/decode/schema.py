"""The columns of every decoded record, in every table, before a parser adds its own."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.formats.table.base_columns import BASE_COLUMNS, BaseColumn, ColumnType

HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
"""A list and no map: header keys may repeat, and their order counts. A value may be null."""

TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")

_TYPES: Final[dict[ColumnType, pa.DataType]] = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": TIMESTAMP_TYPE,
    "headers": HEADERS_TYPE,
}


def arrow_field(column: BaseColumn) -> pa.Field[Any]:
    """The Arrow field of a base column."""
    return pa.field(column.name, _TYPES[column.type], nullable=column.nullable)


SCHEMA: Final = pa.schema([arrow_field(column) for column in BASE_COLUMNS])
"""``kafka_timestamp`` is null only if the record's milliseconds do not fit int64 microseconds (beyond the year
294000; a producer may send anything): see :func:`exact_milliseconds`. "No timestamp" is -1 ms, as in Kafka's
clients. ``kafka_timestamp_type`` is ``create`` or ``append``. ``kafka_leader_epoch`` is -1 in v0 and v1.
"""

MAX_MILLISECONDS: Final = ((1 << 63) - 1) // 1000
"""The largest |milliseconds| that fit as microseconds."""


def representable(milliseconds: NDArray[np.int64]) -> NDArray[np.bool_]:
    """A mask of the ``milliseconds`` that fit int64 microseconds. It uses no absolute value: -2^63 has none."""
    return (milliseconds <= MAX_MILLISECONDS) & (milliseconds >= -MAX_MILLISECONDS)


def exact_milliseconds(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """The timestamps since 1970, -1 for none: the decoder left those that do not fit under their nulls.

    ``rows`` is a record batch as the decoder yielded it, a slice of one, or a copy by :func:`copied`.
    """
    column = rows.column("kafka_timestamp")
    values: NDArray[np.int64] = octets(column.buffers()[1]).view(np.int64)[column.offset : column.offset + len(column)]
    if not column.null_count:
        return values // 1000
    bits = np.unpackbits(octets(column.buffers()[0]), bitorder="little", count=column.offset + len(column))
    return np.where(bits[column.offset :].astype(np.bool_), values // 1000, values)


def copied(rows: pa.RecordBatch, indices: NDArray[np.int64]) -> pa.RecordBatch:
    """A copy of the rows at ``indices``, which has no byte of the others.

    Arrow's own loses the milliseconds that the decoder left under null timestamps.
    """
    chosen = rows.take(array(pa.int64(), indices))
    at = rows.schema.get_field_index("kafka_timestamp")
    if at < 0 or not (column := rows.column(at)).null_count:
        return chosen
    values = octets(column.buffers()[1]).view(np.int64)[column.offset :][indices]
    bits = np.unpackbits(octets(column.buffers()[0]), bitorder="little")[column.offset :][indices]
    times = array(column.type, values, np.packbits(bits, bitorder="little"))
    return chosen.set_column(at, rows.schema.field(at), times)


def octets(buffer: pa.Buffer | None) -> NDArray[np.uint8]:
    """The bytes of an Arrow buffer, read-only; none for None."""
    values = np.frombuffer(memoryview(b"" if buffer is None else buffer), np.uint8)
    values.flags.writeable = False
    return values


def array(dtype: pa.DataType, values: NDArray[np.generic], bits: NDArray[np.uint8] | None = None) -> pa.Array[Any]:
    """Make an Arrow array on the memory of ``values``. ``pa.array`` imports pandas: 0.2 s and 50 MB a worker."""
    validity = None if bits is None else pa.py_buffer(bits.data)
    return pa.Array.from_buffers(dtype, len(values), [validity, pa.py_buffer(values.data)])


def numpy_values(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> NDArray[Any]:
    """The numbers or flags of a column, read-only; anything where it is null. ``to_numpy`` imports pandas, too."""
    chunks = [column] if isinstance(column, pa.Array) else column.chunks or [pa.nulls(0, column.type)]
    whole = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    data = octets(whole.buffers()[1])
    if pa.types.is_boolean(whole.type):
        values: NDArray[Any] = np.unpackbits(data, bitorder="little").view(np.bool_)
    else:
        values = data.view(whole.type.to_pandas_dtype())
    return values[whole.offset : whole.offset + len(whole)]


def flags(mask: NDArray[np.bool_]) -> pa.Array[Any]:
    """A boolean array of ``mask``."""
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(np.packbits(mask, bitorder="little").data)])


def empty_table(schema: pa.Schema) -> pa.Table:
    """A table of ``schema`` without rows. ``schema.empty_table`` imports pandas, too."""
    return pa.Table.from_batches([], schema=schema)


def variable(
    dtype: pa.DataType, offsets: NDArray[np.int32], data: NDArray[np.uint8], bits: NDArray[np.uint8] | None = None
) -> pa.Array[Any]:
    """Make a binary or string array on the memory of its ``offsets``, one more than values, and ``data``."""
    validity = None if bits is None else pa.py_buffer(bits.data)
    return pa.Array.from_buffers(
        dtype, len(offsets) - 1, [validity, pa.py_buffer(offsets.data), pa.py_buffer(data.data)]
    )


def constant_text(text: str, rows: int) -> pa.Array[Any]:
    """A string array of ``rows`` times the same text."""
    data = np.frombuffer(text.encode() * rows, np.uint8)
    return variable(pa.string(), np.arange(rows + 1, dtype=np.int32) * np.int32(len(text)), data)


def headers_column(offsets: NDArray[np.int32], keys: pa.Array[Any], values: pa.Array[Any]) -> pa.Array[Any]:
    """Make a column of HEADERS_TYPE. Row k has the keys and values from offsets[k] to offsets[k + 1]."""
    entries = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    return pa.Array.from_buffers(HEADERS_TYPE, len(offsets) - 1, [None, pa.py_buffer(offsets.data)], children=[entries])
