"""Tidemark's shared contract: the objects in the store, the meaning of Kafka's files, and the rights of each writer.

The agent, the Spark jobs and the Airflow DAGs never import one another. They meet in objects in a store,
and every format of those objects is defined in this package, which imports neither airflow nor pyspark.

* ``formats`` is the contract: ``keys`` names the objects, ``manifest`` and ``watermark`` hold the agent's promises,
  ``ledger`` states the content of a table
* ``kafka_log`` and ``decode`` read Kafka's files, ``store`` is the seam to storage,
  and ``storage`` locates the objects in it
* ``raw`` reads what the agents stored, ``table`` one topic's Delta table; ``planning`` makes the plans of runs
* ``topics`` is the topics file, ``parsers`` are the formats of records in it
* ``remote``, ``consumer`` and ``restore`` are for applications that read history
* ``inspection`` and ``monitoring`` look after a deployment, ``backfill`` are requests for backfills and their reports
* ``cli`` is the command ``tidemark``

Readers of the remote tier start with the names of this module, which are loaded on first use: the extra
``tidemark-kafka[consumer]`` is required for :class:`TieredConsumer` and :class:`Mode`, ``tidemark-kafka[decode]`` for
the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.consumer.consumer import TieredConsumer
    from tidemark.consumer.tier_selection import Mode
    from tidemark.remote.reader.read_range import read_range, read_time
    from tidemark.storage import Storage

__all__ = ["Mode", "Storage", "TieredConsumer", "read_range", "read_time"]

_HOMES = {
    "Mode": "tidemark.consumer.tier_selection",
    "Storage": "tidemark.storage",
    "TieredConsumer": "tidemark.consumer.consumer",
    "read_range": "tidemark.remote.reader.read_range",
    "read_time": "tidemark.remote.reader.read_range",
}


def __getattr__(name: str) -> Any:
    """Load a name of :data:`__all__` on first use (PEP 562): importing ``tidemark`` alone stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
