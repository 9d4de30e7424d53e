"""One look at a cluster: its watermark indexes, ledgers, verdicts and scan, read only where something has changed.

The brokers' indexes are read each time, since agents write them each minute. A topic's ledger comes from the copy that
the driver leaves after its commit: all copies are listed at once, and one is read only where it or the topic's
watermarks have changed, or where something was waiting. The copy is a hint: before anybody is told by it the table's
own log is asked, and now and then in any case. What cannot be read is told of, and hides nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from tidemark.concurrency import in_parallel
from tidemark.endpoints import resolver_of
from tidemark.errors import FormatError, StoreError, TidemarkError
from tidemark.formats.keys import ControlKeys, TopicPartition
from tidemark.formats.scan_status import ScanStatus
from tidemark.formats.watermark_index import LeaderEntry, Loaded, leaders, listed, load_all
from tidemark.monitoring import deployment_conditions
from tidemark.monitoring.incidents import Condition, Unknown
from tidemark.monitoring.kinds import found_by
from tidemark.monitoring.observe_topic import Around, look_at_topic
from tidemark.monitoring.observer_state import Sightings, TopicSighting
from tidemark.store import Store, open_store
from tidemark.table.delta_table import open_topic_table
from tidemark.topics import Deployment

_READERS: Final = 16


class ClusterLook(NamedTuple):
    """What a look found, what it could not tell of, and what it leaves for the next."""

    conditions: tuple[Condition, ...]
    unknown: tuple[Unknown, ...]
    sightings: Sightings


class _Brokers(NamedTuple):
    """Who leads each partition, None if that could not be read, and what is wrong with agents and their indexes."""

    led: Mapping[TopicPartition, LeaderEntry] | None
    gone: frozenset[int] = frozenset()
    conditions: tuple[Condition, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    missing: bool = False
    """Whether an index could not be read: nothing is known of partitions that no other one tells of."""


def look(deployment: Deployment, cluster: str, before: Sightings, now: datetime) -> ClusterLook:
    """Look at ``cluster`` at ``now``.

    Raises:
        StoreError: the lake's store cannot be listed, so nothing is known at all.
    """
    store, keys = open_store(deployment.lake_store, deployment.store), deployment.deployment_keys(cluster)
    status = _scan_status(store, keys.scan)
    brokers = _brokers(deployment, cluster, now)
    committed = {info.key: info.etag for info in store.list(keys.committed)}
    verdicts = {info.key: info.etag for info in store.list(keys.verdicts)}
    by_topic: dict[str, dict[int, LeaderEntry]] = {}
    for at, one in (brokers.led or {}).items():
        by_topic.setdefault(at.topic, {})[at.partition] = one
    topics = [one for one in deployment.topics if one.cluster == cluster]

    def around(topic: str) -> Around:
        return Around(
            led=None if brokers.led is None else by_topic.get(topic, {}),
            gone=brokers.gone,
            committed=committed.get(keys.committed_ledger(topic), ""),
            verdict=verdicts.get(keys.verdict(topic), ""),
            scanned_at=status.at if status else None,
        )

    looks = in_parallel(
        lambda one: look_at_topic(
            open_topic_table(deployment, one), around(one.topic), before.topics.get(one.topic, TopicSighting()), now
        ),
        topics,
        _READERS,
    )
    found = [*brokers.conditions, *(one for topic in looks for one in topic.conditions)]
    if status and status.failing_since:
        found.append(deployment_conditions.scan_failing(cluster, status.failing_since, status.error))
    lasting, first = lasting_ones(found, before.first, now)
    sightings = before.model_copy(
        update={
            "at": now,
            "topics": {topic.topic: one.sighting for topic, one in zip(topics, looks, strict=True)},
            "first": first,
        }
    )
    untold = [Unknown(found_by("leaders"), one.topic, known=frozenset(by_topic.get(one.topic, ()))) for one in topics]
    unknown = (
        *brokers.unknown,
        *(untold if brokers.missing else ()),
        *(one for topic in looks for one in topic.unknown),
    )
    return ClusterLook(lasting, unknown, sightings)


def lasting_ones(
    found: Iterable[Condition], first: Mapping[str, datetime], now: datetime
) -> tuple[tuple[Condition, ...], dict[str, datetime]]:
    """The conditions that have lasted for their patience, and when each of those that need some was first seen."""
    seen: dict[str, datetime] = {}
    lasting: list[Condition] = []
    for one in found:
        if not one.patience:
            lasting.append(one)
            continue
        seen[one.key] = first.get(one.key, now)
        if now - seen[one.key] >= one.patience:
            lasting.append(one.model_copy(update={"since": min(one.since, seen[one.key])}))
    return tuple(lasting), seen


def _brokers(deployment: Deployment, cluster: str, now: datetime) -> _Brokers:
    try:
        loaded = _read_indexes(deployment, cluster)
    except TidemarkError as error:
        return _Brokers(
            None,
            conditions=(deployment_conditions.scan_failing(cluster, now, str(error)),),
            unknown=(Unknown(found_by("leaders", "agents")),),
        )
    indexes = loaded.indexes.values()
    led = leaders(indexes)
    silent = tuple(deployment_conditions.agents_gone(cluster, indexes, led.values(), deployment.watch.agent_gone, now))
    return _Brokers(
        led=led,
        gone=frozenset(one.broker for one in indexes if now - one.written_at > deployment.watch.agent_gone),
        conditions=(
            *silent,
            *deployment_conditions.clocks_off(cluster, indexes, now),
            *(
                deployment_conditions.unreadable_index(cluster, str(one), now, key)
                for key, one in loaded.failures.items()
            ),
        ),
        unknown=tuple(
            Unknown(
                found_by("agents"),
                key=deployment_conditions.agent_gone_key(cluster, key.rpartition("/")[2].removesuffix(".json")),
            )
            for key in loaded.failures
        ),
        missing=bool(loaded.failures),
    )


def _read_indexes(deployment: Deployment, cluster: str) -> Loaded:
    """All indexes of the default bucket, which tell of every partition."""
    default = resolver_of(deployment.raw).default()
    store, folder = open_store(default.store, deployment.store), ControlKeys(default.prefix, cluster).indexes
    return load_all(store, listed(store, folder))


def _scan_status(store: Store, key: str) -> ScanStatus | None:
    """What the triggerer said last; nothing if it said nothing that can be read: the watch reads the indexes itself."""
    try:
        return ScanStatus.load(store, key)
    except (StoreError, FormatError):
        return None
