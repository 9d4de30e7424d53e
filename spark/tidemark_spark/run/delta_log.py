"""Writes the table's Delta log: its creation, and the actions of a commit. Nothing is rewritten in place."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final, Literal

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from tidemark.formats.table.base_columns import BOUNDED
from tidemark.formats.table.ledger import ATTEMPT_TRANSACTION, LEDGER_TRANSACTION, Ledger
from tidemark.formats.table.partitioning import names_of, partition_values
from tidemark.formats.table.steps import DataFile
from tidemark.table.delta_table import LiveFile, TopicTable, open_delta
from tidemark.table.topic_columns import check_columns, delta_schema

_CHECKPOINTS: Final = 100
_LIVE_CHECKPOINTS: Final = 5
"""Versions between two checkpoints. Opening a table reads the last one, and each version after it as an object.

The table of a topic with a ``freshness`` is opened each minute, and has few files. Other tables may have 100,000 files,
all of which a checkpoint lists.
"""

_EXPIRE_EVERY: Final = 100
"""Versions between two removals of expired log files. delta-rs opens the table for a removal."""


def open_or_create(table: TopicTable, *, whole: bool = False) -> DeltaTable:
    """The table, created if it does not exist; safe when several processes create it at once.

    Raises:
        ConfigError: the topic's columns are not those of the table, and cannot become them, see :func:`check_columns`.
    """
    delta = open_delta(table)
    while delta is None:
        table.log.create(
            table.store,
            table.keys.root,
            table.url,
            delta_schema(table),
            partition_by=names_of(table.topic.partition_by),
            name=table.topic.table,
            configuration=_configuration(table),
        )
        delta = open_delta(table)
    check_columns(table, delta, whole=whole)
    return delta


def _configuration(table: TopicTable) -> dict[str, str | None]:
    """The new table's properties.

    ``delta.setTransactionRetentionDuration`` is never set: the ledger's transactions must outlive all vacuums.
    """
    every = _LIVE_CHECKPOINTS if table.topic.freshness else _CHECKPOINTS
    return {
        "delta.checkpointInterval": str(every),
        "delta.logRetentionDuration": "interval 2 days",
        **_bounds_property(delta_schema(table).names),
    }


def add_columns(table: TopicTable, delta: DeltaTable, *, whole: bool = False) -> bool:
    """Add the parser's columns that ``table`` lacks in a separate commit; True if there were any.

    ``delta`` comes from :func:`open_delta`. Any error leaves the outcome unknown. Open the table again afterwards,
    because others may have committed before.
    """
    missing = check_columns(table, delta, whole=whole)
    if missing:
        with table.log.next_version(table.store, table.keys.root):
            delta.alter.add_columns(missing)
    return bool(missing)


def name_bounds(table: TopicTable, delta: DeltaTable) -> bool:
    """Name the columns with bounds in the properties of ``table``, in a separate commit; False if they name them.

    ``delta`` and errors are as for :func:`add_columns`.
    """
    wanted = _bounds_property({field.name for field in delta.schema().fields})
    if delta.metadata().configuration.items() >= wanted.items():
        return False
    with table.log.next_version(table.store, table.keys.root):
        delta.alter.set_table_properties(wanted)
    return True


def _bounds_property(columns: Collection[str]) -> dict[str, str]:
    """The property that names those of ``columns`` whose bounds the log has.

    Without it, delta-rs takes the other columns to have bounds, and drops each file from the answer to a filter on one.
    """
    return {"delta.dataSkippingStatsColumns": ",".join(name for name in BOUNDED if name in columns)}


def commit(
    table: TopicTable,
    delta: DeltaTable,
    ledger: Ledger,
    files: Iterable[DataFile],
    removed: Iterable[LiveFile],
    schema: Schema | None = None,
) -> None:
    """Add ``files``, remove ``removed``, and name ``ledger``, all in one version of the log.

    ``delta`` comes from :func:`open_delta`. A ``schema`` replaces the table's schema; ``removed`` must then be all
    files of ``delta``, because the library changes types only in a full overwrite. One of the commits that compete for
    a version succeeds. Any error leaves the outcome unknown.
    """
    columns = {field.name for field in delta.schema().fields}
    actions: list[AddAction | RemoveAction] = [_add(file, ledger, columns) for file in files]
    if schema is None:
        actions += [_remove(file, ledger) for file in removed]
    properties = naming(ledger.n, ledger.attempt)
    mode: Literal["append", "overwrite"] = "append" if schema is None else "overwrite"  # removes all files
    by, version = delta.metadata().partition_columns, delta.version() + 1
    with table.log.next_version(table.store, table.keys.root):
        delta.create_write_transaction(actions, mode, schema or delta.schema(), by, commit_properties=properties)
    if version % _EXPIRE_EVERY == 0:
        table.by_delta_rs().cleanup_metadata()


def naming(n: int, attempt: int) -> CommitProperties:
    """The properties of a commit that names the ledger ``n`` of ``attempt``."""
    return CommitProperties(
        app_transactions=[Transaction(LEDGER_TRANSACTION, n), Transaction(ATTEMPT_TRANSACTION, attempt)]
    )


def _add(file: DataFile, ledger: Ledger, columns: Collection[str]) -> AddAction:
    limits = {
        "kafka_partition": (file.partition, file.partition),
        "kafka_offset": (file.first_offset, file.last_offset),
        "kafka_timestamp": (in_statistics(file.min_timestamp), in_statistics(file.max_timestamp)),
    }
    nulls = {name: file.untimed if name == "kafka_timestamp" else 0 for name in BOUNDED if name in columns}
    given = [name for name, count in nulls.items() if count < file.rows]
    stats = {
        "numRecords": file.rows,
        "minValues": {name: limits[name][0] for name in given},
        "maxValues": {name: limits[name][1] for name in given},
        "nullCount": nulls,
    }
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=partition_values(file.path),
        modification_time=milliseconds(ledger.committed_at),
        data_change=ledger.kind != "compact",
        stats=json.dumps(stats),
    )


def _remove(file: LiveFile, ledger: Ledger) -> RemoveAction:
    return RemoveAction(
        path=file.path,
        data_change=ledger.kind != "compact",
        deletion_timestamp=milliseconds(ledger.committed_at),
        size=file.size,
        partition_values=partition_values(file.path),
    )


def milliseconds(instant: datetime) -> int:
    """The time in the form of the Delta log."""
    return round(instant.timestamp() * 1000)


def in_statistics(microseconds: int) -> str:
    """The time in the form of Delta's statistics. Kafka's times are whole milliseconds, so no digit is lost."""
    instant = datetime(1970, 1, 1) + timedelta(microseconds=microseconds)  # noqa: DTZ001 - Z below says UTC
    return f"{instant.isoformat(timespec='milliseconds')}Z"  # strftime writes the year 1 with one digit
