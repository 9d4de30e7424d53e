"""The topics file of the corpus's deployment: for those who make it, and for those who read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import yaml

from tests.tidemark.parsers.registry_server import Registry
from tidemark.parsers.function import ParserAnswer
from tidemark.topics import Deployment, load_topics

CLUSTER: Final = "golden"
CLUSTER_39: Final = "golden-39"
PAIR: Final = "golden-pair"
"""A cluster of two brokers."""

PREFIX: Final = "golden"
RAW: Final = {"url": f"s3://raw/{PREFIX}", "entropy_bits": 3}
LAKE: Final = f"s3://lake/{PREFIX}"

JSON: Final = {
    "kind": "json",
    "columns": [{"name": "id", "type": "int64", "required": True}, {"name": "city", "type": "string"}],
}


EVEN: Final = {
    "kind": "function",
    "function": "tests.golden.deployment:even",
    "columns": [{"name": "n", "type": "int64"}],
}


def even(rows: pa.RecordBatch) -> ParserAnswer:
    """The numbers in the records' values; records with an odd one are filtered."""
    numbers = [int(value or b"") for value in rows["kafka_value"].to_pylist()]
    return ParserAnswer(pa.record_batch({"n": numbers}), keep=pa.array([number % 2 == 0 for number in numbers]))


SCHEMA: Final = {
    "type": "record",
    "name": "Payment",
    "fields": [{"name": "id", "type": "int"}, {"name": "sum", "type": "double"}],
}
WIDER: Final = {
    **SCHEMA,
    "fields": [{"name": "id", "type": "long"}, *SCHEMA["fields"][1:], {"name": "of", "type": "string"}],
}


def register_schemas(registry: Registry, newest: int) -> None:
    """Have the schemas of ``payments`` up to version ``newest``, each under its version as number."""
    for version, schema in enumerate((SCHEMA, WIDER)[:newest], 1):
        registry.register("payments-value", version, version, json.dumps(schema))


def topics_file(folder: Path, endpoint: str, registry: str) -> Path:
    """The topics file, written into ``folder``; ``registry`` is the address of the schema registry."""
    avro = {
        "kind": "avro",
        "framing": "confluent",
        "schema": {"registry": "main", "subject": "payments-value"},
    }
    topics: list[dict[str, Any]] = [
        {"topic": "orders", "parser": JSON, "state": {}, "catalogs": ["local"]},
        {"topic": "payments", "parser": avro, "partition_by": ["dt", "hour"], "catalogs": ["local"]},
        {"topic": "clicks"},
        {"topic": "again"},
        {"topic": "events", "retention": {"table": "30d", "raw": "30d", "apply": True}},
        {"topic": "legacy", "cluster": CLUSTER_39},
        {"topic": "fetched"},
        {"topic": "live", "freshness": "10s"},
        {"topic": "lost"},
        {"topic": "compacted"},
        {"topic": "filtered", "parser": EVEN},
        {"topic": "cut", "cluster": PAIR},
    ]
    path = folder / "topics.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "cluster": CLUSTER,
                "raw": RAW,
                "lake": LAKE,
                "store": {"endpoint_url": endpoint, "region": "us-east-1", "path_style": True},
                "catalogs": [
                    {
                        "name": "local",
                        "kind": "sql",
                        "uri": f"sqlite:///{folder}/catalog.db",
                        "warehouse": LAKE,
                        "namespace": "kafka",
                    }
                ],
                "registries": {"main": {"url": registry}},
                "topics": topics,
            }
        )
    )
    return path


def deployment_of(topics: Path) -> Deployment:
    """The topics file, read."""
    return load_topics(topics)
