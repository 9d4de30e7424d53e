"""The versions of Tidemark's parts, as their last objects in the store state them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal, NamedTuple

from tidemark.concurrency import in_parallel
from tidemark.errors import NotFound
from tidemark.formats.table.scan_status import ScanStatus
from tidemark.inspection.led_partitions import indexes_of
from tidemark.store import open_store
from tidemark.table.delta_table import committed_ledger, open_topic_table
from tidemark.topics import Deployment


class StatedVersion(NamedTuple):
    """The version that a part stated at ``at``; None if no object states it.

    ``name`` is the broker of an agent (or its slot), the cluster of a triggerer, or the topic of the jobs of a table.
    ``error`` says why an object cannot be read.
    """

    cluster: str
    part: Literal["agent", "triggerer", "jobs"]
    name: str
    version: str | None = None
    at: datetime | None = None
    error: str = ""


def stated_versions(deployment: Deployment, cluster: str) -> Iterator[StatedVersion]:
    """The versions of a cluster's agents, triggerer and jobs.

    Raises:
        StoreError, FormatError: the watermark indexes, the last scan or a table cannot be read.
    """
    brokers = indexes_of(deployment, cluster).brokers
    by_broker = {key.rpartition("/")[2].removesuffix(".json"): index for key, index in brokers.items()}
    for broker, (_, index, error) in sorted(by_broker.items(), key=lambda item: (len(item[0]), item[0])):
        stated = StatedVersion(cluster, "agent", broker, error=str(error or ""))
        yield stated._replace(version=index.agent_version, at=index.written_at) if index and not error else stated
    scan = deployment.deployment_keys(cluster).scan
    try:
        status = ScanStatus.load(open_store(deployment.lake_store, deployment.store), scan)
        yield StatedVersion(cluster, "triggerer", cluster, status.version or None, status.at)
    except NotFound:
        yield StatedVersion(cluster, "triggerer", cluster)
    tables = [open_topic_table(deployment, topic) for topic in deployment.topics_of(cluster)]
    for table, ledger in zip(tables, in_parallel(committed_ledger, tables), strict=True):
        at = ledger.committed_at if ledger.n else None
        yield StatedVersion(cluster, "jobs", table.topic.topic, ledger.version or None, at)
