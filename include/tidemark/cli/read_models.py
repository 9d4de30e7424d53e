"""The commands' answers, as plain data with values of JSON.

They show the progress of topics, the versions of Tidemark's parts as their last objects in the store state them, and
the problems that break the topics' promises of freshness, as agents, triggerer and live landings report them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from tidemark.cli.options import chosen_clusters
from tidemark.concurrency import in_parallel
from tidemark.endpoints import resolver_of
from tidemark.errors import NeverSeen
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import PACKS_PER_FRESHNESS, LeaderEntry, leaders
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.live_landing import read_landing
from tidemark.formats.table.partitioning import partition_values
from tidemark.formats.table.statuses import ScanStatus
from tidemark.inspection.agent_reports import check_begun, check_seen, indexes_of
from tidemark.monitoring import deployment_conditions
from tidemark.monitoring.health import PartitionHealth
from tidemark.monitoring.incident_store import JudgedTopic, outside_tables, topic_now
from tidemark.monitoring.judgement import sentence, state_of_partition
from tidemark.store import open_store
from tidemark.table.delta_table import (
    TopicTable,
    committed_ledger,
    configured_table,
    ledger_of,
    live_files,
    open_delta,
    open_topic_table,
)
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.topics import Deployment, TopicSettings, load_topics

_OF_LEDGER: Final = ("topic_id", "start_offset", "leader_epoch")

_OF_ALL: Final = ("cluster", "topic", "n", "rows", "committed_at", "table", "state", "verdict", "incidents")

_SCANS_EVERY: Final = timedelta(minutes=5)
"""A triggerer that works writes the state of its scan once a minute."""


def opened(topics: Path, topic: str, cluster: str | None) -> TopicTable:
    """The table of ``topic``. Raises ConfigError if the file is wrong, or does not have the topic."""
    deployment = load_topics(topics)
    return open_topic_table(deployment, deployment.topic(topic, cluster))


def evidence_of(table: TopicTable) -> EffectiveEvidence:
    """The effective evidence of the committed ledger.

    Raises:
        NeverSeen: nothing has landed, and no agent was ever seen that could upload the topic.
    """
    standing = EffectiveEvidence.of(table)
    check_begun(table, standing.ledger.n)
    return standing


def files_of(table: TopicTable, dates: Collection[str] | None) -> list[dict[str, Any]]:
    """The live files, limited to ``dates`` if there are any: URL, date, values of the folder, rows, size in bytes.

    Raises:
        NeverSeen: nothing has landed, and no agent was ever seen that could upload the topic.
    """
    delta = open_delta(table)
    check_begun(table, ledger_of(table, delta).n)
    live = live_files(delta)
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
    """The progress of the topic in the committed ledger, its judgement, and the number of quarantined records.

    Raises:
        NeverSeen: nothing has landed, and no agent was ever seen that could upload the topic.
    """
    standing = evidence_of(table)
    quarantined = sum(standing.rows_by_date("quarantined").values())
    now = topic_now(table, standing.ledger, *outside_tables(table.deployment, table.topic.cluster))
    return _status(table, standing.ledger, now, quarantined) | {"quarantined": quarantined}


def _status(table: TopicTable, ledger: Ledger, now: JudgedTopic, quarantined: int = 0) -> dict[str, Any]:
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
        "held_by": [asdict(held) for held in health.held_by],
    }


def landed_of(topics: Path, cluster: str | None) -> list[dict[str, Any]]:
    """The progress of all topics, limited to ``cluster`` if given, without partitions and dates."""
    deployment = load_topics(topics)
    around = {name: outside_tables(deployment, name) for name in chosen_clusters(topics, deployment, cluster)}
    tables = [configured_table(deployment, topic) for topic in deployment.topics_of(cluster)]

    def status(table: TopicTable) -> dict[str, Any]:
        ledger = committed_ledger(table)
        return _status(table, ledger, topic_now(table, ledger, *around[table.topic.cluster]))

    statuses = in_parallel(status, tables)
    return [
        {**{name: status[name] for name in _OF_ALL}, "topic": f"{status['cluster']}/{status['topic']}"}
        for status in statuses
    ]


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


def triggerer_capacity(deployment: Deployment) -> int | None:
    """The most triggers that one triggerer runs, by the last scans; None if none has told. Raises StoreError."""
    store = open_store(deployment.lake_store, deployment.store)
    scans = (ScanStatus.load_or_none(store, deployment.deployment_keys(name).scan) for name in deployment.clusters)
    return min((scan.capacity for scan in scans if scan is not None and scan.capacity is not None), default=None)


def _unseen(deployment: Deployment) -> list[str]:
    problems: list[str] = []
    for topic in deployment.topics:
        try:
            check_seen(deployment, topic)
        except NeverSeen as error:
            problems.append(str(error))
    return problems


def freshness_problems(deployment: Deployment, now: datetime) -> list[str]:
    """The problems that break promises of ``deployment``, by the raw store's clock ``now``. Raises StoreError."""
    return [
        problem
        for cluster in deployment.clusters
        if deployment.live_topics(cluster)
        for problem in _freshness_of_cluster(deployment, cluster, now)
    ]


def _freshness_of_cluster(deployment: Deployment, cluster: str, now: datetime) -> Iterator[str]:
    indexes = indexes_of(deployment, cluster).kept.values()
    gone = {index.broker for index in indexes if now - index.written_at > deployment_conditions.AGENT_GONE}
    led = leaders(indexes)
    topics = deployment.live_topics(cluster)
    for topic in topics:
        yield from topic_problems(topic, led, gone)
    yield from _landing_problems(deployment, cluster, topics, led, now)


def topic_problems(
    topic: TopicSettings, led: Mapping[TopicPartition, LeaderEntry], gone: Iterable[int]
) -> Iterator[str]:
    """The problems of a topic with a ``freshness`` in its agents' reports; ``gone`` are brokers without an agent.

    An agent packs records that have waited for a third of its own ``freshness`` for the topic, which must not be longer
    than the topic's. Without one of its own, it packs when nothing is appended for a while: bytes of a busy partition
    come to the store when Kafka rolls a segment.
    """
    promise = topic.late_after
    name, words = f"{topic.cluster}/{topic.topic}", _words(promise)
    entries = [leader for at, leader in led.items() if at.topic == topic.topic]
    silent = sorted({leader.broker for leader in entries} & set(gone))
    if silent:
        yield f"{name}: promises {words}, but the agent of {_brokers(silent)} is silent: is it running?"
    unpacked = sorted({leader.broker for leader in entries if leader.entry.freshness is None})
    if unpacked:
        yield (
            f"{name}: promises {words}, but the agent of {_brokers(unpacked)} packs only its quiet tails: set "
            f"freshness: {words} for the topic in the agent's file; otherwise the topic needs segment.ms="
            f"{promise / PACKS_PER_FRESHNESS / timedelta(milliseconds=1):.0f} or less"
        )
    longer = [leader for leader in entries if (leader.entry.freshness or 0.0) > promise.total_seconds()]
    if longer:
        most = max(leader.entry.freshness or 0.0 for leader in longer)
        brokers = _brokers(sorted({leader.broker for leader in longer}))
        yield (
            f"{name}: promises {words}, but the agent of {brokers} is set to "
            f"{most:g}s: set freshness: {words} or less for the topic in the agent's file"
        )


def _landing_problems(
    deployment: Deployment,
    cluster: str,
    topics: Sequence[TopicSettings],
    led: Mapping[TopicPartition, LeaderEntry],
    now: datetime,
) -> Iterator[str]:
    """The problems of landing: the triggerer does not scan, or the live DAG has landed none of the uploads."""
    store, keys = open_store(deployment.lake_store, deployment.store), deployment.deployment_keys(cluster)
    scan = ScanStatus.load_or_none(store, keys.scan)
    if scan is None or now - scan.at > _SCANS_EVERY:
        last = "was never" if scan is None else f"was last at {scan.at:%Y-%m-%d %H:%M:%S} UTC"
        yield f"{cluster}: the scan of the watermark indexes {last}: does Airflow's triggerer run?"
    names = {topic.topic for topic in topics}
    uploaded = any(at.topic in names and leader.entry.least_stored_end > 0 for at, leader in led.items())
    if uploaded and read_landing(store, keys.landing).etag is None:
        yield (
            f"{cluster}: nothing was ever landed live: is dags/live.py in Airflow's DAG folder, and is "
            f"tidemark_live__{cluster} unpaused?"
        )


def _brokers(numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, numbers[:5]))
    more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
    return f"broker{'s' if len(numbers) > 1 else ''} {listed}{more}"


def _words(length: timedelta) -> str:
    return f"{length.total_seconds():g}s"


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
    objects = indexes_of(deployment, cluster).objects
    by_broker = {key.rpartition("/")[2].removesuffix(".json"): index for key, index in objects.items()}
    for broker, (_, index, error) in sorted(by_broker.items(), key=lambda item: (len(item[0]), item[0])):
        stated = StatedVersion(cluster, "agent", broker, error=str(error or ""))
        yield stated._replace(version=index.agent_version, at=index.written_at) if index and not error else stated
    store = open_store(deployment.lake_store, deployment.store)
    scan = ScanStatus.load_or_none(store, deployment.deployment_keys(cluster).scan)
    version, at = (scan.version or None, scan.at) if scan else (None, None)
    yield StatedVersion(cluster, "triggerer", cluster, version, at)
    tables = [configured_table(deployment, topic) for topic in deployment.topics_of(cluster)]
    for table, ledger in zip(tables, in_parallel(committed_ledger, tables), strict=True):
        at = ledger.committed_at if ledger.n else None
        yield StatedVersion(cluster, "jobs", table.topic.topic, ledger.version or None, at)
