"""Rights of a deployment's roles, as far as they can be found out without leaving anything behind.

The rights of these credentials are tried. Other roles' rights follow from objects they have written, or are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemark.errors import FormatError, NeverSeen, StoreError
from tidemark.inspection.agent_sightings import check_seen
from tidemark.storage import Storage
from tidemark.store import open_store
from tidemark.store.probe import Outcome, Tried, probe_key, try_to_get, try_to_list, try_to_put
from tidemark.topics import Deployment, TopicSettings


class Right(NamedTuple):
    """A right of ``role``; ``outcome`` says if it has it, ``detail`` how that is known, or the store's answer."""

    role: str
    what: str
    outcome: Outcome
    detail: str


def rights(deployment: Deployment, topic: TopicSettings) -> Iterator[Right]:
    """The rights that ``topic`` needs."""
    storage = Storage(topic.cluster, deployment.raw, deployment.store)
    cluster = storage.cluster_store(storage.endpoint(topic.topic, 0))
    yield _of("reader, pipeline", try_to_list(cluster.store, cluster.keys.indexes))
    yield _of("reader, pipeline", try_to_get(cluster.store, cluster.keys.incarnations(topic.topic)))
    lake, folder = open_store(deployment.lake_store, deployment.store), deployment.table_keys(topic).root
    yield _of("pipeline", try_to_list(lake, f"{folder}/"))
    yield _of("pipeline", try_to_get(lake, probe_key(folder)))
    yield _of("pipeline", try_to_put(lake, folder))
    yield _agents(deployment, topic)
    yield Right("maintenance, retention", "delete", "unknown", "cannot be checked without deleting something")


def _of(role: str, tried: Tried) -> Right:
    return Right(role, *tried)


def _agents(deployment: Deployment, topic: TopicSettings) -> Right:
    right = "put segments of the topic"
    try:
        check_seen(deployment, topic)
    except NeverSeen as error:
        return Right("agent", right, "unknown", str(error))
    except (StoreError, FormatError) as error:
        return Right("agent", right, "unknown", f"what the agents wrote cannot be read: {error}")
    return Right("agent", right, "yes", "an agent has reported the topic")
