"""The incidents of a cluster in the store, and the present state of a topic, which its open incidents are a part of.

The incidents' object is changed by compare-and-set, so that two observers open one incident, not two. The state of a
topic is its health in the store, its open incidents, and the judgement of both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from tidemark.endpoints import resolver_of
from tidemark.errors import FormatError, NotFound, StoreError
from tidemark.formats.raw.watermark_index import LeaderEntry
from tidemark.formats.table.ledger import Ledger
from tidemark.inspection.agent_reports import led_partitions
from tidemark.monitoring import overview
from tidemark.monitoring.health import TopicHealth, topic_health
from tidemark.monitoring.incidents import Incident, Incidents, merge
from tidemark.monitoring.judgement import TopicState, state_of
from tidemark.monitoring.observation import ClusterLook, look
from tidemark.monitoring.observer_state import Sightings
from tidemark.monitoring.overview import Overview
from tidemark.store import Store, clock, open_store, put_over
from tidemark.store.update import update
from tidemark.table.delta_table import TopicTable
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment

_NEVER: Final = datetime.fromtimestamp(0, UTC)

log = logging.getLogger(__name__)


def lake_store(deployment: Deployment) -> Store:
    """The store that has the incidents' object."""
    return open_store(deployment.lake_store, deployment.store)


def read_incidents(deployment: Deployment, cluster: str) -> Incidents:
    """The stored incidents; none before the first observation. Raises FormatError if the object does not parse."""
    key = deployment.deployment_keys(cluster).incidents
    return Incidents.load_or_none(lake_store(deployment), key) or Incidents(cluster=cluster, at=_NEVER)


def change_incidents(deployment: Deployment, cluster: str, change: Callable[[Incidents], Incidents]) -> Incidents:
    """Apply ``change``, and again if another writer was faster; ``change`` must be repeatable.

    A damaged object counts as empty: the open incidents are found and reported again then. Otherwise a person would
    have to remove the object first.

    Raises:
        PreconditionFailed: another writer was faster every time.
    """
    store, key = lake_store(deployment), deployment.deployment_keys(cluster).incidents
    none = Incidents(cluster=cluster, at=_NEVER)

    def read() -> tuple[Incidents, str | None]:
        found, etag = Incidents.load_to_replace(store, key)
        if isinstance(found, FormatError):
            log.error("the incidents are begun again", exc_info=found)
        return found if isinstance(found, Incidents) else none, etag

    return update(store, key, read, change, then="the next look tries again")


def compared(deployment: Deployment) -> clock.ClockReading | None:
    """This host's clock and that of the store with the watermark indexes; None if the store does not answer."""
    try:
        return clock.read(open_store(resolver_of(deployment.raw).default().store, deployment.store))
    except StoreError:
        log.warning("the store's clock cannot be asked for", exc_info=True)
        return None


def watch(deployment: Deployment, cluster: str, now: datetime) -> Incidents:
    """Observe ``cluster``, and record the incidents that have opened, changed and closed."""
    return record(deployment, cluster, look(deployment, cluster, read_sightings(deployment, cluster), now))


def record(deployment: Deployment, cluster: str, observed: ClusterLook) -> Incidents:
    """Record the result of an observation, unless a later observation is already recorded."""
    at = observed.sightings.at

    def change(known: Incidents) -> Incidents:
        if known.at >= at:
            return known
        merged = merge(known.incidents, observed.conditions, observed.unknown, at)
        return known.model_copy(update={"at": at, "incidents": merged})

    after = change_incidents(deployment, cluster, change)
    if after.at == at:
        store, keys = lake_store(deployment), deployment.deployment_keys(cluster)
        seen = observed.sightings
        summaries = (topic.summary for _, topic in sorted(seen.topics.items()) if topic.summary is not None)
        states = Overview(cluster=seen.cluster, at=at, topics=tuple(summaries))
        sampled_at = overview.record(store, keys, states, seen.sampled_at)
        put_over(store, keys.sightings, seen.model_copy(update={"sampled_at": sampled_at}).to_bytes())
    return after


def read_sightings(deployment: Deployment, cluster: str) -> Sightings:
    """The state that the last observation left; empty if it cannot be read, since nothing depends on it."""
    key = deployment.deployment_keys(cluster).sightings
    try:
        return Sightings.load(lake_store(deployment), key)
    except (NotFound, FormatError):
        return Sightings(cluster=cluster, at=_NEVER)


class JudgedTopic(NamedTuple):
    """A topic's health and its open incidents."""

    health: TopicHealth
    incidents: tuple[Incident, ...]

    def state(self, *, equal: bool = True) -> TopicState:
        """The judgement; ``equal`` is false if the evidence was read and does not add up."""
        return state_of(self.health, [incident.kind for incident in self.incidents], equal=equal)


def outside_tables(
    deployment: Deployment, cluster: str
) -> tuple[Mapping[str, Mapping[int, LeaderEntry]], tuple[Incident, ...]]:
    """What is known of topics of ``cluster`` outside their tables: leaders' entries by topic, and open incidents.

    Raises FormatError and StoreError.
    """
    led: dict[str, dict[int, LeaderEntry]] = {}
    for tp, leader in led_partitions(deployment, cluster).items():
        led.setdefault(tp.topic, {})[tp.partition] = leader
    known = read_incidents(deployment, cluster).incidents
    return led, tuple(incident for incident in known if incident.open)


def topic_now(
    table: TopicTable,
    ledger: Ledger,
    led: Mapping[str, Mapping[int, LeaderEntry]],
    incidents: Iterable[Incident],
) -> JudgedTopic:
    """The state of the topic of ``table``; ``ledger`` is its committed one, the rest as in :func:`outside_tables`."""
    topic = table.topic
    health = topic_health(topic, ledger, led.get(topic.topic, {}).values(), utc_now())
    return JudgedTopic(health, tuple(incident for incident in incidents if incident.topic == topic.topic))
