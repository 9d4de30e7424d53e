"""Segments to Parquet by date: Tidemark on Spark, two plain processes, and Spark's own Kafka source, on the same data.

All variants read and write local directories, so that no variant is charged for a server's work. The first two are also
measured on the S3 server, with the first topic. CPU is that of the whole process tree, with the broker and the S3
server. Spark's Kafka source has a driver of its own, with the JVM's default compiler settings; the JVM of Tidemark's
driver has the settings of the jobs.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

import yaml
from typing_extensions import override

from bench.data import CODECS, HOME, Data, Topic, upload
from bench.measure import MB, Row, Usage, metered
from tests.support.s3 import S3Server
from tests.support.spark import jars_conf, local_conf, spark_env
from tidemark.formats.table.plan import RunPlan
from tidemark.planning import plan_ingest, write_plan
from tidemark.table.delta_table import TopicTable, open_topic_table
from tidemark.topics import load_topics
from tidemark_spark.kinds.ingest import Ingest
from tidemark_spark.model import Common, Executor, Given, Job, Made, Outcome
from tidemark_spark.run import driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES: Final = 2
TOPICS: Final = tuple(Topic(codec, size) for size in (1000, 250) for codec in CODECS)
_numbers = itertools.count()
_ALL: Final = "the bench with its Spark, broker, S3 server and pool of processes, idle or not"


class Pooled(Executor):
    """Runs tasks in the processes of ``pool``."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self.pool = pool

    @override
    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        return list(self.pool.map(partial(work, common), tasks))

    @override
    def finished(self) -> int:
        return 0


def new_table(topic: Topic, raw: str, root: str, keep: Sequence[str] | None = None) -> TopicTable:
    """A new table below ``root``, so that every run converts everything; with the columns ``keep``, all if None."""
    path = HOME / "topics.yaml"
    url = f"{root}/lake-{next(_numbers)}"
    settings = {"topic": topic.name} | ({} if keep is None else {"keep": [*keep]})
    topics = {"cluster": "bench", "raw": {"url": raw}, "lake": url, "topics": [settings]}
    path.write_text(yaml.safe_dump({**topics, "store": {"path_style": True}}))
    deployment = load_topics(path)
    return open_topic_table(deployment, deployment.topics[0])


def _session() -> SparkSession:
    """A session with the jobs' settings. Its JVM lives as long as this process."""
    from tidemark_spark.cluster.session import SETTINGS

    return _session_with({**SETTINGS, "spark.driver.memory": "1g"})


def _peers_session() -> SparkSession:
    """A session for Spark's own Kafka source, with its jars. It must be the first session of its process."""
    return _session_with(
        {
            **jars_conf("spark-kafka"),
            "spark.driver.memory": "3g",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            "spark.sql.parquet.compression.codec": "zstd",
            "spark.sql.maxConcurrentOutputFileWriters": "16",
        }
    )


def _session_with(settings: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ.update(spark_env(env="dev"))
    builder = SparkSession.builder.appName("bench")
    own = {"spark.local.dir": str(HOME / "spark"), "spark.master": f"local[{CORES}]"}
    for name, value in {**local_conf(), **own, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _on_spark(table: TopicTable) -> None:
    """Run Tidemark in the running session: plan, conversion on Spark, evidence and commit."""
    from tidemark_spark.cluster.session import Classic

    plan = plan_ingest(table)
    write_plan(table, plan)
    result = driver.run(table, plan, Classic("bench"))
    if result.status != "landed":
        raise RuntimeError(f"{table.url}: {result}")


def _plain(pool: ProcessPoolExecutor, table: TopicTable) -> None:
    """Run the tasks of that plan in plain processes: read, decode, write; without Spark, evidence and commit."""
    plan = plan_ingest(table)
    job = Job.of(table, plan)
    outcomes: list[Outcome] = list(pool.map(Ingest.work, itertools.repeat(job), plan.tasks))
    if any(outcome.stop for outcome in outcomes):
        raise RuntimeError(f"{table.url}: stopped early")


def _kafka_source(bootstrap: str, plan: RunPlan) -> None:
    """Run Spark's Kafka source with its best settings, up to the plan's offsets, partitioned by date."""
    spark = _peers_session()
    ends = {str(part.partition): part.end for part in plan.partitions}
    options = {
        "kafka.bootstrap.servers": bootstrap,
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


def measure(made: Data, s3: S3Server, topics: Sequence[Topic], rounds: int) -> list[Row]:
    """Figures of all variants, which alternate; the first round is dropped."""
    spark = _session()
    rows: list[Row] = []
    spawn = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(CORES, mp_context=spawn) as pool,
        ProcessPoolExecutor(1, mp_context=spawn) as peer,
    ):
        for topic in topics:
            raw = f"file://{made.raw(topic)}"
            plan = plan_ingest(_local_table(topic, raw))
            landed = sum(part.end for part in plan.partitions)
            size = made[topic].value_bytes * landed / made[topic].records
            local, remote = partial(_local_table, topic, raw), partial(_remote_table, topic)
            variants: dict[str, Callable[[], object]] = {
                "Tidemark on Spark": lambda table=local: _on_spark(table()),  # type: ignore[misc]
                "two plain processes": lambda table=local: _plain(pool, table()),  # type: ignore[misc]
                "Spark's Kafka source, tuned": partial(_elsewhere, peer, _kafka_source, made.cluster.bootstrap, plan),
            }
            if topic == topics[0]:
                upload(made.cluster, "s3://raw/convert", [topic.name], s3.env())
                variants["Tidemark on Spark, S3"] = lambda table=remote: _on_spark(table())  # type: ignore[misc]
                variants["two plain processes, S3"] = lambda table=remote: _plain(pool, table())  # type: ignore[misc]
            rows += _rows(topic, size, _rounds(variants, rounds))
    spark.stop()
    return rows


def _elsewhere(pool: ProcessPoolExecutor, action: Callable[..., None], *arguments: object) -> None:
    """Run ``action`` in the process of ``pool``."""
    pool.submit(action, *arguments).result()


def _local_table(topic: Topic, raw: str) -> TopicTable:
    return new_table(topic, raw, f"file://{HOME}/local")


def _remote_table(topic: Topic) -> TopicTable:
    return new_table(topic, "s3://raw/convert", "s3://lake")


def _rounds(variants: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[Usage]]:
    usages: dict[str, list[Usage]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, variant in variants.items():
            usage = metered(variant)
            if number:
                usages[name].append(usage)
            _remove_tables()
    return usages


def _remove_tables() -> None:
    """Remove local tables, so that the disk does not fill up."""
    for folder in (HOME / "local").glob("lake-*"):
        shutil.rmtree(folder)


def _rows(topic: Topic, size: float, usages: dict[str, list[Usage]]) -> list[Row]:
    part = f"convert {topic.codec}, values of {topic.size} B"
    note = f"{size / MB:.0f} MB of values, {topic.partitions} partitions, local[{CORES}], warm"
    rows: list[Row] = []
    for name, rounds in usages.items():
        rows.append(Row(part, f"{name}: throughput", "MB/s", tuple(size / MB / usage.wall for usage in rounds), note))
        rows.append(Row(part, f"{name}: per core-second", "MB/CPU-s", tuple(size / MB / usage.cpu for usage in rounds)))
        rows.append(Row(part, f"{name}: peak memory of all", "MB", tuple(usage.peak / MB for usage in rounds), _ALL))
    for ours, peer, wall, cpu in (
        ("Tidemark on Spark", "two plain processes", "aim 0.95", ""),
        ("Tidemark on Spark", "Spark's Kafka source, tuned", "aim 2.2", "aim 1.9"),
        ("Tidemark on Spark, S3", "two plain processes, S3", "aim 0.95", ""),
    ):
        if ours in usages:
            pairs = list(zip(usages[ours], usages[peer], strict=True))
            walls, cpus = tuple(b.wall / a.wall for a, b in pairs), tuple(b.cpu / a.cpu for a, b in pairs)
            rows.append(Row(part, f"{ours} beside {peer}: wall", f"ratio ({wall})", walls, "of the same round"))
            rows.append(Row(part, f"{ours} beside {peer}: CPU", f"ratio ({cpu})" if cpu else "ratio", cpus))
    return rows
