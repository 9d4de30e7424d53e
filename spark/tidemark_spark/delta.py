"""The table's Delta log, written: creation, and the actions of a commit. Nothing is ever rewritten in place."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from tidemark.errors import ConfigError
from tidemark.ledger import ATTEMPT_TRANSACTION, LEDGER_TRANSACTION, Ledger
from tidemark.table import Lake, LiveFile, open_table
from tidemark_spark.job import DataFile
from tidemark_spark.sink import table_schema

_CONFIGURATION: Final = {"delta.checkpointInterval": "100", "delta.logRetentionDuration": "interval 2 days"}
"""Never ``delta.setTransactionRetentionDuration``: the ledger's transactions must outlive all clean-up."""

_KAFKA: Final = "kafka_"
_REBUILD: Final = (
    "columns are only ever added; another type needs all dates rebuilt, into a table of another name, and so does a "
    "column that goes"
)


def open_or_create(lake: Lake) -> DeltaTable:
    """The table, created if there is none; safe when several create it at once.

    Raises:
        ConfigError: the topic's columns are not those of the table, and cannot become them.
    """
    table = open_table(lake) or DeltaTable.create(
        lake.url,
        schema=delta_schema(lake),
        mode="ignore",
        partition_by=["dt"],
        name=lake.topic.table,
        configuration=_CONFIGURATION,
        storage_options=lake.delta_options,
    )
    check_columns(lake, table)
    return table


def delta_schema(lake: Lake) -> pa.Schema:
    """The table's columns: those of the files, and ``dt``. All may be null, so that columns can be added later."""
    fields = [field.with_nullable(True) for field in table_schema(lake.topic)]
    return pa.schema([*fields, pa.field("dt", pa.date32())])


def check_columns(lake: Lake, table: DeltaTable) -> list[Field]:
    """The columns of a parser that ``table`` lacks, and that can be added.

    Raises:
        ConfigError: the topic keeps a column of Kafka's that the table was made without, or a parser's column has
            another type, or is gone.
    """
    wanted = {field.name: field for field in Schema.from_arrow(delta_schema(lake)).fields}
    there = {field.name: field for field in table.schema().fields}
    missing = [field for name, field in wanted.items() if name not in there]
    kafka = sorted(field.name for field in missing if field.name.startswith(_KAFKA))
    problems = []
    if kafka:
        rule = f"the table was made without {', '.join(kafka)}; leave it out, or name another table"
        problems.append(("keep", rule))
    for name, field in there.items():
        if name not in wanted and not name.startswith(_KAFKA):
            problems.append(("parser", f"the table has a column {name}, and the parser has none: {_REBUILD}"))
        elif name in wanted and wanted[name].type != field.type:
            change = f"column {name} is {_type(field)} in the table, and {_type(wanted[name])} by the parser"
            problems.append(("parser", f"{change}: {_REBUILD}"))
    folded = {name.casefold(): name for name in there}
    problems += [
        ("parser", f"column {one.name}: the table has {folded[one.name.casefold()]}, which engines do not tell apart")
        for one in missing
        if one.name.casefold() in folded
    ]
    if problems:
        raise ConfigError(f"topic {lake.topic.cluster}/{lake.topic.topic}", problems)
    return missing


def add_columns(lake: Lake, table: DeltaTable) -> bool:
    """Add the parser's columns that ``table`` lacks, in a commit of their own; whether there were any.

    Any error leaves the outcome unknown. Open the table again thereafter: others may have committed before.
    """
    missing = check_columns(lake, table)
    if missing:
        table.alter.add_columns(missing)
    return bool(missing)


def _type(field: Field) -> str:
    return str(json.loads(field.to_json())["type"])


def commit(table: DeltaTable, ledger: Ledger, files: Iterable[DataFile], removed: Iterable[LiveFile]) -> None:
    """Add ``files``, remove ``removed``, and name ``ledger``, all in one version of the log.

    It conflicts with every other commit since ``table`` was opened, as all of them set the ledger's transaction. Any
    error leaves the outcome unknown.
    """
    columns = {field.name for field in table.schema().fields}
    actions: list[AddAction | RemoveAction] = [_add(one, ledger, columns) for one in files]
    actions += [_remove(one, ledger) for one in removed]
    transactions = [Transaction(LEDGER_TRANSACTION, ledger.n), Transaction(ATTEMPT_TRANSACTION, ledger.attempt)]
    properties = CommitProperties(app_transactions=transactions)
    table.create_write_transaction(actions, "append", table.schema(), ["dt"], commit_properties=properties)


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
