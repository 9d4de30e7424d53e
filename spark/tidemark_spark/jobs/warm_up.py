"""Loads the libraries and kernels of conversions in the workers of a Spark Connect server, before the first query.

A new server starts its Python workers with the first query, and each of them loads its libraries and the decoder's
kernels then. This job sends such a query, with nothing to convert, once after the server's start.
"""

from __future__ import annotations

from tidemark.decode import kernel_cache
from tidemark.errors import ConfigError
from tidemark.jobs.registry import WarmUpOptions
from tidemark_spark.cluster.connect_client import Connected
from tidemark_spark.cluster.target import ClusterTarget
from tidemark_spark.jobs.running import RunningJob


def work(options: WarmUpOptions, _job: RunningJob) -> int:
    """Warm the workers up; returns 0. Raises ConfigError if no server is named."""
    remote = ClusterTarget.of(options).remote
    if remote is None:
        raise ConfigError("Spark Connect", [("--remote, or SPARK_REMOTE", "must name the server to warm up")])
    parsers = options.parser or kernel_cache.PARSERS
    Connected(remote, "warm-up").on_each(load, tuple(parsers), range(max(1, options.workers)))
    return 0


def load(parsers: tuple[str, ...], task: int) -> int:
    """Load the kernels in a worker, of parsers only these kinds'; this module's imports have loaded the libraries."""
    kernel_cache.load_all(parsers)
    return task
