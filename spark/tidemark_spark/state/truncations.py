"""Truncations of a source table: a record of the envelope that removes all rows before it.

A topic of one partition has a total order, so there a truncation is followed: records of its partition below it, and
those of older incarnations, count for nothing. Partitions that were added later begin after it. If the settings name
an order, its values decide first. The state's ledger keeps the newest truncation, since older records may still come,
as by a replay.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.decode.schema import numpy_values
from tidemark.formats.table.state_ledger import RECORD, Truncation
from tidemark_spark.state.last_records import Ranking

_INCARNATION, _PARTITION, _OFFSET = RECORD[1:4]


def truncation_of(row: dict[str, Any], order: Iterable[str]) -> Truncation:
    """The truncation whose place and order :func:`plain` ``row`` has."""
    return Truncation(
        incarnation=row[_INCARNATION],
        partition=row[_PARTITION],
        offset=row[_OFFSET],
        order=tuple(_text(row[name]) for name in order),
    )


def newest_truncation(
    truncations: Iterable[Truncation | None], ranking: Ranking, schema: pa.Schema
) -> Truncation | None:
    """The newest of them; ``schema`` has the columns of the order."""

    def rank(truncation: Truncation) -> tuple[Any, ...]:
        return (*truncation_values(truncation, ranking, schema), truncation.incarnation, truncation.offset)

    return max((each for each in truncations if each is not None), key=rank, default=None)


def before(records: pa.Table, truncation: Truncation, ranking: Ranking) -> NDArray[np.bool_]:
    """For each of ``records`` whether ``truncation`` removes it."""
    older, same = np.zeros(len(records), np.bool_), np.ones(len(records), np.bool_)
    for name, value in zip(ranking.order, truncation_values(truncation, ranking, records.schema), strict=True):
        column = plain(records.column(name))
        older |= same & numpy_values(pc.fill_null(pc.less(column, value), True))
        same &= numpy_values(pc.fill_null(pc.equal(column, value), False))
    incarnation, partition, offset = (
        numpy_values(records.column(name)) for name in (_INCARNATION, _PARTITION, _OFFSET)
    )
    below = (partition == truncation.partition) & (offset < truncation.offset)
    found: NDArray[np.bool_] = older | (
        same & ((incarnation < truncation.incarnation) | ((incarnation == truncation.incarnation) & below))
    )
    return found


def plain(column: Any) -> Any:
    """A column of the order in the type of Arrow's in which its values are compared: times are numbers."""
    kind = column.type
    if pa.types.is_temporal(kind):
        return column.cast(pa.int32() if kind.bit_width < 64 else pa.int64())
    return column


def truncation_values(truncation: Truncation, ranking: Ranking, schema: pa.Schema) -> list[Any]:
    """The values of the truncation in the columns of the order, as :func:`plain` has them."""
    kinds = (plain(pa.nulls(0, schema.field(name).type)).type for name in ranking.order)
    return [_value(text, kind) for text, kind in zip(truncation.order, kinds, strict=True)]


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _value(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_binary(kind):
        return bytes.fromhex(text)
    if pa.types.is_boolean(kind):
        return text == "True"
    if pa.types.is_decimal(kind):
        return Decimal(text)
    if pa.types.is_floating(kind):
        return float(text)
    return text if pa.types.is_string(kind) else int(text)
