"""Whether what the topics file names is there, and lets these credentials in: buckets, brokers, registries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from importlib.util import find_spec
from typing import Any, Final

from tidemark.endpoints import resolver_of
from tidemark.errors import ConfigError, RegistryUnavailable
from tidemark.parsers.settings import followed_by, registry_of
from tidemark.store.probe import Tried, try_store
from tidemark.topics import Deployment, TopicSettings

ClientOf = Callable[[str], Mapping[str, Any]]
"""Gives kafka-python's settings for the brokers at an address."""

_SOME_NUMBER: Final = 1
"""A registry answers whether it has a schema of this number or not."""


def reachability(deployment: Deployment, client_of: ClientOf) -> Iterator[Tried]:
    """What was tried, one after the other; nothing is written."""
    yield from _stores(deployment)
    for cluster in deployment.clusters:
        yield _brokers(cluster, deployment.bootstrap.get(cluster), client_of)
    yield from _registries(deployment)


def _stores(deployment: Deployment) -> Iterator[Tried]:
    resolver = resolver_of(deployment.raw)
    topics = (resolver.resolve(one.cluster, one.topic, 0) for one in deployment.topics)
    places = {one.store: one.prefix for one in (*topics, resolver.default())}
    for url, prefix in places.items():
        found = [*try_store(url, deployment.store, prefix, writes=False)]
        yield from found
        if not found[-1].failed:
            yield Tried(f"put to {url}", "not tried", "agents write there: `tidemark-agent config check` tries it")
    folder = deployment.deployment_keys(deployment.clusters[0]).prefix
    yield from try_store(deployment.lake_store, deployment.store, folder, writes=True)


def _brokers(cluster: str, bootstrap: str | None, client_of: ClientOf) -> Tried:
    what = f"brokers of {cluster}"
    if bootstrap is None:
        return Tried(what, "not tried", "the topics file has no bootstrap for the cluster, and ingestion needs none")
    if find_spec("kafka") is None:
        return Tried(what, "not tried", "this environment has no kafka-python: tidemark-kafka[onboarding] brings it")
    from kafka.errors import KafkaError

    from tidemark.kafka_admin import AdminClient

    try:
        with closing(AdminClient(**client_of(bootstrap))) as admin:
            found = [broker["broker_id"] for broker in admin.describe_cluster()["brokers"]]
    except KafkaError as error:
        hint = "correct bootstrap, or name a file with the client's settings by --client-config"
        return Tried(what, "unknown", f"{bootstrap}: {error}; {hint}")
    return Tried(what, "yes", f"{bootstrap} names {', '.join(map(str, sorted(found)))}")


def _registries(deployment: Deployment) -> Iterator[Tried]:
    """What topics share is tried once."""
    done: set[str] = set()
    for topic in deployment.topics:
        registry, followed = registry_of(topic.parser), followed_by(topic.parser)
        if registry is None:
            continue
        what = f"registry {registry.url}" + (f", subject {followed.subject}" if followed else "")
        if what not in done:
            done.add(what)
            yield _registry(what, topic)


def _registry(what: str, topic: TopicSettings) -> Tried:
    from tidemark.parsers.schema_registry import SchemaRegistry
    from tidemark.planning.schema_following import KINDS

    registry, followed = registry_of(topic.parser), followed_by(topic.parser)
    assert registry is not None
    if registry.connection is not None:
        return Tried(what, "not tried", f"only Airflow and its jobs have its connection {registry.connection}")
    client = SchemaRegistry(registry, KINDS[topic.parser.kind], brief=True)
    try:
        if followed is not None:
            return Tried(what, "yes", f"its newest version is {client.newest(followed.subject).version}")
        client.find([_SOME_NUMBER])
    except (ConfigError, RegistryUnavailable) as error:
        return Tried(what, "no" if isinstance(error, ConfigError) else "unknown", str(error))
    return Tried(what, "yes", "it answers")
