"""What the commands answer, as plain data. The values are those of JSON."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from tidemark.concurrency import in_parallel
from tidemark.config import hint
from tidemark.endpoints import resolver_of
from tidemark.errors import ConfigError, NeverSeen
from tidemark.formats.partitioning import partition_values
from tidemark.inspection.agent_sightings import check_begun, check_seen
from tidemark.inspection.freshness import freshness_problems
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
    """What the committed ledger says."""
    ledger = committed_ledger(table).model_dump(mode="json", by_alias=True)
    partitions = [{name: one[name] for name in _PARTITION} for one in ledger["partitions"]]
    dates = dict(sorted(ledger["dates"].items()))
    return {**{name: ledger[name] for name in _LEDGER}, "table": table.url, "partitions": partitions, "dates": dates}


def landed_of(topics: Path, cluster: str | None) -> list[dict[str, Any]]:
    """What the committed ledgers of all topics say, of ``cluster`` if one is given, without partitions and dates."""
    deployment = load_topics(topics)
    tables = [open_topic_table(deployment, one) for one in deployment.topics if cluster in {None, one.cluster}]
    if not tables:
        raise ConfigError(
            str(topics),
            [("--cluster", f"no topic is of a cluster {cluster}; {hint(str(cluster), deployment.clusters)}")],
        )
    found = in_parallel(status_of, tables)
    return [
        {**{name: one[name] for name in (*_LEDGER, "table")}, "topic": f"{one['cluster']}/{one['topic']}"}
        for one in found
    ]


_LEDGER = ("cluster", "topic", "n", "rows", "committed_at")
_PARTITION = ("incarnation", "partition", "topic_id", "start_offset", "next_offset", "leader_epoch", "gaps", "held_by")


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
