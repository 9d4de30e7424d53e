"""The changes of each version of a table's Delta log, read from the log's own objects.

A version is a JSON object with a line for each action (https://github.com/delta-io/delta, PROTOCOL.md, Actions). The
log keeps versions for two days; a mirror that lags further behind lists the table's current files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, Schema

from tidemark.errors import FormatError
from tidemark.formats import object_sizes
from tidemark.formats.base import parse_json
from tidemark.formats.table.base_columns import BOUNDED
from tidemark.formats.table.ledger import ATTEMPT_TRANSACTION, LEDGER_TRANSACTION
from tidemark.table.delta_table import TopicTable, path_in_log

_DIGITS: Final = len("0001-01-01T00:00:00.000Z")
"""The length of a time in the log; version 1.0.0 left out the zeros before a year."""

_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class ListedFile(NamedTuple):
    """A data file in the log; ``bounds`` are (column, least, greatest), times in microseconds since 1970.

    A column has none if a row of the file is null in it.
    """

    path: str
    size: int
    rows: int
    bounds: tuple[tuple[str, int, int], ...] = ()


class DeltaVersion(NamedTuple):
    """A commit. ``ledger`` and ``attempt`` are 0 if no run made it: added columns, or another program's commit."""

    version: int
    ledger: int = 0
    attempt: int = 0
    added: tuple[ListedFile, ...] = ()
    removed: tuple[str, ...] = ()


def version_key(table: TopicTable, version: int) -> str:
    """Key of a version's object."""
    return f"{table.keys.root}/_delta_log/{version:020d}.json"


def versions_from(table: TopicTable, first: int, last: int) -> list[DeltaVersion] | None:
    """The versions from ``first`` to ``last``; None if the log no longer has them all.

    Raises:
        FormatError: an object there is not a version of a Delta log.
    """
    folder = f"{table.keys.root}/_delta_log/"
    after = version_key(table, first - 1) if first else None
    existing = {info.key for info in table.store.list(folder, start_after=after)}
    keys = [version_key(table, version) for version in range(first, last + 1)]
    if not existing.issuperset(keys):
        return None
    return [_read(table, first + place, key) for place, key in enumerate(keys)]


def listed_files(delta: DeltaTable) -> list[ListedFile]:
    """All files of the table's version."""
    actions = pa.table(delta.get_add_actions(flatten=True))
    return [
        ListedFile(
            path=path_in_log(row["path"]),
            size=row["size_bytes"],
            rows=row["num_records"],
            bounds=tuple(
                _bounds(
                    {
                        name: (row.get(f"min.{name}"), row.get(f"max.{name}"))
                        for name in BOUNDED
                        if not row.get(f"null_count.{name}")
                    }
                )
            ),
        )
        for row in actions.to_pylist()
    ]


def arrow_schema(schema: Schema) -> pa.Schema:
    """A table's columns as an Arrow schema."""
    columns: Any = schema.to_arrow()
    return pa.schema(columns)


def _read(table: TopicTable, version: int, key: str) -> DeltaVersion:
    body = table.store.get(key, limit=object_sizes.PLAN).body
    delta_version = DeltaVersion(version)
    added: list[ListedFile] = []
    removed: list[str] = []
    try:
        for line in body.splitlines():
            [(kind, action)] = parse_json(line, key).items()
            if kind == "add":
                added.append(_file(action))
            elif kind == "remove":
                removed.append(path_in_log(action["path"]))
            elif kind == "txn" and action["appId"] == LEDGER_TRANSACTION:
                delta_version = delta_version._replace(ledger=action["version"])
            elif kind == "txn" and action["appId"] == ATTEMPT_TRANSACTION:
                delta_version = delta_version._replace(attempt=action["version"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(key, f"is not a version of a Delta log: {error}; restore it from a backup") from error
    return delta_version._replace(added=tuple(added), removed=tuple(removed))


def _file(action: Mapping[str, Any]) -> ListedFile:
    stats = json.loads(action["stats"])
    lows, highs, nulls = (stats.get(kind, {}) for kind in ("minValues", "maxValues", "nullCount"))
    limits = {name: (lows.get(name), highs.get(name)) for name in BOUNDED if not nulls.get(name)}
    return ListedFile(path_in_log(action["path"]), action["size"], stats["numRecords"], tuple(_bounds(limits)))


def _bounds(limits: Mapping[str, tuple[Any, Any]]) -> Iterator[tuple[str, int, int]]:
    for name, (low, high) in limits.items():
        if low is not None and high is not None:
            yield name, _number(low), _number(high)


def _number(value: int | str | datetime) -> int:
    """A bound as an integer: a time in microseconds since 1970."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value.zfill(_DIGITS))
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(microseconds=1)
    return value
