"""The incidents' object: read, and changed by compare-and-set, so that two who look at once make one incident."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from tidemark.endpoints import resolver_of
from tidemark.errors import FormatError, NotFound, StoreError
from tidemark.monitoring import overview
from tidemark.monitoring.incidents import Incidents, merge
from tidemark.monitoring.observe_cluster import ClusterLook, look
from tidemark.monitoring.observer_state import Sightings
from tidemark.monitoring.overview import Overview
from tidemark.store import Store, clock, open_store, put_over
from tidemark.store.update import update
from tidemark.topics import Deployment

_NEVER: Final = datetime.fromtimestamp(0, UTC)

log = logging.getLogger(__name__)


class KnownIncidents(NamedTuple):
    """The incidents of a cluster and their object's ETag, None if there is none yet."""

    incidents: Incidents
    etag: str | None


def lake_store(deployment: Deployment) -> Store:
    """Where the incidents lie."""
    return open_store(deployment.lake_store, deployment.store)


def read_incidents(deployment: Deployment, cluster: str) -> KnownIncidents:
    """What is known. Raises FormatError if the object does not parse."""
    key = deployment.deployment_keys(cluster).incidents
    try:
        return KnownIncidents(*Incidents.load_version(lake_store(deployment), key))
    except NotFound:
        return KnownIncidents(Incidents(cluster=cluster, at=_NEVER), None)


def _read_to_change(deployment: Deployment, cluster: str) -> KnownIncidents:
    """As :func:`read_incidents`. One that does not parse is begun again: the open incidents are found, and told, again.

    Else nobody would be told of anything for as long as a person does not remove the object.
    """
    try:
        return read_incidents(deployment, cluster)
    except FormatError:
        log.exception("the incidents are begun again")
        store, key = lake_store(deployment), deployment.deployment_keys(cluster).incidents
        return KnownIncidents(Incidents(cluster=cluster, at=_NEVER), store.head(key).etag)


def change_incidents(deployment: Deployment, cluster: str, change: Callable[[Incidents], Incidents]) -> Incidents:
    """Apply ``change``, again if somebody else was faster; it must bear repetition.

    Raises:
        PreconditionFailed: others were faster every time.
    """
    store, key = lake_store(deployment), deployment.deployment_keys(cluster).incidents
    return update(store, key, lambda: _read_to_change(deployment, cluster), change, then="the next look tries again")


def compared(deployment: Deployment) -> clock.ClockReading | None:
    """This host's clock and that of the store that has the watermark indexes; None if that cannot be asked."""
    try:
        return clock.read(open_store(resolver_of(deployment.raw).default().store, deployment.store))
    except StoreError:
        log.warning("the store's clock cannot be asked for", exc_info=True)
        return None


def watch(deployment: Deployment, cluster: str, now: datetime) -> Incidents:
    """Look at ``cluster``, and record what has opened, changed and closed."""
    return record(deployment, cluster, look(deployment, cluster, read_sightings(deployment, cluster), now))


def record(deployment: Deployment, cluster: str, found: ClusterLook) -> Incidents:
    """Record what a look found, unless somebody has looked since: then that counts."""
    at = found.sightings.at

    def change(known: Incidents) -> Incidents:
        if known.at >= at:
            return known
        merged = merge(known.incidents, found.conditions, found.unknown, at)
        return known.model_copy(update={"at": at, "incidents": merged})

    after = change_incidents(deployment, cluster, change)
    if after.at == at:
        store, keys = lake_store(deployment), deployment.deployment_keys(cluster)
        sampled_at = overview.record(store, keys, overview_of(found.sightings), found.sightings.sampled_at)
        put_over(store, keys.sightings, found.sightings.model_copy(update={"sampled_at": sampled_at}).to_bytes())
    return after


def overview_of(sightings: Sightings) -> Overview:
    """How the topics are, by what was last read of each."""
    summaries = (one.summary for _, one in sorted(sightings.topics.items()) if one.summary is not None)
    return Overview(cluster=sightings.cluster, at=sightings.at, topics=tuple(summaries))


def read_sightings(deployment: Deployment, cluster: str) -> Sightings:
    """What the last look left; nothing, if it left none that can be read: it is a memory and no proof."""
    key = deployment.deployment_keys(cluster).sightings
    try:
        return Sightings.load(lake_store(deployment), key)
    except (NotFound, FormatError):
        return Sightings(cluster=cluster, at=_NEVER)
