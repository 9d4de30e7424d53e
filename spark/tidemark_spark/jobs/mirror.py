"""The job that lists tables in catalogs."""

from __future__ import annotations

import sys
from collections.abc import Collection

from tidemark.concurrency import in_parallel
from tidemark.errors import TidemarkError
from tidemark.formats.table.statuses import MirrorKey, MirrorState, MirrorStatus
from tidemark.jobs.registry import MirrorOptions
from tidemark.store import open_store, put_over
from tidemark.table.delta_table import open_topic_table
from tidemark.topics import Deployment, TopicSettings
from tidemark_spark.jobs.running import RunningJob, show
from tidemark_spark.mirror.catalog import open_catalog
from tidemark_spark.mirror.listed_table import ListedState, ListedTable
from tidemark_spark.mirror.mirror import mirror
from tidemark_spark.mirror.mirrored_table import MirroredTable


def work(options: MirrorOptions, job: RunningJob) -> int:
    """Bring the catalogs up to date; returns 1 if one of them fails."""
    cluster = job.cluster()
    topics = [topic.topic for topic in job.topics()] if options.topic else []
    status = mirror_cluster(job.deployment, cluster, topics)
    for table in status.tables:
        show(table.model_dump_json())
    return 1 if any(table.failing_since and (not topics or table.topic in topics) for table in status.tables) else 0


def mirror_cluster(deployment: Deployment, cluster: str, topics: Collection[str] = ()) -> MirrorStatus:
    """List all tables of ``cluster``, or only the tables of ``topics``, and write the status of all for the watch.

    Only one process at a time may write a cluster's status. A second process would still list tables correctly.

    Raises:
        StoreError: the lake's store did not answer.
    """
    store = open_store(deployment.lake_store, deployment.store)
    key = deployment.deployment_keys(cluster).mirrors
    before = MirrorStatus.load_or_none(store, key)
    known = before.by_key if before else {}
    tables = [
        (topic, MirrorKey(topic.topic, catalog.name, state))
        for topic in deployment.topics
        if topic.cluster == cluster
        for catalog in deployment.catalogs_of(topic)
        for state in ((False, True) if topic.state else (False,))
    ]
    by_key = dict(known)
    for of_states in (False, True):  # a topic's two tables must not begin a catalog at once
        wanted = [table for table in tables if table[1].state is of_states and (not topics or table[0].topic in topics)]
        states = in_parallel(lambda table: _state(deployment, *table, known.get(table[1])), wanted)
        by_key |= {state.key: state for state in states if state is not None}
    kept = tuple(by_key[key] for _, key in tables if key in by_key)
    status = MirrorStatus(cluster=cluster, at=store.now(), tables=kept)
    put_over(store, key, status.to_bytes())
    return status


def _state(
    deployment: Deployment, topic: TopicSettings, key: MirrorKey, before: MirrorState | None
) -> MirrorState | None:
    """The mirror's state after listing the table; None while nothing has landed."""
    [settings] = (known for known in deployment.catalogs if known.name == key.catalog)
    opened = open_topic_table(deployment, topic)
    listing = ListedState(opened) if key.state else ListedTable(opened)
    table = listing.table
    try:
        return mirror(listing, settings, MirroredTable(table, settings, open_catalog(deployment, settings)))
    except TidemarkError as error:
        sys.stderr.write(f"{table.topic.table} in {key.catalog}: {type(error).__name__}: {error}\n")
        name = f"{settings.namespace}.{table.topic.table}"
        known = before or MirrorState(topic=topic.topic, catalog=key.catalog, identifier=name, state=key.state)
        failed = {"failing_since": known.failing_since or table.store.now(), "error": str(error)[:1000]}
        return known.model_copy(update=failed)
