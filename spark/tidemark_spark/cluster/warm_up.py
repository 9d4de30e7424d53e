"""Loads the libraries and kernels of conversions in the workers of a Spark Connect server, before the first query.

A new server starts its Python workers with the first query, and each of them loads its libraries and the decoder's
kernels then. This job sends such a query, with nothing to convert, once after the server's start.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tidemark.decode import kernel_cache
from tidemark.errors import ConfigError, TidemarkError
from tidemark_spark.cluster.connect_client import Connected
from tidemark_spark.cluster.target import ClusterTarget, add_options


def main(arguments: Sequence[str] | None = None) -> int:
    """Warm the workers up; 2 if no server is named, 1 if it does not answer. See ``--help``."""
    parser = argparse.ArgumentParser(prog="warm_up.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2, help="the server's cores (default: %(default)s)")
    parser.add_argument(
        "--parser",
        action="append",
        metavar="KIND",
        help="load only what topics with parsers of this kind need; may be repeated (default: of all kinds)",
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    parsers = tuple(options.parser or kernel_cache.PARSERS)
    try:
        Connected(_server(options), "warm-up").on_each(load, parsers, range(max(1, options.workers)))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except TidemarkError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


def _server(options: argparse.Namespace) -> str:
    remote = ClusterTarget.of(options).remote
    if remote is None:
        raise ConfigError("Spark Connect", [("--remote, or SPARK_REMOTE", "must name the server to warm up")])
    return remote


def load(parsers: tuple[str, ...], task: int) -> int:
    """Load the kernels in a worker, of parsers only these kinds'; this module's imports have loaded the libraries."""
    kernel_cache.load_all(parsers)
    return task
