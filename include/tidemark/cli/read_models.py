"""The commands' answers, as plain data with values of JSON."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from tidemark.cli.options import chosen_clusters
from tidemark.concurrency import in_parallel
from tidemark.endpoints import resolver_of
from tidemark.errors import NeverSeen
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.partitioning import partition_values
from tidemark.inspection.agent_sightings import check_begun, check_seen
from tidemark.inspection.freshness import freshness_problems
from tidemark.inspection.stated_versions import stated_versions
from tidemark.monitoring.health import PartitionHealth
from tidemark.monitoring.judgement import sentence, state_of_partition
from tidemark.monitoring.topic_now import OutsideTables, outside_tables, topic_now
from tidemark.store import open_store
from tidemark.table.delta_table import TopicTable, committed_ledger, live_files, open_delta, open_topic_table
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.topics import Deployment, load_topics


def opened(topics: Path, topic: str, cluster: str | None) -> TopicTable:
    """The table of ``topic``.

    Raises:
        ConfigError: the file is wrong, or does not have the topic.
        NeverSeen: nothing has landed, and no agent was ever seen that could upload the topic.
    """
    deployment = load_topics(topics)
    table = open_topic_table(deployment, deployment.topic(topic, cluster))
    check_begun(table)
    return table


def files_of(table: TopicTable, dates: Collection[str] | None) -> list[dict[str, Any]]:
    """The live files, limited to ``dates`` if there are any: URL, date, values of the folder, rows, size in bytes."""
    delta = open_delta(table)
    live = live_files(delta) if delta is not None else []
    return [
        {
            "url": f"{table.url}/{file.path}",
            "dt": file.dt,
            "folder": partition_values(file.path),
            "rows": file.rows,
            "size": file.size,
        }
        for file in live
        if not dates or file.dt in dates
    ]


def status_of(table: TopicTable) -> dict[str, Any]:
    """The progress of the topic in the committed ledger, its judgement, and the number of quarantined records."""
    standing = EffectiveEvidence.of(table)
    quarantined = sum(standing.rows_by_date("quarantined").values())
    around = outside_tables(table.deployment, table.topic.cluster)
    return _status(table, standing.ledger, around, quarantined) | {"quarantined": quarantined}


def _status(table: TopicTable, ledger: Ledger, around: OutsideTables, quarantined: int = 0) -> dict[str, Any]:
    now = topic_now(table, ledger, around)
    state, health = now.state(), now.health
    return {
        **ledger.model_dump(mode="json", include={"cluster", "topic", "n", "rows", "committed_at"}),
        "table": table.url,
        "state": state,
        "verdict": sentence(
            state, missing=health.missing, lag=health.lag, tiered=health.tiered, quarantined=quarantined
        ),
        "incidents": [incident.title for incident in now.incidents],
        "partitions": [_partition(partition, ledger) for partition in health.partitions],
        "dates": {dt: state.model_dump(mode="json", by_alias=True) for dt, state in sorted(ledger.dates.items())},
    }


def _partition(health: PartitionHealth, ledger: Ledger) -> dict[str, Any]:
    """The ledger's fields of a partition, and its state beyond the ledger."""
    landed = ledger.by_partition.get((health.incarnation, health.partition))
    of_ledger = landed.model_dump(mode="json", include=set(_OF_LEDGER)) if landed else dict.fromkeys(_OF_LEDGER)
    return {
        "incarnation": health.incarnation,
        "partition": health.partition,
        **of_ledger,
        "next_offset": health.landed or 0,
        "log_end": health.log_end,
        "state": state_of_partition(health),
        "gaps": [gap.model_dump(mode="json", by_alias=True) for gap in health.gaps],
        "remote_tier": [[*part] for part in health.remote_tier],
        "held_by": [held.model_dump(mode="json", by_alias=True) for held in health.held_by],
    }


_OF_LEDGER: Final = ("topic_id", "start_offset", "leader_epoch")


def landed_of(topics: Path, cluster: str | None) -> list[dict[str, Any]]:
    """The progress of all topics, limited to ``cluster`` if given, without partitions and dates."""
    deployment = load_topics(topics)
    around = {name: outside_tables(deployment, name) for name in chosen_clusters(topics, deployment, cluster)}
    tables = [open_topic_table(deployment, topic) for topic in deployment.topics_of(cluster)]
    statuses = in_parallel(lambda table: _status(table, committed_ledger(table), around[table.topic.cluster]), tables)
    return [
        {**{name: status[name] for name in _OF_ALL}, "topic": f"{status['cluster']}/{status['topic']}"}
        for status in statuses
    ]


_OF_ALL: Final = ("cluster", "topic", "n", "rows", "committed_at", "table", "state", "verdict", "incidents")


def versions_of(topics: Path, cluster: str | None) -> list[dict[str, Any]]:
    """The versions of the parts of all clusters, or of ``cluster``, as the parts state them; times in UTC."""
    deployment = load_topics(topics)
    names = chosen_clusters(topics, deployment, cluster)
    stated = [version for name in names for version in stated_versions(deployment, name)]
    return [{**each._asdict(), "at": f"{each.at:%Y-%m-%dT%H:%M:%SZ}" if each.at else None} for each in stated]


def summary_of(deployment: Deployment) -> list[dict[str, Any]]:
    """The topics of a topics file, with the URLs of their tables."""
    return [
        {
            "topic": f"{topic.cluster}/{topic.topic}",
            "table": f"{deployment.lake_store}/{deployment.table_keys(topic).root}",
            "owner": topic.owner,
            "configuration": topic.digest,
        }
        for topic in deployment.topics
    ]


def agent_problems(deployment: Deployment) -> list[str]:
    """Messages about topics that no agent has ever reported, and promises that cannot be held. Raises StoreError."""
    default = resolver_of(deployment.raw).default()
    now = open_store(default.store, deployment.store).now()
    return [*_unseen(deployment), *freshness_problems(deployment, now)]


def _unseen(deployment: Deployment) -> list[str]:
    problems: list[str] = []
    for topic in deployment.topics:
        try:
            check_seen(deployment, topic)
        except NeverSeen as error:
            problems.append(str(error))
    return problems
