"""Spark's daemon of Python workers, which has loaded the libraries and kernels of a task before it forks a worker.

Spark ends a worker that was idle for a minute, so the next run of a topic that lands every five minutes would load all
of it again: two seconds of CPU time for a task that may take a tenth of one. The daemon itself stays.
``spark.python.daemon.module`` names this module.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager

from tidemark.decode import decoder, kernel_cache
from tidemark_spark.cluster import connect_client
from tidemark_spark.convert import conversion

NEEDED = (connect_client, conversion, decoder)
"""What tasks import."""


def main() -> None:
    """Serve as Spark's own daemon does. What only some parsers need, a worker loads with its first such task."""
    kernel_cache.load_all(())
    gc.collect()
    gc.freeze()  # a collection in a worker would copy the pages of all that is loaded
    manager()


if __name__ == "__main__":
    main()
