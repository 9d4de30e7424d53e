"""Problems that break the topics' promises of freshness, as agents, triggerer and live landings report them.

An agent packs records that have waited for a third of its own ``freshness`` for the topic, which must not be longer
than the topic's. Without one of its own, it packs when nothing is appended for a while: bytes of a busy partition come
to the store when Kafka rolls a segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from tidemark.errors import NotFound
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import PACKS_PER_FRESHNESS, LeaderEntry, leaders
from tidemark.formats.table.live_landing import read_landing
from tidemark.formats.table.scan_status import ScanStatus
from tidemark.inspection.led_partitions import indexes_of
from tidemark.store import open_store
from tidemark.topics import Deployment, TopicSettings

_SCANS_EVERY: Final = timedelta(minutes=5)
"""A triggerer that works writes the state of its scan once a minute."""


def freshness_problems(deployment: Deployment, now: datetime) -> list[str]:
    """The problems that break promises of ``deployment``, by the raw store's clock ``now``. Raises StoreError."""
    return [
        problem
        for cluster in deployment.clusters
        if deployment.live_topics(cluster)
        for problem in _of_cluster(deployment, cluster, now)
    ]


def _of_cluster(deployment: Deployment, cluster: str, now: datetime) -> Iterator[str]:
    indexes = indexes_of(deployment, cluster).kept.values()
    gone = {index.broker for index in indexes if now - index.written_at > deployment.watch.agent_gone}
    led = leaders(indexes)
    topics = deployment.live_topics(cluster)
    for topic in topics:
        yield from topic_problems(topic, led, gone)
    yield from _landing_problems(deployment, cluster, topics, led, now)


def topic_problems(
    topic: TopicSettings, led: Mapping[TopicPartition, LeaderEntry], gone: Iterable[int]
) -> Iterator[str]:
    """The problems of a topic with a ``freshness`` in its agents' reports; ``gone`` are brokers without an agent."""
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
    try:
        scanned = ScanStatus.load(store, keys.scan).at
    except NotFound:
        scanned = None
    if scanned is None or now - scanned > _SCANS_EVERY:
        last = "was never" if scanned is None else f"was last at {scanned:%Y-%m-%d %H:%M:%S} UTC"
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
