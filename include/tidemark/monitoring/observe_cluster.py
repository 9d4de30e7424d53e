"""One observation of a cluster: watermark indexes, ledgers, verdicts and scan, read only if they have changed.

The brokers' indexes, and their heads if a topic has a ``freshness``, are read each time: agents write them each minute.
Requests for erasure are read once an hour.
A topic's ledger comes from the copy that the driver leaves after its commit: all copies are listed at once, and a copy
is read only if it or the topic's watermarks have changed, or if something was waiting. The copy is a hint: the table's
own log is read before anything is reported from the copy, and from time to time in any case. An object that cannot be
read is reported, and hides nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tidemark.concurrency import in_parallel
from tidemark.erasure.progress import progress_of
from tidemark.erasure.requests import ErasureFolder, all_requests
from tidemark.errors import FormatError, NotFound, StoreError, TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.erasure import Approved
from tidemark.formats.raw.watermark_index import LeaderEntry
from tidemark.formats.table.mirror_status import MirrorStatus
from tidemark.formats.table.scan_status import ScanStatus
from tidemark.inspection.led_partitions import indexes_of, leaders_of
from tidemark.monitoring import deployment_conditions
from tidemark.monitoring.incidents import Condition, Unknown, found_by
from tidemark.monitoring.observe_topic import Around, look_at_topic
from tidemark.monitoring.observer_state import ErasureSighting, OpenErasure, OpenTopic, Sightings, TopicSighting
from tidemark.store import Store, open_store
from tidemark.table.delta_table import configured_table
from tidemark.topics import Deployment

_READERS: Final = 16

_ERASURES_EVERY: Final = timedelta(hours=1)
"""The time after which requests for erasure are read again: they have days."""


class ClusterLook(NamedTuple):
    """Conditions that an observation found, incidents that it could not judge, and its state for the next."""

    conditions: tuple[Condition, ...]
    unknown: tuple[Unknown, ...]
    sightings: Sightings


class _Brokers(NamedTuple):
    """The leader of each partition (None if it could not be read), and conditions of agents and their indexes."""

    led: Mapping[TopicPartition, LeaderEntry] | None
    gone: frozenset[int] = frozenset()
    conditions: tuple[Condition, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    missing: bool = False
    """True if an index could not be read: nothing is known of partitions that no other index has."""


class _Mirrors(NamedTuple):
    """Conditions of the catalogs, or that they are unknown."""

    conditions: tuple[Condition, ...] = ()
    unknown: tuple[Unknown, ...] = ()


class _Erasures(NamedTuple):
    """Conditions of requests for erasure, or that they are unknown, and the state for the next observation."""

    sighting: ErasureSighting
    conditions: tuple[Condition, ...]
    unknown: tuple[Unknown, ...] = ()


def look(deployment: Deployment, cluster: str, before: Sightings, now: datetime) -> ClusterLook:
    """Observe ``cluster`` at ``now``.

    Raises:
        StoreError: the lake's store cannot be listed, so nothing is known at all.
    """
    store, keys = open_store(deployment.lake_store, deployment.store), deployment.deployment_keys(cluster)
    status = _scan_status(store, keys.scan)
    brokers = _brokers(deployment, cluster, now)
    committed = {info.key: info.etag for info in store.list(keys.committed)}
    verdicts = {info.key: info.etag for info in store.list(keys.verdicts)}
    unread = {info.key: info.etag for info in store.list(keys.all_unread)}
    by_topic: dict[str, dict[int, LeaderEntry]] = {}
    for tp, leader in (brokers.led or {}).items():
        by_topic.setdefault(tp.topic, {})[tp.partition] = leader
    topics = [topic for topic in deployment.topics if topic.cluster == cluster]
    has_states = any(topic.state for topic in topics)
    states = {info.key: info.etag for info in store.list(keys.state_statuses)} if has_states else {}

    def around(topic: str) -> Around:
        return Around(
            led=None if brokers.led is None else by_topic.get(topic, {}),
            gone=brokers.gone,
            committed=committed.get(keys.committed_ledger(topic), ""),
            verdict=verdicts.get(keys.verdict(topic), ""),
            unread=unread.get(keys.unread(topic), ""),
            state=states.get(keys.state_status(topic), ""),
            scanned_at=status.at if status else None,
        )

    looks = in_parallel(
        lambda topic: look_at_topic(
            configured_table(deployment, topic),
            around(topic.topic),
            before.topics.get(topic.topic, TopicSighting(first_at=now)),
            now,
        ),
        topics,
        _READERS,
    )
    conditions = [*brokers.conditions, *(condition for topic in looks for condition in topic.conditions)]
    if status and status.failing_since:
        conditions.append(deployment_conditions.scan_failing(cluster, status.failing_since, status.error))
    mirrors = _mirrors(deployment, store, keys.mirrors, cluster, now)
    erasures = _erasures(deployment, cluster, before.erasures, now)
    conditions += [*mirrors.conditions, *erasures.conditions]
    lasting, first = lasting_ones(conditions, before.first, now)
    sightings = before.model_copy(
        update={
            "at": now,
            "topics": {topic.topic: seen.sighting for topic, seen in zip(topics, looks, strict=True)},
            "first": first,
            "erasures": erasures.sighting,
        }
    )
    untold = [
        Unknown(found_by("leaders"), topic.topic, known=frozenset(by_topic.get(topic.topic, ()))) for topic in topics
    ]
    unknown = (
        *brokers.unknown,
        *mirrors.unknown,
        *erasures.unknown,
        *(untold if brokers.missing else ()),
        *(unclear for topic in looks for unclear in topic.unknown),
    )
    return ClusterLook(lasting, unknown, sightings)


def lasting_ones(
    conditions: Iterable[Condition], first: Mapping[str, datetime], now: datetime
) -> tuple[tuple[Condition, ...], dict[str, datetime]]:
    """The conditions that have lasted for their patience, and the first time of each condition that needs some."""
    seen: dict[str, datetime] = {}
    lasting: list[Condition] = []
    for condition in conditions:
        if not condition.patience:
            lasting.append(condition)
            continue
        seen[condition.key] = first.get(condition.key, now)
        if now - seen[condition.key] >= condition.patience:
            lasting.append(condition.model_copy(update={"since": min(condition.since, seen[condition.key])}))
    return tuple(lasting), seen


def _brokers(deployment: Deployment, cluster: str, now: datetime) -> _Brokers:
    try:
        cache = indexes_of(deployment, cluster)
        led = leaders_of(deployment, cluster, cache.kept.values())
    except TidemarkError as error:
        return _Brokers(
            None,
            conditions=(deployment_conditions.scan_failing(cluster, now, str(error)),),
            unknown=(Unknown(found_by("leaders", "agents")),),
        )
    indexes = cache.kept.values()
    silent = tuple(deployment_conditions.agents_gone(cluster, indexes, led.values(), now))
    gone = frozenset(index.broker for index in indexes if now - index.written_at > deployment_conditions.AGENT_GONE)
    leading = {leader.broker for leader in led.values()}
    # An agent that could read nothing of its disks told of no partition: its broker was not removed.
    present = [index for index in indexes if index.broker not in gone or index.broker in leading or index.disk_faults]
    return _Brokers(
        led=led,
        gone=gone,
        conditions=(
            *silent,
            *deployment_conditions.clocks_off(cluster, present, now),
            *deployment_conditions.heads_damaged(cluster, present, now),
            *deployment_conditions.disks_failing(cluster, present),
            *deployment_conditions.other_histories(cluster, present),
            *(
                deployment_conditions.unreadable_index(cluster, str(error), now, key)
                for key, error in cache.failures.items()
            ),
        ),
        unknown=tuple(
            Unknown(found_by("agents"), key=of(cluster, key.rpartition("/")[2].removesuffix(".json")))
            for key in cache.failures
            for of in (
                deployment_conditions.agent_gone_key,
                deployment_conditions.head_key,
                deployment_conditions.disk_key,
            )
        )
        + ((Unknown(frozenset({"history"})),) if cache.failures else ()),
        missing=bool(cache.failures),
    )


def _mirrors(deployment: Deployment, store: Store, key: str, cluster: str, now: datetime) -> _Mirrors:
    """Conditions of the catalogs of ``cluster``; none if it has no catalogs, or before the job's first run."""
    if not any(deployment.catalogs_of(topic) for topic in deployment.topics if topic.cluster == cluster):
        return _Mirrors()
    try:
        status = MirrorStatus.load(store, key)
    except NotFound:
        return _Mirrors()
    except (StoreError, FormatError):
        return _Mirrors(unknown=(Unknown(found_by("mirrors")),))
    return _Mirrors(tuple(deployment_conditions.mirrors_failing(status, now)))


def _erasures(deployment: Deployment, cluster: str, before: ErasureSighting, now: datetime) -> _Erasures:
    """Conditions of the requests for erasure of ``cluster``, which are read from time to time."""
    sighting, unread, unknown = before, list[Condition](), list[Unknown]()
    if before.read_at is None or now - before.read_at >= _ERASURES_EVERY:
        try:
            sighting = _open_erasures(deployment, cluster, before, now)
        except TidemarkError as error:
            unread.append(deployment_conditions.unreadable_requests(cluster, str(error), now))
            unknown.append(Unknown(found_by("erasures")))
    return _Erasures(
        sighting, (*deployment_conditions.erasures_due(cluster, sighting.open, now), *unread), tuple(unknown)
    )


def _open_erasures(deployment: Deployment, cluster: str, before: ErasureSighting, now: datetime) -> ErasureSighting:
    folder = ErasureFolder.of(deployment, cluster)
    known = progress_of(deployment, list(all_requests(folder.cluster, but={*before.closed})))
    return ErasureSighting(
        open=tuple(
            OpenErasure(
                id=each.request.id,
                approved=isinstance(each.asked, Approved),
                near_from=each.near_from,
                due=each.due_on,
                topics=tuple(OpenTopic(topic.searched.topic, topic.state, topic.detail) for topic in each.topics),
            )
            for each in known
            if each.closed_at is None
        ),
        closed=(*before.closed, *(each.request.id for each in known if each.closed_at is not None)),
        read_at=now,
    )


def _scan_status(store: Store, key: str) -> ScanStatus | None:
    """The triggerer's last scan report; None if it cannot be read, since the watch reads the indexes itself."""
    try:
        return ScanStatus.load(store, key)
    except (StoreError, FormatError):
        return None
