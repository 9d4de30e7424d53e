"""The reachability of buckets, brokers and registries of the topics file, with these credentials."""

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
"""Returns kafka-python's settings for the brokers at an address."""

_SOME_NUMBER: Final = 1
"""Any schema number: a registry answers even if it does not have it."""


def reachability(deployment: Deployment, client_of: ClientOf) -> Iterator[Tried]:
    """The checks and their results, one after the other; nothing is written."""
    yield from _stores(deployment)
    for cluster in deployment.clusters:
        yield _brokers(cluster, deployment.bootstrap.get(cluster), client_of)
    yield from _registries(deployment)


def _stores(deployment: Deployment) -> Iterator[Tried]:
    resolver = resolver_of(deployment.raw)
    topics = (resolver.resolve(topic.cluster, topic.topic, 0) for topic in deployment.topics)
    places = {endpoint.store: endpoint.prefix for endpoint in (*topics, resolver.default())}
    for url, prefix in places.items():
        checks = [*try_store(url, deployment.store, prefix, writes=False)]
        yield from checks
        if not checks[-1].failed:
            yield Tried(f"put to {url}", "not tried", "agents write there: `tidemark-agent config check` tries it")
    folder = deployment.deployment_keys(deployment.clusters[0]).prefix
    yield from try_store(deployment.lake_store, deployment.store, folder, writes=True)


def _brokers(cluster: str, bootstrap: str | None, client_of: ClientOf) -> Tried:
    name = f"brokers of {cluster}"
    if bootstrap is None:
        return Tried(name, "not tried", "the topics file has no bootstrap for the cluster, and ingestion needs none")
    if find_spec("kafka") is None:
        return Tried(name, "not tried", "this environment has no kafka-python: tidemark-kafka[onboarding] brings it")
    from kafka.errors import KafkaError

    from tidemark.kafka_admin import AdminClient

    try:
        with closing(AdminClient(**client_of(bootstrap))) as admin:
            brokers = [broker["broker_id"] for broker in admin.describe_cluster()["brokers"]]
    except KafkaError as error:
        hint = "correct bootstrap, or name a file with the client's settings by --client-config"
        return Tried(name, "unknown", f"{bootstrap}: {error}; {hint}")
    return Tried(name, "yes", f"{bootstrap} names {', '.join(map(str, sorted(brokers)))}")


def _registries(deployment: Deployment) -> Iterator[Tried]:
    """The checks of registries; one that topics share is checked once."""
    done: set[str] = set()
    for topic in deployment.topics:
        registry, followed = registry_of(topic.parser), followed_by(topic.parser)
        if registry is None:
            continue
        name = f"registry {registry.url}" + (f", subject {followed.subject}" if followed else "")
        if name not in done:
            done.add(name)
            yield _registry(name, topic)


def _registry(name: str, topic: TopicSettings) -> Tried:
    from tidemark.parsers.schema_registry import SchemaRegistry
    from tidemark.planning.schema_following import KINDS

    registry, followed = registry_of(topic.parser), followed_by(topic.parser)
    assert registry is not None
    if registry.connection is not None:
        return Tried(name, "not tried", f"only Airflow and its jobs have its connection {registry.connection}")
    client = SchemaRegistry(registry, KINDS[topic.parser.kind], brief=True)
    try:
        if followed is not None:
            return Tried(name, "yes", f"its newest version is {client.newest(followed.subject).version}")
        client.find([_SOME_NUMBER])
    except (ConfigError, RegistryUnavailable) as error:
        return Tried(name, "no" if isinstance(error, ConfigError) else "unknown", str(error))
    return Tried(name, "yes", "it answers")
