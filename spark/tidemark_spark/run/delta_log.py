"""The table's Delta log, written: creation, and the actions of a commit. Nothing is ever rewritten in place."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any, Final, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from tidemark.errors import ConfigError
from tidemark.formats.base_columns import PREFIX
from tidemark.formats.ledger import ATTEMPT_TRANSACTION, LEDGER_TRANSACTION, Ledger
from tidemark.table.delta_table import LiveFile, TopicTable, open_delta
from tidemark_spark.convert.row_sink import table_schema
from tidemark_spark.model import DataFile
from tidemark_spark.run.widening import is_wider

_CONFIGURATION: Final = {"delta.checkpointInterval": "100", "delta.logRetentionDuration": "interval 2 days"}
"""Never ``delta.setTransactionRetentionDuration``: the ledger's transactions must outlive all vacuums."""

_ONLY: Final = "columns are added, or made wider; anything else needs a table of another name"
_WIDEN: Final = "it is made wider when all dates are rebuilt: rebuild.py --all"


def open_or_create(table: TopicTable, *, whole: bool = False) -> DeltaTable:
    """The table, created if there is none; safe when several create it at once.

    Raises:
        ConfigError: the topic's columns are not those of the table, and cannot become them, see :func:`check_columns`.
    """
    delta = open_delta(table) or DeltaTable.create(
        table.url,
        schema=delta_schema(table),
        mode="ignore",
        partition_by=["dt"],
        name=table.topic.table,
        configuration=_CONFIGURATION,
        storage_options=table.delta_options,
    )
    check_columns(table, delta, whole=whole)
    return delta


def delta_schema(table: TopicTable) -> pa.Schema:
    """The table's columns: those of the files, and ``dt``. All may be null, so that columns can be added later."""
    fields = [field.with_nullable(True) for field in table_schema(table.topic)]
    return pa.schema([*fields, pa.field("dt", pa.date32())])


def check_columns(table: TopicTable, delta: DeltaTable, *, whole: bool = False) -> list[Field]:
    """The columns of a parser that ``table`` lacks, and that can be added.

    Raises:
        ConfigError: the topic keeps a column of Kafka's that the table was made without, or a parser's column has
            another type, or is gone. The type may be a wider one if the ``whole`` table is rebuilt.
    """
    wanted = {field.name: field for field in Schema.from_arrow(delta_schema(table)).fields}
    there = {field.name: field for field in delta.schema().fields}
    missing = [field for name, field in wanted.items() if name not in there]
    kafka = sorted(field.name for field in missing if field.name.startswith(PREFIX))
    problems = []
    if kafka:
        rule = f"the table was made without {', '.join(kafka)}; leave it out, or name another table"
        problems.append(("keep", rule))
    for name, field in there.items():
        if name not in wanted and not name.startswith(PREFIX):
            problems.append(("parser", f"the table has a column {name}, and the parser has none: {_ONLY}"))
        elif name in wanted and wanted[name].type != field.type:
            wider = is_wider(_type(field), _type(wanted[name]))
            if not (wider and whole):
                change = f"column {name} is {_type(field)} in the table, and {_type(wanted[name])} by the parser"
                problems.append(("parser", f"{change}: {_WIDEN if wider else _ONLY}"))
    folded = {name.casefold(): name for name in there}
    problems += [
        ("parser", f"column {one.name}: the table has {folded[one.name.casefold()]}, which engines do not tell apart")
        for one in missing
        if one.name.casefold() in folded
    ]
    if problems:
        raise ConfigError(f"topic {table.topic.cluster}/{table.topic.topic}", problems)
    return missing


def add_columns(table: TopicTable, delta: DeltaTable, *, whole: bool = False) -> bool:
    """Add the parser's columns that ``table`` lacks, in a commit of their own; whether there were any.

    Any error leaves the outcome unknown. Open the table again thereafter: others may have committed before.
    """
    missing = check_columns(table, delta, whole=whole)
    if missing:
        delta.alter.add_columns(missing)
    return bool(missing)


def widened(table: TopicTable, delta: DeltaTable) -> Schema | None:
    """The schema of ``table`` with the types that the topic's parser has now; None if it has them."""
    wanted = {field.name: field for field in Schema.from_arrow(delta_schema(table)).fields}
    there = delta.schema().fields
    fields = [wanted.get(one.name, one) for one in there]
    return Schema(fields) if [one.type for one in fields] != [one.type for one in there] else None


def schema_change(table: TopicTable, delta: DeltaTable) -> list[str]:
    """In words, the columns of ``table`` that are added or become wider, given that they may."""
    there = {field.name: field for field in delta.schema().fields}
    wanted = Schema.from_arrow(delta_schema(table)).fields
    changes = [f"{one.name}: {_type(one)}, new" for one in wanted if one.name not in there]
    wider = (one for one in wanted if one.name in there and there[one.name].type != one.type)
    return changes + [f"{one.name}: {_type(there[one.name])} becomes {_type(one)}" for one in wider]


def _type(field: Field) -> Any:
    return json.loads(field.to_json())["type"]


def commit(
    delta: DeltaTable,
    ledger: Ledger,
    files: Iterable[DataFile],
    removed: Iterable[LiveFile],
    schema: Schema | None = None,
) -> None:
    """Add ``files``, remove ``removed``, and name ``ledger``, all in one version of the log.

    A ``schema`` takes the place of the table's, and ``removed`` must then be all files that ``table`` has: the library
    changes types only together with that. It conflicts with every other commit since ``table`` was opened, as all of
    them set the ledger's transaction. Any error leaves the outcome unknown.
    """
    columns = {field.name for field in delta.schema().fields}
    actions: list[AddAction | RemoveAction] = [_add(one, ledger, columns) for one in files]
    if schema is None:
        actions += [_remove(one, ledger) for one in removed]
    transactions = [Transaction(LEDGER_TRANSACTION, ledger.n), Transaction(ATTEMPT_TRANSACTION, ledger.attempt)]
    properties = CommitProperties(app_transactions=transactions)
    mode: Literal["append", "overwrite"] = (
        "append" if schema is None else "overwrite"
    )  # which removes all that there is
    delta.create_write_transaction(actions, mode, schema or delta.schema(), ["dt"], commit_properties=properties)


def _add(file: DataFile, ledger: Ledger, columns: Collection[str]) -> AddAction:
    known = {
        "kafka_partition": (file.partition, file.partition),
        "kafka_offset": (file.first_offset, file.last_offset),
        "kafka_timestamp": (_iso(file.min_timestamp), _iso(file.max_timestamp)),
    }
    limits = {name: limit for name, limit in known.items() if name in columns}
    stats = {
        "numRecords": file.rows,
        "minValues": {name: limit[0] for name, limit in limits.items()},
        "maxValues": {name: limit[1] for name, limit in limits.items()},
        "nullCount": dict.fromkeys(limits, 0),
    }
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={"dt": file.dt.isoformat()},
        modification_time=_milliseconds(ledger.committed_at),
        data_change=ledger.kind != "compact",
        stats=json.dumps(stats),
    )


def _remove(file: LiveFile, ledger: Ledger) -> RemoveAction:
    return RemoveAction(
        path=file.path,
        data_change=ledger.kind != "compact",
        deletion_timestamp=_milliseconds(ledger.committed_at),
        size=file.size,
        partition_values={"dt": file.dt},
    )


def _milliseconds(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)


def _iso(microseconds: int) -> str:
    """As Delta's statistics want it; Kafka's times are whole milliseconds, so nothing is cut off."""
    instant = datetime.fromtimestamp(microseconds // 1000 / 1000, UTC)
    return f"{instant:%Y-%m-%dT%H:%M:%S}.{microseconds // 1000 % 1000:03d}Z"
