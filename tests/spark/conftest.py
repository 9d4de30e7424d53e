"""Fixtures of the Spark jobs' tests."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.jobs.programs import Programs
from tests.spark.world import World
from tests.support.paths import env_python
from tests.support.s3 import S3Server
from tests.support.spark import local_conf, small_jvm_env, spark_env
from tidemark.erasure.secret import VARIABLE

ERASURE_SECRET = "a-secret-that-the-driver-of-spark-has"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty deployment in a directory."""
    return World(tmp_path)


@pytest.fixture(scope="package")
def on_spark(starts_spark: None, tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[Programs]:
    """A driver of Spark on this machine, for programs that make their session themselves: the first one's is all's.

    ``s3://`` is ``s3_server``.
    """
    conf = [part for name, value in local_conf().items() for part in ("--conf", f"{name}={value}")]
    told = {"PYSPARK_SUBMIT_ARGS": shlex.join([*conf, "pyspark-shell"]), VARIABLE: ERASURE_SECRET, **s3_server.env()}
    log = tmp_path_factory.mktemp("on-spark") / "driver.log"
    with Programs(env_python("dev"), spark_env(small_jvm_env() | told, env="dev"), log) as programs:
        assert programs.run("tests.spark.cluster.at_parallelism", "local[2]").code == 0
        yield programs
