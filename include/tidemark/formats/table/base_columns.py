"""The columns that every table has before a parser adds its own, in one declaration.

The Arrow schema, the columns that a topic may leave out, the encoding and statistics of files, and the columns of the
quarantine are derived from :data:`BASE_COLUMNS`. :func:`tidemark.decode.decoder.decode_batches` gives the values. The
columns that a row's hash covers are declared here; :mod:`tidemark.decode.rowhash` computes it, by a rule that never
changes.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

PREFIX: Final = "kafka_"
"""The prefix of each base column's name; no parser's column has it."""

ColumnType = Literal["int32", "int64", "string", "binary", "timestamp", "headers"]
"""``timestamp`` has microseconds in UTC; ``headers`` is a list of key and value."""

Encoding = Literal["plain", "dictionary", "delta"]
"""An encoding of Parquet; ``headers`` have a dictionary of their keys."""


class BaseColumn(NamedTuple):
    """A column of every table. ``optional``: a topic may leave it out; ``hashed``: a row's hash covers it."""

    name: str
    type: ColumnType
    nullable: bool = False
    optional: bool = True
    hashed: bool = False
    encoding: Encoding = "plain"
    statistics: bool = False


BASE_COLUMNS: Final = (
    BaseColumn("kafka_incarnation", "int32", optional=False, hashed=True, encoding="dictionary"),
    BaseColumn("kafka_partition", "int32", optional=False, hashed=True, encoding="dictionary", statistics=True),
    BaseColumn("kafka_offset", "int64", optional=False, hashed=True, encoding="delta", statistics=True),
    BaseColumn("kafka_timestamp", "timestamp", nullable=True, hashed=True, encoding="delta", statistics=True),
    BaseColumn("kafka_timestamp_type", "string", encoding="dictionary"),
    BaseColumn("kafka_key", "binary", nullable=True, hashed=True),
    BaseColumn("kafka_value", "binary", nullable=True, hashed=True),
    BaseColumn("kafka_headers", "headers", hashed=True, encoding="dictionary"),
    BaseColumn("kafka_leader_epoch", "int32", encoding="dictionary"),
)

IDENTITY: Final = tuple(column.name for column in BASE_COLUMNS if not column.optional)
"""The columns that identify a row: incarnation, partition and offset always stay."""

HASHED: Final = tuple(column.name for column in BASE_COLUMNS if column.optional and column.hashed)
"""The columns in a row's hash that a topic may leave out."""

BOUNDED: Final = tuple(column.name for column in BASE_COLUMNS if column.statistics)
"""The columns whose least and greatest value in each file the Delta log has."""

OPTIONAL: Final = tuple(column.name.removeprefix(PREFIX) for column in BASE_COLUMNS if column.optional)
"""The columns that a topic may leave out, as the topics file names them: without ``kafka_``."""


def check_optional(name: str) -> str:
    """``name`` if a topic may leave that column out. Raises ValueError if not."""
    if name not in OPTIONAL:
        raise ValueError(f"must be one of {', '.join(OPTIONAL)}")
    return name
