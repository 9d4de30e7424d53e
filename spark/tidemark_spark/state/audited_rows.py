"""What rows do to a state, as the audit tells it: not by the rule of the runs, so that a fault in that is found.

A record without a value deletes its key. In an envelope each word that names an operation has an effect, and a record
whose value has none, or another word, does nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.decode.schema import numpy_values
from tidemark.formats.table.state_ledger import Truncation
from tidemark_spark.state.last_records import chosen
from tidemark_spark.state.record_columns import RecordColumns, RowEffects, in_columns


class Effect(IntEnum):
    """What a record does to its key."""

    nothing = 0
    sets = 1
    deletes = 2


_WORDS: Final[dict[str, dict[str, Effect]]] = {
    "op": {"c": Effect.sets, "r": Effect.sets, "u": Effect.sets, "d": Effect.deletes},
    "type": {
        "insert": Effect.sets,
        "update": Effect.sets,
        "bootstrap-insert": Effect.sets,
        "delete": Effect.deletes,
    },
}
"""The effects of the words in the column of operations, which Debezium calls ``op`` and Maxwell ``type``."""


class AuditedRows:
    """Reads rows of the topic's table into records with the columns of ``columns``."""

    def __init__(self, columns: RecordColumns) -> None:
        self._columns = columns

    def of_rows(self, rows: pa.Table) -> RowEffects:
        """The records of ``rows`` that change a key. A state has no row at which it would have stopped."""
        rows = self._columns.with_order(rows)
        effects = self._effects(rows)
        truncations = list[Truncation]()
        if self._columns.envelope is not None and self._columns.envelope.op == "op":
            truncating = pc.fill_null(pc.equal(rows.column("op"), "t"), False)
            truncations = self._columns.truncations(rows.filter(truncating))
        rows, deleted = chosen(rows, effects > Effect.nothing), effects[effects > Effect.nothing] > Effect.sets
        envelope = self._columns.envelope
        if envelope is not None:
            row, before = (_fields(rows, name) for name in (envelope.row, envelope.before))
            before |= {
                name: rows.column(same) for name, same in self._columns.before.items() if same in rows.column_names
            }
            for name, values in row.items():
                rows = _with_column(rows, name, values)
            for name in {*self._columns.key} & {*before}:
                mixed = pc.if_else(pa.array(deleted), before[name], rows.column(name))
                rows = _with_column(rows, name, mixed)
        records = self._columns.identified(in_columns(rows, self._columns.table), deleted)
        return RowEffects(records, [], np.zeros(len(effects), np.bool_), truncations)

    def _effects(self, rows: pa.Table) -> NDArray[np.int64]:
        envelope = self._columns.envelope
        empty = "kafka_value" if "kafka_value" in rows.column_names or envelope is None else envelope.op
        empty_rows = numpy_values(rows.column(empty).is_null())
        if envelope is None:
            return np.where(empty_rows, Effect.deletes, Effect.sets)
        tombstone = Effect.deletes if self._columns.has_tombstones else Effect.nothing
        words = pc.dictionary_encode(rows.column(envelope.op)).combine_chunks()
        known = [_WORDS[envelope.op].get(word, Effect.nothing) for word in words.dictionary.to_pylist()]
        places = numpy_values(words.indices.fill_null(len(known)))
        return np.where(empty_rows, tombstone, np.array([*known, Effect.nothing], np.int64)[places])


def _fields(rows: pa.Table, name: str) -> dict[str, Any]:
    """The fields of the column ``name`` if it is a struct."""
    if name not in rows.column_names or not isinstance(rows.schema.field(name).type, pa.StructType):
        return {}
    values: Any = rows.column(name).combine_chunks()
    return {field.name: pc.struct_field(values, [at]) for at, field in enumerate(values.type)}


def _with_column(rows: pa.Table, name: str, values: Any) -> pa.Table:
    if name in rows.column_names:
        rows = rows.drop_columns([name])
    return rows.append_column(name, values)
