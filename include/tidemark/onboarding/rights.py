"""What the roles of a deployment may do, as far as that can be known without leaving anything behind.

Reading is tried with the credentials at hand. Writing is tried by a request that cannot succeed: to replace a version
of an object that does not exist. A store that lets us write answers that there is no such version; one that does not
says so. Other roles' rights follow from what they have written, or remain unknown.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final, Literal, NamedTuple

from tidemark.endpoints import resolver_of
from tidemark.errors import AccessDenied, FormatError, NeverSeen, NotFound, PreconditionFailed, Refused, StoreError
from tidemark.formats.keys import ControlKeys, TableKeys
from tidemark.inspection.agent_sightings import check_seen
from tidemark.store import Store, open_store
from tidemark.topics import Deployment, TopicSettings

Outcome = Literal["yes", "no", "unknown"]

_NO_VERSION: Final = '"00000000000000000000000000000000"'
"""An ETag that no object of the probe's key has, for there is no such object."""


class Right(NamedTuple):
    """Whether ``role`` may do ``what``; ``detail`` says how that is known, or what the store said."""

    role: str
    what: str
    outcome: Outcome
    detail: str


def rights(deployment: Deployment, topic: TopicSettings) -> Iterator[Right]:
    """The rights that ``topic`` needs."""
    raw = resolver_of(deployment.raw).resolve(topic.cluster, topic.topic, 0)
    control = ControlKeys(raw.prefix, topic.cluster)
    store = open_store(raw.store, deployment.store)
    yield _asked("reader, pipeline", f"list {store.url}", lambda: list(islice(store.list(control.indexes), 1)))
    yield _asked("reader, pipeline", f"get from {store.url}", lambda: _head(store, control.incarnations(topic.topic)))
    lake, keys = open_store(deployment.lake_store, deployment.store), deployment.table_keys(topic)
    yield _asked("pipeline", f"list {lake.url}", lambda: list(islice(lake.list(f"{keys.root}/"), 1)))
    yield _asked("pipeline", f"get from {lake.url}", lambda: _head(lake, _probe(keys)))
    yield _asked("pipeline", f"put to {lake.url}/{keys.root}", lambda: _put_nothing(lake, _probe(keys)))
    yield _agents(deployment, topic)
    yield Right("maintenance, retention", "delete", "unknown", "cannot be checked without deleting something")


def _probe(keys: TableKeys) -> str:
    """A key of nobody in the table's folder."""
    return f"{keys.root}/_probe/{secrets.token_hex(16)}"


def _head(store: Store, key: str) -> None:
    with suppress(NotFound):  # the answer of a store that lets us look
        store.head(key)


def _put_nothing(store: Store, key: str) -> None:
    """Raises BucketMissing where the answer would be that of any bucket."""
    try:
        store.put(key, b"", if_match=_NO_VERSION)
    except (
        PreconditionFailed
    ):  # the answer of a store that would let us write, or of one that looks at conditions first
        with suppress(AccessDenied):
            next(iter(store.list(key)), None)
    else:
        store.delete(key)  # this store does not know the condition


def _asked(role: str, what: str, ask: Callable[[], object]) -> Right:
    try:
        ask()
    except Refused as error:
        return Right(role, what, "no", error.reason)
    except StoreError as error:
        return Right(role, what, "unknown", error.reason)
    return Right(role, what, "yes", "tried with the credentials of this command")


def _agents(deployment: Deployment, topic: TopicSettings) -> Right:
    what = "put segments of the topic"
    try:
        check_seen(deployment, topic)
    except NeverSeen as error:
        return Right("agent", what, "unknown", str(error))
    except (StoreError, FormatError) as error:
        return Right("agent", what, "unknown", f"what the agents wrote cannot be read: {error}")
    return Right("agent", what, "yes", "an agent has reported the topic")
