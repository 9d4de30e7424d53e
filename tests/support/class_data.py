"""Class data that JVMs of the tests share: a broker starts in two thirds of the CPU time, and so does Spark's driver.

``python -m tests.support.class_data`` makes what is missing, one archive for each set of jars. It lies where the jars
do, since an archive holds for one class path only: Spark's in the checkout, Kafka's in the user's cache. A JVM whose
class path or version is another one starts as without.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.jars import fetch
from tests.support.java import java_home
from tests.support.paths import STATE, cache_dir

if TYPE_CHECKING:
    from tests.support.kafka_broker import KafkaVersion

_QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
_JOB: Final = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
assert spark.sparkContext.parallelize(range(4), 2).map(lambda one: one + 1).collect() == [1, 2, 3, 4]
spark.range(8).selectExpr("id", "cast(id AS string) AS name").repartition(2).write.parquet(sys.argv[1])
assert spark.read.parquet(sys.argv[1]).groupBy("name").count().count() == 8
spark.stop()
"""
"""It has what most jobs load: whoever changes it makes another archive."""


def options(name: str) -> tuple[str, ...]:
    """What tells a JVM to use the archive of ``name`` (``spark``, ``kafka-4.3.1``, ...); nothing if there is none."""
    archive = _archive(name)
    return (f"-XX:SharedArchiveFile={archive}", *_QUIET) if archive.exists() else ()


def make_missing() -> None:
    """Make the archives that are not there, side by side; none by a Java that brings none of its own classes."""
    if not (java_home() / "lib" / "server" / "classes.jsa").exists():
        return
    made: dict[str, Callable[[str, Path], None]] = {
        "spark": _spark,
        "kafka-4.3.1": partial(_kafka, "4.3.1"),
        "kafka-3.9.2": partial(_kafka, "3.9.2"),
    }
    missing = {name: make for name, make in made.items() if not _archive(name).exists()}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        done = [pool.submit(make, name, Path(folder) / name) for name, make in missing.items()]
        for one in done:
            one.result()


def _archive(name: str) -> Path:
    release = java_home() / "release"
    java = release.read_bytes() if release.exists() else b""
    if name == "spark":
        of = hashlib.sha256(java + _JOB.encode()).hexdigest()[:8]
        return STATE / "class-data" / f"spark-java-{of}.jsa"
    of = hashlib.sha256(java).hexdigest()[:8]
    return cache_dir() / "class-data" / f"{fetch(name).name}-java-{of}.jsa"


def _dumping(archive: Path) -> str:
    return f"-XX:ArchiveClassesAtExit={archive}"


def _spark(name: str, folder: Path) -> None:
    """A small job ends, and leaves the archive."""
    from tests.support.spark import small_jvm_conf, spark_submit

    folder.mkdir()
    (job := folder / "job.py").write_text(_JOB)
    conf = small_jvm_conf()
    conf["spark.driver.extraJavaOptions"] += f" {_dumping(partial := folder / 'partial.jsa')}"
    spark_submit(job, folder / "written", conf=conf)
    _keep(partial, name)


def _kafka(version: KafkaVersion, name: str, folder: Path) -> None:
    """A broker ends, and leaves the archive."""
    from tests.support.kafka import KafkaCluster
    from tests.support.kafka_broker import SMALL_JVM

    with KafkaCluster(folder, version=version, jvm=(*SMALL_JVM, _dumping(partial := folder / "partial.jsa"))):
        pass
    _keep(partial, name)


def _keep(partial: Path, name: str) -> None:
    """In place under a name that no JVM has opened yet."""
    _archive(name).parent.mkdir(parents=True, exist_ok=True)
    copy = _archive(name).with_suffix(f".{os.getpid()}")
    copy.write_bytes(partial.read_bytes())
    copy.replace(_archive(name))


if __name__ == "__main__":
    make_missing()
    sys.stdout.write(f"class data in {_archive('spark').parent} and {_archive('kafka-4.3.1').parent}\n")
