"""Rows to parse, and settings from YAML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemark.config import parse
from tidemark.decode.schema import SCHEMA
from tidemark.parsers.base import Parsed
from tidemark.topics import Deployment, TopicSettings


def rows_of(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> pa.RecordBatch:
    """Kafka's columns, with these values from offset 0 on."""
    count = len(values)
    columns: dict[str, list[Any]] = {
        "kafka_incarnation": [0] * count,
        "kafka_partition": [0] * count,
        "kafka_offset": list(range(count)),
        "kafka_timestamp": [1_770_000_000_000_000] * count,
        "kafka_timestamp_type": ["create"] * count,
        "kafka_key": [None] * count if keys is None else list(keys),
        "kafka_value": list(values),
        "kafka_headers": [[] for _ in values],
        "kafka_leader_epoch": [0] * count,
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def topic_of(parser: str, directory: Path = Path()) -> TopicSettings:
    """The settings of a topic whose ``parser`` is this YAML, in a topics file in ``directory``."""
    indented = parser.strip("\n").replace("\n", "\n      ")
    text = (
        "cluster: c\nraw: {url: s3://raw}\nlake: s3://lake\n"
        f"topics:\n  - topic: orders\n    parser:\n      {indented}\n"
    )
    return parse(Deployment, text, str(directory / "topics.yaml"), {}).topics[0]


def records(parsed: Parsed) -> list[dict[str, Any]]:
    """What was parsed, row by row, without nulls."""
    return [{key: value for key, value in row.items() if value is not None} for row in parsed.columns.to_pylist()]
