"""The columns of a topic's state table, by its settings and the columns of its parser."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from tidemark.decode.schema import SCHEMA
from tidemark.errors import ConfigError
from tidemark.formats.table.state_ledger import RECORD
from tidemark.parsers.base import column_at, no_rows
from tidemark.table.state_envelopes import ENVELOPES, Envelope, before_columns, json_path
from tidemark.topics import TopicSettings

KEY: Final = RECORD[0]


class StateColumns:
    """The columns of the state table of a topic, ``table``; ``sources`` are those of the topic's table that it needs.

    ``before`` names, for a column of the key that lies within the envelope's row, the column of the topic's table that
    has its value in a deletion, where the parser does not make a struct of the row.
    """

    def __init__(self, topic: TopicSettings, parsed: pa.Schema) -> None:
        """``parsed`` are the parser's columns.

        Raises:
            ConfigError: the parser lacks columns that the settings need; names each setting.
        """
        assert topic.state is not None
        self._topic, self._state = topic, topic.state
        self.envelope: Envelope | None = ENVELOPES.get(topic.state.envelope)
        self.by_columns = topic.state.key != (KEY,)
        self.before = before_columns(topic)
        columns = self._unwrapped(parsed)
        if not len(parsed):
            columns = pa.schema([SCHEMA.field("kafka_value")])
        columns = pa.schema(
            [*(SCHEMA.field(name) for name in RECORD), *(field.with_nullable(True) for field in columns)]
        )
        self.table = self._with_order(columns, parsed)
        if self.by_columns:
            self._check_key(parsed)
        if self.envelope is not None:
            self._check_tombstones(self.envelope)
        envelope = (self.envelope.op, self.envelope.row, self.envelope.before) if self.envelope else ()
        order = (path.partition(".")[0] for path in topic.state.order)
        self.sources = tuple(
            dict.fromkeys((*self.table.names, *envelope, "kafka_value", *order, *self.before.values()))
        )

    @property
    def has_tombstones(self) -> bool:
        """True if a record without a value deletes its key; else it lacks what keys or order need, and changes none."""
        return self.envelope is None or not (self.by_columns or self._state.order)

    def _unwrapped(self, parsed: pa.Schema) -> pa.Schema:
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
        return pa.schema([field for field in parsed if field.name not in {op, *self.before.values()}])

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

    def _check_key(self, parsed: pa.Schema) -> None:
        for name in self._state.key:
            if name not in self.table.names:
                raise self._refused(
                    "key", f"{name} is not a column of the state, which has {', '.join(self.table.names)}"
                )
            kind = self.table.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_floating(kind):
                raise self._refused("key", f"{name} is a {kind}, by which rows cannot be told apart")
            if self.envelope is not None and name not in RECORD:
                self._check_before(self.envelope, name, parsed)

    def _check_before(self, envelope: Envelope, name: str, parsed: pa.Schema) -> None:
        """A deletion has no row, so a column of the key that lies there must lie in the row before, too."""
        if envelope.row == envelope.before:
            return
        if envelope.unwraps(parsed):
            before = parsed.field(envelope.before).type if envelope.before in parsed.names else None
            if name not in parsed.field(envelope.row).type.names or (
                isinstance(before, pa.StructType) and before.get_field_index(name) >= 0
            ):
                return
            cure = f"the parser makes no field {name} of {envelope.before}; take another column, or kafka_key"
        else:
            place = json_path(self._topic, name)
            kind = self.table.field(name).type
            if place[:1] != (envelope.row,):
                return
            same = self.before.get(name)
            if same is not None and parsed.field(same).type == kind:
                return
            path = ".".join((envelope.before, *place[1:]))
            cure = f"give the parser another column of the type {kind} with the path {path}"
        raise self._refused("key", f"{name} lies in {envelope.row}, which is null in a deletion: {cure}")

    def _check_tombstones(self, envelope: Envelope) -> None:
        if not self.has_tombstones or "value" in self._topic.keep or _is_required(self._topic, envelope.op):
            return
        rule = (
            f"{self._state.envelope} needs value in keep, or {envelope.op} as a required column: else a record that "
            f"lacks {envelope.op} cannot be told from a tombstone, which deletes its key"
        )
        raise self._refused("envelope", rule)

    def _refused(self, field: str, rule: str) -> ConfigError:
        return ConfigError(f"topic {self._topic.cluster}/{self._topic.topic}", [(f"state.{field}", rule)])


def _is_required(topic: TopicSettings, name: str) -> bool:
    """True if the parser refuses values without the column ``name``."""
    columns = getattr(topic.parser, "columns", ())
    return any(column.name == name and column.required for column in columns)
