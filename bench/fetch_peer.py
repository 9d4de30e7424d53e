"""A slot that fetches and stores topics, and Kafka Connect with the sink of Iceberg, side by side.

Both get the same uncompressed records, in two amounts: the difference is free of the cost of starting, and of most that
a JVM does until its code is compiled. The sink is handed bytes and stores them in one column of Parquet without
compression, so neither of the two reads values.
"""

from __future__ import annotations

import json
import shutil
from typing import Final

from bench.agent import AGENT, REPETITIONS
from bench.data import HOME, Topic, agent_file, produce
from bench.measure import MB, Row, TreeMeter, Usage, run
from tests.support.connect import connect
from tests.support.kafka import KafkaCluster
from tests.support.s3 import S3Server

FOLDER: Final = HOME / "fetch-peer"
TOPIC: Final = Topic("none", 1000, partitions=8)
AMOUNTS: Final = (600_000_000, 2_000_000_000)
"""Bytes of values that the topic has when it is stored."""

_JVM: Final = ("-Xms256m", "-Xmx2g", "-XX:+UseParallelGC")
_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"


def measure(s3: S3Server) -> list[Row]:
    """Bytes of values for a second of CPU of both, which take turns."""
    measured: dict[str, list[list[Usage]]] = {"slot": [], "Iceberg's sink": []}
    sizes: list[float] = []
    records = 0
    try:
        with KafkaCluster(FOLDER / "kafka", common={"log.roll.ms": str(10**12)}, jvm=_JVM) as cluster:
            cluster.create_topic(TOPIC.name, partitions=TOPIC.partitions, config={"segment.bytes": str(TOPIC.segment)})
            for amount in AMOUNTS:
                made = produce(cluster, TOPIC, amount - int(MB * sum(sizes[-1:])))
                records += made.records
                sizes.append(made.value_bytes / MB + sum(sizes[-1:]))
                names = [f"fetch-peer-{amount}-{number}" for number in range(REPETITIONS)]
                both = [(_slot(cluster, s3, name), _sink(cluster, s3, name, records)) for name in names]
                for usages, of_one in zip(measured.values(), zip(*both, strict=True), strict=True):
                    usages.append(list(of_one))
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
    return [row for name, (few, many) in measured.items() for row in _rates(name, sizes, few, many)]


def _rates(name: str, sizes: list[float], few: list[Usage], many: list[Usage]) -> list[Row]:
    """What the usages with the smaller and the larger of ``sizes`` in MB say of one of the two."""
    small, large = sizes
    rates = tuple((large - small) / (last.cpu - first.cpu) for first, last in zip(few, many, strict=True))
    starts = tuple(last.cpu - large / rate for last, rate in zip(many, rates, strict=True))
    whole = tuple(small / first.cpu for first in few)
    return [
        Row("fetch-peer", f"{name}: values for a second of CPU", "MB", rates, f"{small:.0f} to {large:.0f} MB, no TLS"),
        Row("fetch-peer", f"{name}: CPU of its start", "s", starts, "what remains of the whole"),
        Row("fetch-peer", f"{name}: values for a second of CPU, start included", "MB", whole, f"{small:.0f} MB"),
        Row("fetch-peer", f"{name}: peak memory", "MiB", tuple(last.peak / (1 << 20) for last in many)),
    ]


def _slot(cluster: KafkaCluster, s3: S3Server, name: str) -> Usage:
    """What a slot takes until all is sealed."""
    config = agent_file(cluster, name, f"s3://raw/{name}", [TOPIC.name], fetch=True)
    try:
        return run([AGENT, "upload-once", "--tails", "-c", config], env=s3.env(), log=FOLDER / "slot.log")
    finally:
        shutil.rmtree(HOME / f"{name}-spool", ignore_errors=True)


def _sink(cluster: KafkaCluster, s3: S3Server, name: str, records: int) -> Usage:
    """What Kafka Connect takes until the table has all ``records``; it commits every ten seconds."""
    folder = FOLDER / f"connect-{name}"
    control, table = f"control-{name}", name.replace("-", "_")
    cluster.create_topic(control)
    worker = {
        "key.converter": _BYTES,
        "value.converter": _BYTES,
        "offset.flush.interval.ms": "1000",  # an idle topic's task hears of a commit no sooner
        "consumer.max.poll.records": "5000",
    }
    sink = {
        "name": name,
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": "1",
        "topics": TOPIC.name,
        "transforms": "hoist",
        "transforms.hoist.type": "org.apache.kafka.connect.transforms.HoistField$Value",
        "transforms.hoist.field": "value",
        "iceberg.tables": f"bench.{table}",
        "iceberg.tables.auto-create-enabled": "true",
        "iceberg.tables.auto-create-props.write.parquet.compression-codec": "uncompressed",
        "iceberg.control.topic": control,
        "iceberg.control.commit.interval-ms": "10000",
        "iceberg.catalog.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "iceberg.catalog.uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
        "iceberg.catalog.jdbc.schema-version": "V1",
        "iceberg.catalog.clients": "1",
        "iceberg.catalog.warehouse": f"s3://lake/{name}",
        "iceberg.catalog.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "iceberg.catalog.s3.client-factory-impl": "org.apache.iceberg.aws.s3.DefaultS3FileIOAwsClientFactory",
        "iceberg.catalog.s3.endpoint": s3.endpoint,
        "iceberg.catalog.s3.path-style-access": "true",
    }
    process = connect("connect-iceberg", folder, cluster.bootstrap, worker, [sink], jvm=_JVM, env=s3.env())
    with process, TreeMeter(process.pid, interval=0.5) as meter:
        process.wait_until(lambda: _rows(s3, f"{name}/bench/{table}/metadata/") == records, timeout=300)
    return Usage(0.0, meter.cpu, meter.peak)


def _rows(s3: S3Server, prefix: str) -> int:
    """How many rows a table has by its newest metadata under ``prefix``."""
    client = s3.client()
    listed = client.list_objects_v2(Bucket="lake", Prefix=prefix).get("Contents", [])
    keys = sorted(entry["Key"] for entry in listed if entry["Key"].endswith(".metadata.json"))
    if not keys:
        return 0
    metadata = json.loads(client.get_object(Bucket="lake", Key=keys[-1])["Body"].read())
    return int(metadata["snapshots"][-1]["summary"]["total-records"]) if metadata["snapshots"] else 0
