"""Which store and prefix a partition's segments go to: one pluggable seam for agent, Spark and consumer.

The default :class:`ConfiguredEndpoints` has one endpoint and overrides per topic. A deployment with rules of its
own names a factory as ``module:function`` in ``endpoints.resolver``; it is called with the settings and returns an
:class:`EndpointResolver`.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Protocol

from pydantic import AfterValidator, Field, field_validator

from tidemark.config import ObjectName, Settings, imported
from tidemark.errors import FormatError
from tidemark.formats.keys import Endpoint, check_topic
from tidemark.store.options import StoreOptions
from tidemark.store.url import split_store_url


class EndpointResolver(Protocol):
    """Answers where things lie; the same answer for the same question, always."""

    def default(self) -> Endpoint:
        """Where the ``_…`` objects of the deployment lie."""
        ...

    def resolve(self, cluster: str, topic: str, partition: int) -> Endpoint:
        """Where the segments of this partition lie."""
        ...


def _check_url(url: str, *, any_scheme: bool = False) -> str:
    try:
        split_store_url(url, any_scheme=any_scheme)
    except FormatError as error:
        raise ValueError(error.rule) from error
    return url


StoreUrl = Annotated[str, AfterValidator(_check_url)]
"""``s3://bucket[/prefix]`` or ``file:///directory``."""

RawUrl = Annotated[str, AfterValidator(partial(_check_url, any_scheme=True))]
"""A :data:`StoreUrl`, or one of another scheme, which ``store.backend`` then has to serve."""


class EndpointOverride(Settings):
    """What differs from the default for one topic."""

    url: RawUrl | None = None
    entropy_bits: int | None = Field(default=None, ge=0, le=128)


class EndpointSettings(Settings):
    """``url`` is ``s3://bucket[/prefix]`` or ``file:///directory``, or what ``store.backend`` understands."""

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


def check_served(settings: EndpointSettings, options: StoreOptions) -> None:
    """Check that each URL is of a scheme for which there is a store.

    Raises:
        ValueError: naming the URL that is not.
    """
    for url in (settings.url, *(one.url for one in settings.topics.values() if one.url is not None)):
        try:
            split_store_url(url, any_scheme=options.backend is not None)
        except FormatError as error:
            raise ValueError(f"raw: {error}") from error


class ConfiguredEndpoints:
    """The default resolver."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self._default = _endpoint(settings.url, settings.entropy_bits)

    def default(self) -> Endpoint:
        """See :class:`EndpointResolver`."""
        return self._default

    def resolve(self, cluster: str, topic: str, partition: int) -> Endpoint:
        """See :class:`EndpointResolver`."""
        override = self._settings.topics.get(topic)
        if override is None:
            return self._default
        base = self._settings
        bits = base.entropy_bits if override.entropy_bits is None else override.entropy_bits
        return _endpoint(override.url or base.url, bits)


def resolver_of(settings: EndpointSettings) -> EndpointResolver:
    """The resolver that the settings name, or the default one.

    Raises:
        FormatError: the named factory cannot be imported.
    """
    if settings.resolver is None:
        return ConfiguredEndpoints(settings)
    factory = imported(settings.resolver)
    resolver: EndpointResolver = factory(settings)
    return resolver


def _endpoint(url: str, bits: int) -> Endpoint:
    store, prefix = split_store_url(url, any_scheme=True)
    return Endpoint(store, prefix, bits)
