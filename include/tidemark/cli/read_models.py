"""What the commands answer, as plain data. The values are those of JSON."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from tidemark.concurrency import in_parallel
from tidemark.config import hint
from tidemark.endpoints import resolver_of
from tidemark.errors import ConfigError, NeverSeen
from tidemark.formats.ledger import Ledger
from tidemark.formats.partitioning import partition_values
from tidemark.inspection.agent_sightings import check_begun, check_seen
from tidemark.inspection.freshness import freshness_problems
from tidemark.monitoring.health import PartitionHealth
from tidemark.monitoring.judgement import sentence, state_of_partition
from tidemark.monitoring.topic_now import OutsideTables, outside_tables, topic_now
from tidemark.store import open_store
from tidemark.table.delta_table import TopicTable, committed_ledger, live_files, open_delta, open_topic_table
from tidemark.topics import Deployment, load_topics


def opened(topics: Path, topic: str, cluster: str | None) -> TopicTable:
    """The table of ``topic``.

    Raises:
        ConfigError: the file is wrong, or does not have the topic.
        NeverSeen: nothing has landed, and no agent was ever seen that could upload anything.
    """
    deployment = load_topics(topics)
    table = open_topic_table(deployment, deployment.topic(topic, cluster))
    check_begun(table)
    return table


def files_of(table: TopicTable, dates: Collection[str] | None) -> list[dict[str, Any]]:
    """The live files, of ``dates`` only if any are given: URL, date, values of the folder, rows, size in bytes."""
    delta = open_delta(table)
    found = live_files(delta) if delta is not None else []
    return [
        {
            "url": f"{table.url}/{one.path}",
            "dt": one.dt,
            "folder": partition_values(one.path),
            "rows": one.rows,
            "size": one.size,
        }
        for one in found
        if not dates or one.dt in dates
    ]


def status_of(table: TopicTable) -> dict[str, Any]:
    """How far the topic has landed, by the committed ledger, and its judgement."""
    return _status(table, outside_tables(table.deployment, table.topic.cluster))


def _status(table: TopicTable, around: OutsideTables) -> dict[str, Any]:
    ledger = committed_ledger(table)
    now = topic_now(table, ledger, around)
    state, health = now.state(), now.health
    return {
        **ledger.model_dump(mode="json", include={"cluster", "topic", "n", "rows", "committed_at"}),
        "table": table.url,
        "state": state,
        "verdict": sentence(state, missing=health.missing, lag=health.lag),
        "incidents": [one.title for one in now.incidents],
        "partitions": [_partition(one, ledger) for one in health.partitions],
        "dates": {dt: one.model_dump(mode="json", by_alias=True) for dt, one in sorted(ledger.dates.items())},
    }


def _partition(one: PartitionHealth, ledger: Ledger) -> dict[str, Any]:
    """What the ledger says of a partition, and what is known beyond it."""
    landed = ledger.by_partition.get((one.incarnation, one.partition))
    said = landed.model_dump(mode="json", include=set(_OF_LEDGER)) if landed else dict.fromkeys(_OF_LEDGER)
    return {
        "incarnation": one.incarnation,
        "partition": one.partition,
        **said,
        "next_offset": one.landed or 0,
        "log_end": one.log_end,
        "state": state_of_partition(one),
        "gaps": [gap.model_dump(mode="json", by_alias=True) for gap in one.gaps],
        "held_by": [held.model_dump(mode="json", by_alias=True) for held in one.held_by],
    }


_OF_LEDGER: Final = ("topic_id", "start_offset", "leader_epoch")


def landed_of(topics: Path, cluster: str | None) -> list[dict[str, Any]]:
    """How far all topics have landed, of ``cluster`` if one is given, without partitions and dates."""
    deployment = load_topics(topics)
    tables = [open_topic_table(deployment, one) for one in deployment.topics if cluster in {None, one.cluster}]
    if not tables:
        raise ConfigError(
            str(topics),
            [("--cluster", f"no topic is of a cluster {cluster}; {hint(str(cluster), deployment.clusters)}")],
        )
    around = {name: outside_tables(deployment, name) for name in {one.topic.cluster for one in tables}}
    found = in_parallel(lambda table: _status(table, around[table.topic.cluster]), tables)
    return [{**{name: one[name] for name in _OF_ALL}, "topic": f"{one['cluster']}/{one['topic']}"} for one in found]


_OF_ALL: Final = ("cluster", "topic", "n", "rows", "committed_at", "table", "state", "verdict", "incidents")


def summary_of(deployment: Deployment) -> list[dict[str, Any]]:
    """The topics of a topics file, and where their tables lie."""
    return [
        {
            "topic": f"{one.cluster}/{one.topic}",
            "table": f"{deployment.lake_store}/{deployment.table_keys(one).root}",
            "owner": one.owner,
            "configuration": one.digest,
        }
        for one in deployment.topics
    ]


def agent_problems(deployment: Deployment) -> list[str]:
    """For each topic of which no agent has ever told, what is there instead; and which promises cannot be held.

    Raises:
        StoreError: a store did not answer.
    """
    default = resolver_of(deployment.raw).default()
    now = open_store(default.store, deployment.store).now()
    return [*_unseen(deployment), *freshness_problems(deployment, now)]


def _unseen(deployment: Deployment) -> list[str]:
    found: list[str] = []
    for one in deployment.topics:
        try:
            check_seen(deployment, one)
        except NeverSeen as error:
            found.append(str(error))
    return found
