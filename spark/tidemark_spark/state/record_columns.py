"""The records of a state: rows of the topic's table without their envelope, with the identity of their key.

A key is ``kafka_key``, without Confluent's frame if the settings say so, or the values of columns. Then a column of its
own, :data:`IDENTITY`, has their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.decode.schema import constant_text, flags, numpy_values
from tidemark.formats.table.state_ledger import RECORD, Truncation
from tidemark.parsers.base import column_at, no_rows
from tidemark.parsers.confluent_framing import unframed
from tidemark.table.state_columns import KEY, StateColumns
from tidemark.table.state_envelopes import Envelope
from tidemark.topics import TopicSettings
from tidemark_spark.convert.partition_columns import topic_parser
from tidemark_spark.state.last_records import DELETED, HASH, Ranking, chosen
from tidemark_spark.state.model import StoppingRecord
from tidemark_spark.state.truncations import plain, truncation_of

IDENTITY: Final = "_key"

TRUNCATES: Final = (
    "truncates the source table, and records of other partitions have no order with it: give a topic with a new "
    "snapshot a state of its own"
)
_COLON: Final = constant_text(":", 1)[0].cast(pa.binary())
_NOTHING: Final = constant_text("", 1)[0].cast(pa.binary())


class RowEffects(NamedTuple):
    """What rows of the topic's table do to the state.

    ``records`` change a key, without hashes; the identity of a record without a key is null. The state stops at
    ``stops``. ``passed_over`` marks the rows whose value names no operation that the envelope knows. ``truncations``
    have the places and orders of the rows that truncate the source table.
    """

    records: pa.Table
    stops: list[StoppingRecord]
    passed_over: NDArray[np.bool_]
    truncations: list[Truncation]


class RecordColumns:
    """The columns of the state table of a topic, ``table``, and those of records in its runs and reserve, ``records``.

    ``sources`` are the columns of the topic's table that records are made of.
    """

    def __init__(self, topic: TopicSettings) -> None:
        """Raises ConfigError if the parser lacks columns that the settings need."""
        assert topic.state is not None
        self._state = topic.state
        self._columns = columns = StateColumns(topic, topic_parser(topic).columns)
        self.envelope, self.table, self.sources = columns.envelope, columns.table, columns.sources
        self.key, self.before, self.has_tombstones = topic.state.key, columns.before, columns.has_tombstones
        own = columns.by_columns or topic.state.framing is not None
        self.ranking = Ranking(IDENTITY if own else KEY, topic.state.order_columns)
        flags = [pa.field(DELETED, pa.bool_(), nullable=False), pa.field(HASH, pa.uint64(), nullable=False)]
        identity = [pa.field(IDENTITY, pa.binary())] if own else []
        self.records = pa.schema([*self.table, *identity, *flags])

    def of_rows(self, rows: pa.Table) -> RowEffects:
        """What ``rows`` of the topic's table do."""
        stops: list[StoppingRecord] = []
        rows = self.with_order(rows)
        passed_over, truncations = np.zeros(len(rows), np.bool_), list[Truncation]()
        if self.envelope is None:
            deleted = numpy_values(rows.column("kafka_value").is_null())
        else:
            truncating = chosen(rows, _one_of(rows.column(self.envelope.op), [self.envelope.truncates]))
            for name in self.ranking.order:
                lacking = numpy_values(truncating.column(name).is_null())
                stops += _stops(truncating, lacking, f"truncates the source table, and has no {name}")
            truncations = self.truncations(truncating)
            known = _one_of(rows.column(self.envelope.op), self.envelope.known)
            passed_over = ~(known | _is_tombstone(rows, self.envelope.op))
            rows, deleted = self._unwrapped(rows, self.envelope)
        records = self.identified(in_columns(rows, self.table), deleted)
        if self._columns.by_columns:
            lacking = deleted & numpy_values(records.column(IDENTITY).is_null())
            stops += _stops(records, lacking, f"deletes its key, and has no {', '.join(self.key)}")
        for name in self.ranking.order:
            lacking = deleted & numpy_values(records.column(name).is_null())
            stops += _stops(records, lacking, f"deletes its key, and has no {name}")
        return RowEffects(records, stops, passed_over, truncations)

    def with_order(self, rows: pa.Table) -> pa.Table:
        """``rows`` with the columns of the order that lie within structs."""
        for path, name in zip(self._state.order, self.ranking.order, strict=True):
            if name not in rows.column_names:
                rows = rows.append_column(name, _at(rows, path))
        return rows

    def truncations(self, rows: pa.Table) -> list[Truncation]:
        """The truncations that ``rows`` are, unless they lack a column of the order."""
        names = [*RECORD[1:4], *self.ranking.order]
        lists = [plain(rows.column(name)).to_pylist() for name in names]
        found = [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]
        return [truncation_of(row, self.ranking.order) for row in found if None not in row.values()]

    def of_leaf(self, rows: pa.Table) -> pa.Table:
        """The ``rows`` of a leaf as records, without hashes."""
        return self.identified(in_columns(rows, self.table), np.zeros(len(rows), np.bool_))

    def identified(self, rows: pa.Table, deleted: NDArray[np.bool_]) -> pa.Table:
        """``rows`` in the columns of the state as records, without hashes."""
        if self.ranking.key == IDENTITY:
            keys = _text(rows, self.key) if self._columns.by_columns else _without_frame(rows.column(KEY))
            rows = rows.append_column(pa.field(IDENTITY, pa.binary()), keys)
        return rows.append_column(self.records.field(DELETED), flags(deleted))

    def _unwrapped(self, rows: pa.Table, envelope: Envelope) -> tuple[pa.Table, NDArray[np.bool_]]:
        """The ``rows`` that change a key, with the fields of the envelope's row, and whether they delete it.

        A tombstone repeats a deletion: where it lacks what keys or order need, it is passed over.
        """
        changing = _one_of(rows.column(envelope.op), envelope.changes)
        if self.has_tombstones:
            changing |= _is_tombstone(rows, envelope.op)
        rows = chosen(rows, changing)
        deleted = _one_of(rows.column(envelope.op), [envelope.deletes]) | _is_tombstone(rows, envelope.op)
        for name, same in self.before.items():
            if same in rows.column_names:
                values = pc.if_else(flags(deleted), rows.column(same).combine_chunks(), rows.column(name))
                rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), values)
        after = _struct(rows, envelope.row)
        if after is not None:
            before = _struct(rows, envelope.before)
            for at, field in enumerate(after.type):
                values = pc.struct_field(after, [at])
                if before is not None and field.name in self.key and before.type.get_field_index(field.name) >= 0:
                    values = pc.if_else(flags(deleted), pc.struct_field(before, field.name), values)
                rows = rows.append_column(field, values)
        return rows, deleted


def in_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """``rows`` in the columns of ``schema``; missing columns are null."""
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.chunked_array([pa.nulls(len(rows), field.type)])
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _at(rows: pa.Table, path: str) -> Any:
    """The values under ``path``; null in a file of an older schema, which lacks it."""
    batches = rows.combine_chunks().to_batches() or [no_rows(rows.schema, 0)]
    try:
        return column_at(batches[0], path)
    except ValueError:
        return pa.nulls(len(rows))


def _struct(rows: pa.Table, name: str) -> Any:
    """The column ``name`` if it is a struct, else None."""
    if name not in rows.column_names or not isinstance(rows.schema.field(name).type, pa.StructType):
        return None
    return rows.column(name).combine_chunks()


def _is_tombstone(rows: pa.Table, op: str) -> NDArray[np.bool_]:
    """For each row whether its record has no value.

    Rows without the column of values have an operation unless they are tombstones; see :class:`StateColumns`.
    """
    return numpy_values(rows.column("kafka_value" if "kafka_value" in rows.column_names else op).is_null())


def _one_of(column: Any, words: Sequence[str]) -> NDArray[np.bool_]:
    return numpy_values(pc.is_in(column, value_set=pa.concat_arrays([constant_text(word, 1) for word in words])))


def _stops(rows: pa.Table, mask: NDArray[np.bool_], rule: str) -> list[StoppingRecord]:
    found = chosen(rows, mask)
    places = zip(*(found.column(name).to_pylist() for name in RECORD[1:4]), strict=True)
    return [StoppingRecord(min(places), rule)] if len(found) else []


def _without_frame(keys: Any) -> Any:
    """``keys`` without Confluent's frame; those that have none stay as they are."""
    whole = keys.combine_chunks()
    return pc.coalesce(unframed(whole)[0], whole)


def _text(rows: pa.Table, names: Sequence[str]) -> Any:
    """Bytes that tell the values of the columns ``names`` apart; null if one of them is."""
    parts = [_octets(rows.column(name)) for name in names]
    if len(parts) == 1:
        return parts[0]
    pieces = [piece for part in parts for piece in (_octets(pc.binary_length(part)), _COLON, part)]
    return pc.binary_join_element_wise(*pieces, _NOTHING)


def _octets(column: Any) -> Any:
    return column if pa.types.is_binary(column.type) else column.cast(pa.string()).cast(pa.binary())
