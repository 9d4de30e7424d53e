"""A Spark Connect server whose sessions share Python workers.

Spark's own server separates the sessions' uploads, and starts a Python daemon for each session. None of these ends
before the server: measured with pyspark 4.2.0, each run left 38 MB. A driver with the Connect plugin serves as well,
and can be configured not to separate uploads, as there are none.
"""

from __future__ import annotations

import sys
from typing import Final

from pyspark import SparkContext

from tidemark.jobs.registry import ConnectOptions
from tidemark_spark.cluster.session import SETTINGS, submitted, trying
from tidemark_spark.jobs.running import RunningJob

_SERVER: Final = {
    **SETTINGS,
    "spark.app.name": "tidemark connect",
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.python.daemon.module": "tidemark_spark.cluster.python_daemon",
}


def work(_options: ConnectOptions, _job: RunningJob) -> int:
    """Serve until spark-submit, which holds the other end of standard input, ends."""
    conf = submitted()
    for key, value in _SERVER.items():
        conf.setIfMissing(key, value)
    conf.setMaster(trying(conf.get("spark.master") or "local[*]"))
    SparkContext.getOrCreate(conf).setLogLevel("WARN")
    sys.stdin.buffer.read()
    return 0
