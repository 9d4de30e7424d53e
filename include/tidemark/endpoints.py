"""The store and prefix of a partition's segments: one pluggable seam for agent, Spark and consumer.

:class:`EndpointSettings` have one endpoint and overrides per topic. A deployment with rules of its own names a factory
as ``module:function`` in ``endpoints.resolver``; it is called with the settings and returns an
:class:`EndpointResolver`.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Annotated, Protocol

from pydantic import AfterValidator, Field, field_validator

from tidemark.config import ObjectName, Settings, imported
from tidemark.errors import FormatError
from tidemark.formats.keys import Endpoint, check_topic
from tidemark.store.options import StoreOptions
from tidemark.store.schemes import SCHEMES, check_options, scheme_of, split_store_url


class EndpointResolver(Protocol):
    """A lookup of endpoints. It must always give the same answer to the same question."""

    def default(self) -> Endpoint:
        """The endpoint of the deployment's ``_…`` objects."""
        ...

    def resolve(self, cluster: str, topic: str, partition: int) -> Endpoint:
        """The endpoint of the segments of this partition."""
        ...


def _check_url(url: str, *, any_scheme: bool = False) -> str:
    try:
        split_store_url(url, any_scheme=any_scheme)
    except FormatError as error:
        raise ValueError(error.rule) from error
    return url


StoreUrl = Annotated[str, AfterValidator(_check_url)]
"""A URL of :data:`tidemark.store.schemes.SCHEMES`, such as ``s3://bucket[/prefix]`` or ``file:///directory``."""

RawUrl = Annotated[str, AfterValidator(partial(_check_url, any_scheme=True))]
"""A :data:`StoreUrl`, or a URL of another scheme, which ``store.backend`` then has to serve."""


class EndpointOverride(Settings):
    """The settings of one topic that differ from the default."""

    url: RawUrl | None = None
    entropy_bits: int | None = Field(default=None, ge=0, le=128)


class EndpointSettings(Settings):
    """The default endpoint, and the topics' exceptions. ``url`` is a :data:`StoreUrl` or a URL of ``store.backend``.

    It is the :class:`EndpointResolver` where no ``resolver`` is named.
    """

    url: RawUrl
    entropy_bits: int = Field(default=0, ge=0, le=128)
    topics: dict[str, EndpointOverride] = Field(default_factory=dict)
    resolver: ObjectName | None = None

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: dict[str, EndpointOverride]) -> dict[str, EndpointOverride]:
        for name in topics:
            check_topic(name)
        return topics

    def default(self) -> Endpoint:
        """The endpoint of the deployment's ``_…`` objects."""
        return _endpoint(self.url, self.entropy_bits)

    def resolve(self, cluster: str, topic: str, partition: int) -> Endpoint:
        """The topic's own endpoint, else the default."""
        override = self.topics.get(topic) or EndpointOverride()
        bits = self.entropy_bits if override.entropy_bits is None else override.entropy_bits
        return _endpoint(override.url or self.url, bits)


def check_served(settings: EndpointSettings, options: StoreOptions, lake: str | None = None) -> None:
    """Check that there is a store for each URL, and that each option applies to it. Raises ValueError naming both."""
    of_raw = [settings.url, *(topic.url for topic in settings.topics.values() if topic.url is not None)]
    urls = [(f"raw: {url}", url) for url in of_raw]
    if lake is not None:
        urls.append((f"lake: {lake}", lake))
    for field, url in urls:
        try:
            split_store_url(url, any_scheme=options.backend is not None)
            check_options(url, options)
        except FormatError as error:
            raise ValueError(f"{field}: {error.rule}") from error
    served = sorted({scheme for _, url in urls if (scheme := scheme_of(url)) in SCHEMES} - {"file"})
    if options.endpoint_url is not None and len(served) > 1:
        raise ValueError(
            f"store.endpoint_url is one server, and cannot serve both {' and '.join(served)}; leave it out"
        )


def resolver_of(settings: EndpointSettings) -> EndpointResolver:
    """The resolver that the settings name, or the default. Raises ConfigError if its factory cannot be imported."""
    if settings.resolver is None:
        return settings
    factory = imported(settings.resolver)
    resolver: EndpointResolver = factory(settings)
    return resolver


@cache  # it is asked for with each object, and a deployment has few
def _endpoint(url: str, bits: int) -> Endpoint:
    store, prefix = split_store_url(url, any_scheme=True)
    return Endpoint(store, prefix, bits)
