"""Tidemark's shared contract: what lies in the store, what Kafka's files mean, and who may write what.

The agent, the Spark jobs and the Airflow DAGs never import one another. They meet in objects in a store,
and every format of those objects is defined in this package, which imports neither airflow nor pyspark.

* ``formats`` is the contract: ``keys`` says where things lie, ``manifest`` and ``watermark`` what the agent promises,
  ``ledger`` what a table holds
* ``kafka_log`` and ``decode`` say what Kafka's files mean, ``store`` is the seam to storage
* ``raw`` reads what the agents stored, ``table`` one topic's Delta table; ``planning`` says what a run has to do
* ``topics`` is the topics file, ``parsers`` are the formats of records in it
* ``remote``, ``consumer`` and ``restore`` are for applications that read history
* ``inspection`` and ``monitoring`` look after a deployment, ``backfill`` are requests for backfills and their reports
* ``cli`` is the command ``tidemark``

What readers of the remote tier start with is found here, and loaded when it is first asked for: the extra
``tidemark-kafka[consumer]`` has what :class:`TieredConsumer` and :class:`Mode` need, ``tidemark-kafka[decode]`` what
the others do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.consumer.consumer import TieredConsumer
    from tidemark.consumer.modes import Mode
    from tidemark.remote import Storage
    from tidemark.remote.reader.read_range import read_range, read_time

__all__ = ["Mode", "Storage", "TieredConsumer", "read_range", "read_time"]

_HOMES = {
    "Mode": "tidemark.consumer.modes",
    "Storage": "tidemark.remote",
    "TieredConsumer": "tidemark.consumer.consumer",
    "read_range": "tidemark.remote.reader.read_range",
    "read_time": "tidemark.remote.reader.read_range",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for (PEP 562): importing ``tidemark`` alone stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
