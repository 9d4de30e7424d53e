"""Locates a cluster's partitions, and opens each of their stores once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tidemark.endpoints import EndpointResolver, EndpointSettings, resolver_of
from tidemark.errors import ConfigError
from tidemark.formats.keys import Endpoint, check_cluster
from tidemark.store import Store, StoreOptions, open_store
from tidemark.topics import load_topics


class Storage:
    """A cluster's remote tier: endpoints and stores. Thread-safe.

    A topic can be read even if the topics file does not name it: the endpoints answer for any topic.

    >>> Storage.from_topics("topics.yaml").cluster
    'east'
    >>> Storage.at("s3://raw/tidemark", "east", entropy_bits=5).cluster
    'east'

    Raises:
        ValueError: ``cluster`` is not valid in a key.
        ConfigError: the resolver that the settings name cannot be imported.
    """

    def __init__(
        self, cluster: str, endpoints: EndpointSettings | EndpointResolver, options: StoreOptions | None = None
    ) -> None:
        """Start with no store opened."""
        self.cluster = check_cluster(cluster)
        self.options = options or StoreOptions()
        self._resolver = resolver_of(endpoints) if isinstance(endpoints, EndpointSettings) else endpoints
        self._stores: dict[str, Store] = {}
        self._open: Callable[[str], Store] = lambda url: open_store(url, self.options)
        self._lock = threading.Lock()

    @classmethod
    def from_topics(cls, path: str | Path, cluster: str | None = None) -> Self:
        """The remote tier of a topics file; ``cluster`` is needed only if its topics name several.

        Raises:
            ConfigError: the file is invalid, or has several clusters and ``cluster`` is not given.
        """
        deployment = load_topics(Path(path))
        known = deployment.clusters
        if cluster is None:
            if len(known) != 1:
                rule = f"name {len(known)} clusters ({', '.join(known)}): say which one to read"
                raise ConfigError(str(path), [("topics", rule)])
            cluster = known[0]
        return cls(cluster, deployment.raw, deployment.store)

    @classmethod
    def at(cls, url: str, cluster: str, *, entropy_bits: int = 0, options: StoreOptions | None = None) -> Self:
        """The remote tier below ``url``, such as ``s3://bucket[/prefix]`` or ``file:///directory``.

        Raises:
            pydantic.ValidationError: naming the argument and the rule that it breaks.
        """
        return cls(cluster, EndpointSettings(url=url, entropy_bits=entropy_bits), options)

    def through(self, wrap: Callable[[Store], Store]) -> Storage:
        """This remote tier, with each store wrapped by ``wrap``."""
        wrapped = Storage(self.cluster, self._resolver, self.options)
        wrapped._open = lambda url: wrap(self.store(url))
        return wrapped

    def default(self) -> Endpoint:
        """The place of the deployment's ``_…`` objects."""
        return self._resolver.default()

    def endpoint(self, topic: str, partition: int) -> Endpoint:
        """The place of a partition's segments."""
        return self._resolver.resolve(self.cluster, topic, partition)

    def store(self, url: str) -> Store:
        """The store at ``url``, opened at the first call."""
        with self._lock:
            if url not in self._stores:
                self._stores[url] = self._open(url)
            return self._stores[url]
