"""Rows as the records that a Kafka client hands out: the fast path from Arrow's buffers to Python's objects.

Promises: each field is that of kafka-python for the same batches (``PartitionRecords._unpack_records``), except for the
checksum of a v0 or v1 message, which is None here as in v2: KIP-32 deprecated it. Milliseconds are exact, even if they
do not fit as microseconds.

It works a column at a time: no function of ours is called per record, unless there is a deserializer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, repeat
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.decode.schema import exact_milliseconds, octets
from tidemark.remote.reader.blocks import MAGIC

Record = TypeVar("Record")
Headers = list[tuple[str, "bytes | None"]]

_CREATE_TIME: Final = 0
_APPEND_TIME: Final = 1


class Deserializer(Protocol):
    """A ``kafka.serializer.Deserializer``: called with topic, headers and data, or, if older, with topic and data."""

    @property
    def deserialize(self) -> Callable[..., Any]:
        """The function from bytes, or None, to the application's values."""
        ...


def consumer_records(
    rows: pa.RecordBatch,
    topic: str,
    start: int,
    count: int,
    make: Callable[[Iterable[Any]], Record],
    *,
    key_deserializer: Deserializer | None = None,
    value_deserializer: Deserializer | None = None,
) -> list[Record]:
    """The records of ``rows[start : start + count]``; ``rows`` are a block's or a slice of them.

    ``make`` makes a record of its 13 fields in the order of ``kafka.consumer.fetcher.ConsumerRecord``: give
    ``functools.partial(tuple.__new__, ConsumerRecord)``, which is twice as fast as the class's own ``_make``. There are
    fewer records than rows if a deserializer refuses one: those before it; if it is the first, its error is raised.
    """
    rows = rows.slice(start, count)
    if not len(rows):
        return []
    keys, key_sizes = _octet_column(rows.column("kafka_key"))
    values, value_sizes = _octet_column(rows.column("kafka_value"))
    headers, header_sizes = _headers(rows.column("kafka_headers"))
    timestamps, timestamp_types = _times(rows)
    failed: list[Exception] = []
    if key_deserializer is not None or value_deserializer is not None:
        keys, values = _deserialized(topic, headers, keys, values, key_deserializer, value_deserializer, failed)
        if failed and not keys:
            raise failed[0]
    fields = zip(
        repeat(topic),
        repeat(rows.column("kafka_partition")[0].as_py()),
        rows.column("kafka_leader_epoch").to_numpy().tolist(),
        rows.column("kafka_offset").to_numpy().tolist(),
        timestamps,
        timestamp_types,
        keys,
        values,
        headers,
        repeat(None),
        key_sizes,
        value_sizes,
        header_sizes,
        strict=False,
    )
    return list(map(make, fields))


def _times(rows: pa.RecordBatch) -> tuple[Iterable[int | None], Iterable[int | None]]:
    """Milliseconds, and 0 or 1 for times of producers or brokers; None and None in v0, which knows no time."""
    if (rows.schema.metadata or {}).get(MAGIC) == b"0":
        return repeat(None), repeat(None)
    kinds = rows.column("kafka_timestamp_type")
    kind = _APPEND_TIME if kinds[0].as_py() == "append" else _CREATE_TIME  # the decoder never mixes them in one piece
    return exact_milliseconds(rows).tolist(), repeat(kind)


def _offsets(column: pa.Array[Any]) -> NDArray[np.int32]:
    """The starts of the values of a variable column, or of a list's entries; one more than there are rows."""
    starts: NDArray[np.int32] = octets(column.buffers()[1]).view(np.int32)
    return starts[column.offset : column.offset + len(column) + 1]


def _octet_column(column: pa.Array[Any]) -> tuple[list[bytes | None], list[int]]:
    """The values of a binary column, and their sizes, -1 for null."""
    values = _objects(column)
    return values, [-1 if value is None else len(value) for value in values]


def _objects(column: pa.Array[Any]) -> list[Any]:
    """The values of a binary or string column, None for null: made in one loop of Arrow's, without a prior copy."""
    return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]  # the stubs lack the type


def _headers(column: pa.Array[Any]) -> tuple[list[Headers], Iterable[int]]:
    """A list of (key, value) for each row, and its bytes, -1 for an empty list."""
    offsets = _offsets(column)
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return [[] for _ in range(len(column))], repeat(-1)
    entries: Any = column.values.slice(first, last - first)  # type: ignore[attr-defined]  # the stubs know no ListArray
    key_column, value_column = entries.field(0), entries.field(1)
    pairs = list(zip(_objects(key_column), _objects(value_column), strict=True))
    bounds = offsets - first
    ends = _offsets(key_column).astype(np.int64) + _offsets(value_column)
    sizes = ends[bounds[1:]] - ends[bounds[:-1]]
    sizes[bounds[1:] == bounds[:-1]] = -1
    return [pairs[start:end] for start, end in pairwise(bounds.tolist())], sizes.tolist()


def _deserialized(
    topic: str,
    headers: Sequence[Headers],
    keys: list[bytes | None],
    values: list[bytes | None],
    of_keys: Deserializer | None,
    of_values: Deserializer | None,
    failed: list[Exception],
) -> tuple[list[Any], list[Any]]:
    """Keys and values up to the first that its deserializer refuses; the error is added to ``failed``."""
    new_keys: list[Any] = []
    new_values: list[Any] = []
    try:
        for key, value, header in zip(keys, values, headers, strict=True):
            new_key = key if of_keys is None else _deserialize(of_keys, topic, header, key)
            new_values.append(value if of_values is None else _deserialize(of_values, topic, header, value))
            new_keys.append(new_key)
    except Exception as error:  # noqa: BLE001  # an error of an application's function is raised with its record
        failed.append(error)
    return new_keys, new_values


def _deserialize(deserializer: Deserializer, topic: str, headers: Headers, data: bytes | None) -> Any:
    """Deserialize like kafka-python: a deserializer of its older releases takes no headers."""
    try:
        return deserializer.deserialize(topic, headers, data)
    except TypeError:
        return deserializer.deserialize(topic, data)
