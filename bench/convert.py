"""Segments to Parquet by date: Tidemark on Spark, two plain processes, and Spark's own Kafka source, on the same data.

All read and write local directories here, so that no server's work is counted for one and not for another; the
first two are measured on the S3 server as well, with the first codec. CPU is that of the whole process tree, the
broker's included.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import yaml

from bench.agent import agent_file
from bench.data import CODECS, HOME, PARTITIONS, Produced
from bench.measure import MB, Row, Usage, metered
from tests.support.kafka import KafkaCluster
from tests.support.paths import env_bin
from tests.support.s3 import S3Server
from tests.support.spark import jars_conf, local_conf, spark_env
from tidemark.planning import plan_ingest, write_plan
from tidemark.runs import RunPlan
from tidemark.table import Lake, open_lake
from tidemark.topics import load_topics
from tidemark_spark import driver
from tidemark_spark.job import Job, Outcome
from tidemark_spark.task import convert

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPETITIONS = 3
CORES = 2
_numbers = itertools.count()


class Place:
    """Where raw segments and tables lie in one part of the benchmark: ``local`` directories or the ``s3`` server."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._root = {"local": f"file://{HOME}/local", "s3": "s3://"}[kind]

    @property
    def raw(self) -> str:
        """The raw store's URL."""
        return f"{self._root}/raw" if self.kind == "local" else "s3://raw/convert"

    def lake(self, codec: str) -> Lake:
        """A table of its own for each call, so that every run converts everything."""
        number = next(_numbers)
        url = f"{self._root}/lake-{number}" if self.kind == "local" else f"s3://lake/{number}"
        path = HOME / "topics.yaml"
        topics = {"cluster": "bench", "raw": {"url": self.raw}, "lake": url, "topics": [{"topic": f"bench-{codec}"}]}
        path.write_text(yaml.safe_dump(topics))
        deployment = load_topics(path)
        return open_lake(deployment, deployment.topics[0])

    def clean(self) -> None:
        """Remove local tables, so that the disk does not fill up."""
        for folder in (HOME / "local").glob("lake-*"):
            shutil.rmtree(folder)


def upload(cluster: KafkaCluster, s3: S3Server, place: Place) -> None:
    """All segments of all topics, as the agent stores them."""
    config = agent_file(cluster, f"upload-{place.kind}", place.raw, [f"bench-{codec}" for codec in CODECS])
    subprocess.run(
        [env_bin("agent", "tidemark-agent"), "upload-once", "-c", config],
        env=s3.env(),
        check=True,
        stdout=subprocess.DEVNULL,
    )


def session() -> SparkSession:
    """One warm session for all variants on Spark, with the Kafka source's jars."""
    from pyspark.sql import SparkSession

    from tidemark_spark.session import SETTINGS

    os.environ.update(spark_env(env="dev"))
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("bench")
    settings = {
        **SETTINGS,
        **local_conf(),
        **jars_conf("spark-kafka"),
        "spark.driver.memory": "3g",
        "spark.local.dir": str(HOME / "spark"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.maxConcurrentOutputFileWriters": "16",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


def on_spark(spark: SparkSession, lake: Lake, plan: RunPlan) -> None:
    """The product: plan carried out on Spark, evidence and commit included."""
    from tidemark_spark.session import execute_on

    write_plan(lake, plan)
    result = driver.run(lake, plan, lambda job, tasks: execute_on(spark.sparkContext, job, tasks))
    if result.status != "landed":
        raise RuntimeError(f"{lake.url}: {result}")


def plain(pool: ProcessPoolExecutor, lake: Lake, plan: RunPlan) -> None:
    """The same tasks in two processes: read, decode, write; no Spark, no evidence, no commit."""
    job = Job.of(lake, plan)
    outcomes: list[Outcome] = list(pool.map(convert, itertools.repeat(job), plan.tasks))
    if any(one.stop for one in outcomes):
        raise RuntimeError(f"{lake.url}: stopped early")


def kafka_source(spark: SparkSession, cluster: KafkaCluster, plan: RunPlan) -> None:
    """Spark's Kafka source with the settings that served it best, up to the same offsets, by date."""
    ends = {str(part.partition): part.end for part in plan.partitions}
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "subscribe": plan.topic,
        "startingOffsets": "earliest",
        "endingOffsets": json.dumps({plan.topic: ends}),
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        "kafka.max.poll.records": "10000",
        "kafka.max.partition.fetch.bytes": str(16 << 20),
        "kafka.receive.buffer.bytes": str(1 << 20),
    }
    columns = ("key", "value", "headers", "partition", "offset", "timestamp", "to_date(timestamp) AS dt")
    rows = spark.read.format("kafka").options(**options).load().selectExpr(*columns)
    writer = rows.write.mode("overwrite").partitionBy("dt")
    writer = writer.option("parquet.compression.codec.zstd.level", "1").option("parquet.enable.dictionary", "false")
    writer.parquet(str(HOME / "local" / "lake-kafka"))


def measure(cluster: KafkaCluster, s3: S3Server, made: Mapping[str, Produced]) -> list[Row]:
    """All variants, alternating, the first round dropped."""
    local, remote = Place("local"), Place("s3")
    for place in (local, remote):
        upload(cluster, s3, place)
    spark = session()
    rows: list[Row] = []
    with ProcessPoolExecutor(CORES, mp_context=multiprocessing.get_context("spawn")) as pool:
        for codec in CODECS:
            lake = local.lake(codec)
            plan = plan_ingest(lake)
            landed = sum(part.end for part in plan.partitions)
            size = made[codec].value_bytes * landed / made[codec].records
            variants: dict[str, Callable[[], None]] = {
                "Tidemark on Spark": partial(_fresh, local, codec, partial(on_spark, spark)),
                "two plain processes": partial(_fresh, local, codec, partial(plain, pool)),
                "Spark's Kafka source, tuned": partial(kafka_source, spark, cluster, plan),
            }
            if codec == CODECS[0]:
                variants["Tidemark on Spark, S3"] = partial(_fresh, remote, codec, partial(on_spark, spark))
                variants["two plain processes, S3"] = partial(_fresh, remote, codec, partial(plain, pool))
            rows += _rows(codec, size, _rounds(variants, local))
    spark.stop()
    return rows


def _fresh(place: Place, codec: str, action: Callable[[Lake, RunPlan], None]) -> None:
    lake = place.lake(codec)
    action(lake, plan_ingest(lake))


def _rounds(variants: dict[str, Callable[[], None]], place: Place) -> dict[str, list[Usage]]:
    usages: dict[str, list[Usage]] = {name: [] for name in variants}
    for number in range(REPETITIONS + 1):
        for name, variant in variants.items():
            usage = metered(variant)
            if number:
                usages[name].append(usage)
            place.clean()
    return usages


def _rows(codec: str, size: float, usages: dict[str, list[Usage]]) -> list[Row]:
    part = f"convert {codec}"
    note = f"{size / MB:.0f} MB of values, {PARTITIONS} partitions, local[{CORES}], warm"
    rows: list[Row] = []
    for name, found in usages.items():
        rows.append(Row(part, f"{name}: throughput", "MB/s", tuple(size / MB / one.wall for one in found), note))
        rows.append(Row(part, f"{name}: per core-second", "MB/CPU-s", tuple(size / MB / one.cpu for one in found)))
    ours = usages["Tidemark on Spark"]
    for peer, aim in (("two plain processes", "aim 0.85"), ("Spark's Kafka source, tuned", "aim 2")):
        ratios = tuple(theirs.wall / mine.wall for mine, theirs in zip(ours, usages[peer], strict=True))
        rows.append(Row(part, f"Tidemark beside {peer} ({aim})", "ratio", ratios, "of the same round"))
    return rows
