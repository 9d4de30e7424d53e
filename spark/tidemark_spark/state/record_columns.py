"""The records of a state: rows of the topic's table without their envelope, with the identity of their key.

A key is ``kafka_key``, without Confluent's frame if the settings say so, or the values of columns. Then a column of its
own, :data:`IDENTITY`, has their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.decode import SCHEMA
from tidemark.decode.schema import constant_text, flags, numpy_values
from tidemark.errors import ConfigError
from tidemark.formats.table.state_ledger import RECORD
from tidemark.parsers.base import column_at, no_rows
from tidemark.parsers.confluent_framing import unframed
from tidemark.table.state_envelopes import ENVELOPES, Envelope
from tidemark.topics import TopicSettings
from tidemark_spark.convert.partition_columns import topic_parser
from tidemark_spark.state.last_records import DELETED, HASH, KEY, Ranking, chosen
from tidemark_spark.state.model import StoppingRecord

IDENTITY: Final = "_key"

_TRUNCATES: Final = (
    "truncates the source table, and records of other partitions have no order with it: give a topic with a new "
    "snapshot a state of its own"
)
_COLON: Final = constant_text(":", 1)[0].cast(pa.binary())
_NOTHING: Final = constant_text("", 1)[0].cast(pa.binary())


class RecordColumns:
    """The columns of the state table of a topic, ``table``, and those of records in its runs and reserve, ``records``.

    ``sources`` are the columns of the topic's table that records are made of.
    """

    def __init__(self, topic: TopicSettings) -> None:
        """Raises ConfigError if the parser lacks columns that the settings need."""
        assert topic.state is not None
        self._topic, self._state = topic, topic.state
        self.envelope: Envelope | None = ENVELOPES.get(topic.state.envelope)
        parsed = topic_parser(topic).columns
        columns = self._unwrapped_columns(parsed)
        if not len(parsed):
            columns = pa.schema([SCHEMA.field("kafka_value")])
        columns = pa.schema(
            [*(SCHEMA.field(name) for name in RECORD), *(field.with_nullable(True) for field in columns)]
        )
        self.table = self._with_order(columns, parsed)
        by_columns = topic.state.key != (KEY,)
        if by_columns:
            self._check_key()
        own = by_columns or topic.state.framing is not None
        self.ranking = Ranking(IDENTITY if own else KEY, topic.state.order_columns)
        flags = [pa.field(DELETED, pa.bool_(), nullable=False), pa.field(HASH, pa.uint64(), nullable=False)]
        identity = [pa.field(IDENTITY, pa.binary())] if own else []
        self.records = pa.schema([*self.table, *identity, *flags])
        self._by_columns = by_columns
        envelope = (self.envelope.op, self.envelope.row, self.envelope.before) if self.envelope else ("kafka_value",)
        self.sources = tuple(
            dict.fromkeys((*self.table.names, *envelope, *(path.partition(".")[0] for path in topic.state.order)))
        )

    def of_rows(self, rows: pa.Table) -> tuple[pa.Table, list[StoppingRecord]]:
        """The records of ``rows`` that change a key, without hashes, and the records at which the state stops.

        The rows are those of the topic's table. The identity of a record without a key is null.
        """
        stops: list[StoppingRecord] = []
        for path, name in zip(self._state.order, self.ranking.order, strict=True):
            if name not in rows.column_names:
                rows = rows.append_column(name, _at(rows, path))
        if self.envelope is None:
            deleted = numpy_values(rows.column("kafka_value").is_null())
        else:
            stops += _stops(rows, _one_of(rows.column(self.envelope.op), [self.envelope.truncates]), _TRUNCATES)
            rows, deleted = self._unwrapped(rows, self.envelope)
        records = self._identified(in_columns(rows, self.table), deleted)
        if self._by_columns:
            lacking = deleted & numpy_values(records.column(IDENTITY).is_null())
            stops += _stops(records, lacking, f"deletes its key, and has no {', '.join(self._state.key)}")
        for name in self.ranking.order:
            lacking = deleted & numpy_values(records.column(name).is_null())
            stops += _stops(records, lacking, f"deletes its key, and has no {name}")
        return records, stops

    def of_leaf(self, rows: pa.Table) -> pa.Table:
        """The ``rows`` of a leaf as records, without hashes."""
        return self._identified(in_columns(rows, self.table), np.zeros(len(rows), np.bool_))

    def _identified(self, rows: pa.Table, deleted: NDArray[np.bool_]) -> pa.Table:
        if self.ranking.key == IDENTITY:
            keys = _text(rows, self._state.key) if self._by_columns else _without_frame(rows.column(KEY))
            rows = rows.append_column(pa.field(IDENTITY, pa.binary()), keys)
        return rows.append_column(self.records.field(DELETED), flags(deleted))

    def _unwrapped(self, rows: pa.Table, envelope: Envelope) -> tuple[pa.Table, NDArray[np.bool_]]:
        """The ``rows`` that change a key, with the fields of the envelope's row, and whether they delete it.

        A tombstone repeats a deletion: where it lacks what keys or order need, it is passed over.
        """
        known = _one_of(rows.column(envelope.op), envelope.changes)
        tombstone = numpy_values(rows.column(envelope.op).is_null())
        rows = chosen(rows, known if self._by_columns or self.ranking.order else known | tombstone)
        op = rows.column(envelope.op)
        deleted = _one_of(op, [envelope.deletes]) | numpy_values(op.is_null())
        after = _struct(rows, envelope.row)
        if after is not None:
            before = _struct(rows, envelope.before)
            for at, field in enumerate(after.type):
                values = pc.struct_field(after, [at])
                if (
                    before is not None
                    and field.name in self._state.key
                    and before.type.get_field_index(field.name) >= 0
                ):
                    values = pc.if_else(flags(deleted), pc.struct_field(before, field.name), values)
                rows = rows.append_column(field, values)
        return rows, deleted

    def _unwrapped_columns(self, parsed: pa.Schema) -> pa.Schema:
        """The fields of the row where the parser makes a struct of it, or else its other columns, which have paths."""
        if self.envelope is None:
            return parsed
        op, row = self.envelope.op, self.envelope.row
        if op not in parsed.names or parsed.field(op).type != pa.string():
            name = self._state.envelope
            rule = f"{name} needs a parser with a column {op} (string), and {row} or columns of its fields"
            raise self._refused("envelope", rule)
        if self.envelope.unwraps(parsed):
            return pa.schema(parsed.field(row).type)
        return pa.schema([field for field in parsed if field.name != op])

    def _with_order(self, columns: pa.Schema, parsed: pa.Schema) -> pa.Schema:
        """``columns`` with those of the order that are not among them."""
        for path, name in zip(self._state.order, self._state.order_columns, strict=True):
            if name in columns.names:
                continue
            try:
                kind = column_at(no_rows(parsed, 0), path).type
            except ValueError as error:
                raise self._refused("order", f"{path}: {error} of the parser's") from error
            columns = columns.append(pa.field(name, kind))
        for name in self._state.order_columns:
            if pa.types.is_nested(columns.field(name).type):
                raise self._refused("order", f"{name} is a {columns.field(name).type}, which has no order")
        return columns

    def _check_key(self) -> None:
        for name in self._state.key:
            if name not in self.table.names:
                raise self._refused(
                    "key", f"{name} is not a column of the state, which has {', '.join(self.table.names)}"
                )
            kind = self.table.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_floating(kind):
                raise self._refused("key", f"{name} is a {kind}, by which rows cannot be told apart")

    def _refused(self, field: str, rule: str) -> ConfigError:
        return ConfigError(f"topic {self._topic.cluster}/{self._topic.topic}", [(f"state.{field}", rule)])


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
