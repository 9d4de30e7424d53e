"""The names of datasets, following OpenLineage's conventions (https://openlineage.io/docs/spec/naming).

A dataset with a location is named after it, a table too; a table's names in catalogs are its symlinks. So programs that
read files and programs that read the table by name mean the same dataset, in the reports of any integration.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from tidemark.catalogs import CatalogSettings, catalog_table
from tidemark.endpoints import resolver_of
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.lineage import Dataset
from tidemark.openlineage import facets
from tidemark.topics import Deployment, TopicSettings

_ACCOUNT: Final = "AZURE_STORAGE_ACCOUNT_NAME"


def at(url: str, **more: object) -> Dataset:
    """The dataset at the URL of a store, such as ``s3://lake/tables/orders``."""
    parts = urlsplit(url)
    namespace, name = f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")
    if parts.scheme == "file":
        namespace, name = "file", parts.path
    elif parts.scheme == "az":
        # Without the account the name differs from the one in other programs, and still is always the same.
        host = f"@{os.environ[_ACCOUNT]}.dfs.core.windows.net" if os.environ.get(_ACCOUNT) else ""
        namespace = f"abfss://{parts.netloc}{host}"
    return Dataset.model_validate({"namespace": namespace, "name": name or "/", **more})


def kafka_topic(deployment: Deployment, topic: TopicSettings) -> Dataset:
    """The topic in Kafka, named after its cluster's address, or after the cluster if the file has no address."""
    place = deployment.bootstrap.get(topic.cluster, topic.cluster)
    return Dataset(namespace=f"kafka://{place}", name=topic.topic)


def raw_topic(deployment: Deployment, topic: TopicSettings) -> Dataset:
    """The stored segments of the topic. With entropy, their folders lie in many places and have one name."""
    endpoint = resolver_of(deployment.raw).resolve(topic.cluster, topic.topic, 0)
    return at("/".join(part for part in (endpoint.store, endpoint.prefix, topic.cluster, topic.topic) if part))


def packs_of(deployment: Deployment, topic: TopicSettings) -> Dataset:
    """The packs with the newest batches of the topic, which also hold batches of other topics."""
    endpoint = resolver_of(deployment.raw).resolve(topic.cluster, topic.topic, 0)
    return packs(endpoint.store, endpoint.prefix, topic.cluster)


def packs(store: str, prefix: str, cluster: str) -> Dataset:
    """The packs of a cluster in a store and prefix."""
    return at(f"{store}/{ControlKeys(prefix, cluster).tails}")


def table(deployment: Deployment, topic: TopicSettings) -> Dataset:
    """The topic's table, named after its location; its names in catalogs are facets."""
    named = [name for catalog in deployment.catalogs_of(topic) for name in _names(catalog, topic)]
    url = f"{deployment.lake_store}/{deployment.table_keys(topic).root}"
    return at(url, facets=facets.table_storage() | facets.symlinks(named))


def quarantine(deployment: Deployment, topic: TopicSettings) -> Dataset:
    """The rows that the topic's parser refused."""
    return at(f"{deployment.lake_store}/{deployment.table_keys(topic).quarantine}")


def _names(catalog: CatalogSettings, topic: TopicSettings) -> Iterator[tuple[str, str]]:
    """(namespace, name) of the table in ``catalog``; none if the name that other programs use is not known.

    A catalog in a SQL database has no name that integrations agree on.
    """
    name = catalog_table(topic.table)
    if catalog.kind == "glue":
        region, account = (catalog.properties.get(f"glue.{key}") for key in ("region", "id"))
        if region and account:
            yield f"arn:aws:glue:{region}:{account}", f"table/{catalog.namespace}/{name}"
    elif catalog.uri and catalog.kind == "hive":
        yield f"hive://{urlsplit(catalog.uri.partition(',')[0]).netloc}", f"{catalog.namespace}.{name}"
    elif catalog.uri and catalog.kind == "rest":
        yield catalog.uri.rstrip("/"), f"{catalog.namespace}.{name}"
