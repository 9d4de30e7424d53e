"""Writes the table's Delta log: its creation, and the actions of a commit. Nothing is rewritten in place."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from tidemark.errors import ConfigError
from tidemark.formats.table.base_columns import BOUNDED, PREFIX
from tidemark.formats.table.ledger import ATTEMPT_TRANSACTION, LEDGER_TRANSACTION, Ledger
from tidemark.formats.table.partitioning import names_of, partition_values
from tidemark.table.delta_table import LiveFile, TopicTable, open_delta
from tidemark_spark.convert.field_ids import DT
from tidemark_spark.convert.row_sink import table_schema
from tidemark_spark.model import DataFile

_CHECKPOINTS: Final = 100
_LIVE_CHECKPOINTS: Final = 5
"""Versions between two checkpoints. Opening a table reads the last one, and each version after it as an object.

The table of a topic with a ``freshness`` is opened each minute, and has few files. Other tables may have 100,000 files,
all of which a checkpoint lists.
"""

_EXPIRE_EVERY: Final = 100
"""Versions between two removals of expired log files. delta-rs opens the table for a removal."""

_WIDER: Final = (("byte", "short", "integer", "long"), ("float", "double"))
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")

_ONLY: Final = "columns are added, or made wider; anything else needs a table of another name"
_WIDEN: Final = "it is made wider when all dates are rebuilt: rebuild.py --all"


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


def delta_schema(table: TopicTable) -> pa.Schema:
    """Columns of the table: the files' columns and ``dt``, all nullable, so that columns can be added later."""
    fields = [field.with_nullable(True) for field in table_schema(table.topic)]
    return pa.schema([*fields, DT])


def check_columns(table: TopicTable, delta: DeltaTable, *, whole: bool = False) -> list[Field]:
    """The parser's columns that ``table`` lacks and that can be added.

    Raises:
        ConfigError: the topic partitions the table in another way, or keeps a Kafka column that the table lacks, or a
        parser's column has another type or is missing. The type may be a wider one if the ``whole`` table is rebuilt.
    """
    _check_partitioning(table, delta)
    wanted = {field.name: field for field in Schema.from_arrow(delta_schema(table)).fields}
    existing = {field.name: field for field in delta.schema().fields}
    missing = [field for name, field in wanted.items() if name not in existing]
    kafka = sorted(field.name for field in missing if field.name.startswith(PREFIX))
    problems = []
    if kafka:
        rule = f"the table was made without {', '.join(kafka)}; leave it out, or name another table"
        problems.append(("keep", rule))
    for name, field in existing.items():
        if name not in wanted and not name.startswith(PREFIX):
            problems.append(("parser", f"the table has a column {name}, but the parser does not: {_ONLY}"))
        elif name in wanted and wanted[name].type != field.type:
            wider = is_wider(_type(field), _type(wanted[name]))
            if not (wider and whole):
                change = f"column {name} is {_type(field)} in the table, and {_type(wanted[name])} by the parser"
                problems.append(("parser", f"{change}: {_WIDEN if wider else _ONLY}"))
    folded = {name.casefold(): name for name in existing}
    problems += [
        (
            "parser",
            f"column {field.name}: the table has {folded[field.name.casefold()]}, which engines do not tell apart",
        )
        for field in missing
        if field.name.casefold() in folded
    ]
    if problems:
        raise ConfigError(f"topic {table.topic.cluster}/{table.topic.topic}", problems)
    return missing


def _check_partitioning(table: TopicTable, delta: DeltaTable) -> None:
    wanted, existing = names_of(table.topic.partition_by), delta.metadata().partition_columns
    if wanted != existing:
        rule = (
            f"the table is partitioned by {', '.join(existing)}, and not by {', '.join(wanted)}: a table that has "
            f"files cannot be partitioned in another way. Write [{', '.join(existing)}] again, or give the topic "
            "another table (or lake), which is made from all that raw still has"
        )
        raise ConfigError(f"topic {table.topic.cluster}/{table.topic.topic}", [("partition_by", rule)])


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


def widened(table: TopicTable, delta: DeltaTable) -> Schema | None:
    """Schema of ``table`` with the parser's current column types, or None when the table has them already."""
    wanted = {field.name: field for field in Schema.from_arrow(delta_schema(table)).fields}
    existing = delta.schema().fields
    fields = [wanted.get(field.name, field) for field in existing]
    return Schema(fields) if [field.type for field in fields] != [field.type for field in existing] else None


def schema_change(table: TopicTable, delta: DeltaTable) -> list[str]:
    """Descriptions of the allowed changes to the columns of ``table``: new columns and wider types."""
    existing = {field.name: field for field in delta.schema().fields}
    wanted = Schema.from_arrow(delta_schema(table)).fields
    changes = [f"{field.name}: {_type(field)}, new" for field in wanted if field.name not in existing]
    wider = (field for field in wanted if field.name in existing and existing[field.name].type != field.type)
    return changes + [f"{field.name}: {_type(existing[field.name])} becomes {_type(field)}" for field in wider]


def is_wider(before: Any, after: Any) -> bool:
    """True if the column type ``after`` holds each value of ``before``: the same, a longer number, or a list or struct.

    A struct may have more fields, behind the others.

    Types are those of Delta's schema in JSON (https://github.com/delta-io/delta, PROTOCOL.md, Schema Serialization
    Format).
    """
    if before == after:
        return True
    if isinstance(before, dict) and isinstance(after, dict) and before["type"] == after["type"]:
        if before["type"] == "array":
            return is_wider(before["elementType"], after["elementType"])
        if before["type"] == "struct":
            return _are_wider(before["fields"], after["fields"])
    if not (isinstance(before, str) and isinstance(after, str)):
        return False
    if any(before in row and after in row and row.index(before) < row.index(after) for row in _WIDER):
        return True
    old, new = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(after)
    if old is None or new is None:
        return False
    digits, scale = int(new[1]), int(new[2])
    return scale >= int(old[2]) and digits - scale >= int(old[1]) - int(old[2])


def _are_wider(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bool:
    same = [field["name"] for field in before] == [field["name"] for field in after[: len(before)]]
    return same and all(is_wider(field["type"], other["type"]) for field, other in zip(before, after, strict=False))


def _type(field: Field) -> Any:
    return json.loads(field.to_json())["type"]


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
