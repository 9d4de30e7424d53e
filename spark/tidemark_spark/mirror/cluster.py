"""Brings all catalogs of a cluster's tables up to date. What fails is that table's and catalog's alone."""

from __future__ import annotations

import sys
from collections.abc import Collection

from tidemark.concurrency import in_parallel
from tidemark.errors import NotFound, TidemarkError
from tidemark.formats.mirror_status import MirrorState, MirrorStatus
from tidemark.store import open_store, put_over
from tidemark.table.delta_table import open_topic_table
from tidemark.topics import Deployment, TopicSettings
from tidemark_spark.mirror.catalog import open_catalog
from tidemark_spark.mirror.mirror import mirror
from tidemark_spark.mirror.mirrored_table import MirroredTable


def mirror_cluster(deployment: Deployment, cluster: str, topics: Collection[str] = ()) -> MirrorStatus:
    """List all tables of ``cluster``, or those of ``topics``, and write the status of all for the watch.

    Only one process at a time writes a cluster's status. A second one would list tables exactly as well.

    Raises:
        StoreError: the lake's store did not answer.
    """
    store = open_store(deployment.lake_store, deployment.store)
    key = deployment.deployment_keys(cluster).mirrors
    try:
        known = MirrorStatus.load(store, key).by_key
    except NotFound:
        known = {}
    tables = [
        (topic, catalog.name)
        for topic in deployment.topics
        if topic.cluster == cluster
        for catalog in deployment.catalogs_of(topic)
    ]
    asked = [one for one in tables if not topics or one[0].topic in topics]
    states = in_parallel(lambda one: _state(deployment, *one, known.get((one[0].topic, one[1]))), asked)
    found = known | {one.key: one for one in states if one is not None}
    kept = tuple(found[topic.topic, name] for topic, name in tables if (topic.topic, name) in found)
    status = MirrorStatus(cluster=cluster, at=store.now(), tables=kept)
    put_over(store, key, status.to_bytes())
    return status


def _state(
    deployment: Deployment, topic: TopicSettings, catalog: str, before: MirrorState | None
) -> MirrorState | None:
    """How far the table is listed now; None while nothing has landed."""
    [settings] = (one for one in deployment.catalogs if one.name == catalog)
    table = open_topic_table(deployment, topic)
    try:
        return mirror(table, settings, MirroredTable(table, settings, open_catalog(deployment, settings)))
    except TidemarkError as error:
        sys.stderr.write(f"{topic.topic} in {catalog}: {type(error).__name__}: {error}\n")
        known = before or MirrorState(
            topic=topic.topic, catalog=catalog, identifier=f"{settings.namespace}.{topic.table}"
        )
        failed = {"failing_since": known.failing_since or table.store.now(), "error": str(error)[:1000]}
        return known.model_copy(update=failed)
