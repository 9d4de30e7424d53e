"""The table's Delta log, written: creation, and the actions of a commit. Nothing is ever rewritten in place."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from tidemark.errors import ConfigError
from tidemark.ledger import ATTEMPT_TRANSACTION, LEDGER_TRANSACTION, Ledger
from tidemark.table import Lake, LiveFile, open_table
from tidemark_spark.job import DataFile
from tidemark_spark.sink import table_schema

_CONFIGURATION: Final = {"delta.checkpointInterval": "100", "delta.logRetentionDuration": "interval 2 days"}
"""Never ``delta.setTransactionRetentionDuration``: the ledger's transactions must outlive all clean-up."""


def open_or_create(lake: Lake) -> DeltaTable:
    """The table, created if there is none; safe when several create it at once.

    Raises:
        ConfigError: the topic keeps a column that the table was made without.
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
    missing = {*delta_schema(lake).names} - {field.name for field in table.schema().fields}
    if missing:
        rule = f"the table was made without {', '.join(sorted(missing))}; leave it out, or name another table"
        raise ConfigError(f"topic {lake.topic.cluster}/{lake.topic.topic}", [("keep", rule)])
    return table


def delta_schema(lake: Lake) -> pa.Schema:
    """The table's columns: those of the files, and ``dt``. All may be null, so that columns can be added later."""
    fields = [field.with_nullable(True) for field in table_schema(lake.topic.keep)]
    return pa.schema([*fields, pa.field("dt", pa.date32())])


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
        data_change=True,
        stats=json.dumps(stats),
    )


def _remove(file: LiveFile, ledger: Ledger) -> RemoveAction:
    return RemoveAction(
        path=file.path,
        data_change=True,
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
